"""Grades the reference solutions of all public suites, and QuixBugs' buggy programs, in the sandbox.

    GREENWARD_DATA=../shared/data python benchmarks/verify_suites.py [SUITE …] [--workers 2] [--json FILE]

A suite whose files are not found is skipped and said to be. Exits with 1 when a reference fails, or
when a buggy program passes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path

from greenward.common.errors import ProblemError
from greenward.grading.judge import Grader, with_expected_values
from greenward.grading.verdict import Verdict
from greenward.problems.catalog import SUITES, find_file, load_suite
from greenward.problems.formats import load_challenge_tests
from greenward.problems.problem import Problem, ProblemSet
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Limits

# For suites without times of their own; a loaded machine must not turn references into timeouts.
LIMITS = Limits(cpu_seconds=20.0, wall_seconds=90.0)
Answer = tuple[Problem, str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", default=list(SUITES), metavar="SUITE")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where to write the table")
    options = parser.parse_args()
    for name in options.suites:
        if name.partition(":")[0] not in SUITES:
            (nearest,) = get_close_matches(name, SUITES, n=1, cutoff=0)
            parser.exit(2, f"no suite is called {name!r}; the nearest is {nearest}\n")
    rows = []
    print(f"{'':24} {'passed':>11} {'left out':>9} {'seconds':>8}")
    for name in options.suites:
        for what, must_pass, answers in tasks(name, options.workers):
            rows.append(grade(what, must_pass, answers, options.workers))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["as_expected"] for row in rows) else 1


def tasks(name: str, workers: int) -> Iterator[tuple[str, bool, list[Answer]]]:
    """(what is graded, whether all must pass, the answers) for each row of the table."""
    try:
        problems = load_suite(name)
    except ProblemError as error:
        print(f"{name:24} skipped: {error.message}")
        return
    with LocalExecutor(workers) as executor:
        problems = with_expected_values(problems, executor)
    yield name, True, references(problems, lambda problem: problem.tags != ("graph",))
    if name == "mbpp":
        challenge = load_challenge_tests(find_file(name, SUITES[name]))
        plain = {problem.task_id: problem.tests for problem in problems}
        harder = references(challenge, lambda problem: problem.tests != plain[problem.task_id])
        yield "mbpp, challenge tests", True, harder
    if name == "quixbugs":
        yield "quixbugs, graphs", True, references(problems, lambda problem: problem.tags == ("graph",))
        yield "quixbugs, with the bug", False, [(p, p.buggy_code) for p in problems]


def references(problems: ProblemSet, keep: Callable[[Problem], bool]) -> list[Answer]:
    return [(problem, problem.reference) for problem in problems if keep(problem)]


def grade(what: str, must_pass: bool, answers: list[Answer], workers: int) -> dict[str, object]:
    """Grade, print one row and the answers that fared otherwise than they must."""
    started = time.perf_counter()
    with Grader(LIMITS if must_pass else Limits(), workers=workers, by_suite=must_pass) as grader:
        verdicts = grader.grade(answers)
    seconds = time.perf_counter() - started
    passed = sum(verdict.passed for verdict in verdicts)
    left_out = sum(problem.tests_left_out for problem, _ in answers)
    print(f"{what:24} {f'{passed}/{len(answers)}':>11} {left_out:>9} {seconds:>8.1f}", flush=True)
    wrong = [
        (problem.task_id, describe(verdict))
        for (problem, _), verdict in zip(answers, verdicts, strict=True)
        if verdict.passed != must_pass or verdict.status.value == "infrastructure"
    ]
    for task_id, reason in wrong:
        print(f"  {task_id}: {reason}")
    return {
        "what": what,
        "passed": passed,
        "of": len(answers),
        "tests_left_out": left_out,
        "seconds": round(seconds, 1),
        "wrong": dict(wrong),
        "as_expected": not wrong,
    }


def describe(verdict: Verdict) -> str:
    return f"{verdict.status.value}. {verdict.first_failure or verdict.error_message}"


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
