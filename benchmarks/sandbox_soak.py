"""A long run of mixed answers, a fifth of them hostile: is any misjudged, is anything left behind?

    .venv/bin/python benchmarks/sandbox_soak.py [--answers 100000] [--json FILE]

Grades functions by values, whole programs by what they print and functions by test programs, in
batches as a training run does. After every batch it looks at the processes that descend from this
one, at this process's descriptors and memory, at temporary files and at shared memory, and once
more when the sandbox is closed. The last line says PASS, or FAIL and why; the exit status tells,
too. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Any

from greenward.grading.judge import Grader
from greenward.grading.verdict import Status
from greenward.problems.problem import Problem
from greenward.sandbox.inside.files import remove_folder
from greenward.sandbox.inside.linux import descendants
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Limits
from sandbox_soak_programs import HOSTILE, RIGHT, SLOW

LIMITS = Limits(cpu_seconds=0.2, wall_seconds=0.5, memory_bytes=256 << 20)
ONE_HOSTILE_IN = 5
ONE_HOSTILE_SLOW_IN = 50  # those that run into a limit: each takes as long as a hundred others
WARM_UP = 0.05  # of all answers: what is in use after them is what a run needs
MAX_GROWTH_MB = 20.0
REPORTS = 10
SHARED = ("/dev/shm", "/tmp", "/var/tmp")


@dataclass(frozen=True)
class Traces:
    """What there is of this run at one moment."""

    processes: int
    zombies: int
    descriptors: int
    files: int
    segments: int  # of System V shared memory
    memory_mb: float

    def more_than(self, before: Traces) -> dict[str, int]:
        """How much more there is of what was counted before."""
        counted = ("processes", "zombies", "descriptors", "files", "segments")
        return {name: getattr(self, name) - getattr(before, name) for name in counted}


class Observer:
    """Looks for what a sandbox leaves behind. `folder` holds all temporary files of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.token = folder.name
        self.segment_bytes = (1 << 20) + os.getpid()

    def look(self) -> Traces:
        family = descendants(os.getpid())
        strays = [pid for pid in _processes_that_mention(str(self._folder)) if pid not in family]
        own = sum(len(folders) + len(files) for _, folders, files in os.walk(self._folder))
        planted = sum(name.startswith(self.token) for folder in SHARED for name in os.listdir(folder))
        return Traces(
            processes=len(family) + len(strays),
            zombies=sum(_is_zombie(pid) for pid in family),
            descriptors=len(os.listdir("/proc/self/fd")),
            files=own + planted - 1,  # the folder itself
            segments=_segments_of(self.segment_bytes),
            memory_mb=_memory_mb(),
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--answers", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write all numbers here")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="greenward-soak-", dir="/tmp"))
    tempfile.tempdir = str(folder)
    try:
        record = soak(Observer(folder), arguments.answers, arguments.batch, arguments.workers)
    finally:
        remove_folder(str(folder))
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{'FAIL' if record['failures'] else 'PASS'}: {record['summary']}")
    sys.exit(bool(record["failures"]))


def soak(observer: Observer, answers: int, batch_size: int, workers: int) -> dict[str, Any]:
    """Grades so many answers and reports what was seen."""
    before, load = observer.look(), os.getloadavg()[0]
    stream = mixed_answers({"TOKEN": observer.token, "SEGMENT_BYTES": str(observer.segment_bytes)})
    verdicts = {kind: Counter[str]() for kind in ("right", "hostile")}
    misjudged: list[str] = []
    seen: list[Traces] = []
    done, started = 0, time.monotonic()
    with LocalExecutor(workers) as executor, Grader(LIMITS, executor=executor) as grader:
        isolation = executor.isolation
        while done < answers:
            batch = [next(stream) for _ in range(min(batch_size, answers - done))]
            graded = grader.grade([(problem, code) for _, problem, code in batch])
            for (kind, problem, code), verdict in zip(batch, graded, strict=True):
                verdicts[kind][verdict.status.value] += 1
                if verdict.passed is (kind == "hostile") or verdict.status is Status.INFRASTRUCTURE:
                    misjudged.append(f"{kind} answer, {problem.task_id}, {verdict.status.value}: {code}")
            reported = done * REPORTS // answers
            done += len(batch)
            if done >= WARM_UP * answers:
                seen.append(observer.look())
            if done * REPORTS // answers > reported:
                rate = done / (time.monotonic() - started)
                print(f"{done} answers, {rate:.0f}/s, {_memory_mb():.0f} MB", flush=True)
    seconds = time.monotonic() - started
    after = observer.look()
    growth = max(traces.memory_mb for traces in seen) - seen[0].memory_mb
    failures = [f"misjudged: {one}" for one in misjudged]
    left, grown = after.more_than(before), seen[-1].more_than(seen[0])
    failures += [f"left behind: {more} {name}" for name, more in left.items() if more > 0]
    failures += [f"grew while running: {more} {name}" for name, more in grown.items() if more > 0]
    if growth > MAX_GROWTH_MB:
        failures.append(f"memory grew by {growth:.1f} MB; at most {MAX_GROWTH_MB:.0f} are allowed")
    for failure in failures:
        print(failure)
    right, hostile = (counted.total() for counted in verdicts.values())
    accepted = verdicts["hostile"]["passed"]
    summary = (
        f"{done} answers in {seconds:.0f} s ({done / seconds:.0f}/s, level {isolation.level.value}); "
        f"{accepted} of {hostile} hostile accepted, {right - verdicts['right']['passed']} of {right} right "
        f"refused, {sum(counted['infrastructure'] for counted in verdicts.values())} infrastructure; left: "
        f"{', '.join(f'{more} {name}' for name, more in left.items())}; memory {growth:+.1f} MB"
    )
    return {
        "summary": summary,
        "failures": failures,
        "answers": done,
        "workers": workers,
        "seconds": seconds,
        "layers": [layer.value for layer in isolation.layers],
        "verdicts": {kind: dict(counted.most_common()) for kind, counted in verdicts.items()},
        "memory_growth_mb": growth,
        "before": asdict(before),
        "running": asdict(seen[-1]),
        "after": asdict(after),
        "machine": {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "load_before": load,
            "load_after": os.getloadavg()[0],
        },
    }


def mixed_answers(names: Mapping[str, str]) -> Iterator[tuple[str, Problem, str]]:
    """(kind, problem, code) without end; no code twice, so that each is run. `names` fill the templates."""
    number, rng = count(1), random.Random(0)
    right, hostile, slow = cycle(RIGHT), cycle(HOSTILE), cycle(SLOW)
    hostile_so_far = 0
    while True:
        kinds = ["hostile"] + ["right"] * (ONE_HOSTILE_IN - 1)
        rng.shuffle(kinds)
        for kind in kinds:
            programs = right
            if kind == "hostile":
                hostile_so_far += 1
                programs = hostile if hostile_so_far % ONE_HOSTILE_SLOW_IN else slow
            problem, code = next(programs)
            for name, value in names.items():
                code = code.replace(name, value)
            yield kind, problem, f"{code}\n# {next(number)}\n"


def _processes_that_mention(text: str) -> list[int]:
    """Processes with this text among their arguments: a worker's name its folder, its forks inherit them."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            arguments = Path(f"/proc/{name}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if text.encode() in arguments and int(name) != os.getpid():
            found.append(int(name))
    return found


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _segments_of(size: int) -> int:
    table = Path("/proc/sysvipc/shm")
    rows = table.read_text().splitlines()[1:] if table.exists() else []
    return sum(row.split()[3] == str(size) for row in rows)


def _memory_mb() -> float:
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    return resident * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
