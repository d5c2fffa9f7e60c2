"""Runs the jobs of each distinct item of a stream once, however often the item occurs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, TypeVar

from greenward.sandbox.protocol import Executor, Job, Outcome, RunResult

RETRIES = 2

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True)
class JobSet(Generic[Value]):
    """Jobs that may run at the same time, and what their results give.

    `combine` gets the results in order, up to that of the first job that was not completed: what comes
    after it does not run, or does not count, as if the jobs had run one after the other.
    """

    jobs: tuple[Job, ...]
    combine: Callable[[Sequence[RunResult]], Value]


@dataclass
class _Distinct(Generic[Item, Value]):
    """A distinct item: the positions that wait for its value, the results so far, how many of them count."""

    item: Item  # kept alive, since its key may hold the id of an object
    job_set: JobSet[Value]
    positions: list[int] = field(default_factory=list)
    results: dict[int, RunResult] = field(default_factory=dict)
    retries: Counter[int] = field(default_factory=Counter)
    values: list[Value] = field(default_factory=list)  # one, once it is known

    def __post_init__(self) -> None:
        self.needed = len(self.job_set.jobs)

    def take(self, part: int, result: RunResult) -> None:
        if part < self.needed:
            self.results[part] = result
            if result.outcome is not Outcome.COMPLETED:
                self.needed = part + 1

    def finished(self) -> list[tuple[int, Value]]:
        """The positions that wait, with the value; none before all results are there."""
        if not self.values:
            if not all(part in self.results for part in range(self.needed)):
                return []
            self.values.append(self.job_set.combine([self.results[part] for part in range(self.needed)]))
            self.results.clear()  # they may be large
        waiting, self.positions = self.positions, []
        return [(position, self.values[0]) for position in waiting]


def run_unique(
    executor: Executor,
    items: Iterable[Item],
    key_of: Callable[[Item], Hashable],
    prepare: Callable[[Item], JobSet[Value] | None],
    resolve: Callable[[Item], None] = lambda _: None,
) -> Iterator[tuple[int, Value]]:
    """Yields each item's position with the value of its jobs, in order of completion.

    `prepare` gives the jobs of an item, or None for an item that is not ready. Then what has begun is
    finished, `resolve` is called (it may use the executor) and the item comes again. Items are taken
    only as workers become free. A job for which the infrastructure failed is run again, up to `RETRIES`
    times, when what has begun is finished.
    """
    known: dict[Hashable, _Distinct[Item, Value]] = {}
    to_start: deque[tuple[_Distinct[Item, Value], int]] = deque()
    started: list[tuple[_Distinct[Item, Value], int]] = []
    failed: list[tuple[_Distinct[Item, Value], int]] = []
    finished: deque[tuple[int, Value]] = deque()
    not_ready: list[tuple[int, Item]] = []
    stream: Iterator[tuple[int, Item]] = enumerate(items)

    def start() -> Iterator[Job]:
        while to_start:
            distinct, part = to_start.popleft()
            if part < distinct.needed:
                started.append((distinct, part))
                yield distinct.job_set.jobs[part]

    def jobs() -> Iterator[Job]:
        yield from start()
        for position, item in stream:
            key = key_of(item)
            if key not in known:
                job_set = prepare(item)
                if job_set is None:
                    not_ready.append((position, item))
                    return
                known[key] = _Distinct(item, job_set)
                to_start.extend((known[key], part) for part in range(len(job_set.jobs)))
            known[key].positions.append(position)
            finished.extend(known[key].finished())
            yield from start()

    while True:
        started.clear()
        for number, result in executor.run(jobs()):
            distinct, part = started[number]
            if result.outcome is Outcome.INFRASTRUCTURE and distinct.retries[part] < RETRIES:
                distinct.retries[part] += 1
                failed.append((distinct, part))
                continue
            distinct.take(part, result)
            finished += distinct.finished()
            while finished:
                yield finished.popleft()
        while finished:
            yield finished.popleft()
        to_start.extend(failed)
        failed.clear()
        if not_ready:
            resolve(not_ready[0][1])
            stream = chain([not_ready.pop()], stream)
        elif not to_start:
            return
