"""What an update does with a critic: which weights move, when it stops, what it reports and resumes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from greenward.models.policy import Policy
from greenward.rollouts.protocols import Episode
from greenward.training.advantages import Advantages
from learning import VOCABULARY, PPOAgent, judged_episode, make_turn, tiny_policy


def make_episodes(rewards: Sequence[float] = (1.0, 0.0, 0.5, 0.0, 1.0, 1.0), seed: int = 0) -> list[Episode]:
    """One answer to each prompt, so that no group has signal."""
    rng = np.random.default_rng(seed)
    episodes = []
    for group, reward in enumerate(rewards):
        length = int(rng.integers(2, 7))
        prompt, completion = rng.integers(1, VOCABULARY, 3).tolist(), rng.integers(1, VOCABULARY, length)
        turn = make_turn(prompt, completion, logprobs_T=np.full(length, -2.0, dtype=np.float32))
        episodes.append(judged_episode((turn,), {"programmer": reward}, group))
    return episodes


class Agent(PPOAgent):
    """An agent whose steps are long and not clipped, on episodes made by the number of the step."""

    def __init__(
        self, policy: Policy | None = None, algorithm: dict[str, Any] | None = None, **training: Any
    ) -> None:
        settings = {"micro_batch_sequences": 4, "learning_rate": 1e-2, "max_grad_norm": 1e9} | training
        super().__init__(policy or tiny_policy(), algorithm, settings)

    def step(self, step: int = 0, episodes: list[Episode] | None = None) -> dict[str, float]:
        return self.update(make_episodes(seed=step) if episodes is None else episodes, step)

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in (*self.policy.parameters(), *self.critic.parameters())]


def only_the_critic_errs(agent: Agent) -> tuple[list[Episode], Advantages]:
    """Advantages of 0, so that the policy's loss has no gradient, and returns that differ from values."""
    episodes = make_episodes()
    estimate = agent.estimator(episodes)
    assert estimate.returns is not None
    zeros = [tuple(np.zeros_like(a) for a in turns) for turns in estimate.advantages]
    return episodes, Advantages(zeros, estimate.values, estimate.returns, estimate.logprobs)


@pytest.mark.parametrize("trunk", ["shared", "separate"])
def test_value_loss_reaches_the_policy_through_a_shared_trunk_only(trunk: str) -> None:
    agent = Agent(algorithm={"critic": {"trunk": trunk}})
    torch.nn.init.normal_(agent.critic.head.weight, generator=torch.Generator().manual_seed(0))
    policy_before = [p.detach().clone() for p in agent.policy.parameters()]
    critic_before = [p.detach().clone() for p in agent.critic.parameters()]
    episodes, estimate = only_the_critic_errs(agent)
    metrics = agent.trainer.update(episodes, estimate, 0)
    moved = any(not torch.equal(a, b) for a, b in zip(policy_before, agent.policy.parameters(), strict=True))
    assert moved == (trunk == "shared")
    assert any(not torch.equal(a, b) for a, b in zip(critic_before, agent.critic.parameters(), strict=True))
    assert metrics["value/loss"] > 0


def test_groups_without_signal_train_the_critic() -> None:
    metrics = Agent().step(episodes=make_episodes([1.0] * 4))
    assert metrics["groups/trained"] == 4 and metrics["updates/applied"] == 1


def test_repeated_updates_bring_the_values_to_the_returns() -> None:
    shares = []
    for seed in range(3):
        policy = tiny_policy(seed)
        agent = Agent(policy, algorithm={"critic": {"clip": None, "gae_lambda": 1.0}})
        episodes = make_episodes(seed=seed)
        losses = [agent.step(episodes=episodes)["value/loss"] for _ in range(40)]
        shares.append(losses[-1] / losses[0])
    assert np.median(shares) < 0.25 and max(shares) < 0.5


def test_learning_rates_of_policy_and_critic_follow_schedule_and_settings() -> None:
    agent = Agent(
        algorithm={"critic": {"learning_rate": 0.5}}, learning_rate=0.1, schedule="linear", max_steps=4
    )
    assert agent.step(2)["learning_rate"] == pytest.approx(0.05)
    rates = [group["lr"] for group in agent.trainer._optimizer.param_groups]
    assert rates == pytest.approx([0.05, 0.25])
    agent.trainer.training = agent.trainer.training.model_copy(update={"learning_rate": 0.3})
    assert agent.step(2)["learning_rate"] == pytest.approx(0.15)


def applied_gradients(agent: Agent) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of policy and critic at each optimizer step, as the optimizer finds them; 0 where there is none."""
    found: list[tuple[torch.Tensor, torch.Tensor]] = []

    def flat(module: torch.nn.Module) -> torch.Tensor:
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
        return torch.cat([gradient.flatten() for gradient in gradients])

    agent.trainer._optimizer.register_step_pre_hook(
        lambda *_: found.append((flat(agent.policy), flat(agent.critic)))  # type: ignore[arg-type]
    )
    return found


def noisy(agent: Agent) -> Agent:
    """A critic whose values differ, so that its gradient reaches its trunk."""
    torch.nn.init.normal_(agent.critic.head.weight, generator=torch.Generator().manual_seed(0))
    return agent


def test_max_grad_norm_is_read_at_each_update() -> None:
    norms, changes = [], []
    for limit in (1e-9, math.inf):
        agent = Agent(algorithm={"critic": {"trunk": "separate"}})
        agent.trainer.training = agent.trainer.training.model_copy(update={"max_grad_norm": limit})
        before = agent.weights()
        gradients = applied_gradients(agent)
        metrics = agent.step()
        norms.append((metrics["grad_norm/policy"], metrics["grad_norm/critic"]))
        changes.append(tuple(float(part.norm()) for part in gradients[0]))
        assert metrics["grad_norm"] == pytest.approx(math.hypot(*norms[-1]))
        assert any(not torch.equal(a, b) for a, b in zip(before, agent.weights(), strict=True))
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert changes[0] == pytest.approx((1e-9, 1e-9), rel=1e-2)
    assert changes[1] == pytest.approx(norms[1], rel=1e-2)


@pytest.mark.parametrize("trunk", ["shared", "separate"])
def test_policy_and_critic_are_clipped_apart(trunk: str) -> None:
    """A huge error of the critic leaves the policy's step as it is; on a shared trunk it adds at most 0.01."""

    def gradients(returns_scale: float) -> tuple[float, float, torch.Tensor]:
        section = {"critic": {"trunk": trunk, "max_grad_norm": 0.01, "clip": None}}
        agent = noisy(Agent(algorithm=section, max_grad_norm=0.02))
        found = applied_gradients(agent)
        episodes = make_episodes()
        estimate = agent.estimator(episodes)
        assert estimate.returns is not None
        for turns in estimate.returns:
            turns[0][:] *= returns_scale
        metrics = agent.trainer.update(episodes, estimate, 0)
        assert metrics["grad_norm/critic"] > 0.01
        return metrics["grad_norm/policy"], float(found[0][1].norm()), found[0][0]

    calm, wild = gradients(1.0), gradients(1e6)
    assert calm[0] == pytest.approx(wild[0], rel=1e-4)
    assert (calm[2] - wild[2]).norm() <= (0.0201 if trunk == "shared" else 1e-6)
    assert wild[2].norm() > 0.009
    if trunk == "separate":
        assert (calm[1], wild[1]) == pytest.approx((0.01, 0.01), rel=1e-3)


def test_gradients_of_both_losses_add_up_on_a_shared_trunk_in_micro_batches() -> None:
    """Without clipping, the step has the gradient of policy loss + loss_weight * value loss."""

    def of_policy(agent: Agent, *batch: Any) -> torch.Tensor:
        found = applied_gradients(noisy(agent))
        agent.trainer.update(*batch, 0) if batch else agent.step()
        return found[0][0]

    whole, parts = (of_policy(Agent(micro_batch_sequences=size)) for size in (6, 1))
    policy_alone = of_policy(Agent(algorithm={"critic": {"loss_weight": 1e-12}}))
    critic_alone = of_policy(agent := Agent(), *only_the_critic_errs(noisy(agent)))
    torch.testing.assert_close(whole, parts, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(whole, policy_alone + critic_alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("trunk", ["shared", "separate"])
def test_update_stops_at_the_first_minibatch_beyond_the_step_kl(trunk: str) -> None:
    """The first step moves the policy too far: it takes no other, and the critic takes all of its four."""
    section = {"updates_per_batch": 4, "max_step_kl": 1e-4, "critic": {"trunk": trunk}}
    agent = Agent(algorithm=section, learning_rate=0.05)
    gradients = applied_gradients(agent)
    metrics = agent.step()
    assert metrics["updates/applied"] == metrics["updates/stopped_early"] == 1
    once = Agent(algorithm={"critic": {"trunk": trunk}}, learning_rate=0.05)
    once.step()
    for one, other in zip(agent.policy.parameters(), once.policy.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    assert len(gradients) == 4
    for of_policy, of_critic in gradients[1:]:
        assert not of_policy.any() and of_critic.any()
    assert not torch.allclose(agent.critic.head.weight, once.critic.head.weight, atol=1e-4)


@pytest.mark.parametrize("trunk", ["shared", "separate"])
@pytest.mark.parametrize(("policy_passes", "critic_passes"), [(1, 3), (3, 1)])
def test_critic_has_its_own_number_of_passes(trunk: str, policy_passes: int, critic_passes: int) -> None:
    section = {
        "updates_per_batch": policy_passes,
        "critic": {"trunk": trunk, "updates_per_batch": critic_passes},
    }
    agent = Agent(algorithm=section, learning_rate=1e-4)
    gradients = applied_gradients(agent)
    metrics = agent.step()
    assert metrics["updates/applied"] == policy_passes
    assert sum(bool(of_policy.any()) for of_policy, _ in gradients) == policy_passes
    assert sum(bool(of_critic.any()) for _, of_critic in gradients) == critic_passes


def test_minibatches_split_a_group_from_the_first_pass_on() -> None:
    """The answers to one prompt alone may all be above the baseline of the batch, or all below it."""
    single = [replace(episode, group_id=0) for episode in make_episodes()]
    agent = Agent(algorithm={"minibatches": 3, "updates_per_batch": 2})
    gradients = applied_gradients(agent)
    metrics = agent.step(episodes=single)
    assert metrics["updates/applied"] == len(gradients) == 6
    assert metrics["groups/trained"] == 1


@pytest.mark.parametrize("trunk", ["shared", "separate"])
@pytest.mark.parametrize("term", [{}, {"entropy_coefficient": 0.1}, {"kl": {"coefficient": 0.5}}])
def test_equal_rewards_move_the_policy_by_kl_and_entropy_alone(trunk: str, term: dict[str, Any]) -> None:
    agent = noisy(Agent(algorithm={"critic": {"trunk": trunk}, **term}))
    with torch.no_grad():  # away from the reference, where the KL has a gradient
        for n, parameter in enumerate(agent.policy.parameters()):
            generator = torch.Generator().manual_seed(n)
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    metrics = agent.step(episodes=make_episodes([1.0] * 6))
    assert metrics["advantage/std"] > 0.1
    assert (metrics["grad_norm/policy"] > 0) == bool(term)
    assert metrics["grad_norm/critic"] > 0


def test_update_that_stays_near_is_not_stopped() -> None:
    metrics = Agent(algorithm={"updates_per_batch": 3, "max_step_kl": 10.0}, learning_rate=1e-5).step()
    assert metrics["updates/applied"] == 3 and metrics["updates/stopped_early"] == 0


def test_kl_coefficient_is_logged_as_used_and_adapts_after_the_batch() -> None:
    kl = {"coefficient": 0.1, "in_reward": True, "estimator": "k3", "target": 1e-6, "horizon": 60}
    agent = Agent(algorithm={"kl": kl})
    first, second, third = (agent.step(step) for step in range(3))
    assert first["kl"] == pytest.approx(0.0, abs=1e-7) and first["kl/coefficient"] == 0.1
    assert second["kl/coefficient"] == pytest.approx(0.1 * (1 - 0.2 * 6 / 60))  # KL 0, far below target
    assert second["kl"] > 2e-6
    assert third["kl/coefficient"] == pytest.approx(second["kl/coefficient"] * (1 + 0.2 * 6 / 60))


def test_a_gradient_that_is_not_finite_is_shown_and_skipped() -> None:
    agent = Agent()
    before = agent.weights()
    episodes = make_episodes()
    estimate = agent.estimator(episodes)
    assert estimate.returns is not None
    estimate.returns[0][0][:] = np.nan
    metrics = agent.trainer.update(episodes, estimate, 0)
    assert math.isnan(metrics["grad_norm"]) and metrics["updates/non_finite"] == 1
    assert all(torch.equal(a, b) for a, b in zip(before, agent.weights(), strict=True))


@pytest.mark.parametrize("trunk", ["shared", "separate"])
def test_resumed_agent_goes_on_bit_for_bit(trunk: str, tmp_path: Path) -> None:
    section = {
        "critic": {"trunk": trunk},
        "updates_per_batch": 2,
        "minibatches": 2,
        "kl": {"coefficient": 0.1, "in_reward": True, "target": 0.01, "horizon": 50},
        "entropy_coefficient": 0.01,
        "entropy_target": 1.0,
    }
    straight = Agent(algorithm=section)
    for step in range(2):
        straight.step(step)
    file = tmp_path / "trainer.pt"
    torch.save((straight.trainer.state_dict(), straight.policy.state_dict()), file)
    saved = torch.load(file, weights_only=True)
    resumed = Agent(algorithm=section)
    resumed.policy.load_state_dict(saved[1])
    resumed.trainer.load_state_dict(saved[0])
    assert [resumed.step(step) for step in (2, 3)] == [straight.step(step) for step in (2, 3)]
    assert all(torch.equal(a, b) for a, b in zip(resumed.weights(), straight.weights(), strict=True))


@pytest.mark.parametrize("trunk", ["shared", "separate"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_causal_model_of_transformers_can_have_a_critic(published: Any, trunk: str, dtype: str) -> None:
    policy = Policy.from_folder(published("gpt2"), dtype=dtype, device="cpu")
    agent = Agent(policy, algorithm={"critic": {"trunk": trunk}, "updates_per_batch": 2})
    metrics = [agent.step(step) for step in range(2)]
    assert metrics[1]["updates/applied"] == 2
    assert all(math.isfinite(value) for row in metrics for value in row.values())
    assert agent.critic.head.weight.abs().sum() > 0
