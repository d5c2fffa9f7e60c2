"""One side of `benchmarks/sandbox.py`: a process that grades on command and measures itself.

For each line on its standard input, a JSON object `{"way", "workers", "seconds"}`, it grades answers
for about that long and writes one JSON line back. `workers` 0 asks for one answer at a time.

Standard library only: sides run in several interpreters, one of them without site packages.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

# The problem: a trivial function, five tests.
ENTRY_POINT = "add"
INPUTS = [(n, n + 1) for n in range(5)]
EXPECTED = [2 * n + 1 for n in range(5)]

# Grades programs with so many workers; whether each passed.
Way = Callable[[Sequence[str], int], Sequence[bool]]

_WARM_UP_ANSWERS = 5
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def serve(ways: dict[str, Way], about: dict[str, str]) -> None:
    """Answers commands until standard input ends. How many answers take a while is learnt on the way."""
    _tell(about)
    number = count()
    rates: dict[tuple[str, int], float] = {}
    for line in sys.stdin:
        command = json.loads(line)
        way, workers = command["way"], command["workers"]
        rate = rates.get((way, workers))
        answers = _WARM_UP_ANSWERS if rate is None else max(2, round(rate * command["seconds"]))
        # Each a different program, so that nothing is saved by grading equal code once.
        codes = [f"def add(a, b):\n    return a + b  # {next(number)}\n" for _ in range(answers)]
        measured = _one_by_one(ways[way], codes) if workers == 0 else _together(ways[way], codes, workers)
        rates[way, workers] = measured["answers"] / measured["seconds"]
        _tell(measured)


def by_threads(passes: Callable[[str], bool]) -> Way:
    """The way that has `passes` judge each program, in a thread for each worker."""

    def grade(codes: Sequence[str], workers: int) -> Sequence[bool]:
        if workers == 1:
            return [passes(code) for code in codes]
        with ThreadPoolExecutor(workers) as executor:
            return list(executor.map(passes, codes))

    return grade


def _one_by_one(way: Way, codes: Sequence[str]) -> dict[str, float]:
    times = []
    used, started = _cpu_seconds(), time.perf_counter()
    for code in codes:
        began = time.perf_counter()
        (passed,) = way([code], 1)
        times.append(time.perf_counter() - began)
        assert passed
    measured = _since(used, started, len(codes))
    return {**measured, "median_ms": statistics.median(times) * 1000}


def _together(way: Way, codes: Sequence[str], workers: int) -> dict[str, float]:
    used, started = _cpu_seconds(), time.perf_counter()
    passed = way(codes, workers)
    measured = _since(used, started, len(codes))
    assert len(passed) == len(codes) and all(passed)
    return measured


def _since(used: float, started: float, answers: int) -> dict[str, float]:
    seconds = time.perf_counter() - started
    return {"answers": answers, "seconds": seconds, "cpu_ms": (_cpu_seconds() - used) / answers * 1000}


def _cpu_seconds() -> float:
    """CPU time of this process, of its descendants, and of those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(map(_cpu_of, _children(os.getpid())))


def _cpu_of(pid: int) -> float:
    """CPU time of a process and its descendants; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    own_and_reaped = sum(map(int, fields[11:15])) / _TICKS_PER_SECOND
    return own_and_reaped + sum(map(_cpu_of, _children(pid)))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found.extend(map(int, file.read().split()))
    except (FileNotFoundError, ProcessLookupError):
        return found
    return found


def _tell(message: dict[str, str] | dict[str, float]) -> None:
    print("RESULT " + json.dumps(message), flush=True)
