"""Arms of an experiment: `greenward train` commands in processes of their own, some side by side.

An arm that is compared with another starts where that one started (its warm start) and trains for the
seconds that it trained (`beside`), so that both had the same of everything but the method.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from greenward.config.loading import load_recipe
from greenward.errors import RunError
from greenward.recipes.train import WARM_START
from greenward.runs.reading import read_summary

UNBOUNDED_STEPS = 1_000_000
POLL_SECONDS = 1.0
INTERRUPTED = 130  # the exit code of a command that Ctrl-C stopped cleanly


@dataclass(eq=False)
class Arm:
    """One run: `greenward train RECIPE` with overrides, in `folder`; it starts once `after` has finished.

    An arm `beside` another starts from the warm start of that run and trains for as long as it did.
    """

    folder: Path
    recipe: str
    overrides: Sequence[str]
    after: Arm | None = None
    beside: Arm | None = None
    finished: bool = field(default=False, init=False)

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


def training_seconds(folder: Path) -> float:
    """The time that a finished run trained, evaluation aside. Raises `RunError` when it has not finished."""
    summary = read_summary(folder)
    if summary is None or summary["status"] != "finished":
        raise RunError(f"{folder} has not finished: an arm beside it cannot train for the same time.")
    return float(summary["training_seconds"])


def run_arms(
    arms: Sequence[Arm], *, parallel: int, resume: bool, watch: Callable[[], None] = lambda: None
) -> None:
    """Run all arms, `parallel` at a time, the first that may start first; `watch` is called every second.

    Raises `KeyboardInterrupt` when one of them was interrupted, and `RunError` with what a failed one said,
    both after the others were stopped cleanly: each writes a checkpoint.
    """
    waiting = [arm for arm in arms if not arm.finished]
    running: list[_Process] = []
    try:
        while waiting or running:
            for arm in [
                arm for arm in waiting if all(one is None or one.finished for one in (arm.after, arm.beside))
            ]:
                if len(running) < parallel:
                    waiting.remove(arm)
                    running.append(_Process(arm, resume=resume))
            time.sleep(POLL_SECONDS)
            running = [process for process in running if not process.has_finished()]
            watch()
    finally:
        for process in running:
            process.stop()


class _Process:
    """A running arm."""

    def __init__(self, arm: Arm, *, resume: bool) -> None:
        self._arm = arm
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        command = [sys.executable, "-m", "greenward", "train", *arm.arguments(), "--quiet"]
        command += ["--output", str(arm.folder), *(["--resume"] if resume else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self._errors)

    def has_finished(self) -> bool:
        code = self._process.poll()
        if code is None:
            return False
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code != 0:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()
            raise RunError(f"{self._arm.folder.name} stopped with exit code {code}: {said or 'no message'}")
        self._errors.close()
        self._arm.finished = True
        return True

    def stop(self) -> None:
        """End a running command cleanly: it writes a checkpoint."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()
        self._errors.close()
