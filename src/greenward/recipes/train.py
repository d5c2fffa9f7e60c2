"""Runs a recipe: builds what it describes, warms up, trains, evaluates, reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from greenward.algorithms.callbacks import Callback
from greenward.algorithms.loop import Trainer, TrainingLoop
from greenward.algorithms.supervised import SFTTrainer
from greenward.config.loading import convert, dump
from greenward.config.recipe import Recipe, ReinforcementRecipe
from greenward.config.sections import GENERATED_CORPUS
from greenward.errors import ConfigError
from greenward.faults.fault import recorded_truth
from greenward.grading.grader import Grader
from greenward.grading.rewards import RewardTerm
from greenward.policies.devices import contended_threads, resolve_device
from greenward.policies.policy import Policy
from greenward.problems.problem import ProblemSet
from greenward.recipes.build import (
    build_grader,
    build_policy,
    build_problems,
    build_renderer,
    build_rewards,
    verify_references,
)
from greenward.recipes.reinforcement import build_reinforcement
from greenward.recipes.supervised_data import check_pairs, supervised_examples
from greenward.recipes.training_evaluation import TrackedSuite, build_evaluators, find_tracked_suites
from greenward.reports.render_terminal import print_report
from greenward.reports.training import training_report
from greenward.reports.write import write_report
from greenward.runs.directory import RunDirectory, write_summary
from greenward.runs.machine import peak_resident_mb
from greenward.runs.progress import Progress
from greenward.runs.reading import read_summary
from greenward.runs.trackers import check_trackers, make_sinks

WARM_START = "warm_start"


def train(
    recipe: Recipe,
    output: Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    given: Mapping[str, ProblemSet] = MappingProxyType({}),
    functions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> bool:
    """Run a recipe in the run directory `output`; True when it finished, False when interrupted.

    `given` and `functions` are the caller's own problems and reward functions (`build_problems`,
    `build_rewards`).
    A warm start before reinforcement learning is a run of its own in `output/warm_start`. Raises
    the typed errors of `greenward.errors`; nothing written before an error is lost.
    """
    _check_needs(recipe)
    if recipe.training.threads is not None:
        torch.set_num_threads(recipe.training.threads)
    train_problems, held_out = build_problems(recipe, given)
    suites = find_tracked_suites(recipe, train_problems)
    terms = build_rewards(recipe, train_problems, functions)
    with ExitStack() as stack:
        run = stack.enter_context(RunDirectory.create(output, recipe.model_dump(mode="json"), resume=resume))
        grader = stack.enter_context(build_grader(recipe.sandbox))
        run.add_provenance(sandbox=grader.isolation.to_json())
        train_problems, held_out = grader.complete(train_problems), grader.complete(held_out)
        verify_references(recipe, grader, train_problems, held_out)
        progress = stack.enter_context(Progress(quiet=quiet))
        for key, change in run.inexact.items():
            progress.message(
                f"Resumed with another {key} ({change}): the numbers will not equal those of an "
                "uninterrupted run to the last digit."
            )
        if slowed := contended_threads():
            progress.message(slowed)
        suites = tuple(replace(suite, problems=grader.complete(suite.problems)) for suite in suites)
        session = Session(recipe, train_problems, held_out, suites, terms, grader, progress, resume)
        finished = session.train(run)
    if finished:
        show_report(output, quiet=quiet)
    return finished


def _check_needs(recipe: Recipe) -> None:
    """Raises the error of what a training needs and has not, before anything is loaded or written."""
    if recipe.kind == "sft" and recipe.warm_start is not None:
        data = recipe.warm_start.data
        if data is None:
            raise ConfigError(
                "kind: sft trains on your own pairs: warm_start.data is not set.",
                remedy="Set warm_start.data=pairs.jsonl, one {prompt, completion} or {messages} on each "
                f"line, or warm_start.data={GENERATED_CORPUS} for the corpus that is generated from the "
                "problems.",
            )
        if data != GENERATED_CORPUS:
            check_pairs(Path(data))
    check_trackers(recipe.tracking.model_dump())
    resolve_device(recipe.model.device)


def show_report(output: Path, *, quiet: bool) -> None:
    """Write the report of a run or study; print its terminal view and where the page is."""
    report = training_report(output)
    paths = write_report(report, output)
    if not quiet:
        print_report(report)
        print(f"Report: {paths['html']}")


def dry_run(
    recipe: Recipe,
    given: Mapping[str, ProblemSet] = MappingProxyType({}),
    functions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> None:
    """Print the resolved recipe, the model's size and the first prompt; train nothing."""
    _check_needs(recipe)
    train_problems, held_out = build_problems(recipe, given)
    build_rewards(recipe, train_problems, functions)
    policy = build_policy(recipe, train_problems)
    parameters = sum(parameter.numel() for parameter in policy.parameters())
    renderer = build_renderer(recipe, policy.tokenizer)
    prompt = train_problems[0]
    print(dump(recipe))
    print(f"# {len(train_problems)} problems to train on, {len(held_out)} held out")
    print(f"# {parameters:,} parameters; weights, gradients and Adam: {parameters * 16 / 2**20:,.0f} MiB")
    print(f"# first prompt ({len(renderer.prompt_ids(prompt))} tokens, {renderer.style} style):")
    print(renderer.prompt_text(prompt))


@dataclass(frozen=True)
class Session:
    """One call of `train`: what its phases share."""

    recipe: Recipe
    train_problems: ProblemSet
    held_out: ProblemSet
    suites: tuple[TrackedSuite, ...]
    reward_terms: tuple[RewardTerm, ...]
    grader: Grader
    progress: Progress
    resume: bool

    def warm_start(self, folder: Path) -> Policy | None:
        """The policy after the warm start in `folder`, which runs unless it has; None if interrupted."""
        summary = read_summary(folder)
        if summary is None or summary["status"] != "finished":
            unmeasured = self.recipe.evaluation.model_copy(update={"enabled": False})
            recipe = convert(self.recipe, "sft", name=WARM_START, evaluation=unmeasured.model_dump())
            with RunDirectory.create(folder, recipe.model_dump(mode="json"), resume=self.resume) as run:
                policy = build_policy(recipe, self.train_problems)
                if not replace(self, recipe=recipe, suites=()).supervised(run, policy):
                    return None
        model = self.recipe.model.model_copy(update={"id": str(folder / "checkpoints" / "last")})
        return Policy.load(model)

    def train(self, run: RunDirectory) -> bool:
        """All phases of the recipe; True when the last one finished."""
        if self.recipe.kind == "sft":
            return self.supervised(run, build_policy(self.recipe, self.train_problems))
        if self.recipe.warm_start is None:
            return self.reinforce(run, build_policy(self.recipe, self.train_problems))
        policy = self.warm_start(run.path / WARM_START)
        return policy is not None and self.reinforce(run, policy)

    def supervised(self, run: RunDirectory, policy: Policy) -> bool:
        recipe = self.recipe
        assert recipe.warm_start is not None  # the schema requires it for kind: sft
        renderer = build_renderer(recipe, policy.tokenizer)
        examples = supervised_examples(
            recipe.warm_start, self.train_problems, policy, renderer, seed=recipe.seed
        )
        trainer = SFTTrainer(policy, examples, recipe.warm_start, seed=recipe.seed)
        self.progress.phase(run.path.name, recipe.warm_start.max_steps)
        return self._drive(
            run, trainer, max_steps=recipe.warm_start.max_steps, max_seconds=recipe.warm_start.max_seconds
        )

    def reinforce(self, run: RunDirectory, policy: Policy) -> bool:
        recipe = self.recipe
        assert isinstance(recipe, ReinforcementRecipe)
        built = build_reinforcement(recipe, policy, self.train_problems, self.grader, self.reward_terms, run)
        limits = recipe.training
        self.progress.phase(built.phase, limits.max_steps)
        with recorded_truth(run.path, built.faults, seed=recipe.seed):
            return self._drive(
                run,
                built.trainer,
                callbacks=built.callbacks,
                max_steps=limits.max_steps,
                max_seconds=limits.max_seconds,
            )

    def _drive(
        self,
        run: RunDirectory,
        trainer: Trainer,
        *,
        callbacks: Sequence[Callback] = (),
        max_steps: int,
        max_seconds: float | None = None,
    ) -> bool:
        recipe = self.recipe
        sinks = make_sinks(recipe.tracking.model_dump(), run.path, run.config)
        evaluators = build_evaluators(
            recipe, self.held_out, self.suites, trainer.policy.tokenizer, self.grader
        )
        loop = TrainingLoop(
            trainer,
            run,
            seed=recipe.seed,
            max_steps=max_steps,
            max_seconds=max_seconds,
            evaluators=evaluators,
            evaluate_at_start=recipe.evaluation.at_start,
            eval_interval_steps=recipe.evaluation.eval_interval_steps,
            checkpoint_interval_steps=recipe.training.checkpoint_interval_steps,
            keep_checkpoints=recipe.training.keep_checkpoints,
            callbacks=callbacks,
            sinks=sinks,
            progress=self.progress,
        )
        try:
            loop.run()
        finally:
            for sink in sinks:
                sink.close()
        write_summary(
            run,
            status="interrupted" if loop.interrupted else "finished",
            steps=loop.steps_done,
            wall_seconds=loop.wall_seconds,
            peak_rss_mb=peak_resident_mb(),
            extra={"training_seconds": loop.training_seconds},
        )
        return not loop.interrupted
