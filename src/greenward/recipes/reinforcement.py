"""From a recipe to reinforcement learning: environment, estimator, trainer, reward model and faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from greenward.algorithms.advantages import ESTIMATORS
from greenward.algorithms.callbacks import Callback, RolloutWriter
from greenward.algorithms.coefficients import KLCoefficient
from greenward.algorithms.collection import Collector
from greenward.algorithms.critic import CriticEstimator
from greenward.algorithms.loop import Trainer
from greenward.algorithms.rejection import RejectionTrainer
from greenward.algorithms.reward_model import RewardModel, RewardModelCallback
from greenward.algorithms.trainer import RLTrainer
from greenward.config.recipe import (
    GRPORecipe,
    PolicyGradientRecipe,
    PPORecipe,
    ReinforcementRecipe,
    RejectionRecipe,
)
from greenward.environments.code import CodeEnvironment
from greenward.environments.episode import POLICY
from greenward.faults.fault import Fault, FaultTargets
from greenward.faults.plant import make_faults
from greenward.grading.grader import Grader
from greenward.grading.rewards import RewardTerm
from greenward.policies.heads import Critic
from greenward.policies.policy import Policy
from greenward.problems.problem import ProblemSet
from greenward.recipes.build import build_renderer, build_sampling
from greenward.runs.directory import RunDirectory


@dataclass(frozen=True)
class Reinforcement:
    """A trainer with the callbacks that belong to it, the planted faults among them."""

    phase: str
    trainer: Trainer
    callbacks: Sequence[Callback]
    faults: Sequence[Fault] = ()


def build_reinforcement(
    recipe: ReinforcementRecipe,
    policy: Policy,
    problems: ProblemSet,
    grader: Grader,
    reward_terms: Sequence[RewardTerm],
    run: RunDirectory,
) -> Reinforcement:
    """Everything that trains `policy` on `problems` as the recipe says, recorded in `run`.

    The policy as it is now becomes the reference and the trunk of the reward model, where there are such.
    """
    training, overlong = recipe.training, recipe.algorithm.overlong
    environment = CodeEnvironment(
        problems,
        build_renderer(recipe, policy.tokenizer),
        grader,
        reward_terms,
        sampling=build_sampling(recipe),
        group_size=training.num_generations,
        seed=recipe.seed,
        max_turns=recipe.environment.max_turns,
        penalty_buffer=overlong.penalty_buffer,
        penalty=overlong.penalty,
    )
    callbacks: list[Callback] = [RolloutWriter(run)]
    frozen: Policy | None = None
    reward_model = None
    if recipe.reward_model is not None:
        size, weight = training.micro_batch_sequences, recipe.reward_model.weight
        trunk = frozen = policy.frozen_copy()
        reward_model = RewardModel(trunk, recipe.reward_model, seed=recipe.seed, micro_batch_sequences=size)
        callbacks.append(RewardModelCallback(reward_model, run.predictions, weight=weight))
    max_rounds = 1
    if isinstance(recipe, GRPORecipe) and recipe.algorithm.dynamic_sampling:
        max_rounds = recipe.algorithm.dynamic_sampling_max_rounds
    collector = Collector(
        environment,
        {POLICY: policy},
        groups_per_step=training.prompts_per_step,
        seed=recipe.seed,
        max_rounds=max_rounds,
        callbacks=callbacks,
    )
    if isinstance(recipe, RejectionRecipe):
        rejection = RejectionTrainer(
            policy,
            collector,
            recipe.rejection,
            training,
            seed=recipe.seed,
            mask_truncated=overlong.mask_truncated,
        )
        return Reinforcement("rejection sampling", rejection, callbacks)
    assert isinstance(recipe, PolicyGradientRecipe)  # the only other kind with rewards
    trainer = _policy_gradient(recipe, policy, collector, frozen)
    targets = FaultTargets(trainer, reward_model, policy.device, training.max_steps)
    faults = make_faults(recipe.faults, targets)
    phase = f"{recipe.algorithm.loss} training"
    return Reinforcement(phase, trainer, [*callbacks, *faults], faults)


def _policy_gradient(
    recipe: PolicyGradientRecipe, policy: Policy, collector: Collector, frozen: Policy | None
) -> RLTrainer:
    """The trainer; a reference that is never renewed may be the `frozen` copy that there is already."""
    kl = recipe.algorithm.kl
    kl_coefficient = KLCoefficient(kl.coefficient, target=kl.target, horizon=kl.horizon)
    reference = None
    if kl.coefficient > 0:
        reference = frozen if frozen and not kl.refresh_every else policy.frozen_copy()
    common: dict[str, Any] = {
        "max_completion_tokens": recipe.sampling.max_tokens,
        "kl_coefficient": kl_coefficient,
        "reference": reference,
        "seed": recipe.seed,
    }
    if not isinstance(recipe, PPORecipe):
        estimator = ESTIMATORS[recipe.algorithm.advantage]
        return RLTrainer(policy, collector, estimator, recipe.algorithm, recipe.training, **common)
    algorithm = recipe.algorithm
    critic = Critic(policy, separate_trunk=algorithm.critic.trunk == "separate")
    critic_estimator = CriticEstimator(
        policy,
        critic,
        algorithm.critic,
        algorithm.kl,
        kl_coefficient,
        micro_batch_sequences=recipe.training.micro_batch_sequences,
        reference=reference,
    )
    return RLTrainer(
        policy,
        collector,
        critic_estimator,
        algorithm,
        recipe.training,
        kl_in_loss=not algorithm.kl.in_reward,
        critic=critic,
        critic_config=algorithm.critic,
        **common,
    )
