"""Runs several recipes as arms of an experiment, as the demo, or as a sweep, by `greenward train` commands.

Every run is of the usual kind, in a process and folder of its own, so that it can be stopped, continued,
extended and read like any other. An arm that is compared with another starts from its warm start and trains
for the seconds that it trained (`beside`), so that both had the same of everything but the method.
For each seed, the demo compares GRPO with two such arms: rejection sampling, the simplest use of the same
rewards (what does the policy gradient add to it?), and further supervised training on the corpus (would more
of the same have done?).
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

from greenward.common import interruption
from greenward.common.errors import ConfigError, RunError, SandboxError
from greenward.common.interruption import POLL_SECONDS, Stopped
from greenward.config.loading import has_key, load_recipe, resolved_grid, with_defaults
from greenward.config.recipe import GRPORecipe, Recipe
from greenward.evaluation.session import MOST_LOST
from greenward.hardware.detection import this_preset
from greenward.hardware.launch import python_module
from greenward.recipes.run import WARM_START, check_needs, refuse_both, show_report
from greenward.reports.runs import max_lost_share, read_study
from greenward.reports.write import report_of
from greenward.runs.directory import compare_configs, has_steps
from greenward.runs.files import write_atomically, writing
from greenward.runs.no_signal import MIN_STEPS, no_signal_periods
from greenward.runs.output import check_folder, claim_folder
from greenward.runs.progress import Progress, evaluation_line
from greenward.runs.reading import (
    FAILURE,
    METRICS,
    read_config,
    read_evaluations,
    read_metrics,
    read_summary,
    runs_below,
)
from greenward.tasks import recipes_of_task

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
        supervised = load_recipe(self.recipe, self.overrides).algorithm.name == "sft"
        seconds = training_seconds(self.beside.folder)
        start = self.beside.folder / WARM_START / "checkpoints" / "last"
        limits = "warm_start" if supervised else "training"
        return [
            self.recipe,
            *self.overrides,
            *(() if supervised else ("warm_start=null",)),
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
        if (code := self.process.poll()) is None:
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
        rows = [] if has_all else read_metrics(self.folder / METRICS).rows
        if rows and self._step is None:
            self._step = 0
            progress.phase(self.phase, self.total)
        if rows and rows[-1]["step"] > self._step:
            self._step = rows[-1]["step"]
            without_signal = no_signal_periods(rows[-MIN_STEPS:], read_config(self.folder))
            warning = without_signal[0].cause.brief if without_signal else None
            progress.advance(self._step, rows[-1], phase=self.phase, warning=warning)
        for evaluation in read_evaluations(self.folder)[self._evaluations :]:
            progress.message(f"{self.phase} {evaluation_line(evaluation)}")
            self._evaluations += 1


RECIPE = "quickstart"
REJECTION_RECIPE = "rejection_sampling"
REJECTION, CONTROL = "rejection", "control"
# Every arm trains for as long as GRPO: with these settings the demo takes less than six minutes.
SHORTER = ("training.max_steps=20", "evaluation.num_questions=150")
CONTROL_RATE_SHARE = 1 / 3  # of the warm start's peak learning rate, held constant


def demo(
    output: Path,
    *,
    seeds: Sequence[int] = (0, 1),
    overrides: Sequence[str] = (),
    quiet: bool = False,
    resume: bool = False,
    overwrite: bool = False,
) -> bool:
    """Run the quickstart recipe and the arms beside it for every seed, in `output/seed_N`.

    `overwrite` deletes a demo that is there. True when all finished, False when interrupted (resume goes on).
    Raises `RunError` with what a failed seed said, after the other seeds were stopped cleanly, and
    `SandboxError` when all finished but the infrastructure lost more than 2 % of the answers in an
    evaluation.
    """
    refuse_both(resume=resume, overwrite=overwrite)
    check_folder(output, "runs")
    if not (resume or overwrite) and any(has_steps(output / f"seed_{seed}") for seed in seeds):
        raise RunError(
            f"{output} already holds a demo.",
            remedy=f"See it by `greenward report {output}`, go on with an interrupted one by --resume, "
            "replace it by --overwrite, or choose another --output.",
        )
    share = max(1, (os.cpu_count() or 1) // len(seeds))
    common = [f"training.threads={share}", f"sandbox.workers={share}", *SHORTER, *overrides]
    studies = [SeedStudy(output / f"seed_{seed}", [f"seed={seed}", *common]) for seed in seeds]
    claim_folder(output, "runs", overwrite=overwrite)
    with Progress(quiet=quiet) as progress:

        def watch() -> None:
            for study in studies:
                study.report(progress)

        try:
            arms = [arm for study in studies for arm in study.arms]
            run_arms(arms, parallel=len(seeds), resume=resume, watch=watch)
        except KeyboardInterrupt:
            return False  # the terminal's Ctrl-C reached the arms as well
    show_report(output, quiet=quiet)
    lost = max_lost_share(read_study(output))
    if lost > MOST_LOST:
        raise SandboxError(
            f"the infrastructure lost {lost:.1%} of the answers in an evaluation of {output}; at most "
            f"{MOST_LOST:.0%} may be. They count as not passed.",
            remedy="The report names the evaluations. Run it again where memory and processors are free.",
        )
    return True


class SeedStudy:
    """One seed: GRPO with its warm start, then each arm beside it, and how far they are."""

    def __init__(self, folder: Path, overrides: Sequence[str]) -> None:
        recipe = load_recipe(RECIPE, overrides)
        if not isinstance(recipe, GRPORecipe) or recipe.warm_start is None:
            raise ConfigError("The demo compares GRPO with its warm start: warm_start cannot be null here.")
        rate = recipe.warm_start.learning_rate * CONTROL_RATE_SHARE
        only_at_the_ends = f"evaluation.eval_interval_steps={UNBOUNDED_STEPS}"
        main = Arm(folder, RECIPE, [only_at_the_ends, *overrides])
        recipes = recipes_of_task(recipe.task)
        shared = [text for text in overrides if has_key(recipes["rejection"], text)]
        rejection = Arm(folder / REJECTION, REJECTION_RECIPE, shared, after=main, beside=main)
        supervised = (
            "algorithm=sft",
            "warm_start.data=corpus",
            "warm_start.schedule=constant",
            f"warm_start.learning_rate={rate:.6g}",
        )
        own = [text for text in overrides if has_key(recipes["sft"], text)]
        control = Arm(folder / CONTROL, RECIPE, [*own, *supervised], after=rejection, beside=main)
        self.arms = (main, rejection, control)
        phases = {
            WARM_START: ("warm start", recipe.warm_start.max_steps),
            "": (recipe.algorithm.loss, recipe.training.max_steps),
            REJECTION: ("rejection sampling", None),
            CONTROL: ("control", None),
        }
        self._shown = [
            ArmProgress(f"{folder.name} {label}".replace("_", " "), folder / name, total)
            for name, (label, total) in phases.items()
        ]

    def report(self, progress: Progress) -> None:
        """Show where the seed is, from the files of its runs."""
        for arm in self._shown:
            arm.report(progress)


def sweep(
    recipe: str,
    overrides: Sequence[str],
    output: Path,
    *,
    jobs: int = 1,
    quiet: bool = False,
    resume: bool = False,
    overwrite: bool = False,
) -> bool:
    """Run every combination of the grid in `overrides` in a folder of `output`, `jobs` at a time.

    True when all ended, False when interrupted. With `resume`, finished runs are kept, others go on or start,
    and the grid may have grown; with `overwrite`, a sweep that is there is deleted. A failed run stops no
    other; its message stays in its folder. Raises `ConfigError` before anything runs, and `RunError` for an
    `output` that holds something else and, after the report, for runs that failed.
    """
    refuse_both(resume=resume, overwrite=overwrite)
    check_folder(output, "runs")
    cores = max(1, (os.cpu_count() or 1) // jobs)
    given = {text.partition("=")[0].strip() for text in overrides}
    shared = [f"{key}={cores}" for key in ("training.threads", "sandbox.workers") if key not in given]
    grid = resolved_grid(recipe, [*(shared if jobs > 1 else ()), *overrides], machine=this_preset)
    if len(grid) == 1:
        raise ConfigError(
            "nothing to sweep: no key has several values.",
            remedy="Separate values by commas or give a range, for example "
            "training.learning_rate=1e-4,3e-4 seed=0..2.",
        )
    for resolved in grid.values():
        check_needs(resolved)
    arms = {run: Arm(output / run.folder, recipe, run.overrides) for run in grid}
    if not overwrite:
        _check_output(output, {arm.folder: grid[run] for run, arm in arms.items()}, resume=resume)
    claim_folder(output, "runs", overwrite=overwrite)
    for run, arm in arms.items():
        arm.finished = _is_finished(arm.folder, grid[run])
        claim_folder(arm.folder, "run")
        with writing(str(arm.folder)):
            (arm.folder / FAILURE).unlink(missing_ok=True)
    with Progress(quiet=quiet) as progress:
        shown = {
            arm: ArmProgress(run.folder, arm.folder, None) for run, arm in arms.items() if not arm.finished
        }

        def watch() -> None:
            for arm, one in list(shown.items()):
                one.report(progress)
                if arm.finished or arm.failure is not None:
                    del shown[arm]
                    progress.end(one.phase)
                    said = "finished" if arm.failure is None else f"stopped {arm.failure}"
                    progress.message(f"{one.phase} {said} ({len(arms) - len(shown)} of {len(arms)} runs)")
                if arm.failure is not None:
                    write_atomically(arm.folder / FAILURE, f"It stopped {arm.failure}\n".encode())

        try:
            run_arms(
                list(arms.values()),
                parallel=jobs,
                resume=True,
                keep_going=True,
                devices=_devices() if jobs > 1 else (),
                watch=watch,
            )
        except KeyboardInterrupt:
            return False
    show_report(output, quiet=quiet, report_of=report_of)
    if failed := [run.folder for run, arm in arms.items() if arm.failure is not None]:
        raise RunError(
            f"{len(failed)} of {len(arms)} runs failed: {', '.join(failed)}.",
            remedy=f"Each says why in its {FAILURE}. The same command with --resume tries them again.",
        )
    return True


def _check_output(output: Path, recipes: dict[Path, Recipe], *, resume: bool) -> None:
    """Raises `RunError` where `output` holds another sweep, or this one without `resume`."""
    there = runs_below(output)
    for folder in there:
        if folder not in recipes:
            raise RunError(
                f"{output} holds runs of another sweep: {folder.relative_to(output)} is none of this one.",
                remedy="Choose another --output, or give the values of that sweep as well.",
            )
        if resume:
            compare_configs(
                folder, with_defaults(read_config(folder)), recipes[folder].model_dump(mode="json")
            )
    if there and not resume:
        raise RunError(
            f"{output} already holds a sweep.",
            remedy="Go on with it by --resume, replace it by --overwrite, or choose another --output.",
        )


def _is_finished(folder: Path, recipe: Recipe) -> bool:
    """Whether the run in `folder` has done all that `recipe` asks for; its limits may have been raised."""
    summary = read_summary(folder)
    if summary is None or summary["status"] != "finished":
        return False
    limits = recipe.training.model_dump(include={"max_steps", "max_seconds"})
    stored = read_config(folder).get("training", {})
    return all(stored.get(name) == value for name, value in limits.items())


def _devices() -> list[str]:
    """The GPUs that this process sees, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    count = torch.cuda.device_count()
    return named[:count] if all(named) else [str(number) for number in range(count)]
