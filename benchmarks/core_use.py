"""How well a training uses the cores, and what each phase of a step takes beside what it takes alone.

    .venv/bin/python benchmarks/core_use.py [RECIPE] [KEY=VALUE ...] [--steps 12] [--rounds 3]
                                            [--most 1.10] [--most-apart 0.05]

The first figure is the wall time of the steps times the cores, over the processor seconds of the trainer and
of all its processes, answers included, from the end of the second step to that of the last. 1 means that no
core was ever idle; other work on the machine raises the figure.

Each round trains twice, in processes of their own and in turns: as a user does, and with each group graded
before anything else goes on. Both draw the same answers and make the same updates; in the second, nothing
runs beside a phase. Sampling and the update count the processor seconds of the trainer while they run,
grading those of the workers, of their answers and of the thread that grades. Of each step, the least of all
rounds counts.

Exit code 1 where the median of the first figure is above `--most`, or a phase takes more than `--most-apart`
longer than alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
SAMPLING, UPDATE, GRADING, REST = "sampling", "update", "grading", "the rest"
GRADING_THREAD = "greenward-grading"
FIRST = 2  # steps that do not count
ALONE, FOLDER = "--alone", "--folder"  # of the processes that train


def tree_seconds(root: int) -> float:
    """Processor seconds of a process, of its descendants, and of those descendants that have ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        ticks[pid] = sum(map(int, fields[11:15]))  # its own and those of its children that were waited for
    inside = {root}
    while more := {pid for pid, parent in parents.items() if parent in inside} - inside:
        inside |= more
    return sum(ticks.get(pid, 0) for pid in inside) / TICKS


def thread_seconds() -> float:
    """Processor seconds of the threads of this process that grade."""
    return sum(
        time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in threading.enumerate()
        if thread.name.startswith(GRADING_THREAD) and thread.ident
    )


class Meter:
    """Processor seconds of the trainer in each phase, without those of its grading."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open = [REST]
        self._since = self._now()

    @staticmethod
    def _now() -> float:
        return time.process_time() - thread_seconds()

    def count(self) -> None:
        now = self._now()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def wrap(self, owner: Any, method: str, phase: str) -> None:
        """Let the calls of a method be a phase."""
        whole: Callable[..., Any] = getattr(owner, method)

        def counted(*arguments: Any, **options: Any) -> Any:
            self.count()
            self._open.append(phase)
            try:
                return whole(*arguments, **options)
            finally:
                self.count()
                self._open.pop()

        setattr(owner, method, counted)


def measure(command: Sequence[str], steps: int, *, alone: bool) -> list[dict[str, float]]:
    """Trains in this process. The wall and processor seconds of each step, and those of its phases."""
    from greenward.cli.main import main
    from greenward.grading.execution import ExecutionJudge
    from greenward.models.policy import Policy
    from greenward.training.loop import TrainingLoop
    from greenward.training.trainer import RLTrainer

    meter = Meter()
    meter.wrap(Policy, "sample", SAMPLING)
    meter.wrap(RLTrainer, "update", UPDATE)
    meter.wrap(RLTrainer, "_imitate", UPDATE)
    submit, finish = ExecutionJudge.submit, TrainingLoop._finish_step
    ends: list[dict[str, float]] = []

    def graded_at_once(judge: ExecutionJudge, answers: Any) -> Any:
        verdicts = submit(judge, answers)
        verdicts.exception()  # waits until they are there
        return verdicts

    def finished(loop: Any, *arguments: Any, **options: Any) -> Any:
        result = finish(loop, *arguments, **options)
        if isinstance(loop.trainer, RLTrainer):
            meter.count()
            processors = tree_seconds(os.getpid())
            now = {"wall": time.perf_counter(), "processors": processors, **meter.seconds}
            now[GRADING] = processors - time.process_time() + thread_seconds()
            ends.append(now)
        return result

    TrainingLoop._finish_step = finished  # type: ignore[method-assign]
    if alone:
        ExecutionJudge.submit = graded_at_once  # type: ignore[method-assign]
    with contextlib.suppress(SystemExit):
        main([*command])
    if len(ends) < steps:
        raise SystemExit(f"expected {steps} steps, found {len(ends)}: the training ended early.")
    ends = ends[FIRST - 1 :]
    return [{name: after[name] - before[name] for name in after} for before, after in pairwise(ends)]


def main() -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("recipe", nargs="?", default="quickstart")
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=float, default=1.10)
    parser.add_argument("--most-apart", type=float, default=0.05)
    parser.add_argument(FOLDER, help=argparse.SUPPRESS)
    parser.add_argument(ALONE, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps <= FIRST:
        parser.error(f"--steps: expected at least {FIRST + 1}, found {options.steps}")
    given = [options.recipe, *options.overrides]
    if options.folder:
        settings = [f"training.max_steps={options.steps}", "evaluation.enabled=false"]
        command = ["train", *given, *settings, "--quiet", "--output", f"{options.folder}/run"]
        found = measure(command, options.steps, alone=options.alone)
        Path(options.folder, "found.json").write_text(json.dumps(found))
        return 0
    rounds: dict[bool, list[list[dict[str, float]]]] = {False: [], True: []}
    for _ in range(options.rounds):
        for alone, results in rounds.items():
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, __file__, *given, f"--steps={options.steps}", FOLDER, folder]
                if code := subprocess.run([*command, *([ALONE] if alone else [])]).returncode:
                    return code  # the training has said why
                results.append(json.loads(Path(folder, "found.json").read_text()))
    cores = len(os.sched_getaffinity(0))
    totals = [{name: sum(step[name] for step in steps) for name in steps[0]} for steps in rounds[False]]
    uses = sorted(cores * one["wall"] / one["processors"] for one in totals)
    wall, used = (
        statistics.median(one[name] for one in totals) / (options.steps - FIRST)
        for name in ("wall", "processors")
    )
    use = statistics.median(uses)
    print(
        f"{wall:.3f} s a step on {cores} cores, {used:.3f} processor seconds: "
        f"{use:.2f} [{uses[0]:.2f}, {uses[-1]:.2f}] (at most {options.most:g} asked)"
    )
    too_long = False
    print(f"\n{'processor seconds of a step':28}{'in training':>12}{'alone':>9}{'ratio':>7}")
    for phase in (SAMPLING, GRADING, UPDATE, REST):
        together, alone = (
            statistics.fmean(min(step[phase] for step in same) for same in zip(*runs, strict=True))
            for runs in rounds.values()
        )
        print(f"{phase:28}{together:12.3f}{alone:9.3f}{together / alone:7.2f}")
        too_long |= phase != REST and together > (1 + options.most_apart) * alone
    return int(use > options.most or too_long)


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
