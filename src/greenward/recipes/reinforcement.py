"""From a recipe to reinforcement learning: collector, estimator, trainer, reward model, faults, monitor."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from greenward.algorithms.advantages import (
    ESTIMATORS,
    CompletionRewardEstimator,
    Estimator,
    RoleBaselineEstimator,
)
from greenward.algorithms.callbacks import Callback, RolloutWriter
from greenward.algorithms.coefficients import KLCoefficient
from greenward.algorithms.collection import Collector, OverlappedCollector
from greenward.algorithms.critic import CriticEstimator
from greenward.algorithms.loop import Trainer
from greenward.algorithms.rejection import RejectionTrainer
from greenward.algorithms.reward_model import RewardModel, RewardModelCallback
from greenward.algorithms.role_gradients import RoleGradientNorms
from greenward.algorithms.sharding import shard, whole_copy
from greenward.algorithms.trainer import RLTrainer
from greenward.algorithms.weight_average import WeightAverage
from greenward.config.recipe import (
    CodeGameRecipe,
    CodeRecipe,
    GRPORecipe,
    PolicyGradientRecipe,
    PPORecipe,
    ReinforcementRecipe,
    RejectionRecipe,
    SelfPlayRecipe,
)
from greenward.diagnostics.monitor import Alarm, Monitor
from greenward.diagnostics.signals import CPU_SECONDS
from greenward.environments.episode import Episode
from greenward.faults.fault import Fault, FaultTargets, recorded_truth
from greenward.faults.plant import make_faults
from greenward.policies.heads import Critic
from greenward.policies.policy import Policy
from greenward.recipes.rollouts import build_engine
from greenward.recipes.tasks import Tasks
from greenward.runs.checkpoints import pin_checkpoint_before
from greenward.runs.directory import RunDirectory
from greenward.runs.files import JsonRows, write_rows

ALARMS = "alarms.jsonl"
ROLE_GRADIENTS_EVERY = 20
"""Steps between two measurements of the gradient of each role, which cost about one pass of the update."""


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


def build_reinforcement(
    recipe: ReinforcementRecipe, policy: Policy, tasks: Tasks, run: RunDirectory, stack: ExitStack
) -> Reinforcement:
    """Everything that trains `policy` on `tasks`, which are open, as the recipe says; recorded in `run`.

    `stack` closes what runs beside the training. `exact` says whether a resumed run repeats an uninterrupted
    one.

    The policy as it is now becomes the reference and the trunk of the reward model, where there are such.
    """
    training = recipe.training
    whole = whole_copy(policy)
    sampled = policy if whole is None else whole.policy
    players = tasks.players(sampled)
    collecting = stack.enter_context(ExitStack())  # left last: what samples ahead ends with its engine
    engine, sleeps = build_engine(recipe, sampled, tasks, run, stack)
    if engine is not sampled:
        assert isinstance(players, dict)  # in place: a league adds its members to the same mapping
        players.update({name: engine for name, player in players.items() if player is sampled})
    callbacks: list[Callback] = [
        RolloutWriter(run, training.rollouts_per_step),
        *tasks.callbacks(),
        *sleeps,
    ]
    frozen = reward_model = None
    if isinstance(recipe, CodeRecipe) and recipe.reward_model is not None:
        size, weight = training.micro_batch_sequences, recipe.reward_model.weight
        frozen = policy.frozen_copy()
        reward_model = RewardModel(frozen, recipe.reward_model, seed=recipe.seed, micro_batch_sequences=size)
        callbacks.append(RewardModelCallback(reward_model, run.predictions, weight=weight))
    max_rounds = 1
    if isinstance(recipe, GRPORecipe | CodeGameRecipe) and recipe.algorithm.dynamic_sampling:
        max_rounds = recipe.algorithm.dynamic_sampling_max_rounds
    overlapped = recipe.rollouts.max_staleness > 0
    make = partial(OverlappedCollector, steps=training.max_steps) if overlapped else Collector
    collector = make(
        tasks.environment(policy),
        players,
        groups_per_step=training.prompts_per_step,
        seed=recipe.seed,
        max_rounds=max_rounds,
        callbacks=callbacks,
    )
    collecting.callback(collector.close)
    phase, trainer = TRAINERS[recipe.kind](recipe, policy, collector, frozen)
    faults: list[Fault] = []
    if isinstance(recipe, PolicyGradientRecipe):
        assert isinstance(trainer, RLTrainer)
        targets = FaultTargets(trainer, reward_model, policy.device, training.max_steps)
        faults = make_faults(recipe.faults, targets)
        stack.enter_context(recorded_truth(run.path, faults, seed=recipe.seed))
    average = WeightAverage(policy, training.weight_average) if training.weight_average else None
    if average is not None:
        callbacks.append(average)
        if isinstance(trainer, RLTrainer):
            trainer.renewed_from = average.policy
    if whole is not None:
        callbacks.append(whole)
    evaluated = sampled if average is None else average.policy
    exact = engine.deterministic and not overlapped
    return Reinforcement(phase, trainer, [*callbacks, *faults], evaluated, exact)


def _rejection(
    recipe: RejectionRecipe, policy: Policy, collector: Collector, frozen: Policy | None
) -> tuple[str, Trainer]:
    shard(policy)
    trainer = RejectionTrainer(
        policy,
        collector,
        recipe.rejection,
        recipe.training,
        seed=recipe.seed,
        mask_truncated=recipe.algorithm.overlong.mask_truncated,
    )
    return "rejection sampling", trainer


def _policy_gradient(
    recipe: PolicyGradientRecipe | SelfPlayRecipe | CodeGameRecipe,
    policy: Policy,
    collector: Collector,
    frozen: Policy | None,
) -> tuple[str, Trainer]:
    """A reference that is never renewed may be the `frozen` copy of the policy that there is already."""
    algorithm, kl = recipe.algorithm, recipe.algorithm.kl
    kl_coefficient = KLCoefficient(kl.coefficient, target=kl.target, horizon=kl.horizon)
    reference = None
    if kl.coefficient > 0:
        reference = frozen if frozen and not kl.refresh_every else policy.frozen_copy()
    own: dict[str, Any] = {}
    if isinstance(recipe, PPORecipe):
        config = recipe.algorithm.critic
        critic = Critic(policy, separate_trunk=config.trunk == "separate")
        estimator: Estimator = CriticEstimator(
            policy,
            critic,
            config,
            recipe.algorithm.kl,
            kl_coefficient,
            micro_batch_sequences=recipe.training.micro_batch_sequences,
            reference=reference,
        )
        own = {"kl_in_loss": not recipe.algorithm.kl.in_reward, "critic": critic, "critic_config": config}
    elif isinstance(recipe, SelfPlayRecipe):
        estimator = RoleGradientNorms(
            RoleBaselineEstimator(
                recipe.algorithm.advantage,
                decay=recipe.algorithm.baseline_decay,
                updated_first=recipe.algorithm.baseline_updated_first,
                discount=recipe.algorithm.discount,
            ),
            policy,
            every=ROLE_GRADIENTS_EVERY,
            micro_batch_sequences=recipe.training.micro_batch_sequences,
        )
    else:
        estimator = ESTIMATORS[algorithm.advantage]
        tools = recipe.environment.tools if isinstance(recipe, GRPORecipe) else None
        if tools and tools.call_reward:
            estimator = CompletionRewardEstimator(estimator)
    shard(policy, *(own["critic"].children() if "critic" in own else ()))
    trainer = RLTrainer(
        policy,
        collector,
        estimator,
        algorithm,
        recipe.training,
        max_completion_tokens=recipe.sampling.max_tokens,
        kl_coefficient=kl_coefficient,
        reference=reference,
        seed=recipe.seed,
        **own,
    )
    return f"{algorithm.loss} training", trainer


TRAINERS: Mapping[str, Callable[..., tuple[str, Trainer]]] = MappingProxyType(
    {
        **dict.fromkeys(("grpo", "ppo", "self_play", "code_game"), _policy_gradient),
        "rejection": _rejection,
    }
)
"""Makes the name of the phase and the trainer, by kind of recipe, from recipe, policy, collector, and a
frozen copy of the policy as it is now, if there is one.
"""


class MonitorCallback(Callback):
    """Shows the metrics of each step to the monitor.

    An alarm is said, appended to alarms.jsonl, and pins the last checkpoint from before its onset.
    """

    name = "monitor"

    def __init__(self, recipe: ReinforcementRecipe, run: RunDirectory, say: Callable[[str], None]) -> None:
        self._run, self._stop_on_critical = run, recipe.monitor.stop_on_critical
        self._samples_here = recipe.rollouts.engine == "native"
        alarms = run.path / ALARMS
        self._monitor = Monitor(
            recipe.monitor.rules,
            say=say,
            alarms=alarms,
            stop=_stop,
            on_alarm=self._on_alarm,
            kind=recipe.kind,
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
