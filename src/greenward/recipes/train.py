"""Runs a recipe: builds what it describes, warms up, trains, evaluates, reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from greenward import interruption
from greenward.algorithms import distributed
from greenward.algorithms.callbacks import Callback, RolloutWriter
from greenward.algorithms.loop import Trainer, TrainingLoop
from greenward.algorithms.sharding import shard, whole_copy
from greenward.algorithms.supervised import SFTTrainer
from greenward.config.algorithm import FaultsConfig
from greenward.config.dqn import DQNTrainingConfig
from greenward.config.loading import convert, dump
from greenward.config.presets import preset_line
from greenward.config.recipe import (
    AnyRecipe,
    BaseRecipe,
    DQNRecipe,
    ModelRecipe,
    PolicyGradientRecipe,
    ReinforcementRecipe,
    SupervisedRecipe,
    with_defaults,
)
from greenward.config.sections import SupervisedConfig, TrainingConfig
from greenward.errors import ConfigError, TrainingStopped
from greenward.faults.plant import edit_examples
from greenward.policies.devices import contended_threads, resolve_device, resolve_dtype, slow_dtype
from greenward.policies.kernels.build import are_switched_off, is_to_be_built, kernels
from greenward.policies.policy import Policy
from greenward.problems.problem import ProblemSet
from greenward.recipes.build import build_policy
from greenward.recipes.code_game import CodeGameTasks
from greenward.recipes.dqn import DQNTasks
from greenward.recipes.fitting import check_disk, check_memory
from greenward.recipes.reinforcement import MonitorCallback, build_reinforcement
from greenward.recipes.requirements import check_needs, check_processes
from greenward.recipes.self_play import SelfPlayTasks
from greenward.recipes.tasks import CodeTasks, Tasks
from greenward.reports.document import Report
from greenward.reports.render_terminal import print_report
from greenward.reports.training import training_report
from greenward.reports.write import write_report
from greenward.runs.directory import FollowedRun, RunDirectory, write_summary
from greenward.runs.machine import peak_resident_mb
from greenward.runs.output import check_folder
from greenward.runs.progress import Progress
from greenward.runs.reading import read_summary
from greenward.runs.trackers import make_sinks

WARM_START = "warm_start"
TASKS: Mapping[str, type[Tasks] | type[DQNTasks]] = MappingProxyType(
    {
        **dict.fromkeys(("grpo", "ppo", "rejection", "sft"), CodeTasks),
        "self_play": SelfPlayTasks,
        "code_game": CodeGameTasks,
        "dqn": DQNTasks,
    }
)
"""What each kind of recipe trains and evaluates on."""


def train(
    recipe: AnyRecipe,
    output: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    given: Mapping[str, ProblemSet] = MappingProxyType({}),
    functions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> bool:
    """Run a recipe in the run directory `output`; True when it finished, False when interrupted.

    `given` and `functions` are the caller's own problems and reward functions (`build_problems`,
    `build_rewards`).
    A warm start before reinforcement learning is a run of its own in `output/warm_start`. `overwrite` deletes
    a run that is there. Raises the typed errors of `greenward.errors`; nothing written before an error is
    lost.
    """
    refuse_both(resume=resume, overwrite=overwrite)
    check_folder(output, "run")
    check_needs(recipe, given, functions)
    finished = False

    def what_follows() -> str:
        if not distributed.is_first():
            return ""
        now = "all steps are finished" if finished else "no step has begun in this session"
        return f"Stopping; {now}. {interruption.AGAIN}"

    warned: list[str | None] = []
    if isinstance(recipe, ModelRecipe):
        _, *warned = *check_memory(recipe), check_disk(recipe, output), _slow_numbers(recipe)
    if recipe.training.threads is not None:
        torch.set_num_threads(recipe.training.threads)
    make_tasks: Any = TASKS[recipe.kind]
    with ExitStack() as stack:
        stack.enter_context(interruption.stoppable(what_follows))
        stack.enter_context(distributed.joined())
        quiet = quiet or not distributed.is_first()
        check_processes(recipe)
        tasks = make_tasks(recipe, given, functions)
        progress = Progress(quiet=quiet)
        if computes_by_kernels(recipe) and is_to_be_built():
            progress.message("Compiling kernels for this processor, which takes some seconds, once.")
        run = stack.enter_context(open_run(output, recipe, resume=resume, overwrite=overwrite))
        tasks.open(run, stack)
        stack.enter_context(progress)
        for key, change in run.inexact.items():
            progress.message(
                f"Resumed with another {key} ({change}): the numbers will not equal those of an "
                "uninterrupted run to the last digit."
            )
        for message in (preset_line(recipe), *warned, contended_threads()):
            if message:
                progress.message(message)
        finished = Session(recipe, tasks, progress, resume).train(run)
        if finished and distributed.is_first():
            show_report(output, quiet=quiet)
    return finished


def refuse_both(*, resume: bool, overwrite: bool) -> None:
    """Raises `ConfigError` for a run that is to be continued and to be deleted."""
    if resume and overwrite:
        raise ConfigError("resume and overwrite exclude each other.", remedy="Leave one of them out.")


def computes_by_kernels(recipe: BaseRecipe) -> bool:
    """Whether compiled kernels serve, where this machine has them."""
    return isinstance(recipe, ModelRecipe) and not torch.cuda.is_available()


def _slow_numbers(recipe: ModelRecipe) -> str | None:
    return slow_dtype(recipe.model.dtype, resolve_device(recipe.model.device))


def open_run(path: Path, recipe: BaseRecipe, *, resume: bool, overwrite: bool = False) -> RunDirectory:
    """The run directory of `recipe`, for writing in the first process alone."""
    config = recipe.model_dump(mode="json")
    count = distributed.size()
    computed_by = {"processes": f"{count} ({distributed.sharding()})"} if count > 1 else {}
    if isinstance(recipe, ModelRecipe) and computes_by_kernels(recipe) and (native := kernels()):
        numbers = resolve_dtype(recipe.model.dtype, torch.device("cpu"))
        products = native.products and numbers == torch.float32
        computed_by["kernels"] = "compiled, with products" if products else "compiled"
    elif isinstance(recipe, ModelRecipe) and torch.cuda.is_available() and not are_switched_off():
        computed_by["kernels"] = "torch, flex attention where it serves"

    def create() -> None:
        how: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "computed_by": computed_by}
        opened.append(RunDirectory.create(path, config, **how, complete=with_defaults))

    opened: list[RunDirectory] = []
    distributed.from_first(create)
    return opened[0] if opened else FollowedRun(path, config)


def show_report(output: Path, *, quiet: bool, report_of: Callable[[Path], Report] = training_report) -> None:
    """Write the report of what lies in `output`; print its terminal view and where the page is."""
    report = report_of(output)
    paths = write_report(report, output)
    if not quiet:
        print_report(report)
        print(f"Report: {paths['html']}")


def dry_run(
    recipe: AnyRecipe,
    given: Mapping[str, ProblemSet] = MappingProxyType({}),
    functions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> None:
    """Print the resolved recipe, the model's size and the first prompt; train nothing."""
    check_needs(recipe, given, functions)
    print(dump(recipe))
    if isinstance(recipe, DQNRecipe):
        print(DQNTasks(recipe, given, functions).sample())
        return
    estimated, warned = check_memory(recipe)
    for line in (*estimated, preset_line(recipe), warned, _slow_numbers(recipe)):
        if line:
            print(f"# {line}")
    make_tasks: Any = TASKS[recipe.kind]
    tasks: Tasks = make_tasks(recipe, given, functions)
    policy = build_policy(recipe, tasks.texts)
    print(f"# {training_memory(policy)}")
    print(tasks.sample(policy))


def training_memory(policy: Policy) -> str:
    """The number of parameters, and the memory of weights, gradients and Adam's two moments."""
    parameters = list(policy.parameters())
    total = sum(parameter.numel() for parameter in parameters)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    frozen_bytes = sum(p.numel() * p.element_size() for p in parameters if not p.requires_grad)
    whole = f"{total * 16 / 2**20:,.0f} MiB"
    if trained == total:
        return f"{total:,} parameters; weights, gradients and Adam: {whole}"
    return (
        f"{total - trained:,} frozen parameters and {trained:,} of the adapter; weights, gradients and Adam: "
        f"{(frozen_bytes + trained * 16) / 2**20:,.0f} MiB, and {whole} if all were trained"
    )


_NO_FAULTS = FaultsConfig()


@dataclass(frozen=True)
class Session:
    """One call of `train`: what its phases share."""

    recipe: AnyRecipe
    tasks: Any
    progress: Progress
    resume: bool

    def train(self, run: RunDirectory) -> bool:
        recipe = self.recipe
        if isinstance(recipe, DQNRecipe):
            return self._learn_values(recipe, run)
        if isinstance(recipe, SupervisedRecipe):
            return self._supervise(recipe, run)
        if recipe.warm_start is None:
            return self._reinforce(recipe, run, build_policy(recipe, self.tasks.texts))
        folder = run.path / WARM_START
        summary = distributed.from_first(lambda: read_summary(folder))
        if summary is None or summary["status"] != "finished":
            unmeasured = recipe.evaluation.model_copy(update={"enabled": False})
            # Random weights are trained whole; the adapter changes what comes of them.
            whole = recipe.model if recipe.model.id else recipe.model.model_copy(update={"lora": None})
            before = convert(
                recipe, "sft", name=WARM_START, evaluation=unmeasured.model_dump(), model=whole.model_dump()
            )
            assert isinstance(before, SupervisedRecipe)
            faults = recipe.faults if isinstance(recipe, PolicyGradientRecipe) else _NO_FAULTS
            with open_run(folder, before, resume=self.resume) as inner:
                if not self._supervise(before, inner, faults):
                    return False
            interruption.check()
        model = recipe.model.model_copy(update={"id": str(folder / "checkpoints" / "last")})
        warm = recipe.model_copy(update={"model": model})
        return self._reinforce(recipe, run, build_policy(warm, self.tasks.texts))

    def _learn_values(self, recipe: DQNRecipe, run: RunDirectory) -> bool:
        trainer = self.tasks.trainer()
        self.progress.phase("Q-learning", recipe.training.max_steps)
        writer = RolloutWriter(run, recipe.training.rollouts_per_step)
        callbacks = [writer, *self.tasks.callbacks(self.progress)]
        finished = self._drive(recipe, run, trainer, recipe.training, callbacks)
        if finished:
            self.tasks.compare(run, trainer, self.progress)
        return finished

    def _supervise(
        self, recipe: SupervisedRecipe, run: RunDirectory, faults: FaultsConfig = _NO_FAULTS
    ) -> bool:
        config = recipe.warm_start
        policy = build_policy(recipe, self.tasks.texts)
        examples = edit_examples(faults, self.tasks.examples(policy, config))
        whole = whole_copy(policy)
        shard(policy)
        trainer = SFTTrainer(policy, examples, config, seed=recipe.seed)
        self.progress.phase(run.path.name, config.max_steps)
        if whole is None:
            return self._drive(recipe, run, trainer, config)
        return self._drive(recipe, run, trainer, config, [whole], whole.policy)

    def _reinforce(self, recipe: ReinforcementRecipe, run: RunDirectory, policy: Policy) -> bool:
        with ExitStack() as stack:
            built = build_reinforcement(recipe, policy, self.tasks, run, stack)
            self.progress.phase(built.phase, recipe.training.max_steps)
            if self.resume and not built.exact:
                self.progress.message(
                    "The numbers of a resumed run with these rollouts will not equal those of an "
                    "uninterrupted one: its engine does not repeat samples, or samples ahead."
                )
            callbacks = [*built.callbacks]
            if recipe.monitor.enabled and distributed.is_first():
                callbacks.append(MonitorCallback(recipe, run, self.progress.message))
            return self._drive(recipe, run, built.trainer, recipe.training, callbacks, built.evaluated)

    def _drive(
        self,
        recipe: ModelRecipe | DQNRecipe,
        run: RunDirectory,
        trainer: Trainer,
        limits: SupervisedConfig | TrainingConfig | DQNTrainingConfig,
        callbacks: Sequence[Callback] = (),
        evaluated: Policy | None = None,
    ) -> bool:
        first = distributed.is_first()
        sinks = make_sinks(recipe.tracking.model_dump(), run.path, run.config) if first else []
        loop = TrainingLoop(
            trainer,
            run,
            seed=recipe.seed,
            max_steps=limits.max_steps,
            max_seconds=limits.max_seconds,
            evaluators=self.tasks.evaluators(trainer.policy) if recipe.evaluation.enabled else {},
            evaluate_at_start=recipe.evaluation.at_start,
            eval_interval_steps=recipe.evaluation.eval_interval_steps,
            checkpoint_interval_steps=recipe.training.checkpoint_interval_steps,
            keep_checkpoints=recipe.training.keep_checkpoints,
            keep_best=isinstance(recipe, DQNRecipe),
            log_interval_steps=recipe.training.log_frequency if isinstance(recipe, DQNRecipe) else 1,
            keep_spaced_checkpoints=recipe.training.keep_spaced_checkpoints,
            callbacks=callbacks,
            evaluated=evaluated,
            sinks=sinks,
            tracked_samples=recipe.tracking.samples,
            finishes_steps=isinstance(recipe, DQNRecipe),
            progress=self.progress,
        )
        try:
            loop.run()
        finally:
            for sink in sinks:
                sink.close()
        distributed.from_first(
            lambda: write_summary(
                run,
                status="interrupted" if loop.interrupted else "finished",
                steps=loop.steps_done,
                wall_seconds=loop.wall_seconds,
                peak_rss_mb=peak_resident_mb(),
                extra={"training_seconds": loop.training_seconds},
            )
        )
        if loop.failure is not None:
            raise TrainingStopped(
                f"Stopped after step {loop.steps_done}: {loop.failure.message}",
                remedy="Nothing is lost: the same command with --resume goes on once the engine answers.",
            ) from loop.failure
        return not loop.interrupted
