"""Running the jobs of each distinct item of a stream, however often it occurs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, TypeVar

from greenward.sandbox.protocol import Executor, Job, Outcome, RunResult

RETRIES = 2

Item = TypeVar("Item")
Settled = TypeVar("Settled")


@dataclass(frozen=True)
class Run(Generic[Settled]):
    """Jobs that may run at the same time, and what their results come to.

    `settle` gets the results in order, up to that of the first job that was not completed: what comes
    after it does not run, or does not count, as if the jobs had run one after the other.
    """

    jobs: tuple[Job, ...]
    settle: Callable[[Sequence[RunResult]], Settled]


@dataclass
class _Running(Generic[Settled]):
    """A run that has begun: the results so far, and how many jobs of it count."""

    key: Hashable
    run: Run[Settled]
    results: dict[int, RunResult] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.count = len(self.run.jobs)

    def take(self, part: int, result: RunResult) -> bool:
        """Whether this result was the last that was missing."""
        if part >= self.count:
            return False
        self.results[part] = result
        if result.outcome is not Outcome.COMPLETED:
            self.count = part + 1
        return all(place in self.results for place in range(self.count))

    def settle(self) -> Settled:
        return self.run.settle([self.results[place] for place in range(self.count)])


def run_distinct(
    executor: Executor,
    items: Iterable[Item],
    key_of: Callable[[Item], Hashable],
    prepare: Callable[[Item], Run[Settled] | Settled | None],
    make_ready: Callable[[Item], None] = lambda _: None,
) -> Iterator[tuple[int, Settled]]:
    """Yields each item's position with what its job gave, in order of completion.

    `prepare` gives the jobs of an item, or what it comes to without one, or None for an item that is
    not ready. Then what has begun is finished, `make_ready` is called (it may use the executor) and
    the item comes again. Items are taken only as workers become free. A job for which the
    infrastructure failed is run again, `RETRIES` times, when what has begun is finished.
    """
    settled: dict[Hashable, Settled] = {}
    waiting: dict[Hashable, list[int]] = {}
    running: list[tuple[_Running[Settled], int]] = []
    immediate: deque[tuple[int, Settled]] = deque()
    held: list[Item] = []  # keeps what ids in the keys refer to alive
    not_ready: deque[tuple[int, Item]] = deque()
    again: deque[tuple[_Running[Settled], int]] = deque()
    failures: Counter[tuple[Hashable, int]] = Counter()
    stream = enumerate(items)

    def jobs() -> Iterator[Job]:
        while again:
            begun, part = again.popleft()
            if part < begun.count:
                running.append((begun, part))
                yield begun.run.jobs[part]
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
                    begun = _Running(key, prepared)
                    for part, job in enumerate(prepared.jobs):
                        if part < begun.count:
                            running.append((begun, part))
                            yield job
                    continue
                settled[key] = prepared
            immediate.append((index, settled[key]))

    while True:
        running.clear()
        for number, result in executor.run(jobs()):
            begun, part = running[number]
            if result.outcome is Outcome.INFRASTRUCTURE and failures[begun.key, part] < RETRIES:
                failures[begun.key, part] += 1
                again.append((begun, part))
                continue
            if begun.take(part, result):
                settled[begun.key] = begun.settle()
                immediate.extend((index, settled[begun.key]) for index in waiting.pop(begun.key))
            while immediate:
                yield immediate.popleft()
        while immediate:
            yield immediate.popleft()
        if not_ready:
            make_ready(not_ready[0][1])
        elif not again:
            return
