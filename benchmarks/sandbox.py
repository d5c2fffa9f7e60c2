"""What grading one trivial answer with five tests costs: latency, throughput, and the bounds on both.

    .venv/bin/python benchmarks/sandbox.py [--answers 1000] [--workers 2]

Every answer is a different program, so that nothing is saved by grading equal code once. Beside
the grader stand its physical bound (a bare fork of the worker's process, nothing run in it) and
the usual way (a fresh interpreter per answer). CPU time counts the grader, its workers (their start
included) and the answers; unlike the other two figures it hardly depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import resource
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


def cpu_seconds() -> float:
    """CPU time of this process and of all its children that have ended."""
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def fresh_interpreter() -> None:
    program = "def add(a, b): return a + b\nprint([add(n, n + 1) for n in range(5)])"
    subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    rows: list[tuple[str, float, float | None, float | None]] = []

    bare = subprocess.run(
        [sys.executable, "-I", "-S", "-c", BARE_FORK, "500"], capture_output=True, check=True, text=True
    )
    rows.append(("bare fork of an empty interpreter", float(bare.stdout), None, None))
    used = cpu_seconds()
    latency = median_ms(fresh_interpreter, 50)
    rows.append(("fresh interpreter per answer (-I -S)", latency, None, (cpu_seconds() - used) / 50 * 1000))
    for workers in sorted({1, options.workers}):
        used = cpu_seconds()
        with Grader(Limits(), workers=workers) as grader:
            assert all(verdict.passed for verdict in grader.grade(list(answers(50))))
            each = list(answers(200))
            latency = median_ms(lambda grader=grader, each=each: grader.grade([each.pop()]), 200)
            started = time.perf_counter()
            passed = sum(verdict.passed for _, verdict in grader.grade_stream(answers(options.answers)))
            seconds = time.perf_counter() - started
            assert passed == options.answers
        used_each = (cpu_seconds() - used) / (options.answers + 250) * 1000
        name = f"grader, {workers} worker{'s' if workers > 1 else ''}"
        rows.append((name, latency, options.answers / seconds, used_each))

    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    print(f"{'':38}{'median ms':>10}{'answers/s':>11}{'CPU ms':>8}")
    for name, latency, rate, cpu in rows:
        shown = ["" if value is None else f"{value:.{digits}f}" for value, digits in ((rate, 0), (cpu, 2))]
        print(f"{name:38}{latency:10.2f}{shown[0]:>11}{shown[1]:>8}")


if __name__ == "__main__":
    main()
