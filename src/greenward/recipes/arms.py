"""Arms of an experiment: `greenward train` commands in processes of their own, some side by side.

An arm that is compared with another starts where that one started (its warm start) and trains for the
seconds that it trained (`beside`), so that both had the same of everything but the method.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from greenward import interruption
from greenward.config.loading import load_recipe
from greenward.errors import RunError
from greenward.interruption import POLL_SECONDS, Stopped
from greenward.no_signal import MIN_STEPS, spells
from greenward.python_module import python_module
from greenward.recipes.train import WARM_START
from greenward.runs.metrics import read_metrics
from greenward.runs.progress import Progress, evaluation_line
from greenward.runs.reading import read_config, read_evaluations, read_summary

UNBOUNDED_STEPS = 1_000_000
WATCH_SECONDS = 1.0


@dataclass(eq=False)
class Arm:
    """One run: `greenward train RECIPE` with overrides, in `folder`; it starts once `after` has finished.

    An arm `beside` another starts from the warm start of that run and trains for as long as it did.
    `failure` is what a failed one said.
    """

    folder: Path
    recipe: str
    overrides: Sequence[str]
    after: Arm | None = None
    beside: Arm | None = None
    finished: bool = field(default=False, init=False)
    failure: str | None = field(default=None, init=False)

    def arguments(self) -> list[str]:
        """Recipe and overrides; of an arm beside another, once that one has finished."""
        if self.beside is None:
            return [self.recipe, *self.overrides]
        kind = load_recipe(self.recipe, self.overrides).kind
        seconds = training_seconds(self.beside.folder)
        start = self.beside.folder / WARM_START / "checkpoints" / "last"
        limits = "warm_start" if kind == "sft" else "training"
        return [
            self.recipe,
            *self.overrides,
            *(() if kind == "sft" else ("warm_start=null",)),
            f"model.id={start}",
            "pretrained=null",
            f"{limits}.max_steps={UNBOUNDED_STEPS}",
            f"{limits}.max_seconds={seconds:.3f}",
            "evaluation.at_start=false",  # it starts where the other arm started, which was measured
            f"evaluation.eval_interval_steps={UNBOUNDED_STEPS}",
            f"training.checkpoint_interval_steps={UNBOUNDED_STEPS}",
        ]

    def start(self, place: int, devices: Sequence[str], *, resume: bool) -> None:
        """Start the command, at one of the places for arms that run at a time."""
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed at its end
        command = python_module("greenward", "train", *self.arguments(), "--quiet")
        command += ["--output", str(self.folder), *(["--resume"] if resume else [])]
        own = {"CUDA_VISIBLE_DEVICES": devices[place % len(devices)]} if devices else {}
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=self.errors, env={**os.environ, **own}
        )

    def has_ended(self) -> bool:
        """Whether it has finished or failed, which `failure` then says. Raises `Stopped`."""
        code = self.process.poll()
        if code is None:
            return False
        if code == interruption.EXIT_CODE:
            raise Stopped
        self.finished = code == 0
        if code != 0:
            self.errors.seek(0)
            said = self.errors.read().decode(errors="replace").strip()
            self.failure = f"with exit code {code}: {said or 'no message'}"
        self.errors.close()
        return True


def training_seconds(folder: Path) -> float:
    """The time that a finished run trained, evaluation aside. Raises `RunError` when it has not finished."""
    summary = read_summary(folder)
    if summary is None or summary["status"] != "finished":
        raise RunError(f"{folder} has not finished: an arm beside it cannot train for the same time.")
    return float(summary["training_seconds"])


def run_arms(
    arms: Sequence[Arm],
    *,
    parallel: int,
    resume: bool,
    keep_going: bool = False,
    devices: Sequence[str] = (),
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Run all arms, `parallel` at a time, the first that may start first; `watch` is called every second.

    Each of the arms at a time sees one of `devices` (as CUDA_VISIBLE_DEVICES names them) where there are any.
    Raises `Stopped` when one of them or this process was interrupted, and `RunError` with what a
    failed one said, both after the others were stopped cleanly: each writes a checkpoint. With `keep_going`,
    for arms that wait for no other, a failed one does not stop the others.
    """
    waiting = [arm for arm in arms if not arm.finished]
    places = list(range(parallel))
    running: dict[Arm, int] = {}  # with their places
    watched = time.monotonic()
    try:
        with interruption.stoppable(_what_follows, may_stop=lambda: True):
            while waiting or running:
                for arm in [
                    arm
                    for arm in waiting
                    if all(one is None or one.finished for one in (arm.after, arm.beside))
                ]:
                    if places:
                        waiting.remove(arm)
                        arm.start(place := places.pop(0), devices, resume=resume)
                        running[arm] = place
                time.sleep(POLL_SECONDS)
                for arm in [arm for arm in running if arm.has_ended()]:
                    places.append(running.pop(arm))
                    if arm.failure is not None and not keep_going:
                        raise RunError(f"{arm.folder.name} stopped {arm.failure}")
                if time.monotonic() - watched >= WATCH_SECONDS:
                    watched = time.monotonic()
                    watch()
                interruption.check()
    finally:
        for arm in running:
            arm.process.terminate()  # it writes a checkpoint
        for arm in running:
            arm.process.wait()
            arm.errors.close()


def _what_follows() -> str:
    return (
        "Stopping; each run is saved at its last finished step, and --resume goes on from there. "
        f"{interruption.AGAIN}"
    )


@dataclass(eq=False)
class ArmProgress:
    """Shows how far the run in `folder` is, read from its files; `total` steps, None where unknown."""

    phase: str
    folder: Path
    total: int | None
    _step: int | None = field(default=None, init=False)
    _evaluations: int = field(default=0, init=False)

    def report(self, progress: Progress) -> None:
        """Show what is new since the last call."""
        has_all = self.total is not None and self._step == self.total
        rows = [] if has_all else read_metrics(self.folder / "metrics.jsonl").rows
        if rows and self._step is None:
            self._step = 0
            progress.phase(self.phase, self.total)
        if rows and rows[-1]["step"] > self._step:
            self._step = rows[-1]["step"]
            without_signal = spells(rows[-MIN_STEPS:], read_config(self.folder))
            warning = without_signal[0].cause.brief if without_signal else None
            progress.advance(self._step, rows[-1], phase=self.phase, warning=warning)
        for evaluation in read_evaluations(self.folder)[self._evaluations :]:
            progress.message(f"{self.phase} {evaluation_line(evaluation)}")
            self._evaluations += 1
