"""Sweeps: every combination of the values given to keys of a recipe, run one after the other or side by side.

Each is a run of the usual kind in a folder of its own, by the command that a user would type, so that a
sweep can be stopped, continued and extended, and its runs be read like any other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from greenward.config.grid import resolved_grid
from greenward.config.recipe import AnyRecipe, with_defaults
from greenward.errors import ConfigError, RunError
from greenward.platforms.detection import this_preset
from greenward.recipes.arms import Arm, ArmProgress, run_arms
from greenward.recipes.requirements import check_needs
from greenward.recipes.train import refuse_both, show_report
from greenward.reports.write import report_of
from greenward.runs.directory import compare_configs
from greenward.runs.files import write_atomically, writing
from greenward.runs.output import check_folder, claim_folder
from greenward.runs.progress import Progress
from greenward.runs.reading import FAILURE, read_config, read_summary, runs_below


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
    failed = [run.folder for run, arm in arms.items() if arm.failure is not None]
    if failed:
        raise RunError(
            f"{len(failed)} of {len(arms)} runs failed: {', '.join(failed)}.",
            remedy=f"Each says why in its {FAILURE}. The same command with --resume tries them again.",
        )
    return True


def _check_output(output: Path, recipes: dict[Path, AnyRecipe], *, resume: bool) -> None:
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


def _is_finished(folder: Path, recipe: AnyRecipe) -> bool:
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
