"""Runs a recipe: checks what it needs, builds engine, trainer, faults and monitor, trains, and reports."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from greenward.common import interruption
from greenward.common.errors import ConfigError, EngineError, RewardError, TrainingStopped
from greenward.common.terminal import echo
from greenward.common.text import load_keys
from greenward.config.loading import convert, dump, preset_line, with_defaults
from greenward.config.recipe import (
    ModelRecipe,
    PolicyGradientRecipe,
    PPORecipe,
    Recipe,
    ReinforcementRecipe,
    RejectionRecipe,
    RewardedRecipe,
    SupervisedRecipe,
)
from greenward.config.sections import (
    GENERATED_CORPUS,
    AcceptedAnswersConfig,
    FaultsConfig,
    GRPOAlgorithmConfig,
    ModelConfig,
    OverlongConfig,
    PolicyGradientConfig,
    RewardTermConfig,
    RolloutsConfig,
    TrainingConfig,
)
from greenward.diagnostics.monitor import Alarm, Monitor
from greenward.diagnostics.signals import CPU_SECONDS
from greenward.evaluation.suites import HELD_OUT
from greenward.grading.judge import read_token
from greenward.grading.reward_terms import make_reward
from greenward.grading.rewards import RewardFunction
from greenward.hardware.detection import is_writable
from greenward.models.catalog import FoundModel, PromptReader, build_policy, find_reader
from greenward.models.checkpoint import holding, local_folder, read_shape, resolve
from greenward.models.devices import check_training_dtype, resolve_device, resolve_dtype, slow_dtype
from greenward.models.heads import Critic
from greenward.models.kernels.build import are_switched_off, is_to_be_built, kernels
from greenward.models.lora import check_lora
from greenward.models.memory import check_disk, check_memory, estimated_mb, model_shape
from greenward.models.policy import Policy
from greenward.models.threads import settle_threads
from greenward.models.tokenizer import Tokenizer
from greenward.models.vllm import SERVE, VLLM, Colocated, DeviceTransfer, FileTransfer, Server, VLLMEngine
from greenward.models.vllm_plugin import FILE_TRANSFER
from greenward.problems.catalog import check_source
from greenward.problems.problem import ProblemSet
from greenward.recipes.leaving import leaving_line
from greenward.reports.recorded import report_of
from greenward.reports.render import print_report
from greenward.reports.runs import ALGORITHM_LABELS
from greenward.reports.write import write_report
from greenward.rollouts.protocols import Episode, RolloutEngine, SamplingParams
from greenward.runs.checkpoints import pin_checkpoint_before
from greenward.runs.directory import FollowedRun, RunDirectory, write_summary
from greenward.runs.files import JsonRows, write_rows
from greenward.runs.machine import peak_resident_mb
from greenward.runs.output import check_folder
from greenward.runs.progress import SECONDS_BETWEEN_LINES, Drawn, Progress, peak_line, shown_answer
from greenward.runs.reading import WARM_START, read_sessions, read_summary
from greenward.runs.trackers import check_trackers, make_sinks
from greenward.tasks import find_task, recipes_of_task
from greenward.tasks.corpus import check_pairs
from greenward.tasks.problem_task import TRIED
from greenward.tasks.task import Say, Task
from greenward.training import distributed
from greenward.training.advantages import Estimator
from greenward.training.collector import Collector, OverlappedCollector
from greenward.training.distributed import gathered_copy, shard
from greenward.training.faults import Fault, FaultTargets, edit_examples, make_faults, recorded_truth
from greenward.training.loop import Trainer, TrainingLoop, WeightAverage
from greenward.training.optim import KLCoefficient
from greenward.training.own import OwnMathematics
from greenward.training.ppo import CriticEstimator, PPOTrainer
from greenward.training.protocols import Callback, RolloutWriter
from greenward.training.reward_model import RewardModel, RewardModelCallback
from greenward.training.sft import AcceptedAnswers, RejectionTrainer, SFTTrainer
from greenward.training.trainer import RLTrainer


def check_rollouts(config: RolloutsConfig) -> None:
    """Raises `ConfigError` for what cannot be here, `EngineError` for a server that does not answer."""
    if config.differs and (processes := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise ConfigError(
            f"rollouts: engine {config.engine} with max_staleness {config.max_staleness} works with "
            f"one training process, found {processes}.",
            remedy="Start one process, or set rollouts.engine=native and rollouts.max_staleness=0.",
        )
    if (config.engine == "vllm" or config.transfer != "file") and find_spec("vllm") is None:
        raise ConfigError(
            f"rollouts: engine {config.engine} with transfer {config.transfer} needs vLLM, which is not "
            "installed.",
            remedy="pip install 'greenward[vllm]', or without a GPU see docs/vllm.md.",
        )
    if config.engine == "server":
        Server(config.server).check(config.server.model)


def build_engine(
    recipe: ReinforcementRecipe, policy: Policy, task: Task, run: RunDirectory, stack: ExitStack
) -> tuple[RolloutEngine, Sequence[Callback]]:
    """The engine that plays `policy`, itself where no other is asked for, and what has to follow steps.

    `stack` ends it, `run` records it. Raises `ConfigError` for what it cannot serve.
    """
    config = recipe.rollouts
    if config.engine == "native":
        return policy.frozen_copy() if config.max_staleness else policy, ()
    try:
        place = config.transfer_dir or _memory(2 * 4 * sum(one.numel() for one in policy.parameters()))
        parent = tempfile.TemporaryDirectory(prefix="greenward-weights-", dir=place)
    except OSError as error:
        raise ConfigError(f"rollouts.transfer_dir cannot be written: {error}.") from error
    folder = Path(stack.enter_context(parent)) / "model"
    transfer = FileTransfer(folder) if config.transfer == "file" else DeviceTransfer(config.transfer)
    if config.engine == "server":
        server = Server(config.server)
        length = server.check(config.server.model, policy.tokenizer)
        vllm: VLLM = server
    else:
        length = config.vllm.max_model_len or policy.max_positions
        policy.save(folder)
        vllm = Colocated(
            folder,
            config.vllm,
            dtype=str(policy.dtype).removeprefix("torch."),
            max_model_len=length,
            backend=FILE_TRANSFER if config.transfer == "file" else config.transfer,
        )
    stack.callback(vllm.close)
    engine = VLLMEngine(
        vllm,
        policy.tokenizer,
        transfer,
        max_positions=min(length, policy.max_positions),
        patience_seconds=config.server.patience_seconds if config.engine == "server" else 0.0,
    )
    _check_prompts(recipe, policy, task, engine.max_positions)
    try:
        engine.sync(policy)
        engine.sample([[policy.tokenizer.eos_id]], 1, SamplingParams(max_tokens=1), seed=0)
    except EngineError as error:
        raise ConfigError(
            f"vLLM cannot sample with the policy's weights: {error.message}",
            remedy=SERVE if config.engine == "server" else None,
        ) from error
    run.add_provenance(
        rollouts={"engine": config.engine, "transfer": config.transfer, "deterministic": False}
    )
    return engine, [SleepBetween(vllm)] if isinstance(vllm, Colocated) and config.vllm.sleep else []


def _memory(size: int) -> str | None:
    """The folder that is kept in memory, if there is one with room for `size` bytes."""
    folder = "/dev/shm"
    return folder if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > size else None


@dataclass(eq=False)
class SleepBetween(Callback):
    """Has vLLM give its GPU memory back once the episodes of a step are there."""

    name = "sleep_between"

    vllm: Colocated

    def on_episodes(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        self.vllm.sleep()
        return episodes


def _check_prompts(recipe: ReinforcementRecipe, policy: Policy, task: Task, max_positions: int) -> None:
    if max_positions == policy.max_positions or (longest := task.longest_prompt(policy)) is None:
        return
    if longest + (tokens := recipe.sampling.max_tokens) > max_positions:
        raise ConfigError(
            f"the longest prompt has {longest} tokens; with sampling.max_tokens {tokens} that is more "
            f"than the {max_positions} that vLLM serves (max_model_len)."
        )


def check_needs(recipe: Recipe, given: Collection[str] = (), functions: Collection[str] = ()) -> None:
    """Raises the error of what a training by `recipe` needs and has not.

    `given` names the sets of problems and `functions` the reward functions that the caller has himself. What
    only shows when files are read, models are fetched or functions are imported is not found here.
    """
    data = recipe.warm_start.data if isinstance(recipe, ModelRecipe) and recipe.warm_start else None
    if isinstance(recipe, SupervisedRecipe) and data is None:
        raise ConfigError(
            "algorithm.name: sft trains on your own pairs: warm_start.data is not set.",
            remedy="Set warm_start.data=pairs.jsonl, one {prompt, completion} or {messages} on each "
            f"line, or warm_start.data={GENERATED_CORPUS} for the references of the problems, or what is "
            "generated from them.",
        )
    if data not in (None, GENERATED_CORPUS):
        check_pairs(Path(data))
    is_warmed = isinstance(recipe, ReinforcementRecipe) and recipe.warm_start is not None
    if is_warmed and "sft" not in recipes_of_task(recipe.task):
        raise ConfigError(
            f"warm_start is supervised training, and the recipes of task {recipe.task} have no sft.",
            remedy="Set warm_start=null, or add sft to the recipes of the task (recipes_with).",
        )
    load_keys()
    if recipe.tracking.is_on:
        check_trackers(recipe.tracking.model_dump())
    if recipe.sandbox.http is not None:
        read_token(recipe.sandbox.http)
    if isinstance(recipe, ModelRecipe):
        _check_model(recipe.model)
    sources = {"train": recipe.problems.train, "held_out": recipe.problems.held_out}
    suites = [suite.name for suite in recipe.evaluation.suites if recipe.evaluation.enabled]
    own = find_task(recipe.task)
    for source in (
        *(source for name, source in sources.items() if name not in given and not own.loads_sources),
        *(suite for suite in suites if suite != HELD_OUT),
    ):
        check_source(source)
    if isinstance(recipe, ReinforcementRecipe):
        check_rollouts(recipe.rollouts)
    if isinstance(recipe, RewardedRecipe):
        for term in recipe.rewards:
            if term.name not in functions:
                _check_reward(term, own.rewards)


def _check_model(model: ModelConfig) -> None:
    check_training_dtype(model.dtype, resolve_device(model.device))
    shape = None
    if model.id is not None and (folder := local_folder(model.id)):
        shape = read_shape(holding("config.json", folder))
    elif model.id and model.cache_dir and not model.offline and not is_writable(Path(model.cache_dir)):
        raise ConfigError(
            f"model.cache_dir {model.cache_dir} cannot be written.",
            remedy="Name a folder of your own, or set model.offline=true if the model is there already.",
        )
    if model.lora is not None:
        check_lora(model.lora, native=model.id is None or shape is not None)


def checked_task(
    recipe: Recipe,
    given: Mapping[str, ProblemSet],
    functions: Mapping[str, Callable[..., Any]],
    *,
    say: Say,
    warn: Say,
    fetch: bool,
) -> tuple[Task, PromptReader | None]:
    """The task of a recipe whose needs are checked, and what reads its prompts, if a model is trained.

    Problems are read, the user's rewards are called on made-up answers, and prompts are measured: `say` gets
    a line for each, `warn` what may spoil a training. A model on the hub is fetched only with `fetch`; the
    reader is None where it is not at hand. Raises the typed errors of `greenward.common.errors` for a recipe
    that cannot be trained.
    """
    task = find_task(recipe.task)(recipe, given, functions)
    check_processes(recipe, task)
    for line in task.found():
        say(line)
    for key, problems in task.left_out().items():
        warn(f"Skipped rows of {key}: {problems.skipped_note}")
    for line in task.doubts():
        warn(line)
    if not isinstance(recipe, ModelRecipe):
        return task, None
    name = recipe.model.id or "random weights"
    reader = find_reader(recipe, task.texts, fetch=fetch)
    if reader is None:
        known_shape = model_shape(recipe)
        if known_shape and recipe.sampling.max_tokens >= known_shape[0].max_positions:
            raise ConfigError(
                f"sampling.max_tokens {recipe.sampling.max_tokens} leaves no room for a prompt in the "
                f"{known_shape[0].max_positions} positions of {name}."
            )
        warn(f"model: {name} is not in the cache. Its prompts are measured once a training has fetched it.")
        return task, None
    if isinstance(recipe, ReinforcementRecipe) and recipe.rollouts.engine == "vllm":
        served = recipe.rollouts.vllm.max_model_len or reader.max_positions
        reader = replace(reader, max_positions=min(served, reader.max_positions))
    known = reader.max_positions < sys.maxsize
    positions = f"{reader.max_positions} positions" if known else "positions unknown"
    say(", ".join(filter(None, (f"model: {name}", positions, task.check_model(reader, warn)))))
    return task, reader


def check_recipe(
    recipe: Recipe,
    given: Mapping[str, ProblemSet] = MappingProxyType({}),
    functions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    *,
    say: Say,
    warn: Say,
    fetch: bool = False,
) -> tuple[Task, PromptReader | None]:
    """As `checked_task`, after `check_needs`; references and the examples of a warm start are tried as well.

    It finds what a training would find before its first step, but for what the weights hold. A loss and an
    advantage of the user's are called on made-up batches.
    """
    check_needs(recipe, given, functions)
    if line := leaving_line(recipe):
        say(line)
    for key in OwnMathematics.of(recipe.algorithm, functions).sources:
        say(f"{key}: {getattr(recipe.algorithm, key)}, called on a made-up batch")
    if isinstance(recipe, ModelRecipe):
        _, warned = check_memory(recipe)
        for line in filter(None, (warned, _slow_numbers(recipe))):
            warn(line)
    task, reader = checked_task(recipe, given, functions, say=say, warn=warn, fetch=fetch)
    for line in task.try_out(reader, TRIED, warn):
        say(line)
    return task, reader


def check_processes(recipe: Recipe, task: Task) -> None:
    """Raises `ConfigError` for a recipe that the processes which train together cannot train."""
    count, held = distributed.size(), distributed.sharding()
    if count == 1:
        if held != "ddp":
            raise ConfigError(
                f"{held} shares the weights out over processes, and there is one process.",
                remedy="Launch several (--processes 2), or train without a launcher.",
            )
        return
    wrong = None
    training = recipe.training
    if (reason := task.wrong_with_processes(held)) is not None:
        wrong = reason
    elif isinstance(training, TrainingConfig) and training.prompts_per_step < count:
        wrong = f"training.prompts_per_step is {training.prompts_per_step}, fewer than the {count} processes"
    elif isinstance(recipe, PolicyGradientRecipe) and recipe.faults.planted:
        wrong = "faults are planted in one process only"
    elif held != "ddp" and isinstance(recipe, ModelRecipe) and recipe.model.lora is not None:
        wrong = f"model.lora trains few weights, which {held} need not share out (--config ddp can)"
    elif isinstance(recipe, ModelRecipe) and recipe.model.device.startswith("cuda:"):
        wrong = f"model.device is {recipe.model.device}, and each process needs a device of its own (auto)"
    elif held != "ddp" and isinstance(training, TrainingConfig) and training.weight_average:
        wrong = f"training.weight_average is of whole weights, and {held} shares them out"
    elif held == "zero3" and isinstance(recipe, PPORecipe):
        wrong = "DeepSpeed clips one gradient by one norm, and PPO has two (--config fsdp2 can)"
    elif held == "fsdp2" and os.environ.get("FSDP_VERSION", "2") != "2":
        wrong = "the file for Accelerate names FSDP 1 (fsdp_version: 2 is what can be used)"
    elif os.environ.get("FSDP_OFFLOAD_PARAMS", "false") == "true":
        wrong = "the file for Accelerate asks for weights in the memory of the processor (offload)"
    elif held == "zero3" and os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3") != "3":
        wrong = "the file for Accelerate names another stage of ZeRO than 3"
    if wrong is not None:
        raise ConfigError(f"{count} processes cannot train this recipe: {wrong}.")


def _check_reward(term: RewardTermConfig, own: Mapping[str, Callable[..., RewardFunction]]) -> None:
    """Of a function, only whether its top module exists: to import it runs it."""
    if ":" not in term.name:
        make_reward(term, own)
        return
    package = term.name.partition(":")[0].partition(".")[0]
    built_in = package in sys.builtin_module_names
    if not built_in and PathFinder.find_spec(package, [os.getcwd(), *sys.path]) is None:
        raise RewardError(
            f"{term.name}: there is no module {package!r}.",
            remedy="Name a module of the current folder or an installed one, as module:function.",
        )


ALARMS = "alarms.jsonl"
_NOTHING_OWN = OwnMathematics()


@dataclass(frozen=True)
class Reinforcement:
    """A trainer with the callbacks that belong to it, the planted faults among them.

    `evaluated` is the policy that is evaluated and saved: the trained one, or the average of its weights.
    """

    phase: str
    trainer: Trainer
    callbacks: Sequence[Callback]
    evaluated: Policy
    exact: bool


class ShowSampling(Callback):
    """Shows what the engine draws for a step, if that takes long, and the first `answers` episodes of all."""

    name = "show_sampling"

    def __init__(self, engine: RolloutEngine, tokenizer: Tokenizer, progress: Progress, answers: int) -> None:
        self._engine, self._tokenizer, self._progress, self._answers = engine, tokenizer, progress, answers
        self._shown = ExitStack()
        self._drawn: Drawn | None = None

    def on_step_begin(self, step: int) -> None:
        self._engine.on_tokens = self._tokens
        self._began = time.monotonic()

    def _tokens(self, count: int) -> None:
        if self._drawn is None:
            self._drawn = self._shown.enter_context(self._progress.drawing("sampling", at_once=False))
        self._drawn.tokens(count)

    def on_episodes(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        self._end()
        for episode in episodes[: self._answers]:
            said = f"{episode.task_id}: {episode.outcome}, rewards {dict(episode.rewards)}"
            texts = (self._tokenizer.decode_answer(turn.completion_ids) for turn in episode.trained_turns)
            self._progress.message(shown_answer(said, "\n".join(texts)))
        self._answers = max(0, self._answers - len(episodes))
        if time.monotonic() - self._began >= SECONDS_BETWEEN_LINES:
            self._shown.enter_context(self._progress.during("updating the weights"))
        return episodes

    def on_step_end(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        self._end()

    def _end(self) -> None:
        self._shown.close()
        self._drawn = None


def build_reinforcement(
    recipe: ReinforcementRecipe,
    policy: Policy,
    task: Task,
    run: RunDirectory,
    stack: ExitStack,
    progress: Progress,
    show: int = 0,
    own: OwnMathematics = _NOTHING_OWN,
) -> Reinforcement:
    """Everything that trains `policy` on `task`, which is open, as the recipe says; recorded in `run`.

    `stack` closes what runs beside the training, `progress` shows it and the first `show` episodes. `exact`
    says whether a resumed run repeats an uninterrupted one. `own` takes the place of loss and advantage where
    the recipe names functions of the user's.

    The policy as it is now becomes the reference and the trunk of the reward model, where there are such.
    """
    training = recipe.training
    whole = gathered_copy(policy)
    sampled = policy if whole is None else whole.policy
    players = task.players(sampled)
    collecting = stack.enter_context(ExitStack())  # left last: what samples ahead ends with its engine
    engine, sleeps = build_engine(recipe, sampled, task, run, stack)
    if engine is not sampled:
        assert isinstance(players, dict)  # in place: a league adds its members to the same mapping
        players.update({name: engine for name, player in players.items() if player is sampled})
    writer = RolloutWriter(run, training.rollouts_per_step, policy.tokenizer, recipe.rollouts.tokens)
    callbacks: list[Callback] = [
        writer,
        *task.callbacks(progress.message),
        *sleeps,
        ShowSampling(engine, policy.tokenizer, progress, show),
    ]
    frozen = reward_model = None
    if isinstance(recipe, RewardedRecipe) and recipe.reward_model is not None:
        size, weight = training.micro_batch_sequences, recipe.reward_model.weight
        frozen = policy.frozen_copy()
        reward_model = RewardModel(frozen, recipe.reward_model, seed=recipe.seed, micro_batch_sequences=size)
        callbacks.append(RewardModelCallback(reward_model, run.predictions, weight=weight))
    max_rounds = 1
    algorithm = recipe.algorithm
    if isinstance(algorithm, GRPOAlgorithmConfig) and algorithm.dynamic_sampling:
        max_rounds = algorithm.dynamic_sampling_max_rounds
    overlapped = recipe.rollouts.max_staleness > 0
    make = partial(OverlappedCollector, steps=training.max_steps) if overlapped else Collector
    collector = make(
        task.environment(policy),
        players,
        groups_per_step=training.prompts_per_step,
        seed=recipe.seed,
        max_rounds=max_rounds,
        callbacks=callbacks,
    )
    collecting.callback(collector.close)
    trainer: Trainer
    if isinstance(recipe, RejectionRecipe):
        phase, trainer = _rejection(recipe, policy, collector)
    else:
        task.own_advantage = own.advantage
        phase, trainer = _policy_gradient(recipe, policy, task, collector, frozen, own)
        writer.trainer = trainer
    faults: list[Fault] = []
    if isinstance(recipe, PolicyGradientRecipe) and recipe.faults.planted:
        assert isinstance(trainer, RLTrainer)
        targets = FaultTargets(trainer, reward_model, policy.device, training.max_steps)
        faults = make_faults(recipe.faults, targets)
        stack.enter_context(recorded_truth(run.path, faults, seed=recipe.seed))
    average = WeightAverage(policy, training.weight_average) if training.weight_average else None
    if average is not None:
        callbacks.append(average)
        if isinstance(trainer, RLTrainer):
            trainer.reference_source = average.policy
    if whole is not None:
        callbacks.append(whole)
    evaluated = sampled if average is None else average.policy
    exact = engine.deterministic and not overlapped
    return Reinforcement(phase, trainer, [*callbacks, *faults], evaluated, exact)


def _rejection(recipe: RejectionRecipe, policy: Policy, collector: Collector) -> tuple[str, Trainer]:
    shard(policy)
    config = recipe.algorithm
    answers = _accepted_answers(config, recipe, policy, config.overlong)
    trainer = RejectionTrainer(policy, collector, recipe.training, answers)
    return "rejection sampling", trainer


def _accepted_answers(
    config: AcceptedAnswersConfig, recipe: ReinforcementRecipe, policy: Policy, overlong: OverlongConfig
) -> AcceptedAnswers:
    return AcceptedAnswers(
        policy, config, recipe.training, seed=recipe.seed, mask_truncated=overlong.mask_truncated
    )


def _policy_gradient(
    recipe: ReinforcementRecipe,
    policy: Policy,
    task: Task,
    collector: Collector,
    frozen: Policy | None,
    own: OwnMathematics,
) -> tuple[str, RLTrainer]:
    """A reference that is never renewed may be the `frozen` copy of the policy that there is already."""
    algorithm = recipe.algorithm
    assert isinstance(algorithm, PolicyGradientConfig)
    kl = algorithm.kl
    kl_coefficient = KLCoefficient(kl.coefficient, target=kl.target, horizon=kl.horizon)
    reference = None
    if kl.coefficient > 0 or kl.measure:
        reference = frozen if frozen and not kl.refresh_every else policy.frozen_copy()
    make: Callable[..., RLTrainer] = RLTrainer
    critics: tuple[torch.nn.Module, ...] = ()
    if isinstance(recipe, PPORecipe):
        config = recipe.algorithm.critic
        critic = Critic(policy, separate_trunk=config.trunk == "separate")
        critics = tuple(critic.children())
        estimator: Estimator = CriticEstimator(
            policy,
            critic,
            config,
            recipe.algorithm.kl,
            kl_coefficient,
            micro_batch_sequences=recipe.training.micro_batch_sequences,
            reference=reference,
        )
        make = partial(
            PPOTrainer, kl_in_loss=not recipe.algorithm.kl.in_reward, critic=critic, critic_config=config
        )
    else:
        estimator = task.estimator(policy)
    shard(policy, *critics)
    imitated = algorithm.self_imitation
    imitation = None if imitated is None else _accepted_answers(imitated, recipe, policy, algorithm.overlong)
    trainer = make(
        policy,
        collector,
        estimator,
        algorithm,
        recipe.training,
        max_completion_tokens=recipe.sampling.max_tokens,
        kl_coefficient=kl_coefficient,
        reference=reference,
        imitation=imitation,
        own_loss=own.loss,
        seed=recipe.seed,
    )
    return f"{ALGORITHM_LABELS[recipe.algorithm.name]} training", trainer


class MonitorCallback(Callback):
    """Shows the metrics of each step to the monitor.

    An alarm is said, appended to alarms.jsonl, and pins the last checkpoint from before its onset.
    """

    name = "monitor"

    def __init__(self, recipe: ReinforcementRecipe, run: RunDirectory, say: Callable[[str], None]) -> None:
        self._run, self._stop_on_critical = run, recipe.monitor.stop_on_critical
        self._samples_here = recipe.rollouts.engine == "native"
        self._monitor = Monitor(
            recipe.monitor.rules,
            say=say,
            alarms=run.path / ALARMS,
            stop=_stop,
            on_alarm=self._on_alarm,
            algorithm=recipe.algorithm.name,
            silent=find_task(recipe.task).silent,
            config=recipe.model_dump(mode="json"),
            run=run.path.name,
        )
        self._step = 0

    def on_step_end(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        self._step = step
        if not self._samples_here:  # it waits for its engine, whose throughput is that of the clock
            metrics = {name: value for name, value in metrics.items() if name != CPU_SECONDS}
        self._monitor.log(step, metrics)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, "tests": self._monitor.tests.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`; alarms of steps that are repeated are removed."""
        self._step = state.get("step", 0)
        self._monitor.tests.load_state_dict(state.get("tests", {}))
        file = self._run.path / ALARMS
        if file.is_file():
            rows = JsonRows(file, lenient=True)
            write_rows(file, [row for row in rows if row.get("step", 0) <= self._step])

    def _on_alarm(self, alarm: Alarm) -> None:
        pin_checkpoint_before(self._run, alarm.onset)
        if alarm.severity == "critical" and self._stop_on_critical:
            _stop()


def _stop() -> None:
    """Ask the training loop for a clean stop after the step."""
    os.kill(os.getpid(), signal.SIGTERM)


def train(
    recipe: Recipe,
    output: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    show: int = 0,
    given: Mapping[str, ProblemSet] = MappingProxyType({}),
    functions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> bool:
    """Run a recipe in the run directory `output`; True when it finished, False when interrupted.

    `given` are the caller's own problems (`build_problems`), `functions` his reward functions
    (`build_rewards`), loss and advantage (`OwnMathematics`), by the names that the recipe has for them.
    A warm start before reinforcement learning is a run of its own in `output/warm_start`. `overwrite` deletes
    a run that is there. The first `show` episodes are shown, unless `quiet`. Raises the typed errors of
    `greenward.common.errors`; nothing written before an error is lost.
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
    with ExitStack() as stack:
        stack.enter_context(interruption.stoppable(what_follows))
        stack.enter_context(distributed.process_group())
        quiet = quiet or not distributed.is_first()
        progress = stack.enter_context(Progress(quiet=quiet))
        if line := leaving_line(recipe):
            progress.message(line)
        own = OwnMathematics.of(recipe.algorithm, functions)
        with progress.during("reading problems and model"):
            task, reader = checked_task(
                recipe, given, functions, say=lambda line: None, warn=warned.append, fetch=True
            )
        task.progress = progress
        if computes_by_kernels(recipe) and is_to_be_built():
            progress.message("Compiling kernels for this processor, which takes some seconds, once.")
        sources = {**own.sources, **task.sources()}
        opening = open_run(output, recipe, resume=resume, overwrite=overwrite, sources=sources)
        run = stack.enter_context(opening)
        if distributed.is_first():
            progress.record_in(output)
        left_out = task.left_out()
        if left_out:
            run.add_provenance(skipped_rows={key: list(one.skipped) for key, one in left_out.items()})
        with progress.during("opening the sandbox, running references"):
            task.open(run, stack)
        for key, change in run.inexact.items():
            progress.message(
                f"Resumed with another {key} ({change}): the numbers will not equal those of an "
                "uninterrupted run to the last digit."
            )
        earlier = [session.get("threads") for session in read_sessions(output)[:-1]]
        stack.callback(torch.set_num_threads, torch.get_num_threads())  # of the program that called
        threads_line = settle_threads(recipe.training.threads, earlier[-1] if earlier else None)
        run.add_provenance(threads=torch.get_num_threads())
        for message in (preset_line(recipe), *warned, threads_line):
            if message:
                progress.message(message)
        estimated = estimated_mb(recipe) if isinstance(recipe, ModelRecipe) else None
        finished = Session(recipe, task, reader, progress, resume, show, estimated, own).train(run)
        if finished and distributed.is_first():
            show_report(output, quiet=quiet)
    return finished


def refuse_both(*, resume: bool, overwrite: bool) -> None:
    """Raises `ConfigError` for a run that is to be continued and to be deleted."""
    if resume and overwrite:
        raise ConfigError("resume and overwrite exclude each other.", remedy="Leave one of them out.")


def computes_by_kernels(recipe: Recipe) -> bool:
    """Whether compiled kernels serve, where this machine has them."""
    return isinstance(recipe, ModelRecipe) and not torch.cuda.is_available()


def _slow_numbers(recipe: ModelRecipe) -> str | None:
    return slow_dtype(recipe.model.dtype, resolve_device(recipe.model.device))


def open_run(
    path: Path,
    recipe: Recipe,
    *,
    resume: bool,
    overwrite: bool = False,
    sources: Mapping[str, str] = MappingProxyType({}),
) -> RunDirectory:
    """The run directory of `recipe`, for writing in the first process alone; it keeps `sources`."""
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
        how["sources"] = sources
        opened.append(RunDirectory.create(path, config, **how, complete=with_defaults))

    opened: list[RunDirectory] = []
    distributed.broadcast_from_rank0(create)
    if not opened:
        return FollowedRun(path, config)
    if isinstance(recipe, ModelRecipe) and (name := recipe.model.id) is not None:
        folder = resolve(name, recipe.model.cache_dir, offline=True)
        opened[0].add_provenance(model=FoundModel(name, folder, None, None).origin)
    return opened[0]


def show_report(output: Path, *, quiet: bool) -> None:
    """Write the report of what lies in `output`; print its terminal view and where the page is."""
    report = report_of(output)
    paths = write_report(report, output)
    if not quiet:
        print_report(report)
        echo(f"Report: {paths['html']}")


def dry_run(
    recipe: Recipe,
    given: Mapping[str, ProblemSet] = MappingProxyType({}),
    functions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> None:
    """Check the recipe; then print it as resolved, the model's size and the first prompt; train nothing."""

    def warn(line: str) -> None:
        echo(f"warning: {line}")

    task, reader = check_recipe(recipe, given, functions, say=echo, warn=warn, fetch=True)
    sizes: list[str] = []
    if isinstance(recipe, ModelRecipe):
        policy = build_policy(recipe, task.texts, reader)
        sizes = [*check_memory(recipe)[0], preset_line(recipe) or "", training_memory(policy)]
    echo(f"{recipe.name}: good.\n\n{dump(recipe)}")
    for line in filter(None, sizes):
        echo(f"# {line}")
    echo(task.sample(reader))


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

    recipe: Recipe
    task: Task
    reader: PromptReader | None
    progress: Progress
    resume: bool
    show: int = 0
    estimated_mb: float | None = None
    own: OwnMathematics = _NOTHING_OWN

    def train(self, run: RunDirectory) -> bool:
        recipe = self.recipe
        if (trainer := self.task.trainer()) is not None:
            return self._train_by(trainer, run)
        if isinstance(recipe, SupervisedRecipe):
            return self._supervise(recipe, run)
        assert isinstance(recipe, ReinforcementRecipe)
        if recipe.warm_start is None:
            return self._reinforce(recipe, run, self._policy(recipe))
        folder = run.path / WARM_START
        summary = distributed.broadcast_from_rank0(lambda: read_summary(folder))
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
        return self._reinforce(recipe, run, build_policy(warm, self.task.texts, self.reader))

    def _policy(self, recipe: ModelRecipe) -> Policy:
        """The policy at the start, with what it is shown where it is no decoder from random weights."""
        if (name := recipe.model.id) is None:
            return build_policy(recipe, self.task.texts, self.reader)
        folder = resolve(name, recipe.model.cache_dir, offline=True)
        said = FoundModel(name, folder, None, None).description()
        self.progress.message(f"model: {said}; computed in {recipe.model.dtype}")
        with self.progress.during(f"loading {name}"):
            return build_policy(recipe, self.task.texts, self.reader)

    def _train_by(self, trainer: Trainer, run: RunDirectory) -> bool:
        """Train by a trainer of the task's own."""
        recipe, say = self.recipe, self.progress.message
        limits: Any = recipe.training
        self.progress.phase(f"{ALGORITHM_LABELS[recipe.algorithm.name]} training", limits.max_steps)
        callbacks = [RolloutWriter(run, limits.rollouts_per_step), *self.task.callbacks(say)]
        if finished := self._drive(recipe, run, trainer, limits, callbacks):
            self.task.finish(run, trainer, say)
        return finished

    def _supervise(
        self, recipe: SupervisedRecipe, run: RunDirectory, faults: FaultsConfig = _NO_FAULTS
    ) -> bool:
        config = recipe.warm_start
        policy = self._policy(recipe)
        examples = self.task.examples(policy, config)
        if faults.planted:
            examples = edit_examples(faults, examples)
        whole = gathered_copy(policy)
        shard(policy)
        trainer = SFTTrainer(policy, examples, config, seed=recipe.seed)
        self.progress.phase(run.path.name, config.max_steps)
        if whole is None:
            return self._drive(recipe, run, trainer, config)
        return self._drive(recipe, run, trainer, config, [whole], whole.policy)

    def _reinforce(self, recipe: ReinforcementRecipe, run: RunDirectory, policy: Policy) -> bool:
        with ExitStack() as stack:
            built = build_reinforcement(
                recipe, policy, self.task, run, stack, self.progress, self.show, self.own
            )
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
        recipe: Recipe,
        run: RunDirectory,
        trainer: Trainer,
        limits: Any,
        callbacks: Sequence[Callback] = (),
        evaluated: Policy | None = None,
    ) -> bool:
        tracked = distributed.is_first() and recipe.tracking.is_on
        sinks = make_sinks(recipe.tracking.model_dump(), run.path, run.config) if tracked else []
        trained: Any = trainer.policy
        loop = TrainingLoop(
            trainer,
            run,
            seed=recipe.seed,
            max_steps=limits.max_steps,
            max_seconds=limits.max_seconds,
            evaluators=self.task.evaluators(trained) if recipe.evaluation.enabled else {},
            evaluate_at_start=recipe.evaluation.at_start,
            eval_interval_steps=recipe.evaluation.eval_interval_steps,
            checkpoint_interval_steps=recipe.training.checkpoint_interval_steps,
            keep_checkpoints=recipe.training.keep_checkpoints,
            keep_spaced_checkpoints=recipe.training.keep_spaced_checkpoints,
            callbacks=callbacks,
            evaluated=evaluated,
            sinks=sinks,
            tracked_samples=recipe.tracking.samples,
            progress=self.progress,
            **self.task.loop_options,
        )
        try:
            loop.run()
        finally:
            for sink in sinks:
                sink.close()
        distributed.broadcast_from_rank0(
            lambda: write_summary(
                run,
                status="interrupted" if loop.interrupted else "finished",
                steps=loop.steps_done,
                wall_seconds=loop.wall_seconds,
                peak_rss_mb=peak_resident_mb(),
                extra={"training_seconds": loop.training_seconds, "estimated_mb": self.estimated_mb},
            )
        )
        if trained.device.type != "cuda":
            self.progress.message(peak_line(peak_resident_mb(), self.estimated_mb))
        if loop.failure is not None:
            raise TrainingStopped(
                f"Stopped after step {loop.steps_done}: {loop.failure.message}",
                remedy="Nothing is lost: the same command with --resume goes on once the engine answers.",
            ) from loop.failure
        return not loop.interrupted
