"""A step that ran out of memory is repeated with half the micro-batch, and ends where it would have ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from test_ppo_updates import Agent
from test_ppo_updates import make_episodes as single_answers
from test_rejection import trainer_of as rejection_trainer_of
from test_trainer import trainer_of, update

from greenward.common.errors import ConfigError
from greenward.config.sections import SupervisedConfig
from greenward.grading.verdict import Status
from greenward.models.policy import Policy
from greenward.rollouts.protocols import Episode
from greenward.training.optim import MicroBatchLimit
from greenward.training.protocols import Example
from greenward.training.sft import SFTTrainer
from learning import judged_episode, make_turn, tiny_policy

OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB."


def make_episodes() -> list[Episode]:
    rng = np.random.default_rng(0)
    return [
        judged_episode(
            (make_turn((1, 2, 1 + group), rng.integers(1, 11, 3 + index), logprobs_T=np.full(3 + index, -2.0)),),
            {"programmer": float(index % 3 == 0)},
            group,
            Status.PASSED if index % 3 == 0 else Status.FAILED,
        )
        for group in range(2)
        for index in range(6)
    ]  # fmt: skip


def fail_once(model: Any, number: int, *, backward: bool) -> list[int]:
    """Raise the error of a full device in forward pass `number` of `model`, or in its backward pass.

    Returns the list of the passes, which grows.
    """
    passes: list[int] = []
    forward = model.forward

    def fail(*_: object) -> Any:
        raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    def counted(*arguments: Any, **options: Any) -> Any:
        handles[-1].remove()
        passes.append(len(passes))
        if len(passes) == number:
            if not backward:
                fail()
            # Amid the backward pass: the gradients of later parameters are accumulated already.
            handles.append(model.layers[0].qkv.register_hook(fail))
        return forward(*arguments, **options)

    handles = [model.layers[0].qkv.register_hook(lambda grad: None)]
    model.forward = counted
    return passes


def grpo(policy: Policy) -> dict[str, float]:
    algorithm = {"kl": {"coefficient": 0.1}, "minibatches": 2}
    trainer = trainer_of(
        policy,
        algorithm=algorithm,
        reference=policy.frozen_copy(),
        micro_batch_sequences=4,
        learning_rate=1.0,
    )
    return update(trainer, make_episodes())


def stopped_early(policy: Policy) -> dict[str, float]:
    algorithm = {"max_step_kl": 1e-9, "minibatches": 2}
    trainer = trainer_of(policy, algorithm=algorithm, micro_batch_sequences=4, learning_rate=1.0)
    return update(trainer, make_episodes())


def ppo(policy: Policy) -> dict[str, float]:
    algorithm = {"updates_per_batch": 2}
    return Agent(policy, algorithm, micro_batch_sequences=4, learning_rate=1.0).step(
        episodes=single_answers()
    )


def rejection(policy: Policy) -> dict[str, float]:
    training = {"micro_batch_sequences": 4, "learning_rate": 1.0}
    return rejection_trainer_of(policy, training=training).update(make_episodes(), 0)


def supervised(policy: Policy) -> dict[str, float]:
    examples = [Example((1, 2), (3, 4 + n % 5, 0)) for n in range(8)]
    config = SupervisedConfig(batch_size=8, max_steps=1, warmup_steps=0, learning_rate=1.0)
    return SFTTrainer(policy, examples, config, seed=0).train_step(0).metrics


@pytest.fixture
def smooth_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam with steps proportional to the gradient: its usual ones turn rounding near 0 into whole steps."""
    monkeypatch.setattr(torch.optim, "AdamW", partial(torch.optim.AdamW, eps=1.0))


@pytest.mark.usefixtures("smooth_optimizer")
@pytest.mark.parametrize("train", [grpo, stopped_early, ppo, rejection, supervised])
@pytest.mark.parametrize("backward", [False, True])
def test_the_repeated_step_equals_the_one_that_had_memory(
    train: Callable[[Policy], dict[str, float]], backward: bool
) -> None:
    whole = tiny_policy()
    passes = fail_once(whole.model, -1, backward=False)
    expected = train(whole)
    for number in {len(passes), max(1, len(passes) - 1)}:  # before and amid an accumulation of gradients
        cut = tiny_policy()
        fail_once(cut.model, number, backward=backward)
        with pytest.warns(UserWarning, match=r"Out of memory with \d answers at once; .* repeated with \d"):
            found = train(cut)
        for ours, theirs in zip(cut.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        for name in {"loss", "grad_norm", "entropy", "approx_kl"} & expected.keys():
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name


def test_the_size_halves_until_it_fits_and_is_saved() -> None:
    limit = MicroBatchLimit(64)
    tried: list[int] = []

    def attempt() -> int:
        tried.append(limit.size)
        if limit.size > 2:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        return limit.size

    with pytest.warns(UserWarning, match="micro_batch_sequences=2"):
        assert limit.run_within_memory(attempt, 20) == 2
    assert tried == [64, 10, 5, 2]  # 64 at once of 20 answers are 20
    resumed = MicroBatchLimit(64)
    resumed.load_state_dict(limit.state_dict())
    assert resumed.size == 2


@pytest.mark.filterwarnings("ignore:Out of memory")
def test_one_answer_that_does_not_fit_ends_the_training_with_advice() -> None:
    limit = MicroBatchLimit(4)

    def attempt() -> None:
        raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    with pytest.raises(ConfigError, match=r"one answer at a time(.|\n)*gradient_checkpointing"):
        limit.run_within_memory(attempt, 4)
