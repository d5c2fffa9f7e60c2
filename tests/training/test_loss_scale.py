"""Loss scaling for float16: as `torch.amp.GradScaler` does it, and without an effect on what is learnt."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_out_of_memory import make_episodes
from test_ppo_updates import Agent
from test_ppo_updates import make_episodes as single_answers
from test_trainer import trainer_of, update

from greenward.models.decoder import Decoder
from greenward.models.policy import Policy
from greenward.models.scoring import GroupBatch
from greenward.training.optim import LossScale
from learning import tiny_policy


def as_float16(trainer: Any) -> Any:
    trainer._loss_scale = LossScale(torch.float16)
    return trainer


def test_the_scale_follows_that_of_torch() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    theirs, ours = torch.amp.GradScaler("cpu"), LossScale(torch.float16)
    infinite_at = {3, 4, 300, 2450}
    for step in range(2500):
        assert theirs.get_scale() == ours.value
        optimizer.zero_grad()
        theirs.scale(parameter.sum() * (math.inf if step in infinite_at else 1.0)).backward()
        theirs.step(optimizer)
        theirs.update()
        ours.update(finite=step not in infinite_at)
    resumed = LossScale(torch.float16)
    resumed.load_state_dict(ours.state_dict())
    assert vars(resumed) == vars(ours)


@pytest.mark.parametrize("trunk", ["shared", "separate"])
def test_a_scale_that_is_a_power_of_two_changes_no_step_of_ppo(trunk: str) -> None:
    plain, scaled = (Agent(algorithm={"critic": {"trunk": trunk}}, max_grad_norm=0.1) for _ in range(2))
    as_float16(scaled.trainer)
    for step in range(3):
        expected, found = (one.step(step, single_answers(seed=step)) for one in (plain, scaled))
        assert found["grad_norm/critic"] == pytest.approx(expected["grad_norm/critic"], rel=1e-5)
    for ours, theirs in zip(scaled.weights(), plain.weights(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_a_gradient_that_overflows_skips_the_step_and_halves_the_scale_which_is_saved() -> None:
    policy = tiny_policy()
    trainer = as_float16(trainer_of(policy))
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    hook = policy.model.final_norm.register_hook(lambda grad: grad * math.inf)
    metrics = update(trainer, make_episodes())
    assert (metrics["updates/non_finite"], trainer._loss_scale.value) == (1, 2.0**15)
    assert all(map(torch.equal, policy.parameters(), before))
    hook.remove()
    assert update(trainer, make_episodes(), step=1)["updates/applied"] == 1
    resumed = as_float16(trainer_of(tiny_policy()))
    resumed.load_state_dict(trainer.state_dict())
    assert resumed._loss_scale.value == 2.0**15


def test_small_gradients_of_float16_arithmetic_survive_with_the_scale_only() -> None:
    def gradient(dtype: torch.dtype, scale: LossScale) -> torch.Tensor:
        exact = tiny_policy()
        decoder = Decoder(exact.model.shape, compute_dtype=dtype)
        decoder.load_state_dict(exact.model.state_dict())
        policy = Policy(decoder, exact.tokenizer, dtype=dtype)
        batch = GroupBatch.build([[1, 2]], [[[3, 4, 5], [6, 7]]])
        scale(policy.completion_logprobs(batch).logprobs_BT.sum() * 1e-6).backward()
        scale.unscale(policy.parameters())
        return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])

    expected = gradient(torch.float32, LossScale(torch.float32))
    scaled = gradient(torch.float16, LossScale(torch.float16))
    unscaled = gradient(torch.float16, LossScale(torch.float32))
    error = float((scaled - expected).norm() / expected.norm())
    assert error < 0.02 < 0.2 < float((unscaled - expected).norm() / expected.norm())
