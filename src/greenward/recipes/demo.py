"""The demo: warm start, GRPO and a control arm, for several seeds at once, in one report.

Each seed runs in processes of its own with its share of the cores, by the commands that a user
would type. The control is further supervised training from the same warm start for the wall time
that GRPO took: if it rose as well, the gain would not be reinforcement learning's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from greenward.config.loading import load_recipe
from greenward.config.schema import Recipe
from greenward.errors import ConfigError, RunError, SandboxError
from greenward.recipes.evaluation_session import MOST_LOST
from greenward.recipes.train import WARM_START, show_report
from greenward.reports.record import max_lost_share, read_report
from greenward.runs.directory import is_run, read_evaluations
from greenward.runs.metrics import read_metrics
from greenward.runs.progress import Progress, evaluation_line
from greenward.runs.summary import read_summary

RECIPE = "quickstart"
CONTROL = "control"
CONTROL_RATE_SHARE = 1 / 3  # of the warm start's peak learning rate, held constant
UNBOUNDED_STEPS = 1_000_000
POLL_SECONDS = 1.0
INTERRUPTED = 130  # the exit code of a command that Ctrl-C stopped cleanly


def demo(
    output: Path,
    *,
    seeds: Sequence[int] = (0, 1),
    overrides: Sequence[str] = (),
    quiet: bool = False,
    resume: bool = False,
) -> bool:
    """Run the quickstart recipe and its control for every seed, in `output/seed_N`.

    True when all finished, False when interrupted (resume goes on). Raises `RunError` with what a
    failed seed said, after the other seeds were stopped cleanly, and `SandboxError` when all finished but
    the infrastructure lost more than 2 % of the answers in an evaluation.
    """
    if not resume and any(is_run(output / f"seed_{seed}") for seed in seeds):
        raise RunError(
            f"{output} already holds a demo.",
            remedy=f"See it by `greenward report {output}`, go on with an interrupted one by --resume, "
            "or choose another --output.",
        )
    share = max(1, (os.cpu_count() or 1) // len(seeds))
    common = [f"training.threads={share}", f"sandbox.workers={share}", *overrides]
    arms = [SeedRun(output / f"seed_{seed}", [f"seed={seed}", *common], resume=resume) for seed in seeds]
    output.mkdir(parents=True, exist_ok=True)
    with Progress(quiet=quiet) as progress:
        try:
            for arm in arms:
                arm.start()
            while [arm for arm in arms if arm.advance(progress)]:
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            return False  # the terminal's Ctrl-C reached the seeds as well; `stop` waits for them
        finally:
            for arm in arms:
                arm.stop()
    show_report(output, quiet=quiet)
    lost = max_lost_share(read_report(output))
    if lost > MOST_LOST:
        raise SandboxError(
            f"the infrastructure lost {lost:.1%} of the answers in an evaluation of {output}; at most "
            f"{MOST_LOST:.0%} may be. They count as not passed.",
            remedy="The report names the evaluations. Run it again where memory and processors are free.",
        )
    return True


class SeedRun:
    """One seed: `greenward train`, then its control, each in a process of its own."""

    def __init__(self, folder: Path, overrides: Sequence[str], *, resume: bool) -> None:
        self._folder = folder
        self._overrides = list(overrides)
        self._resume = resume
        self._recipe: Recipe = load_recipe(RECIPE, self._overrides)
        if self._recipe.warm_start is None:
            raise ConfigError("The demo compares GRPO with its warm start: warm_start cannot be null here.")
        self._warm_start = self._recipe.warm_start
        self._pending = [self._train_arguments, self._control_arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        self._shown: dict[str, int] = {}
        self._evaluations_shown = 0

    def start(self) -> None:
        """Launch the next command."""
        command = [sys.executable, "-m", "greenward", "train", RECIPE, *self._pending.pop(0)(), "--quiet"]
        if self._resume:
            command.append("--resume")
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self._errors)

    def advance(self, progress: Progress) -> bool:
        """Report progress and start what comes next; False when all is done."""
        if self._process is None:
            return False
        self._report(progress)
        code = self._process.poll()
        if code is None:
            return True
        self._process = None
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code != 0:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()
            raise RunError(f"{self._folder.name} stopped with exit code {code}: {said or 'no message'}")
        if self._pending:
            self.start()
            return True
        return False

    def stop(self) -> None:
        """End a running command cleanly: it writes a checkpoint."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()
        self._errors.close()

    def _train_arguments(self) -> list[str]:
        return [*self._overrides, "--output", str(self._folder)]

    def _control_arguments(self) -> list[str]:
        summary = read_summary(self._folder)
        assert summary is not None  # written by the command before
        rate = self._warm_start.learning_rate * CONTROL_RATE_SHARE
        return [
            *self._overrides,
            "kind=sft",
            f"model.id={self._folder / WARM_START / 'checkpoints' / 'last'}",
            f"warm_start.max_steps={UNBOUNDED_STEPS}",
            f"warm_start.max_seconds={summary['training_seconds']:.3f}",
            "warm_start.schedule=constant",
            f"warm_start.learning_rate={rate:.6g}",
            "evaluation.at_start=false",  # it starts where GRPO started, which was measured
            f"evaluation.eval_interval_steps={UNBOUNDED_STEPS}",
            f"training.checkpoint_interval_steps={UNBOUNDED_STEPS}",
            "--output",
            str(self._folder / CONTROL),
        ]

    def _report(self, progress: Progress) -> None:
        """Show where the seed is, from the files of its runs."""
        recipe = self._recipe
        totals = {WARM_START: self._warm_start.max_steps, "": recipe.training.max_steps, CONTROL: None}
        for name, total in totals.items():
            phase = f"{self._folder.name} {name or recipe.algorithm.loss}".replace("_", " ")
            if self._shown.get(phase) == total:
                continue
            rows = read_metrics(self._folder / name / "metrics.jsonl").rows
            if not rows:
                continue
            if phase not in self._shown:
                self._shown[phase] = 0
                progress.phase(phase, total)
            if rows[-1]["step"] > self._shown[phase]:
                self._shown[phase] = rows[-1]["step"]
                progress.advance(
                    rows[-1]["step"],
                    phase=phase,
                    reward=rows[-1].get("reward/mean"),
                    pass_rate=rows[-1].get("pass_rate"),
                    loss=rows[-1].get("loss"),
                    tokens_per_second=rows[-1].get("perf/tokens_per_second"),
                )
        evaluations = read_evaluations(self._folder)
        for evaluation in evaluations[self._evaluations_shown :]:
            progress.message(f"{self._folder.name} {evaluation_line(evaluation)}".replace("_", " "))
        self._evaluations_shown = len(evaluations)
