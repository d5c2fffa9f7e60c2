"""Several processes that train one policy: what they exchange, how work is dealt out, and how they end.

`joined` makes a group of the processes that a launcher (Accelerate, torchrun) started. With one process,
every function here returns what it is given.

All processes hold the same batch: each samples and judges its share of the groups, and the episodes are
gathered. What follows from a batch (advantages, minibatches, totals, coefficients) is computed alike in every
process and is thereby that of the whole batch. Only the passes through the model are shared out (`dealt`),
and their gradients and statistics added up (`add_up`, `total`).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from greenward.errors import PeerError

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


def own_share(number: int) -> int:
    """The part of something on this machine, such as workers, that each of its processes has; 1 at least."""
    return -(-number // int(os.environ.get("LOCAL_WORLD_SIZE", 1))) if size() > 1 else number


def gathered(values: Sequence[T]) -> list[T]:
    """The values of all processes, those of the first process first; the same list in each."""
    if size() == 1:
        return list(values)
    parts: list[Any] = [None] * size()
    dist.all_gather_object(parts, list(values))
    return [value for part in parts for value in part]


def from_first(function: Callable[[], T]) -> T:
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


def total(values: Tensor, op: str = "SUM") -> Tensor:
    """The sum of `values` over all processes, or what another `op` of `ReduceOp` gives."""
    if size() == 1:
        return values
    values = values.clone()
    dist.all_reduce(values, op=getattr(dist.ReduceOp, op))
    return values


def add_up(tensors: Sequence[Tensor]) -> None:
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


def dealt(pieces: Sequence[T], cost: Callable[[T], float]) -> list[list[T]]:
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
def joined() -> Iterator[None]:
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
        gathered([None])  # the others may still need this process
    except BaseException as error:
        watch.over.set()
        told = watch.failure()
        if told is None:
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
            reason = self.failure()
            if reason is None:
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
            print(f"Error: process {self._number} stops: {reason}", file=sys.stderr, flush=True)
            os._exit(1)
