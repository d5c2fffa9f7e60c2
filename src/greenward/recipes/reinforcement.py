"""From a recipe to on-policy reinforcement learning: environment, estimator, learner and reward model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from greenward.algorithms.advantages import ESTIMATORS, Estimator
from greenward.algorithms.critic_estimator import CriticEstimator
from greenward.algorithms.kl import KLControl
from greenward.algorithms.learner import Learner
from greenward.algorithms.on_policy import OnPolicy
from greenward.algorithms.reward_model import PredictionRecord, RewardModel, RewardModelScorer
from greenward.config.schema import Recipe
from greenward.environments.single_turn import SingleTurn
from greenward.faults.fault import Handles
from greenward.grading.grader import Grader
from greenward.grading.rewards import RewardTerm
from greenward.policies.critic import Critic
from greenward.policies.policy import Policy
from greenward.problems.problem import ProblemSet
from greenward.recipes.build import build_renderer, build_sampling


@dataclass(frozen=True)
class Reinforcement:
    """The method, and the parts of it that planted faults may disturb."""

    method: OnPolicy
    handles: Handles


def build_reinforcement(
    recipe: Recipe,
    policy: Policy,
    problems: ProblemSet,
    grader: Grader,
    reward_terms: Sequence[RewardTerm],
    predictions: PredictionRecord,
) -> Reinforcement:
    """Everything that trains `policy` on `problems` as the recipe says.

    What a reward model predicts is appended to `predictions`. The policy as it is now becomes the
    reference and the trunk of the reward model, where there are such.
    """
    algorithm, training = recipe.algorithm, recipe.training
    environment = SingleTurn(
        build_renderer(recipe, policy.tokenizer),
        grader,
        reward_terms,
        sampling=build_sampling(recipe),
        group_size=training.num_generations,
        overlong=algorithm.overlong,
    )
    needs_start = algorithm.kl.coefficient > 0 or recipe.reward_model is not None
    start = policy.frozen_copy() if needs_start else None
    reference = start if algorithm.kl.coefficient > 0 else None
    kl_control = KLControl(algorithm.kl)
    critic = _critic(recipe, policy)
    learner = Learner(
        policy,
        algorithm,
        training,
        max_completion_tokens=recipe.sampling.max_tokens,
        reference_policy=reference,
        critic=critic,
        kl_control=kl_control,
        seed=recipe.seed,
    )
    scorer = _scorer(recipe, start, predictions)
    method = OnPolicy(
        policy,
        environment,
        _estimator(recipe, policy, critic, kl_control, reference),
        learner,
        problems,
        prompts_per_step=training.prompts_per_step,
        temperature=recipe.sampling.temperature,
        seed=recipe.seed,
        dynamic_rounds=algorithm.dynamic_sampling_max_rounds if algorithm.dynamic_sampling else 1,
        scorer=scorer,
    )
    reward_model = None if scorer is None else scorer.model
    return Reinforcement(method, Handles(learner, reward_model, policy.device, training.max_steps))


def _critic(recipe: Recipe, policy: Policy) -> Critic | None:
    section = recipe.algorithm.critic
    return None if section is None else Critic(policy, separate_trunk=section.trunk == "separate")


def _estimator(
    recipe: Recipe, policy: Policy, critic: Critic | None, kl_control: KLControl, reference: Policy | None
) -> Estimator:
    algorithm = recipe.algorithm
    if critic is None or algorithm.critic is None:
        return ESTIMATORS[algorithm.advantage]
    return CriticEstimator(
        policy,
        critic,
        algorithm.critic,
        algorithm.kl,
        kl_control,
        temperature=recipe.sampling.temperature,
        micro_batch_sequences=recipe.training.micro_batch_sequences,
        reference_policy=reference,
    )


def _scorer(recipe: Recipe, start: Policy | None, predictions: PredictionRecord) -> RewardModelScorer | None:
    section = recipe.reward_model
    if section is None or start is None:
        return None
    model = RewardModel(
        start, section, seed=recipe.seed, micro_batch_sequences=recipe.training.micro_batch_sequences
    )
    return RewardModelScorer(model, predictions, weight=section.weight)
