"""Weights in float32 are cast once for each optimizer step, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from test_out_of_memory import grpo, make_episodes, ppo
from test_rejection import trainer_of as rejection_trainer_of
from torch.utils._python_dispatch import TorchDispatchMode

from greenward.models.decoder import Decoder
from greenward.models.policy import Policy
from learning import TINY_SHAPE, tiny_policy


class Casts(TorchDispatchMode):
    """Counts how often each of the policy's weights is cast with a gradient."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._names = {parameter.data_ptr(): name for name, parameter in policy.model.named_parameters()}
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._to_copy.default and torch.is_grad_enabled() and args[0].requires_grad:
            self.counts.update([self._names[args[0].data_ptr()]] if args[0].data_ptr() in self._names else [])
        return function(*args, **(kwargs or {}))


def rejection(policy: Policy) -> dict[str, float]:
    return rejection_trainer_of(policy, training={"micro_batch_sequences": 2}).update(make_episodes(), 0)


def trained(train: Callable[[Policy], dict[str, float]], *, checkpointing: bool) -> tuple[Policy, Casts]:
    policy = Policy.random(TINY_SHAPE, tiny_policy().tokenizer, seed=0, dtype="bfloat16", device="cpu")
    policy.set_gradient_checkpointing(checkpointing)
    casts = Casts(policy)
    with casts:
        train(policy)
    return policy, casts


@pytest.mark.parametrize(("train", "steps", "passes"), [(grpo, 2, 4), (ppo, 2, 4), (rejection, 1, 2)])
def test_micro_batches_share_the_casts_of_a_step(
    train: Callable[[Policy], dict[str, float]], steps: int, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, casts = trained(train, checkpointing=False)
    assert casts.counts == dict.fromkeys(dict(policy.model.named_parameters()), steps)
    assert all(part.casts is None for part in (policy.model, *policy.model.layers))
    monkeypatch.setattr(Decoder, "casting_once", lambda self: nullcontext())
    apart, casts = trained(train, checkpointing=False)
    assert casts.counts == dict.fromkeys(dict(policy.model.named_parameters()), passes)
    assert all(map(torch.equal, policy.parameters(), apart.parameters()))


def test_with_gradient_checkpointing_no_layer_holds_its_casts() -> None:
    _, casts = trained(grpo, checkpointing=True)
    assert casts.counts["layers.0.qkv"] == 2 * 4  # in each of the passes, and again in its backward pass
