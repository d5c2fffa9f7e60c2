"""Verdicts on honest answers to HumanEval+ and MBPP+, by greenward and by EvalPlus 0.3.1, in one run.

    .venv/bin/python benchmarks/evalplus_agreement.py --peers-python PATH/TO/EVALPLUS/VENV/bin/python

The answers are every reference, references with one bug, and references whose returned value is changed
(another type, a number nearby, an element more …); drawn by the seed. Where EvalPlus's own rules decide
(sets, "not None", floats), all changes are tried. EvalPlus has its usual limits, as its command line has.

Answers on which the two differ are judged once more, alone, and by EvalPlus a third time with other
limits of time and memory. What then still differs must be explained in `evalplus_differences.yaml`: an
unexplained difference makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from evalplus_mutants import Answer, bugs, other_values
from evalplus_runs import EvalPlus, Statuses
from greenward.grading.judge import Grader
from greenward.grading.verdict import Verdict
from greenward.problems.catalog import load_file
from greenward.problems.problem import Problem, ProblemSet

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "shared" / "data" / "evalplus"
EXPLANATIONS = HERE / "evalplus_differences.yaml"
FILES = {"humaneval+": "HumanEvalPlus.jsonl.gz", "mbpp+": "MbppPlus.jsonl.gz"}
WORKERS = 2
GENEROUS = {"min_time_limit": 30.0, "memory_bytes": 16 << 30}
GROUPS = ("reference", "bug", "returned")  # of kinds, by what they begin with


@dataclass(frozen=True)
class Judged:
    """What both say of one answer, whether it passes the original tests and whether it passes all."""

    ours: tuple[bool, bool]
    theirs: tuple[bool, bool]
    status: str
    first_failure: str
    their_statuses: tuple[str, str]

    @property
    def differs(self) -> bool:
        return self.ours != self.theirs

    @property
    def accepted_by(self) -> str:
        """Who accepts more, where they differ."""
        return "greenward" if self.ours > self.theirs else "EvalPlus"


def main() -> int:
    arguments = parse_arguments()
    explanations = yaml.safe_load(EXPLANATIONS.read_text(encoding="utf-8"))
    if arguments.explain:
        record = json.loads(arguments.explain.read_text(encoding="utf-8"))
    else:
        record = judge_all(arguments)
    for found in record["differences"]:
        found["explanation"] = explain(found, explanations)
    path = arguments.json or arguments.explain
    if path:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for suite, table in record["suites"].items():
        print_counts(suite, table)
    for found in record["differences"]:
        print_difference(found)
    unexplained = sum(found["explanation"] is None for found in record["differences"])
    total = sum(table["all"]["answers"] for table in record["suites"].values())
    print(f"\n{total} answers; {len(record['differences'])} differences, {unexplained} of them unexplained")
    return 1 if unexplained else 0


def judge_all(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record of a run, its differences yet to be explained."""
    suites, differences = {}, []
    with tempfile.TemporaryDirectory() as folder, Grader(workers=WORKERS) as grader:
        evalplus = EvalPlus(arguments.peers_python, arguments.data.resolve(), Path(folder))
        for suite in arguments.suites:
            problems = grader.complete(load_file(arguments.data / FILES[suite]))
            evalplus.expected_values(suite)
            answers = draw(problems[:: arguments.every], arguments)
            began = time.perf_counter()
            judged = judge(suite, problems, answers, grader, evalplus, WORKERS)
            pairs = list(zip(answers, judged, strict=True))
            suites[suite] = counts(pairs) | {"seconds": time.perf_counter() - began}
            print(f"{suite}: {len(answers)} answers judged by both", flush=True)
            differing = [(answer, one) for answer, one in pairs if one.differs]
            differences += examine(suite, problems, differing, grader, evalplus)
    return {
        "made_with": {
            "evalplus": "0.3.1",
            "python": platform.python_version(),
            "seed": arguments.seed,
            "changed_values": arguments.changed_values,
            "bugs": arguments.bugs,
            "every": arguments.every,
        },
        "suites": suites,
        "differences": differences,
    }


def parse_arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--peers-python", help="interpreter of an environment with EvalPlus")
    source.add_argument("--explain", type=Path, help="a record kept with --json: judge nothing, explain it")
    parser.add_argument("--data", type=Path, default=DATA, help=f"folder with {' and '.join(FILES.values())}")
    parser.add_argument("--suites", nargs="+", choices=list(FILES), default=list(FILES))
    parser.add_argument("--changed-values", type=int, default=2, help="of each reference")
    parser.add_argument("--bugs", type=int, default=1, help="in each reference")
    parser.add_argument("--every", type=int, default=1, help="only the answers to every n-th problem")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all numbers here")
    return parser.parse_args()


def draw(problems: ProblemSet, arguments: argparse.Namespace) -> list[Answer]:
    """The answers to judge, each program once for its task."""
    answers = []
    for problem in problems:
        about = (problem.task_id, problem.reference)
        answers += [
            Answer(problem.task_id, "reference", problem.reference),
            *bugs(*about, arguments.bugs, arguments.seed),
            *other_values(
                *about,
                problem.entry_point,
                returned_by(problem),
                len(problem.reference) if has_rules(problem) else arguments.changed_values,
                arguments.seed,
            ),
        ]
    return list({(answer.task_id, answer.code): answer for answer in reversed(answers)}.values())[::-1]


def returned_by(problem: Problem) -> Any:
    """A value of the type that the reference returns; problems with an oracle return numbers."""
    values = [case.expected for case in problem.cases] or [0]
    return next((value for value in values if value is not None), None)


def has_rules(problem: Problem) -> bool:
    """Whether EvalPlus judges it by more than equality."""
    value = returned_by(problem)
    inner = next(iter(value), None) if isinstance(value, (list, tuple)) else value
    return problem.comparison.rule != "equal" or isinstance(inner, float) or not problem.cases


def judge(
    suite: str,
    problems: ProblemSet,
    answers: Sequence[Answer],
    grader: Grader,
    evalplus: EvalPlus,
    workers: int,
    **limits: Any,
) -> list[Judged]:
    """What both say, one after the other. `limits` are EvalPlus's."""
    verdicts = grader.grade([(problems.by_id(answer.task_id), answer.code) for answer in answers])
    asked = {answer.task_id for answer in answers}
    others = [(problem.task_id, "pass") for problem in problems if problem.task_id not in asked]
    programs = [(answer.task_id, answer.code) for answer in answers]
    statuses, _ = evalplus.evaluate(suite, programs + others, workers, **limits)
    return [
        compare(problems.by_id(answer.task_id), verdict, status)
        for answer, verdict, status in zip(answers, verdicts, statuses, strict=False)
    ]


def compare(problem: Problem, verdict: Verdict, theirs: Statuses) -> Judged:
    base = verdict.tests_passed[: problem.base_tests]
    return Judged(
        ours=(bool(base) and all(base), verdict.passed),
        theirs=(theirs.base_passed, theirs.passed),
        status=verdict.status.value,
        first_failure=verdict.first_failure,
        their_statuses=(theirs.base, theirs.plus),
    )


def examine(
    suite: str,
    problems: ProblemSet,
    differing: Sequence[tuple[Answer, Judged]],
    grader: Grader,
    evalplus: EvalPlus,
) -> list[dict[str, Any]]:
    """The differences as records, with what both say of each answer alone."""
    if not differing:
        return []
    answers = [answer for answer, _ in differing]
    alone = judge(suite, problems, answers, grader, evalplus, 1)
    unhurried = judge(suite, problems, answers, grader, evalplus, 1, **GENEROUS)
    return [
        {
            "task_id": answer.task_id,
            "kind": answer.kind,
            "accepted_by": first.accepted_by,
            "judged": asdict(first),
            "judged_alone": asdict(again),
            "judged_with_more_time_and_memory": asdict(last),
            "code": answer.code,
        }
        for (answer, first), again, last in zip(differing, alone, unhurried, strict=True)
    ]


def explain(found: dict[str, Any], explanations: Sequence[dict[str, Any]]) -> str | None:
    """Why the two differ on an answer; None if nobody knows."""
    alone = found["judged_alone"]
    if alone["ours"] == alone["theirs"]:
        return "Judged alone, the two agree: the machine was too busy for a limit of time."
    for entry in explanations:
        if (
            found["task_id"] in entry["tasks"]
            and found["kind"] in entry.get("kinds", [found["kind"]])
            and found["accepted_by"] == entry["accepted_by"]
        ):
            return str(entry["why"])
    return None


def counts(pairs: Sequence[tuple[Answer, Judged]]) -> dict[str, Any]:
    """By group and by kind: answers, those that pass, and those on which both agree."""
    table: dict[str, Counter[str]] = {}
    for answer, judged in pairs:
        group = answer.kind.partition(":")[0]
        for row in ("all", group, *([answer.kind] if answer.kind != group else [])):
            table.setdefault(row, Counter()).update(
                {
                    "answers": 1,
                    "passed_here": judged.ours[1],
                    "passed_evalplus": judged.theirs[1],
                    "agree_base": judged.ours[0] == judged.theirs[0],
                    "agree_plus": judged.ours[1] == judged.theirs[1],
                }
            )
    return {row: dict(table[row]) for row in sorted(table)}


def print_counts(suite: str, table: dict[str, Any]) -> None:
    print(f"\n{suite:14}{'answers':>9}{'pass here':>11}{'EvalPlus':>10}{'agree, base':>13}{'plus':>7}")
    for row in (row for row in (*GROUPS, "all") if row in table):
        print(
            f"{row:14}"
            + "".join(f"{n:>{w}}" for n, w in zip(table[row].values(), (9, 11, 10, 13, 7), strict=True))
        )
    print(f"{table['seconds']:.0f} s", flush=True)


def print_difference(found: dict[str, Any]) -> None:
    alone = found["judged_alone"]
    more = found["judged_with_more_time_and_memory"]["their_statuses"]
    print(
        f"{found['task_id']}, {found['kind']}: greenward {alone['status']}, EvalPlus "
        f"{'/'.join(alone['their_statuses'])} ({'/'.join(more)} with more time and memory)\n"
        f"    {found['explanation'] or 'UNEXPLAINED'}\n    {alone['first_failure'][:200]}",
        flush=True,
    )


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
