"""From a recipe to on-policy training: environment, estimator, learner and reward model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from greenward.algorithms.advantages import ESTIMATORS, Estimator
from greenward.algorithms.critic_estimator import CriticEstimator
from greenward.algorithms.kl import KLControl
from greenward.algorithms.learner import Learner
from greenward.algorithms.on_policy import OnPolicy
from greenward.algorithms.rejection import RejectionLearner, accepted
from greenward.algorithms.reward_model import PredictionRecord, RewardModel, RewardModelScorer
from greenward.config.algorithm import PPOAlgorithmConfig
from greenward.config.recipe import (
    GRPORecipe,
    PolicyGradientRecipe,
    PPORecipe,
    ReinforcementRecipe,
    RejectionRecipe,
)
from greenward.environments.single_turn import SingleTurn
from greenward.faults.fault import Handles
from greenward.grading.grader import Grader
from greenward.grading.rewards import RewardTerm
from greenward.policies.heads import Critic
from greenward.policies.policy import Policy
from greenward.problems.problem import ProblemSet
from greenward.recipes.build import build_renderer, build_sampling


@dataclass(frozen=True)
class Reinforcement:
    """The method, and the parts of it that planted faults may disturb (none for `kind: rejection`)."""

    method: OnPolicy
    handles: Handles | None


def build_reinforcement(
    recipe: ReinforcementRecipe,
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
    has_kl = isinstance(recipe, PolicyGradientRecipe) and recipe.algorithm.kl.coefficient > 0
    start = policy.frozen_copy() if has_kl or recipe.reward_model is not None else None
    scorer = _scorer(recipe, start, predictions)
    learner: Learner | RejectionLearner
    if isinstance(recipe, RejectionRecipe):
        learner = RejectionLearner(policy, recipe.rejection, training, seed=recipe.seed)
        estimator: Estimator = partial(
            accepted,
            min_reward=recipe.rejection.min_reward,
            mask_truncated=algorithm.overlong.mask_truncated,
        )
    else:
        assert isinstance(recipe, PolicyGradientRecipe)  # the only other kind with rewards
        reference = start if has_kl else None
        kl_control = KLControl(recipe.algorithm.kl)
        critic = _critic(recipe, policy)
        learner = Learner(
            policy,
            recipe.algorithm,
            training,
            max_completion_tokens=recipe.sampling.max_tokens,
            reference_policy=reference,
            critic=critic,
            kl_control=kl_control,
            seed=recipe.seed,
        )
        estimator = _estimator(recipe, policy, critic, kl_control, reference)
    rounds = 1
    if isinstance(recipe, GRPORecipe) and recipe.algorithm.dynamic_sampling:
        rounds = recipe.algorithm.dynamic_sampling_max_rounds
    method = OnPolicy(
        policy,
        environment,
        estimator,
        learner,
        problems,
        prompts_per_step=training.prompts_per_step,
        temperature=recipe.sampling.temperature,
        seed=recipe.seed,
        dynamic_rounds=rounds,
        scorer=scorer,
    )
    if isinstance(learner, RejectionLearner):
        return Reinforcement(method, None)
    reward_model = None if scorer is None else scorer.model
    return Reinforcement(method, Handles(learner, reward_model, policy.device, training.max_steps))


def _critic(recipe: PolicyGradientRecipe, policy: Policy) -> Critic | None:
    if not isinstance(recipe, PPORecipe):
        return None
    return Critic(policy, separate_trunk=recipe.algorithm.critic.trunk == "separate")


def _estimator(
    recipe: PolicyGradientRecipe,
    policy: Policy,
    critic: Critic | None,
    kl_control: KLControl,
    reference: Policy | None,
) -> Estimator:
    algorithm = recipe.algorithm
    if critic is None or not isinstance(algorithm, PPOAlgorithmConfig):
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


def _scorer(
    recipe: ReinforcementRecipe, start: Policy | None, predictions: PredictionRecord
) -> RewardModelScorer | None:
    section = recipe.reward_model
    if section is None or start is None:
        return None
    model = RewardModel(
        start, section, seed=recipe.seed, micro_batch_sequences=recipe.training.micro_batch_sequences
    )
    return RewardModelScorer(model, predictions, weight=section.weight)
