"""The demo: warm start, GRPO and the arms beside it, for several seeds at once, in one report.

Each seed runs in processes of its own with its share of the cores, by the commands that a user would type.
Two arms train from the same warm start for the wall time that GRPO took: rejection sampling, the simplest
use of the same rewards (what does the policy gradient add to it?), and further supervised training on the
corpus (would more of the same have done?).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from greenward.config.loading import has_key, load_recipe
from greenward.config.recipe import GRPORecipe
from greenward.errors import ConfigError, RunError, SandboxError
from greenward.recipes.arms import UNBOUNDED_STEPS, Arm, ArmProgress, run_arms
from greenward.recipes.evaluation_session import MOST_LOST
from greenward.recipes.train import WARM_START, refuse_both, show_report
from greenward.reports.study import max_lost_share, read_study
from greenward.runs.directory import has_steps
from greenward.runs.output import check_folder, claim_folder
from greenward.runs.progress import Progress

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
        shared = [text for text in overrides if has_key("rejection", text)]
        rejection = Arm(folder / REJECTION, REJECTION_RECIPE, shared, after=main, beside=main)
        supervised = (
            "kind=sft",
            "warm_start.data=corpus",
            "warm_start.schedule=constant",
            f"warm_start.learning_rate={rate:.6g}",
        )
        own = [text for text in overrides if has_key("sft", text)]
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
