"""PPO: advantages from a critic, and the trainer of a policy and its critic.

A critic estimates from the hidden state before each token how much reward is still to come, V(s_t), and
each token has its own advantage (generalised advantage estimation: Schulman et al. 2015, arXiv 1506.02438,
eq. 16):

    δ_t = r_t + γ·V(s_{t+1}) − V(s_t)
    A_t = Σ_l (γλ)^l · δ_{t+l}
    R_t = V(s_t) + Σ_l (γλ_V)^l · δ_{t+l}

γ is `critic.discount`, λ `gae_lambda`, and λ_V `value_lambda`. A trajectory is all that the policy wrote in
one role of an episode. Its reward comes with its last token, after which the value is 0, for truncated
answers too. The critic minimises, averaged over the trained tokens:

    ½ · max((V − R)², (V_old + clip(V − V_old, ±clip) − R)²)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from greenward.config.sections import CriticConfig, PPOKLConfig
from greenward.models.heads import Critic
from greenward.models.policy import Policy
from greenward.rollouts.protocols import Episode
from greenward.training.advantages import (
    STD_EPSILON,
    Advantages,
    Estimator,
    PerToken,
    RoleTurns,
    role_turns,
    zeros,
)
from greenward.training.batch import Batch, MicroBatch, Row
from greenward.training.losses import KL_ESTIMATORS, value_loss
from greenward.training.optim import (
    KLCoefficient,
    SeparateGradients,
    UpdateStatistics,
    casting_once,
    clip_gradients,
)
from greenward.training.trainer import RLTrainer

NOISE_MARGIN = 4.0
"""How much larger than that of rewards the variance of advantages may be before whitening shrinks them."""


@dataclass(eq=False)
class CriticEstimator(Estimator):
    """An estimator that asks a critic for the value of every state.

    A trajectory is all that the policy wrote in one role of one episode, turn after turn; tokens of
    others are skipped. Its reward comes with its last token, but for the parts that turns have of their
    own. With `kl.in_reward`, every token also costs coefficient * k(log p - log p_ref), k one of Schulman's
    estimators (InstructGPT, arXiv 2203.02155, eq. 2); `reference` is needed then.

    Advantages are whitened over all trained tokens of the batch where the config says so; where no reward
    varies they are then 0, but for the KL in the rewards. The returns that the critic learns have a λ of
    their own (decoupled GAE: VC-PPO, arXiv 2503.01491, §3.2): a critic whose values start at 0
    learns slowly from them, whichever λ the policy uses. Episodes whose infrastructure failed get
    zeros and count nowhere. There is no state here: the trainer saves the critic and the KL coefficient.
    """

    policy: Policy
    critic: Critic
    config: CriticConfig
    kl: PPOKLConfig
    kl_coefficient: KLCoefficient
    _: KW_ONLY
    micro_batch_sequences: int
    reference: Policy | None = None

    def __post_init__(self) -> None:
        self._reference = self.reference if self.kl.in_reward else None

    def __call__(self, episodes: Sequence[Episode]) -> Advantages:
        """Advantages, values, returns, and metrics of the critic before the update."""
        scores = self._score(episodes)
        advantages, returns = zeros(episodes), zeros(episodes)
        trajectories = [self._trajectory(place, scores) for place in role_turns(episodes)]
        for one in trajectories:
            one.place.scatter(one.advantages_T, advantages)
            one.place.scatter(one.returns_T, returns)
        if trajectories and self.config.whiten_advantages:
            self._whiten(advantages, trajectories)
        return Advantages(
            advantages, scores["values"], returns, scores.get("logprobs"), _metrics(trajectories)
        )

    def _trajectory(self, place: RoleTurns, scores: Mapping[str, PerToken]) -> _Trajectory:
        config = self.config
        values_T = place.gather(scores["values"])
        zeros_T = np.zeros(len(values_T))
        rewards_T = zeros_T.copy()
        rewards_T[-1] = place.reward
        ends = np.cumsum([turn.policy_tokens for _, turn in place.turns]) - 1
        for (_, turn), end in zip(place.turns, ends, strict=True):
            if turn.reward is not None:  # a part of the episode's reward that came earlier
                rewards_T[end] += turn.reward
                rewards_T[-1] -= turn.reward
        gae = partial(generalised_advantages, discount=config.discount)
        kl_T, kl_advantages_T = None, zeros_T
        if "kl" in scores:
            kl_T = place.gather(scores["kl"])
            cost_T = self.kl_coefficient.value * kl_T
            rewards_T -= cost_T
            kl_advantages_T = gae(-cost_T, zeros_T, gae_lambda=config.gae_lambda)  # without a baseline
        return _Trajectory(
            place,
            values_T,
            gae(rewards_T, values_T, gae_lambda=config.gae_lambda),
            gae(rewards_T, values_T, gae_lambda=config.value_lambda) + values_T,
            gae(rewards_T, zeros_T, gae_lambda=1.0),
            kl_T,
            kl_advantages_T,
        )

    def _whiten(self, advantages: PerToken, trajectories: Sequence[_Trajectory]) -> None:
        """Shift and scale to mean 0 and deviation 1 over all trajectories' tokens, in place; or to less.

        1. Rewards differ less and less while a policy converges. Division by the deviation of the batch
           would keep advantages, and with them the steps, as large as ever. The divisor is therefore at
           least the deviation of rewards that was usual in the earlier batches of the run.
        2. A useful critic makes advantages vary less than rewards. Where their variance is more than
           `NOISE_MARGIN` times that of the rewards, most of it is the critic's error. The result is then
           multiplied by NOISE_MARGIN * Var(reward) / Var(advantage), so that the error is not raised to
           the scale of a signal. Where no reward varies, this is 0, and the KL in the rewards alone
           remains: it enters with the rest of the weight, unscaled and around its mean.

        Variances are over tokens, those of rewards within each role.
        """
        tokens = np.concatenate([trajectory.advantages_T for trajectory in trajectories])
        of_kl = np.concatenate([trajectory.kl_advantages_T for trajectory in trajectories])
        variance = _reward_variance(trajectories)
        bound = NOISE_MARGIN * variance
        signal = 1.0 if bound > tokens.var() else bound / max(float(tokens.var()), np.finfo(float).tiny)
        batches, usual = self.critic.reward_scale.tolist()
        deviation = np.hypot(max(tokens.std(), math.sqrt(usual)), STD_EPSILON)
        self.critic.reward_scale[0] = batches + 1
        self.critic.reward_scale[1] = (batches * usual + variance) / (batches + 1)
        for one in trajectories:
            whitened_T = signal * (one.advantages_T - tokens.mean()) / deviation
            one.place.scatter(whitened_T + (1 - signal) * (one.kl_advantages_T - of_kl.mean()), advantages)

    def _score(self, episodes: Sequence[Episode]) -> dict[str, PerToken]:
        """One forward pass over everything that is trained on: `values`, and what else is needed."""
        rows, places = [], []
        for index, episode in enumerate(episodes):
            for number, turn in enumerate(episode.turns):
                if episode.scored and turn.trained:
                    zeros_T = np.zeros(len(turn.completion_ids), np.float32)
                    rows.append(Row(turn, zeros_T))
                    places.append((index, number))
        scores = {"values": zeros(episodes)}
        found = Batch([rows]).scores(self._score_batch, self.micro_batch_sequences, self.policy.device)
        for (index, number), by_name in zip(places, found, strict=True):
            for name, found_T in by_name.items():
                scores.setdefault(name, zeros(episodes))[index][number][:] = found_T
        return scores

    def _score_batch(self, micro: MicroBatch) -> dict[str, Tensor]:
        """Values, log-probabilities and KL (B, T), the latter two where they are needed."""
        scores: dict[str, Tensor] = {}
        hidden_SE = None
        if self.critic.reads_policy or self._reference is not None:
            of_policy = micro.scores(self.policy, hidden=self.critic.reads_policy)
            hidden_SE, scores["logprobs"] = of_policy.hidden_SE, of_policy.logprobs_BT.float()
        if self._reference is not None:
            log_ratio_BT = scores["logprobs"] - micro.scores(self._reference).logprobs_BT.float()
            scores["kl"] = KL_ESTIMATORS[self.kl.estimator](log_ratio_BT, torch.ones_like(log_ratio_BT))
        return scores | {"values": self.critic(micro.group_batch, hidden_SE)}


@dataclass(frozen=True)
class _Trajectory:
    """The tokens of one role of one episode; all arrays of shape (T,)."""

    place: RoleTurns
    values_T: np.ndarray
    advantages_T: np.ndarray
    returns_T: np.ndarray
    rewards_to_go_T: np.ndarray
    kl_T: np.ndarray | None
    kl_advantages_T: np.ndarray


def _reward_variance(trajectories: Sequence[_Trajectory]) -> float:
    """Variance of the trajectories' rewards within their role, over tokens; 0 exactly if none varies."""
    total = 0.0
    for role in dict.fromkeys(one.place.role for one in trajectories):
        own = [one for one in trajectories if one.place.role == role]
        rewards = np.array([one.place.reward for one in own])
        tokens = np.array([len(one.values_T) for one in own])
        if np.ptp(rewards):
            total += float((tokens * (rewards - np.average(rewards, weights=tokens)) ** 2).sum())
    return total / sum(len(trajectory.values_T) for trajectory in trajectories)


def _metrics(trajectories: Sequence[_Trajectory]) -> dict[str, float]:
    """Means over all trained tokens, and how much of the reward still to come the critic foresaw.

    `explained_variance` is 1 - Var(G - V) / Var(G), G the discounted reward to go. Against the returns
    that the critic learns the figure would be too high: for value_lambda below 1 those contain its own
    values.
    """
    if not trajectories:
        return {}
    values = np.concatenate([trajectory.values_T for trajectory in trajectories])
    advantages = np.concatenate([trajectory.advantages_T for trajectory in trajectories])
    rewards_to_go = np.concatenate([trajectory.rewards_to_go_T for trajectory in trajectories])
    metrics = {
        "value/mean": float(values.mean()),
        "advantage/mean": float(advantages.mean()),
        "advantage/std": float(advantages.std()),
    }
    if np.ptp(rewards_to_go):
        metrics["explained_variance"] = 1 - float((rewards_to_go - values).var() / rewards_to_go.var())
    if kl := [trajectory.kl_T for trajectory in trajectories if trajectory.kl_T is not None]:
        metrics["kl"] = float(np.concatenate(kl).mean())
    return metrics


def generalised_advantages(
    rewards_T: np.ndarray, values_T: np.ndarray, *, discount: float, gae_lambda: float
) -> np.ndarray:
    """The advantage of each of the T steps of a trajectory (eq. 16), float64.

        A_t = sum over l of (discount * gae_lambda)^l * delta_{t+l}
        delta_t = r_t + discount * V(s_{t+1}) - V(s_t)

    `values_T` are of the states before each step. The state after the last one is terminal, its
    value 0. That holds for truncated answers, too: an answer is graded as it stands when it reaches
    the token limit and no reward can follow, so the limit is an end like any other, and a value of
    what might have come after it would credit the policy with rewards that it does not get.
    """
    advantages_T = np.zeros(len(rewards_T))
    advantage = next_value = 0.0
    for t in range(len(rewards_T) - 1, -1, -1):
        value = float(values_T[t])
        advantage = rewards_T[t] + discount * next_value - value + discount * gae_lambda * advantage
        advantages_T[t] = advantage
        next_value = value
    return advantages_T


@dataclass(eq=False, kw_only=True)
class PPOTrainer(RLTrainer):
    """Trains a policy, and a critic on the returns that its estimator gives.

    The critic's gradient is clipped apart from the policy's. On a trunk that both share, each of the two
    gradients is clipped by its own norm and their sum is applied, so that neither can shrink the other. Where
    the policy takes no step, because `max_step_kl` has ended its update or it has done all its passes, the
    critic goes on with the weights that are its own: a shared trunk rests, since moving it would move the
    policy. `critic_config` is read anew at each step.
    """

    critic: Critic
    critic_config: CriticConfig
    _saved: ClassVar = RLTrainer._saved | {"critic": "critic"}

    def _further_parameters(self) -> list[Sequence[Tensor]]:
        self._critic_parameters = [p for p in self.critic.parameters() if p.requires_grad]
        self._shared_trunk = self._policy_parameters if self.critic.reads_policy else []
        return [self._critic_parameters]

    def _further_rates(self) -> list[float]:
        return [self.critic_config.learning_rate or self.training.learning_rate]

    def _passes(self) -> int:
        return max(self.algorithm.updates_per_batch, self._critic_passes())

    def _critic_passes(self) -> int:
        return self.critic_config.updates_per_batch or self.algorithm.updates_per_batch

    def _optimizer_step(
        self, minibatch: Batch, number: int, statistics: UpdateStatistics, *, learns: bool
    ) -> bool:
        """One step of the policy, if it still `learns`, and of the critic, on a minibatch in pass `number`.

        False, and no step of the policy, if the policy has moved too far.
        """
        critic_learns = number < self._critic_passes()
        if not (learns or critic_learns):
            return True
        with casting_once(self.policy):
            value_gradients, found = self._limit.run_within_memory(
                lambda: self._accumulate_both(minibatch, number, learns, critic_learns), len(minibatch.rows)
            )
        statistics.extend(found)
        within = not learns or self._is_within(found)
        learns &= within
        norms: dict[str, float] = {}
        max_norm = self.training.max_grad_norm
        self._loss_scale.unscale([*self._policy_parameters, *self._critic_parameters])
        if learns:
            norms["policy"] = clip_gradients(self._policy_parameters, max_norm)
        else:
            for parameter in self._policy_parameters:
                parameter.grad = None
        if critic_learns:
            trunk = value_gradients.parameters
            with value_gradients:
                self._loss_scale.unscale(trunk)
                parameters = [*(trunk if learns else ()), *self._critic_parameters]
                norms["critic"] = clip_gradients(parameters, self.critic_config.max_grad_norm or max_norm)
        if learns:
            value_gradients.merge()
        if norms:
            self._apply_gradients(norms, statistics)
        self._optimizer.zero_grad()
        return within

    def _accumulate_both(
        self, minibatch: Batch, number: int, policy_learns: bool, critic_learns: bool
    ) -> tuple[SeparateGradients, UpdateStatistics]:
        """The gradients of a minibatch, those of the value loss on a shared trunk apart, and statistics."""
        self._optimizer.zero_grad()
        trunk = self._shared_trunk if policy_learns else []
        value_gradients, statistics, losses = SeparateGradients(trunk), UpdateStatistics(), []
        reads = self.critic.reads_policy
        for micro in minibatch.micro_batches(self._limit.size, self.policy.device):
            scores = hidden_SE = None
            if policy_learns:
                scores = micro.scores(self.policy, entropy=True, hidden=reads)
                hidden_SE = scores.hidden_SE
            elif reads:
                with torch.no_grad():
                    hidden_SE = self.policy.completion_hidden(micro.group_batch)
            if critic_learns:
                values_BT = self.critic(micro.group_batch, hidden_SE)
                value = value_loss(values_BT, micro, clip=self.critic_config.clip)
                loss = self.critic_config.loss_weight * value.loss
                with value_gradients:
                    self._loss_scale(loss).backward(retain_graph=bool(trunk))
                losses.append(loss.detach())
                statistics.add(value, micro.mask_BT)
            if scores is not None:
                losses.append(self._backward(scores, micro, statistics, number))
        if policy_learns:
            statistics.losses.append(torch.stack(losses).sum())
        return value_gradients, statistics
