from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from greenward.config.sections import CriticConfig, PPOKLConfig
from greenward.grading.verdict import Status
from greenward.models.heads import Critic
from greenward.models.policy import Policy
from greenward.models.scoring import GroupBatch
from greenward.rollouts.protocols import Episode, Turn
from greenward.training.advantages import Advantages
from greenward.training.optim import KLCoefficient
from greenward.training.ppo import CriticEstimator, generalised_advantages
from learning import VOCABULARY, judged_episode, make_turn, tiny_policy

TEMPERATURE = 0.8


def equation_16(rewards: np.ndarray, values: np.ndarray, discount: float, gae_lambda: float) -> np.ndarray:
    """arXiv 1506.02438, eq. 16, summed out in O(T^2); the state after the last step is worth 0."""
    following = np.append(values[1:], 0.0)
    deltas = rewards + discount * following - values
    steps = len(rewards)
    return np.array(
        [sum((discount * gae_lambda) ** (k - t) * deltas[k] for k in range(t, steps)) for t in range(steps)]
    )


@pytest.mark.parametrize("length", [1, 2, 7, 40])
@pytest.mark.parametrize(("discount", "gae_lambda"), [(1.0, 0.95), (0.9, 0.5), (0.99, 1.0), (1.0, 0.0)])
def test_equals_the_sum_of_equation_16(length: int, discount: float, gae_lambda: float) -> None:
    rng = np.random.default_rng(length)
    rewards, values = rng.normal(size=(2, length))
    found = generalised_advantages(rewards, values, discount=discount, gae_lambda=gae_lambda)
    np.testing.assert_allclose(found, equation_16(rewards, values, discount, gae_lambda), atol=1e-12)


def reward_to_go(rewards_T: np.ndarray, *, discount: float = 1.0) -> np.ndarray:
    return generalised_advantages(rewards_T, np.zeros(len(rewards_T)), discount=discount, gae_lambda=1.0)


def test_without_values_and_with_lambda_1_it_is_the_discounted_reward_to_go() -> None:
    returns = reward_to_go(np.array([1.0, 0.0, 4.0]), discount=0.5)
    np.testing.assert_allclose(returns, [1 + 0.25 * 4, 0.5 * 4, 4])


def make_critic(policy: Policy, *, separate: bool = False) -> Critic:
    critic = Critic(policy, separate_trunk=separate)
    torch.nn.init.normal_(critic.head.weight, std=0.3, generator=torch.Generator().manual_seed(7))
    return critic


def answer(seed: int, *, role: str = "programmer", wrote: list[bool] | None = None) -> Turn:
    rng = np.random.default_rng(seed)
    length = len(wrote) if wrote is not None else int(rng.integers(1, 7))
    prompt, completion = rng.integers(1, VOCABULARY, 3).tolist(), rng.integers(1, VOCABULARY, length)
    written = np.ones(length, dtype=bool) if wrote is None else np.array(wrote)
    return make_turn(prompt, completion, role=role, policy_wrote_T=written, temperature=TEMPERATURE)


def make_episode(
    *turns: Turn, rewards: dict[str, float] | None = None, group: int = 0, failed: bool = False
) -> Episode:
    status = Status.INFRASTRUCTURE if failed else Status.FAILED
    return judged_episode(turns, rewards or {"programmer": 1.0}, group, status)


def make_episodes() -> list[Episode]:
    return [
        make_episode(answer(seed), rewards={"programmer": float(seed % 3)}, group=seed // 2)
        for seed in range(8)
    ]


def make_estimator(
    policy: Policy, critic: Critic, *, kl: dict[str, Any] | None = None, **section: Any
) -> Any:
    kl_config = PPOKLConfig(**(kl or {}))
    return CriticEstimator(
        policy,
        critic,
        CriticConfig(**{"whiten_advantages": False, **section}),
        kl_config,
        KLCoefficient(kl_config.coefficient, target=kl_config.target, horizon=kl_config.horizon),
        micro_batch_sequences=3,
        reference=tiny_policy(seed=1),
    )


def alone(policy: Policy, turn: Turn) -> GroupBatch:
    return GroupBatch.build([turn.prompt_ids], [[turn.completion_ids]])


@torch.no_grad()
def logprobs_alone(policy: Policy, turn: Turn) -> np.ndarray:
    return policy.completion_logprobs(alone(policy, turn), temperature=TEMPERATURE).logprobs_BT[0].numpy()


@torch.no_grad()
def values_alone(policy: Policy, critic: Critic, turn: Turn) -> np.ndarray:
    batch = alone(policy, turn)
    return critic(batch, policy.completion_hidden(batch))[0].numpy()


def kl_costs(policy: Policy, turn: Turn, kind: str) -> np.ndarray:
    """The estimate of the KL to the reference at each token (Schulman's k1, k2, k3)."""
    log_ratio = (logprobs_alone(policy, turn) - logprobs_alone(tiny_policy(seed=1), turn)).astype(np.float64)
    return {"k1": log_ratio, "k2": log_ratio**2 / 2, "k3": np.exp(-log_ratio) - 1 + log_ratio}[kind]


def terminal(length: int, reward: float) -> np.ndarray:
    return np.append(np.zeros(length - 1), reward)


@pytest.mark.parametrize("separate", [False, True])
def test_advantages_and_returns_are_gae_of_each_answer_alone(separate: bool) -> None:
    policy = tiny_policy()
    critic = make_critic(policy, separate=separate)
    episodes = make_episodes()
    estimator = make_estimator(policy, critic, discount=0.9, gae_lambda=0.7, value_lambda=0.4)
    estimate: Advantages = estimator(episodes)
    assert estimate.values is not None and estimate.returns is not None
    for index, episode in enumerate(episodes):
        (turn,) = episode.turns
        values = values_alone(policy, critic, turn)
        rewards = terminal(len(values), episode.rewards["programmer"])
        expected = generalised_advantages(rewards, values, discount=0.9, gae_lambda=0.7)
        np.testing.assert_allclose(estimate.values[index][0], values, atol=1e-5)
        np.testing.assert_allclose(estimate.advantages[index][0], expected, atol=1e-5)
        learned = values + generalised_advantages(rewards, values, discount=0.9, gae_lambda=0.4)
        np.testing.assert_allclose(estimate.returns[index][0], learned, atol=1e-5)
        if not separate:
            assert estimate.logprobs is not None
            np.testing.assert_allclose(estimate.logprobs[index][0], logprobs_alone(policy, turn), atol=1e-5)


def test_the_critic_learns_the_rewards_to_come_unless_told_otherwise() -> None:
    policy = tiny_policy()
    estimate = make_estimator(policy, make_critic(policy), discount=0.9)(make_episodes())
    assert estimate.returns is not None
    for (returns_T,), episode in zip(estimate.returns, make_episodes(), strict=True):
        steps_left = np.arange(len(returns_T))[::-1]
        expected = episode.rewards["programmer"] * 0.9**steps_left
        np.testing.assert_allclose(returns_T, expected, atol=1e-5)


def test_turns_of_a_role_are_one_trajectory_and_tokens_of_others_are_skipped() -> None:
    policy = tiny_policy()
    critic = make_critic(policy)
    first = answer(1, wrote=[True, True, False, True])
    other = answer(2, role="judge")
    second = answer(3, wrote=[False, True, True])
    episode = make_episode(first, other, second, rewards={"programmer": 2.0, "judge": -1.0})
    estimate = make_estimator(policy, critic)([episode])
    found = estimate.advantages[0]
    assert found[0][2] == found[2][0] == 0
    for places, turns, reward in (([0, 2], [first, second], 2.0), ([1], [other], -1.0)):
        values = np.concatenate([values_alone(policy, critic, turn)[turn.policy_wrote_T] for turn in turns])
        rewards = terminal(len(values), reward)
        expected = generalised_advantages(rewards, values, discount=1.0, gae_lambda=0.95)
        written = [found[n][turn.policy_wrote_T] for n, turn in zip(places, turns, strict=True)]
        np.testing.assert_allclose(np.concatenate(written), expected, atol=1e-5)


def test_whitened_advantages_have_mean_0_and_deviation_1_over_trained_tokens() -> None:
    policy = tiny_policy()
    critic = make_critic(policy)
    turn = answer(20, wrote=[True, False, True])
    episodes = [*make_episodes(), make_episode(turn), make_episode(answer(30), failed=True)]
    plain = make_estimator(policy, critic)(episodes)
    whitened = make_estimator(policy, critic, whiten_advantages=True)(episodes)
    written = np.concatenate([t.policy_wrote_T & e.scored for e in episodes for t in e.turns])
    before, after = (flat(estimate.advantages)[written] for estimate in (plain, whitened))
    np.testing.assert_allclose(after, (before - before.mean()) / before.std(), atol=1e-4)
    np.testing.assert_allclose([after.mean(), after.std()], [0, 1], atol=1e-4)
    assert whitened.metrics["advantage/mean"] == pytest.approx(before.mean(), abs=1e-6)
    assert whitened.metrics["advantage/std"] == pytest.approx(before.std(), abs=1e-6)
    np.testing.assert_array_equal(flat(plain.returns), flat(whitened.returns))
    assert whitened.advantages[-2][0][1] == 0


def with_rewards(rewards: list[float]) -> list[Episode]:
    return [
        replace(episode, rewards={"programmer": reward})
        for episode, reward in zip(make_episodes(), rewards, strict=True)
    ]


def flat(arrays: Any) -> np.ndarray:
    return np.concatenate([array_T for turns in arrays for array_T in turns])


@pytest.mark.parametrize("reward", [1.0, 0.0, -3.0, 0.1])
@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_rewards_that_are_equal_in_each_role_leave_a_noisy_critic_no_advantage_at_all(
    reward: float, discount: float
) -> None:
    policy = tiny_policy()
    rewards = {"programmer": reward, "judge": -1.0}
    of_two_roles = [make_episode(answer(n), answer(n + 9, role="judge"), rewards=rewards) for n in range(4)]
    for episodes in (with_rewards([reward] * 8), of_two_roles):
        critic = make_critic(policy)
        plain = make_estimator(policy, critic, discount=discount)(episodes)
        whitened = make_estimator(policy, critic, discount=discount, whiten_advantages=True)(episodes)
        assert flat(plain.advantages).std() > 0.1
        assert not flat(whitened.advantages).any()
        np.testing.assert_array_equal(flat(plain.returns), flat(whitened.returns))


@pytest.mark.parametrize("difference", [1e-12, 1e-6, 1e-3, 1e-2])
def test_nearly_equal_rewards_do_not_raise_the_noise_of_a_critic(difference: float) -> None:
    """Whatever the critic's noise, it ends up smaller than it was, in proportion to what rewards say."""
    for scale in (0.03, 0.3, 3.0):
        policy = tiny_policy()
        critic = make_critic(policy)
        with torch.no_grad():
            critic.head.weight.mul_(scale)
        episodes = with_rewards([1.0] * 7 + [1.0 - difference])
        noise = flat(make_estimator(policy, critic)(episodes).advantages)
        found = flat(make_estimator(policy, critic, whiten_advantages=True)(episodes).advantages)
        bound = 2 * difference / noise.std()  # the ratio of signal to noise, with room
        assert 0 < np.abs(found).max() < 4 * min(1.0, bound)


def test_advantages_of_a_useful_critic_are_whitened_in_full() -> None:
    """Rewards of a tiny scale are no reason to shrink them, where the critic is as small."""
    policy = tiny_policy()
    episodes = with_rewards([0.01, 0.0, 0.02, 0.0, 0.01, 0.01, 0.0, 0.02])
    estimator = make_estimator(policy, Critic(policy, separate_trunk=False), whiten_advantages=True)
    found = flat(estimator(episodes).advantages)
    assert found.std() == pytest.approx(1.0, abs=1e-3) and found.mean() == pytest.approx(0.0, abs=1e-5)


def test_advantages_shrink_with_the_rewards_of_a_converging_policy() -> None:
    """They are divided by the usual deviation of rewards so far, which is saved with the critic."""
    policy = tiny_policy()
    critic = Critic(policy, separate_trunk=False)
    rewards = np.array([1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    first = make_estimator(policy, critic, gae_lambda=1.0, whiten_advantages=True)
    assert flat(first(with_rewards(rewards.tolist())).advantages).std() == pytest.approx(1.0, abs=1e-3)
    resumed = Critic(policy, separate_trunk=False)
    resumed.load_state_dict(critic.state_dict())
    later = make_estimator(policy, resumed, gae_lambda=1.0, whiten_advantages=True)
    found = flat(later(with_rewards((1 - 0.01 * rewards).tolist())).advantages)
    assert found.std() == pytest.approx(0.01, rel=1e-3)
    again = flat(later(with_rewards((2 * rewards).tolist())).advantages)
    assert again.std() == pytest.approx(1.0, abs=1e-3)


def test_a_critic_without_error_leaves_no_advantage() -> None:
    """Rewards that differ and values that equal them: there is no variance to divide by."""

    class Oracle:
        reads_policy = False
        reward_scale = torch.zeros(2, dtype=torch.float64)

        def __call__(self, batch: GroupBatch, hidden_SE: None) -> torch.Tensor:
            return batch.completion_ids_BT.float()

    turns = [replace(answer(1, wrote=[True]), completion_ids=np.array([token])) for token in (3, 5, 8)]
    episodes = [make_episode(turn, rewards={"programmer": float(turn.completion_ids[0])}) for turn in turns]
    estimator = make_estimator(tiny_policy(), Oracle(), whiten_advantages=True)  # type: ignore[arg-type]
    assert not flat(estimator(episodes).advantages).any()


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_equal_rewards_leave_the_kl_in_the_reward_its_pull(reward: float) -> None:
    """What remains are the costs still to come, around their mean, at their own scale."""
    policy = tiny_policy()
    kl = {"coefficient": 0.3, "estimator": "k1", "in_reward": True}
    estimator = make_estimator(policy, make_critic(policy), kl=kl, gae_lambda=1.0, whiten_advantages=True)
    episodes = with_rewards([reward] * 8)
    costs = [kl_costs(policy, episode.turns[0], "k1") for episode in episodes]
    expected = np.concatenate([-0.3 * cost_T[::-1].cumsum()[::-1] for cost_T in costs])
    np.testing.assert_allclose(flat(estimator(episodes).advantages), expected - expected.mean(), atol=1e-4)


def test_infrastructure_failures_change_nothing_for_the_others() -> None:
    policy = tiny_policy()
    critic = make_critic(policy)
    episodes = make_episodes()
    failed = make_episode(answer(99), rewards={"programmer": 50.0}, failed=True)
    without = make_estimator(policy, critic, whiten_advantages=True)(episodes)
    with_failure = make_estimator(policy, critic, whiten_advantages=True)([*episodes, failed])
    assert with_failure.metrics == pytest.approx(without.metrics, abs=1e-6)
    for one, other in zip(without.advantages, with_failure.advantages, strict=False):
        np.testing.assert_allclose(one[0], other[0], atol=1e-5)
    assert not with_failure.advantages[-1][0].any() and not with_failure.returns[-1][0].any()
    alone = make_estimator(policy, critic, whiten_advantages=True)([failed])
    assert alone.metrics == {} and not alone.advantages[0][0].any()


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_in_the_reward_costs_each_token_its_estimate(kind: str) -> None:
    """With lambda 1 and values of 0 the advantage is the reward still to come, less the KL to come."""
    policy = tiny_policy()
    episodes = make_episodes()
    kl = {"coefficient": 0.3, "estimator": kind, "in_reward": True}
    estimate = make_estimator(policy, Critic(policy, separate_trunk=False), kl=kl, gae_lambda=1.0)(episodes)
    measured = [kl_costs(policy, episode.turns[0], kind) for episode in episodes]
    for episode, cost_T, (advantages_T,) in zip(episodes, measured, estimate.advantages, strict=True):
        rewards = terminal(len(cost_T), episode.rewards["programmer"]) - 0.3 * cost_T
        np.testing.assert_allclose(advantages_T, reward_to_go(rewards), atol=1e-4)
    assert estimate.metrics["kl"] == pytest.approx(np.concatenate(measured).mean(), abs=1e-5)


def test_explained_variance_is_that_of_the_reward_to_go() -> None:
    policy = tiny_policy()
    critic = make_critic(policy)
    episodes = make_episodes()
    metrics = make_estimator(policy, critic)(episodes).metrics
    values = [values_alone(policy, critic, episode.turns[0]) for episode in episodes]
    to_go = [np.full(len(v), e.rewards["programmer"]) for v, e in zip(values, episodes, strict=True)]
    flat_values, flat_to_go = np.concatenate(values), np.concatenate(to_go)
    expected = 1 - (flat_to_go - flat_values).var() / flat_to_go.var()
    assert metrics["explained_variance"] == pytest.approx(expected, abs=1e-5)
    assert metrics["value/mean"] == pytest.approx(flat_values.mean(), abs=1e-5)


def test_a_constant_critic_explains_nothing_and_equal_rewards_leave_nothing_to_explain() -> None:
    policy = tiny_policy()
    constant = Critic(policy, separate_trunk=False)
    assert not flat(make_estimator(policy, constant)(make_episodes()).values).any()  # as it starts
    torch.nn.init.constant_(constant.head.bias, 0.4)
    estimator = make_estimator(policy, constant)
    assert estimator(make_episodes()).metrics["explained_variance"] == pytest.approx(0.0, abs=1e-9)
    equal = [replace(episode, rewards={"programmer": 1.0}) for episode in make_episodes()]
    assert "explained_variance" not in estimator(equal).metrics
