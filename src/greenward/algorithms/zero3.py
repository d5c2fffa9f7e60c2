"""DeepSpeed ZeRO-3 behind the interfaces of a model and an optimizer of torch.

DeepSpeed shares out weights, gradients and optimizer states, and keeps the gradients of a step to itself:
`ZeroOptimizer.gradients` are this process's part of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from greenward.algorithms import distributed
from greenward.errors import CheckpointError, ConfigError
from greenward.policies.policy import Policy


def partition(policy: Policy) -> None:
    """Share out the weights of `policy`; `optimizer_of` then finds the optimizer of its parameters."""
    try:
        import deepspeed
    except ImportError as error:
        raise ConfigError("ZeRO-3 needs DeepSpeed.", remedy="pip install deepspeed") from error
    model = policy.model
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.0),  # whose settings `optimizer_of` replaces
        config={
            "train_micro_batch_size_per_gpu": 1,  # DeepSpeed asks for it; batches are not its own here
            "managed_gradient_accumulation": False,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": 3},
        },
    )
    if engine.zero_optimization_stage() != 3:
        raise ConfigError(f"DeepSpeed made an engine of stage {engine.zero_optimization_stage()}, not 3.")
    model.register_state_dict_post_hook(_gather_weights)
    model.register_load_state_dict_pre_hook(_share_out_weights)
    engine.state_dict, engine.load_state_dict = model.state_dict, model.load_state_dict
    policy.model = engine


def optimizer_of(parameter: Tensor, *, betas: tuple[float, float], weight_decay: float) -> ZeroOptimizer:
    """The optimizer of the model that a parameter belongs to, with these settings of AdamW."""
    return ZeroOptimizer(parameter._z3_optimizer, betas, weight_decay)  # type: ignore[attr-defined]


class ZeroOptimizer(torch.optim.Optimizer):
    """AdamW on this process's part of the weights."""

    def __init__(self, zero: Any, betas: tuple[float, float], weight_decay: float) -> None:
        self._zero = zero
        self.param_groups = zero.param_groups
        for group in self.param_groups:
            group.update(betas=betas, weight_decay=weight_decay)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._zero.zero_grad()
        self._zero.averaged_gradients = {}

    def step(self, closure: Any = None) -> Any:
        return self._zero.step()

    def state_dict(self) -> dict[str, Any]:
        """The parts of all processes, in the first of them."""
        inner = self._zero.optimizer
        own = [
            {"weights": flat.detach().cpu(), **{key: value.cpu() for key, value in inner.state[flat].items()}}
            for flat in self._zero.fp32_partitioned_groups_flat
        ]
        return {"parts": distributed.gathered([own])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises `CheckpointError` for a state of another number of processes, or not of ZeRO-3."""
        parts = state.get("parts", ())
        if len(parts) != distributed.size():
            raise CheckpointError(
                f"the checkpoint holds {len(parts)} parts of an optimizer that ZeRO-3 has shared out, and "
                f"there are {distributed.size()} processes.",
                remedy="Resume with the processes and the --config that the run was started with.",
            )
        own = parts[distributed.rank()]
        for flat, saved in zip(self._zero.fp32_partitioned_groups_flat, own, strict=True):
            flat.data.copy_(saved["weights"])
            moments = {key: value for key, value in saved.items() if key != "weights"}
            self._zero.optimizer.state[flat] = {
                key: value if key == "step" else value.to(flat.device) for key, value in moments.items()
            }


def gradients_of(parameter: Tensor) -> list[Tensor]:
    """The part that this process has of the gradients of the whole model, as means over the processes."""
    parts = parameter._z3_optimizer.averaged_gradients  # type: ignore[attr-defined]
    return [gradient for group in parts.values() for gradient in group]


def _gather_weights(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    from deepspeed.runtime.zero import GatheredParameters

    for name, parameter in module.named_parameters(remove_duplicate=False):
        with GatheredParameters([parameter]):
            state[prefix + name] = parameter.detach().clone()


def _share_out_weights(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    from deepspeed.runtime.zero import GatheredParameters

    for name, parameter in module.named_parameters(remove_duplicate=False):
        with GatheredParameters([parameter], modifier_rank=0):
            parameter.data.copy_(state[prefix + name])
        state[prefix + name] = parameter.data  # what remains is loaded into itself
