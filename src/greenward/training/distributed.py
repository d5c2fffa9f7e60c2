"""Trains one policy in several processes, which share out its work and its weights, and end together.

- `grpo`, `rejection`, `sft` and the warm start train under DDP, FSDP2 and ZeRO-3, `ppo` under DDP and FSDP2:
  ZeRO-3 refuses two gradients, each with its own norm.
- Of `self_play` and `code_game` updates are shared out under DDP, and each game is played in one process;
  FSDP2 and ZeRO-3 take `code_game` only.
- Refused as well: the section `rollouts`; `faults`; `model.lora` and `training.weight_average` with sharded
  weights; fewer `prompts_per_step` than processes; FSDP2 or ZeRO-3 with one process.
- A step that runs out of memory is repeated with smaller micro-batches under DDP; with sharded weights it is
  an error that names a smaller `micro_batch_sequences`.
- Weights, gradients and AdamW's moments take 16 bytes for each weight on each process under DDP, and 16 / N
  with sharded weights on N processes. A copy for sampling and evaluation (under DDP not in float32) and one
  for the reference policy, if there is a KL term, add 4 bytes each in float32 and 2 in bfloat16. With
  sharded weights each process, too, has a whole copy for sampling, which must fit on one device beside the
  rest, with 4 more bytes for each weight while it is renewed and at the start.
- A checkpoint holds whole tensors, and its folder is a Hugging Face model. With ZeRO-3 the optimizer's state
  is kept in the parts of its processes.

`process_group` makes a group of the processes that a launcher (Accelerate, torchrun) started. With one
process, every function here returns what it is given. All processes hold the same batch: each samples and
judges its share of the groups, and the episodes are gathered. What follows from a batch (advantages,
minibatches, totals, coefficients) is computed alike in every process and is thereby that of the whole batch.
Only passes through the model are shared out (`divide`), and their gradients and statistics added up
(`reduce_gradients`, `all_reduce`).
With FSDP2 each process keeps its part of every tensor as a `DTensor`, and has the whole of a layer only
while it computes with it. DeepSpeed ZeRO-3 does the same in its own way, and keeps the gradients of a step
to itself: `ZeroOptimizer.gradients` are this process's part of them. Sampling and evaluation read one weight
after another many times, so they have a whole copy of the policy in the type of the arithmetic
(`GatheredCopy`). `state_dict` of a sharded model or optimizer holds whole tensors, the same as in one
process, and is asked for by all processes at once.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from greenward.common.errors import CheckpointError, ConfigError, PeerError
from greenward.common.terminal import echo
from greenward.models.decoder import Decoder
from greenward.models.policy import Policy
from greenward.rollouts.protocols import Episode
from greenward.training.protocols import Callback

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


T = TypeVar("T")

LONGEST_WAIT = timedelta(days=2)
"""How long a process waits for the others, while the first evaluates, say. Deaths are noticed in seconds."""
POLL_SECONDS = 2.0
MISSED_POLLS = 15
"""A process whose sign of life stays the same in so many polls of the next one is taken for dead."""
_BUCKET = 1 << 24  # numbers that are added up at once: 64 MiB in float32
_FAILED = "failed"
_LAST_TENSORS_SECONDS = 0.2


def size() -> int:
    """The number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if size() > 1 else 0


def is_first() -> bool:
    """Whether this process writes the run directory, prints and evaluates."""
    return rank() == 0


def sharding() -> str:
    """How the launcher wants the weights held: `ddp` (all in each process), `fsdp2` or `zero3`."""
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true":
        return "zero3"
    return "fsdp2" if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true" else "ddp"


def is_sharded() -> bool:
    """Whether each process holds a part of the weights only."""
    return size() > 1 and sharding() != "ddp"


def all_gather_object(values: Sequence[T]) -> list[T]:
    """The values of all processes, those of the first process first; the same list in each."""
    if size() == 1:
        return list(values)
    parts: list[Any] = [None] * size()
    dist.all_gather_object(parts, list(values))
    return [value for part in parts for value in part]


def broadcast_from_rank0(function: Callable[[], T]) -> T:
    """What `function` returns in the first process, which alone calls it.

    Its error is raised there, and a `PeerError` in the others.
    """
    if size() == 1:
        return function()
    outcome: list[Any] = [None, None]
    error: BaseException | None = None
    if is_first():
        try:
            outcome[0] = function()
        except Exception as caught:
            error = caught
            outcome[1] = f"{type(caught).__name__}: {caught}"
    dist.broadcast_object_list(outcome, src=0)
    if error is not None:
        raise error
    if outcome[1] is not None:
        raise PeerError(f"process 0 failed: {outcome[1]}")
    return outcome[0]


def all_reduce(values: Tensor, op: str = "SUM") -> Tensor:
    """The sum of `values` over all processes, or what another `op` of `ReduceOp` gives."""
    if size() == 1:
        return values
    values = values.clone()
    dist.all_reduce(values, op=getattr(dist.ReduceOp, op))
    return values


def reduce_gradients(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its sum over all processes, which have as many of the same shapes."""
    if size() == 1:
        return
    bucket: list[Tensor] = []
    for number, tensor in enumerate(tensors, start=1):
        bucket.append(tensor)
        if number == len(tensors) or sum(each.numel() for each in bucket) >= _BUCKET:
            flat = torch.cat([each.flatten() for each in bucket])
            dist.all_reduce(flat)
            for each, part in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
                each.copy_(part.view_as(each))
            bucket = []


def is_part(value: Any) -> TypeGuard[DTensor]:
    """Whether a value is a tensor that is shared out (whose type is not imported where there is none)."""
    return hasattr(value, "to_local")


def divide(pieces: Sequence[T], cost: Callable[[T], float]) -> list[list[T]]:
    """The pieces of each process, about equal in cost, each share in the order of `pieces`.

    The costliest first, each to the process that has the least so far (Graham 1969: the largest share is at
    most 4/3 of the smallest possible one).
    """
    loads = [0.0] * size()
    owner: dict[int, int] = {}
    for place in sorted(range(len(pieces)), key=lambda place: -cost(pieces[place])):
        owner[place] = loads.index(min(loads))
        loads[owner[place]] += cost(pieces[place])
    return [[pieces[place] for place in range(len(pieces)) if owner[place] == one] for one in range(size())]


@contextmanager
def process_group() -> Iterator[None]:
    """Join the processes that the launcher started; part from them at the end.

    When one of them fails or dies, the others write the reason to standard error and exit with code 1
    within a minute, wherever they are.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or size() > 1:
        yield
        return
    local = int(os.environ.get("LOCAL_RANK", 0))
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=LONGEST_WAIT)
    watch = _Watch(rank(), size())
    watch.start()
    try:
        yield
        all_gather_object([None])  # the others may still need this process
    except BaseException as error:
        watch.over.set()
        if (told := watch.failure()) is None:
            watch.tell(f"{type(error).__name__}: {error}")
            # What gloo says where a process was killed is "connection closed by peer".
            if "by peer" in str(error):
                told = "another process has died without a word"
        if told is not None and isinstance(error, RuntimeError):
            raise PeerError(told) from error
        raise
    finally:
        watch.over.set()
        watch.join()
        dist.destroy_process_group()
        # Sharded weights keep gloo's threads alive. A thread that releases the last tensor of a collective
        # needs the interpreter lock. If the interpreter ends meanwhile, the process is aborted.
        time.sleep(_LAST_TENSORS_SECONDS)


class _Watch(threading.Thread):
    """Gives signs of life, watches those of the next process, and ends this one when any has failed."""

    def __init__(self, number: int, count: int) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self._number, self._next = number, (number + 1) % count
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(f"greenward/{attempt}", store)

    def tell(self, reason: str) -> None:
        """Let the others know that this process has failed."""
        with suppress(RuntimeError):  # where they meet may be gone as well
            self._store.set(_FAILED, f"process {self._number} failed. {reason}")
            if self._number == 0:  # which may be where they meet
                time.sleep(2 * POLL_SECONDS)

    def failure(self) -> str | None:
        try:
            return self._store.get(_FAILED).decode() if self._store.check([_FAILED]) else None
        except RuntimeError:
            return "process 0, where the processes meet, is gone"

    def run(self) -> None:
        polls = missed = 0
        newest = b""
        while not self.over.wait(POLL_SECONDS):
            if (reason := self.failure()) is None:
                try:
                    self._store.set(f"alive/{self._number}", str(polls := polls + 1))
                    key = f"alive/{self._next}"
                    found = self._store.get(key) if self._store.check([key]) else b""
                except RuntimeError:
                    continue  # `failure` says so at the next poll
                missed = 0 if found != newest else missed + 1
                newest = found
                if missed < MISSED_POLLS:
                    continue
                reason = f"process {self._next} gave no sign of life for {missed * POLL_SECONDS:.0f} seconds"
            if self.over.wait(POLL_SECONDS):  # this process was ending, or raises the reason itself
                return
            echo(f"Error: process {self._number} stops: {reason}", err=True)
            os._exit(1)


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
    model.register_state_dict_post_hook(_gather_zero3_weights)
    model.register_load_state_dict_pre_hook(_share_out_zero3_weights)
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
        return {"parts": all_gather_object([own])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises `CheckpointError` for a state of another number of processes, or not of ZeRO-3."""
        parts = state.get("parts", ())
        if len(parts) != size():
            raise CheckpointError(
                f"the checkpoint holds {len(parts)} parts of an optimizer that ZeRO-3 has shared out, and "
                f"there are {size()} processes.",
                remedy="Resume with the processes and the --config that the run was started with.",
            )
        for flat, saved in zip(self._zero.fp32_partitioned_groups_flat, parts[rank()], strict=True):
            flat.data.copy_(saved["weights"])
            moments = {key: value for key, value in saved.items() if key != "weights"}
            self._zero.optimizer.state[flat] = {
                key: value if key == "step" else value.to(flat.device) for key, value in moments.items()
            }


def gradients_of(parameter: Tensor) -> list[Tensor]:
    """The part that this process has of the gradients of the whole model, as means over the processes."""
    parts = parameter._z3_optimizer.averaged_gradients  # type: ignore[attr-defined]
    return [gradient for group in parts.values() for gradient in group]


def _gather_zero3_weights(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    from deepspeed.runtime.zero import GatheredParameters

    for name, parameter in module.named_parameters(remove_duplicate=False):
        with GatheredParameters([parameter]):
            state[prefix + name] = parameter.detach().clone()


def _share_out_zero3_weights(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    from deepspeed.runtime.zero import GatheredParameters

    for name, parameter in module.named_parameters(remove_duplicate=False):
        with GatheredParameters([parameter], modifier_rank=0):
            parameter.data.copy_(state[prefix + name])
        state[prefix + name] = parameter.data  # what remains is loaded into itself


def shard(policy: Policy, *others: nn.Module) -> None:
    """Share out the weights of `policy` and of other modules, if the launcher wants it.

    To be called after copies are made, and before there is an optimizer. Raises `ConfigError` where DeepSpeed
    is wanted and not installed, and for a critic on a model of `transformers`.
    """
    if not is_sharded():
        return
    if sharding() == "zero3":
        partition(policy)
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
    mesh = init_device_mesh(policy.device.type, (size(),))
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
        assert all(map(is_part, model.parameters()))
        model.register_state_dict_post_hook(_gather_weights)
        model.register_load_state_dict_pre_hook(_share_out_weights)


def gathered_copy(policy: Policy) -> GatheredCopy | None:
    """What samples in place of `policy` once its weights are shared out; None where they will not be."""
    return GatheredCopy(policy) if is_sharded() else None


class GatheredCopy(Callback):
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
            return found if found is value else found.cpu() if is_first() else None

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
    return value.full_tensor() if is_part(value) else value


def _part(whole: Tensor, like: Tensor) -> Tensor:
    """The part of `whole` that this process has of `like`."""
    if not is_part(like) or is_part(whole):
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
