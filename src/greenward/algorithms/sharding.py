"""Weights, gradients and optimizer states that are shared out over the processes.

With FSDP2 each process keeps its part of every tensor as a `DTensor`, and has the whole of a layer only while
it computes with it; ZeRO-3 does the same in its own way (`zero3.py`). Sampling and evaluation read one weight
after another many times, so they have a whole copy of the policy in the type of the arithmetic (`WholeCopy`).
`state_dict` of a sharded model or optimizer holds whole tensors, the same as in one process, and is asked for
by all processes at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from greenward.algorithms import distributed, zero3
from greenward.algorithms.callbacks import Callback
from greenward.environments.episode import Episode
from greenward.errors import ConfigError
from greenward.policies.decoder import Decoder
from greenward.policies.policy import Policy


def shard(policy: Policy, *others: nn.Module) -> None:
    """Share out the weights of `policy` and of other modules, if the launcher wants it.

    To be called after copies are made, and before there is an optimizer. Raises `ConfigError` where DeepSpeed
    is wanted and not installed, and for a critic on a model of `transformers`.
    """
    if not distributed.is_sharded():
        return
    if distributed.sharding() == "zero3":
        zero3.partition(policy)
        return
    if others and not isinstance(policy.model, Decoder):
        raise ConfigError(
            "A critic reads inner parts of a model of transformers, which FSDP2 shares out apart.",
            remedy="Launch with --config ddp, or train a model of the Llama and Qwen family.",
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    # Scores are views of one tensor, and nothing writes to them in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    mesh = init_device_mesh(policy.device.type, (distributed.size(),))
    own_type = None if policy.dtype == torch.float32 else policy.dtype
    for model in (policy.model, *others):
        lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
        # The head of a critic has no layers, and computes in float32.
        precision = MixedPrecisionPolicy(own_type if lists else None, reduce_dtype=torch.float32)
        for layer in max(lists, key=len, default=()):
            fully_shard(layer, mesh=mesh, mp_policy=precision)
        fully_shard(model, mesh=mesh, mp_policy=precision)
        for module in model.modules():
            if isinstance(module, FSDPModule):  # each loss is its share of the batch's: gradients add up
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        assert all(map(distributed.is_part, model.parameters()))
        model.register_state_dict_post_hook(_gather_weights)
        model.register_load_state_dict_pre_hook(_share_out_weights)


def whole_copy(policy: Policy) -> WholeCopy | None:
    """What samples in place of `policy` once its weights are shared out; None where they will not be."""
    return WholeCopy(policy) if distributed.is_sharded() else None


class WholeCopy(Callback):
    """Keeps `policy`, which samples, is evaluated and saved, at the weights of the sharded policy."""

    name = "whole_copy"

    def __init__(self, sharded: Policy) -> None:
        self.policy = sharded.frozen_copy()
        self._sharded = sharded

    def on_step_end(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        if self.policy.version != self._sharded.version:  # a trainer that samples has done it already
            self.policy.sync(self._sharded)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the weights that were restored."""
        self.policy.sync(self._sharded)


def whole_states(optimizer: torch.optim.Optimizer) -> None:
    """Let the optimizer's `state_dict` hold whole tensors, in the first process, and load such."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def gather(_: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        def whole(value: Any) -> Any:
            found = _whole(value)  # by all processes at once, and kept in the first
            return found if found is value else found.cpu() if distributed.is_first() else None

        each = {at: {key: whole(value) for key, value in of.items()} for at, of in state["state"].items()}
        return {**state, "state": each}

    def share_out(_: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        each = {
            at: {key: _part(value, parameters[at]) if key != "step" else value for key, value in of.items()}
            for at, of in state["state"].items()
        }
        return {**state, "state": each}

    optimizer.register_state_dict_post_hook(gather)
    optimizer.register_load_state_dict_pre_hook(share_out)


def _whole(value: Any) -> Any:
    return value.full_tensor() if distributed.is_part(value) else value


def _part(whole: Tensor, like: Tensor) -> Tensor:
    """The part of `whole` that this process has of `like`."""
    if not distributed.is_part(like) or distributed.is_part(whole):
        return whole
    from torch.distributed.tensor import distribute_tensor

    whole = whole.to(device=like.device, dtype=like.dtype)
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def _gather_weights(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
    for name in [name for name in state if name.startswith(prefix)]:
        state[name] = _whole(state[name])


def _share_out_weights(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if prefix + name in state:
            state[prefix + name] = _part(state[prefix + name], parameter)
