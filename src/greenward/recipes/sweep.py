"""Runs several trainings side by side, as a sweep or as the demo, each by a `greenward train` command.

Every run is of the usual kind, in a process and folder of its own, so that it can be stopped, continued,
extended and read like any other. A run with `same_time_as` another starts from the warm start of that one and
trains for the seconds that it trained, so that both had the same of everything but the method.
The demo is a sweep over seeds with two such runs for each: rejection sampling, the simplest use of the same
rewards (what does the policy gradient add to it?), and further supervised training on the corpus (would more
of the same have done?). With a pretrained model there is no corpus, and both runs train for a given time.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from greenward.common import interruption
from greenward.common.control_groups import usable_cores
from greenward.common.errors import ConfigError, RunError, SandboxError
from greenward.common.interruption import POLL_SECONDS, Stopped
from greenward.common.processes import python_module
from greenward.config.loading import has_key, load_recipe, resolved_grid, with_defaults
from greenward.config.recipe import GRPORecipe, Recipe
from greenward.evaluation.session import MOST_LOST
from greenward.hardware.detection import this_machine
from greenward.recipes.leaving import leaving_line
from greenward.recipes.run import check_needs, refuse_both, show_report
from greenward.reports.runs import ALGORITHM_LABELS, max_lost_share, read_runs
from greenward.runs.directory import compare_configs, has_steps
from greenward.runs.files import write_atomically, writing
from greenward.runs.no_signal import MIN_STEPS, no_signal_periods
from greenward.runs.output import check_folder, claim_folder
from greenward.runs.progress import Progress, doing, evaluation_line
from greenward.runs.reading import (
    FAILURE,
    METRICS,
    WARM_START,
    read_config,
    read_evaluations,
    read_metrics,
    read_summary,
    runs_below,
)
from greenward.tasks import recipes_of_task

UNBOUNDED_STEPS = 1_000_000
REPORT_SECONDS = 1.0
GOES_ON = (
    "Stopping; each run is saved at its last finished step, and --resume goes on from there. "
    + interruption.AGAIN
)


@dataclass(eq=False)
class Phase:
    """A part of a run, shown as `name` from the files in `folder`; `total` steps, None where unknown."""

    name: str
    folder: Path
    total: int | None = None
    _step: int | None = field(default=None, init=False)
    _doing: str | None = field(default=None, init=False)
    _evaluations: int = field(default=0, init=False)

    def report(self, progress: Progress) -> None:
        """Show what is new since the last call."""
        has_all = self.total is not None and self._step == self.total
        rows = [] if has_all else read_metrics(self.folder / METRICS).rows
        now = doing(self.folder)
        if self._step is None and (rows or now):
            self._step = 0
            progress.phase(self.name, self.total)
        if self._step is not None and (now != self._doing or (rows and rows[-1]["step"] > self._step)):
            last = rows[-1] if rows else {"step": self._step}
            self._step, self._doing = last["step"], now
            without_signal = no_signal_periods(rows[-MIN_STEPS:], read_config(self.folder)) if rows else ()
            warning = without_signal[0].cause.brief if without_signal else None
            progress.advance(last["step"], last, phase=self.name, warning=warning, doing=now)
        for evaluation in read_evaluations(self.folder)[self._evaluations :]:
            progress.message(f"{self.name} {evaluation_line(evaluation)}")
            self._evaluations += 1


@dataclass(eq=False)
class Run:
    """`greenward train RECIPE` with overrides, in `folder`; `phases` are shown while it runs.

    With `same_time_as` another run, it starts once that one has finished, from the warm start of that one,
    and trains for as long as that one did. `failure` is what a failed run said.
    """

    folder: Path
    recipe: str
    overrides: Sequence[str]
    same_time_as: Run | None = None
    phases: Sequence[Phase] = ()
    finished: bool = field(default=False, init=False)
    failure: str | None = field(default=None, init=False)

    def arguments(self) -> list[str]:
        """Recipe and overrides; with `same_time_as`, once that run has finished."""
        if self.same_time_as is None:
            return [self.recipe, *self.overrides]
        supervised = load_recipe(self.recipe, self.overrides).algorithm.name == "sft"
        limits = "warm_start" if supervised else "training"
        return [
            self.recipe,
            *self.overrides,
            *(() if supervised else ("warm_start=null",)),
            f"model.id={self.same_time_as.folder / WARM_START / 'checkpoints' / 'last'}",
            "pretrained=null",
            f"{limits}.max_steps={UNBOUNDED_STEPS}",
            f"{limits}.max_seconds={training_seconds(self.same_time_as.folder):.3f}",
            "evaluation.at_start=false",  # it starts where the other run started, which was measured
            f"evaluation.eval_interval_steps={UNBOUNDED_STEPS}",
            f"training.checkpoint_interval_steps={UNBOUNDED_STEPS}",
        ]

    def start(self, place: int, devices: Sequence[str], *, resume: bool) -> None:
        """Start the command, at one of the places for runs that run at a time."""
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

    def report(self, progress: Progress) -> None:
        """Show what is new in its phases."""
        for phase in self.phases:
            phase.report(progress)

    def tell_end(self, progress: Progress, of_all: str) -> None:
        """Say how it ended, in its folder as well where it failed."""
        said = "finished" if self.failure is None else f"stopped {self.failure}"
        for phase in self.phases:
            progress.end(phase.name)
            progress.message(f"{phase.name} {said} ({of_all})")
        if self.failure is not None:
            write_atomically(self.folder / FAILURE, f"It {said}\n".encode())


def training_seconds(folder: Path) -> float:
    """The time that a finished run trained, evaluation aside. Raises `RunError` when it has not finished."""
    summary = read_summary(folder)
    if summary is None or summary["status"] != "finished":
        raise RunError(f"{folder} has not finished: no other run can train for the same time.")
    return float(summary["training_seconds"])


def run_all(
    runs: Sequence[Run],
    progress: Progress,
    *,
    parallel: int,
    resume: bool,
    keep_going: bool = False,
    devices: Sequence[str] = (),
) -> None:
    """Do all runs, `parallel` at a time, the first that may start first, and show them every second.

    Each of the runs at a time sees one of `devices` (as CUDA_VISIBLE_DEVICES names them) where there are
    any. Raises `Stopped` when one of them or this process was interrupted, and `RunError` with what a failed
    one said, both after the others were stopped cleanly: each writes a checkpoint. With `keep_going`, where
    no run waits for another, a failed one does not stop the others, and leaves what it said in its folder.
    """
    waiting = [run for run in runs if not run.finished]
    places = list(range(parallel))
    running: dict[Run, int] = {}  # with their places
    reported = time.monotonic()
    try:
        with interruption.stoppable(lambda: GOES_ON, may_stop=lambda: True):
            while waiting or running:
                ready = [run for run in waiting if run.same_time_as is None or run.same_time_as.finished]
                for run in ready[: len(places)]:
                    waiting.remove(run)
                    run.start(place := places.pop(0), devices, resume=resume)
                    running[run] = place
                time.sleep(POLL_SECONDS)
                for run in [run for run in running if run.has_ended()]:
                    places.append(running.pop(run))
                    run.report(progress)
                    if run.failure is not None and not keep_going:
                        raise RunError(f"{run.folder.name} stopped {run.failure}")
                    if keep_going:
                        ended = len(runs) - len(waiting) - len(running)
                        run.tell_end(progress, f"{ended} of {len(runs)} runs")
                if time.monotonic() - reported >= REPORT_SECONDS:
                    reported = time.monotonic()
                    for run in running:
                        run.report(progress)
                interruption.check()
    finally:
        for run in running:
            run.process.terminate()  # it writes a checkpoint
        for run in running:
            run.process.wait()
            run.errors.close()


def _run_and_report(
    runs: Sequence[Run], recipes: Iterable[Recipe], output: Path, *, quiet: bool, **how: Any
) -> bool:
    """Do all runs, which have these recipes, and show the report of `output`; False when interrupted."""
    with Progress(quiet=quiet) as progress:
        for line in dict.fromkeys(filter(None, map(leaving_line, recipes))):
            progress.message(line)
        try:
            run_all(runs, progress, **how)
        except KeyboardInterrupt:
            return False  # the terminal's Ctrl-C reached the runs as well
    show_report(output, quiet=quiet)
    return True


RECIPE = "quickstart"
# Every run trains for as long as GRPO: with these settings the demo takes less than six minutes.
SHORTER = ("training.max_steps=14", "evaluation.num_questions=150")
CONTROL_RATE_SHARE = 1 / 3  # of the warm start's peak learning rate, held constant
# With a pretrained model; sizes for half a billion parameters on two cores. A KL term would cost a forward
# pass of every answer, a quarter of the update of an adapter.
OF_A_MODEL = (
    "model.lora.r=16",
    "algorithm.kl.coefficient=0",
    "algorithm.overlong.penalty_buffer=64",
    "training.learning_rate=3e-4",
    "training.warmup_steps=2",
    "training.prompts_per_step=8",
    "training.num_generations=8",
    "training.micro_batch_sequences=4",
    f"training.max_steps={UNBOUNDED_STEPS}",
    "training.max_seconds=900",
    "training.checkpoint_interval_steps=5",
    "sampling.max_tokens=256",
    "evaluation.num_questions=50",
)


def demo(
    output: Path,
    *,
    seeds: Sequence[int] = (0, 1),
    overrides: Sequence[str] = (),
    quiet: bool = False,
    resume: bool = False,
    overwrite: bool = False,
) -> bool:
    """Run the quickstart recipe and those that train for the same time for every seed, in `output/seed_N`.

    Where `overrides` name a pretrained model, adapters of it are trained by GRPO and by rejection sampling,
    each for `training.max_seconds` with all processors, one after the other unless there are several GPUs.
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
    recipe = load_recipe(RECIPE, overrides)
    of_a_model = isinstance(recipe, GRPORecipe) and recipe.warm_start is None and recipe.model.id is not None
    devices = _devices() if of_a_model else []
    parallel = max(1, min(2, len(devices))) if of_a_model else len(seeds)
    share = max(1, usable_cores() // parallel)
    common = [f"training.threads={share}", f"sandbox.workers={share}"] if parallel > 1 else []
    common += [*(OF_A_MODEL if of_a_model else SHORTER), *overrides]
    runs_of = runs_with_model if of_a_model else runs_of_seed
    of_seeds = [runs_of(output / f"seed_{seed}", [f"seed={seed}", *common]) for seed in seeds]
    # Of a model those that are compared follow each other; else the others wait for GRPO.
    order = of_seeds if of_a_model else zip(*of_seeds, strict=True)
    runs = [run for some in order for run in some]
    claim_folder(output, "runs", overwrite=overwrite)
    for seed in seeds:
        claim_folder(output / f"seed_{seed}", "run")  # before an arm inside it begins
    how = {"parallel": parallel, "resume": resume, "devices": devices}
    if not _run_and_report(runs, [recipe], output, quiet=quiet, **how):
        return False
    lost = max_lost_share(read_runs(output))
    if lost > MOST_LOST:
        raise SandboxError(
            f"the infrastructure lost {lost:.1%} of the answers in an evaluation of {output}; at most "
            f"{MOST_LOST:.0%} may be. They count as not passed.",
            remedy="The report names the evaluations. Run it again where memory and processors are free.",
        )
    return True


def runs_with_model(folder: Path, overrides: Sequence[str]) -> tuple[Run, Run]:
    """GRPO from a pretrained model, and rejection sampling from it for the same time; neither waits."""
    rejection = folder / "rejection"
    made = recipes_of_task(load_recipe(RECIPE, overrides).task)["rejection"]
    own = [text for text in overrides if has_key(made, text)]
    return (
        Run(folder, RECIPE, overrides, phases=[Phase(f"{folder.name} GRPO".replace("_", " "), folder)]),
        Run(
            rejection,
            "rejection_sampling",
            [*own, "evaluation.at_start=false"],  # it starts where the other run starts
            phases=[Phase(f"{folder.name} rejection sampling".replace("_", " "), rejection)],
        ),
    )


def runs_of_seed(folder: Path, overrides: Sequence[str]) -> tuple[Run, Run, Run]:
    """GRPO with its warm start; then rejection sampling and further supervised training for the same time."""
    recipe = load_recipe(RECIPE, overrides)
    if not isinstance(recipe, GRPORecipe) or recipe.warm_start is None:
        raise ConfigError("The demo compares GRPO with its warm start: warm_start cannot be null here.")
    recipes = recipes_of_task(recipe.task)
    rejection, supervised = (
        [text for text in overrides if has_key(recipes[algorithm], text)]
        for algorithm in ("rejection", "sft")
    )
    supervised += [
        "algorithm=sft",
        "warm_start.data=corpus",
        "warm_start.schedule=constant",
        f"warm_start.learning_rate={recipe.warm_start.learning_rate * CONTROL_RATE_SHARE:.6g}",
    ]

    def phase(label: str, inner: str = "", steps: int | None = None) -> Phase:
        return Phase(f"{folder.name} {label}".replace("_", " "), folder / inner, steps)

    phases = (
        phase("warm start", WARM_START, recipe.warm_start.max_steps),
        phase(ALGORITHM_LABELS[recipe.algorithm.name], steps=recipe.training.max_steps),
    )
    only_at_the_ends = f"evaluation.eval_interval_steps={UNBOUNDED_STEPS}"
    main = Run(folder, RECIPE, [only_at_the_ends, *overrides], phases=phases)
    of_rejection, of_control = phase("rejection sampling", "rejection"), phase("control", "control")
    return (
        main,
        Run(of_rejection.folder, "rejection_sampling", rejection, main, [of_rejection]),
        Run(of_control.folder, RECIPE, supervised, main, [of_control]),
    )


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
    cores = max(1, usable_cores() // jobs)
    given = {text.partition("=")[0].strip() for text in overrides}
    shared = [f"{key}={cores}" for key in ("training.threads", "sandbox.workers") if key not in given]
    grid = resolved_grid(recipe, [*(shared if jobs > 1 else ()), *overrides], machine=this_machine)
    if len(grid) == 1:
        raise ConfigError(
            "nothing to sweep: no key has several values.",
            remedy="Separate values by commas or give a range, for example "
            "training.learning_rate=1e-4,3e-4 seed=0..2.",
        )
    for resolved in grid.values():
        check_needs(resolved)
    recipes = {output / one.folder: resolved for one, resolved in grid.items()}
    if not overwrite:
        _check_output(output, recipes, resume=resume)
    claim_folder(output, "runs", overwrite=overwrite)
    runs = []
    for one in grid:
        folder = output / one.folder
        run = Run(folder, recipe, one.overrides, phases=[Phase(one.folder, folder)])
        run.finished = _is_finished(folder, recipes[folder])
        claim_folder(folder, "run")
        with writing(str(folder)):
            (folder / FAILURE).unlink(missing_ok=True)
        runs.append(run)
    how = {"parallel": jobs, "resume": True, "keep_going": True, "devices": _devices() if jobs > 1 else ()}
    if not _run_and_report(runs, grid.values(), output, quiet=quiet, **how):
        return False
    if failed := [str(run.folder.relative_to(output)) for run in runs if run.failure is not None]:
        raise RunError(
            f"{len(failed)} of {len(runs)} runs failed: {', '.join(failed)}.",
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
