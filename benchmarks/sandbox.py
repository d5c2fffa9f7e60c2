"""What grading one trivial answer with five tests costs: latency, throughput, and the bounds on both.

    .venv/bin/python benchmarks/sandbox.py [--answers 1000] [--workers 2]

Every answer is a different program, so that nothing is saved by grading equal code once. Beside
the grader stand its physical bound (a bare fork of the worker's process, nothing run in it) and
the usual way (a fresh interpreter per answer).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from greenward.grading.grader import Grader
from greenward.problems.problem import Case, Problem
from greenward.sandbox.protocol import Limits

ADD = Problem("add", "", "add", cases=tuple(Case((n, n + 1), 2 * n + 1) for n in range(5)))
BARE_FORK = """
import os, sys, time
times = []
for _ in range(int(sys.argv[1])):
    started = time.perf_counter()
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    times.append(time.perf_counter() - started)
print(sorted(times)[len(times) // 2] * 1000)
"""


def answers(count: int) -> Iterator[tuple[Problem, str]]:
    for number in range(count):
        yield ADD, f"def add(a, b):\n    return a + b  # {number}\n"


def median_ms(action: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


def fresh_interpreter() -> None:
    program = "def add(a, b): return a + b\nprint([add(n, n + 1) for n in range(5)])"
    subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    rows: list[tuple[str, float, float | None]] = []

    bare = subprocess.run(
        [sys.executable, "-I", "-S", "-c", BARE_FORK, "500"], capture_output=True, check=True, text=True
    )
    rows.append(("bare fork of an empty interpreter", float(bare.stdout), None))
    rows.append(("fresh interpreter per answer (-I -S)", median_ms(fresh_interpreter, 50), None))
    for workers in sorted({1, options.workers}):
        with Grader(Limits(), workers=workers) as grader:
            assert all(verdict.passed for verdict in grader.grade(list(answers(50))))
            each = list(answers(200))
            latency = median_ms(lambda grader=grader, each=each: grader.grade([each.pop()]), 200)
            started = time.perf_counter()
            passed = sum(verdict.passed for _, verdict in grader.grade_stream(answers(options.answers)))
            seconds = time.perf_counter() - started
            assert passed == options.answers
        rows.append(
            (f"grader, {workers} worker{'s' if workers > 1 else ''}", latency, options.answers / seconds)
        )

    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    print(f"{'':38}{'median ms':>10}{'answers/s':>11}")
    for name, latency, rate in rows:
        print(f"{name:38}{latency:10.2f}{'' if rate is None else f'{rate:11.0f}'}")


if __name__ == "__main__":
    main()
