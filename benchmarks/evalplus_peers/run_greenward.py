"""The references of a suite graded by this repository's grader, measured from within.

    run_greenward.py expected SUITE WORKERS
    run_greenward.py evaluate SUITE WORKERS

Prints one line, RESULT and a JSON object.
"""

from __future__ import annotations

import json
import sys
import time

from measures import cpu_seconds, peak_memory_bytes

from greenward.grading.judge import Grader
from greenward.problems.catalog import load_suite


def main() -> None:
    task, suite, workers = sys.argv[1:]
    began, used = time.perf_counter(), cpu_seconds()
    found: dict[str, object] = {}
    problems = load_suite(suite)
    with Grader(workers=int(workers)) as grader:
        problems = grader.complete(problems)
        if task == "evaluate":
            verdicts = grader.grade([(problem, problem.reference) for problem in problems])
            pairs = list(zip(problems, verdicts, strict=True))
            found["failed"] = {p.task_id: v.status.value for p, v in pairs if not v.passed}
            found["answers_cpu_seconds"] = sum(verdict.cpu_seconds for verdict in verdicts)
            longest = max(pairs, key=lambda pair: pair[1].cpu_seconds)
            found["longest"] = [longest[0].task_id, longest[1].cpu_seconds]
    found["seconds"] = time.perf_counter() - began
    found["cpu_seconds"] = cpu_seconds() - used
    found["peak_memory_bytes"] = peak_memory_bytes()
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
