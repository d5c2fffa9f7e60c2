"""The gradients of the roles of a game against autograd over the whole batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from greenward.models.scoring import GroupBatch
from greenward.rollouts.protocols import Episode
from greenward.tasks.self_play.role_gradients import RoleGradientNorms, role_gradients
from greenward.training.advantages import RoleBaselineEstimator
from learning import judged_episode, make_turn, tiny_policy


def games() -> list[Episode]:
    def game(number: int, reward: float) -> Episode:
        turns = tuple(
            make_turn((1 + number, 2), (3 + move, 4)[: 1 + move % 2], role=("first", "second")[move % 2])
            for move in range(3)
        )
        return replace(judged_episode(turns, {"first": reward, "second": -reward}), task_id="game/self")

    return [game(number, reward) for number, reward in enumerate((1.0, -1.0, 0.5))]


def test_the_parts_of_the_roles_add_up_to_the_gradient_of_the_batch() -> None:
    policy, episodes = tiny_policy(), games()
    batch = RoleBaselineEstimator(decay=0.5)(episodes)
    found = role_gradients(policy, episodes, batch, micro_batch_sequences=4)
    assert set(found) == {"first", "second"}
    turns = [
        (turn, advantage)
        for episode, advantages in zip(episodes, batch.advantages, strict=True)
        for turn, advantage in zip(episode.turns, advantages, strict=True)
    ]
    total = 0.0
    for turn, advantage in turns:  # one by one
        laid_out = GroupBatch.build([turn.prompt_ids], [[turn.completion_ids]])
        logprobs = policy.completion_logprobs(laid_out).logprobs_BT
        total = total + (logprobs[0] * torch.from_numpy(advantage)).sum()
    tokens = sum(len(turn.completion_ids) for turn, _ in turns)
    parameters = list(policy.parameters())
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(total / tokens, parameters)])
    torch.testing.assert_close(found["first"] + found["second"], expected, atol=1e-6, rtol=1e-4)


def test_norms_are_measured_at_every_other_batch_and_resume_where_they_were() -> None:
    policy, episodes = tiny_policy(), games()

    def measuring() -> RoleGradientNorms:
        return RoleGradientNorms(RoleBaselineEstimator(), policy, every=2, micro_batch_sequences=8)

    first, second = measuring(), measuring()
    measured = ["grad_norm/first" in first(episodes).metrics for _ in range(3)]
    assert measured == [True, False, True]
    second.load_state_dict(first.state_dict())
    assert "grad_norm/first" not in second(episodes).metrics
    assert second(episodes).metrics["grad_norm/second"] == pytest.approx(
        first(episodes) and first(episodes).metrics["grad_norm/second"]
    )
