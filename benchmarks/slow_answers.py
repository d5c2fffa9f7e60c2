"""CPU time to judge answers of which a few never end, with and without limits for each test.

    GREENWARD_DATA=../shared/data python benchmarks/slow_answers.py [SUITE] [--loops 7] [--json FILE]

The answers are the references of the suite and `--loops` answers that loop for ever on the middle test of
a problem, spread over the suite. They are judged twice: with 10 CPU seconds for an answer (what
`--timeout 10` means), and with the suite's own times, max(1 s, 4 x reference) for a test. CPU time is
that of the answers' processes, which other load on the machine hardly changes.

Then the longest problem: the CPU time of its reference, in how many jobs it is judged, and how long the
longest of these is, which is what remains of it when there are workers enough.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from greenward.grading.judge import Grader, make_jobs
from greenward.grading.testcases import make_plan
from greenward.grading.verdict import Verdict
from greenward.problems.catalog import load_suite
from greenward.problems.problem import Problem, ProblemSet
from greenward.sandbox.protocol import Limits

LIMITS = Limits(cpu_seconds=10.0, wall_seconds=300.0)  # the wall clock matters on an idle machine only
_LOOP = """
_answer, _calls = {name}, []

def {name}(*arguments):
    _calls.append(1)
    while len(_calls) > {after}: pass
    return _answer(*arguments)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", nargs="?", default="humaneval+")
    parser.add_argument("--loops", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    options = parser.parse_args()
    record: dict[str, Any] = {"suite": options.suite, "loops": options.loops}
    with Grader(LIMITS, workers=options.workers, by_suite=True) as grader:
        problems = grader.complete(load_suite(options.suite))
        answers = [(problem, problem.reference) for problem in problems] + loops(problems, options.loops)
        with grader.with_limits(LIMITS) as whole:
            record["10 s per answer"] = measured(whole.grade(answers), options.loops)
        record["times of the suite"] = measured(grader.grade(answers), options.loops)
    record["ratio"] = round(record["10 s per answer"]["cpu_s"] / record["times of the suite"]["cpu_s"], 2)
    record["longest problem"] = longest(problems)
    for name, value in record.items():
        print(f"{name:20} {value}")
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if record["times of the suite"]["passed"] == len(problems) else 1


def loops(problems: ProblemSet, count: int) -> list[tuple[Problem, str]]:
    """Answers that are right on the first half of the tests and then loop."""
    asked = [problem for problem in problems if len(problem.cases) > 1]
    chosen = asked[:: max(1, len(asked) // count)][:count] if count else []
    return [
        (
            problem,
            problem.reference + _LOOP.format(name=problem.entry_point, after=len(problem.cases) // 2),
        )
        for problem in chosen
    ]


def measured(verdicts: list[Verdict], loops: int) -> dict[str, Any]:
    references, looping = verdicts[: len(verdicts) - loops], verdicts[len(verdicts) - loops :]
    return {
        "cpu_s": round(sum(one.cpu_seconds for one in verdicts), 1),
        "of which loops": round(sum(one.cpu_seconds for one in looping), 1),
        "passed": sum(one.passed for one in references),
        "of": len(references),
        "timeouts": sum(one.status.value == "timeout" for one in looping),
    }


def longest(problems: ProblemSet) -> dict[str, Any]:
    problem = max(problems, key=lambda one: sum(one.reference_seconds))
    jobs = make_jobs(make_plan(problem), problem, problem.reference, LIMITS, by_suite=True)
    times, parts = list(problem.reference_seconds), []
    for job in jobs:
        parts.append(sum(times[: len(job.calls)]))
        del times[: len(job.calls)]
    return {
        "task_id": problem.task_id,
        "reference_s": round(sum(parts), 1),
        "share_of_suite": round(sum(parts) / sum(sum(one.reference_seconds) for one in problems), 2),
        "jobs": len(jobs),
        "longest_job_s": round(max(parts), 1),
    }


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
