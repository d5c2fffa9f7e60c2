"""Weights, gradients and optimizer states that are shared out over the processes (FSDP2).

Each process keeps its part of every tensor as a `DTensor` and has the whole of a layer only while it computes
with it. Sampling and evaluation read one weight after another many times, so they have a whole copy of the
policy in the type of the arithmetic (`WholeCopy`). `state_dict` of a sharded model or optimizer holds whole
tensors, the same as in one process, and is asked for by all processes at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from greenward.algorithms import distributed
from greenward.algorithms.callbacks import Callback
from greenward.environments.episode import Episode
from greenward.policies.policy import Policy


def shard(policy: Policy, *others: nn.Module) -> WholeCopy:
    """Share out the weights of `policy`, and of models of the same kind; a whole copy of the policy.

    To be called before there is an optimizer.
    """
    copy = WholeCopy(policy)
    mesh = init_device_mesh(policy.device.type, (distributed.size(),))
    own_type = None if policy.dtype == torch.float32 else policy.dtype
    precision = MixedPrecisionPolicy(param_dtype=own_type, reduce_dtype=torch.float32)
    for model in (policy.model, *others):
        lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
        for layer in max(lists, key=len):
            fully_shard(layer, mesh=mesh, mp_policy=precision)
        fully_shard(model, mesh=mesh, mp_policy=precision)
        for module in model.modules():
            if isinstance(module, FSDPModule):  # each loss is its share of the batch's: gradients add up
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
        model.register_state_dict_post_hook(_gather_weights)
        model.register_load_state_dict_pre_hook(_share_out_weights)
    return copy


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
            found = _whole(value)
            return found.cpu() if isinstance(value, DTensor) and distributed.is_first() else found

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
    return value.full_tensor() if isinstance(value, DTensor) else value


def _part(whole: Tensor, like: Tensor) -> Tensor:
    """The part of `whole` that this process has of `like`."""
    if not isinstance(like, DTensor) or isinstance(whole, DTensor):
        return whole
    whole = whole.to(device=like.device, dtype=like.dtype)
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def _gather_weights(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
    for name in [name for name in state if name.startswith(prefix)]:
        state[name] = _whole(state[name])


def _share_out_weights(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if prefix + name in state:
            state[prefix + name] = _part(state[prefix + name], parameter)
