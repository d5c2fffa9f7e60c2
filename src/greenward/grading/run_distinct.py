"""Running one job for each distinct item of a stream, however often it occurs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from greenward.sandbox.protocol import Executor, Job, Outcome, RunResult

RETRIES = 2

Item = TypeVar("Item")
Settled = TypeVar("Settled")


@dataclass(frozen=True)
class Run(Generic[Settled]):
    """A job, and what its result comes to."""

    job: Job
    settle: Callable[[RunResult], Settled]


def run_distinct(
    executor: Executor,
    items: Iterable[Item],
    key_of: Callable[[Item], Hashable],
    prepare: Callable[[Item], Run[Settled] | Settled | None],
    make_ready: Callable[[Item], None] = lambda _: None,
) -> Iterator[tuple[int, Settled]]:
    """Yields each item's position with what its job gave, in order of completion.

    `prepare` gives the job of an item, or what it comes to without one, or None for an item that is
    not ready. Then what has begun is finished, `make_ready` is called (it may use the executor) and
    the item comes again. Items are taken only as workers become free. A job for which the
    infrastructure failed is run again, `RETRIES` times, when what has begun is finished.
    """
    settled: dict[Hashable, Settled] = {}
    waiting: dict[Hashable, list[int]] = {}
    running: list[tuple[Hashable, Run[Settled]]] = []
    immediate: deque[tuple[int, Settled]] = deque()
    held: list[Item] = []  # keeps what ids in the keys refer to alive
    not_ready: deque[tuple[int, Item]] = deque()
    again: deque[tuple[Hashable, Run[Settled]]] = deque()
    failures: Counter[Hashable] = Counter()
    stream = enumerate(items)

    def jobs() -> Iterator[Job]:
        while again:
            running.append(again.popleft())
            yield running[-1][1].job
        for index, item in chain(list(not_ready), stream):
            not_ready.clear()
            key = key_of(item)
            if key in waiting:
                waiting[key].append(index)
                continue
            if key not in settled:
                prepared = prepare(item)
                if prepared is None:
                    not_ready.append((index, item))
                    return
                held.append(item)
                if isinstance(prepared, Run):
                    waiting[key] = [index]
                    running.append((key, prepared))
                    yield prepared.job
                    continue
                settled[key] = prepared
            immediate.append((index, settled[key]))

    while True:
        running.clear()
        for job, result in executor.run(jobs()):
            key, run = running[job]
            if result.outcome is Outcome.INFRASTRUCTURE and failures[key] < RETRIES:
                failures[key] += 1
                again.append((key, run))
                continue
            settled[key] = run.settle(result)
            immediate.extend((index, settled[key]) for index in waiting.pop(key))
            while immediate:
                yield immediate.popleft()
        while immediate:
            yield immediate.popleft()
        if not_ready:
            make_ready(not_ready[0][1])
        elif not again:
            return
