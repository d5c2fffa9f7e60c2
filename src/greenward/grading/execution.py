"""Judges answers by running jobs: those of equal answers once, and again what the infrastructure lost."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Generator, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, TypeVar

from greenward.common.errors import Closeable, ConfigError, GreenwardError
from greenward.common.interruption import Stopped, stopped_when
from greenward.common.text import MAX_MESSAGE_CHARS, visible
from greenward.grading.extracted import Extracted
from greenward.grading.verdict import Family, Status, Verdict
from greenward.problems.problem import Problem, ProblemSet
from greenward.sandbox.isolation import Isolation
from greenward.sandbox.protocol import Executor, Job, Outcome, RunResult

RETRIES = 2
# A stream keeps its answers until it ends. One that submissions keep adding to ends after so many answers.
MOST_SUBMITTED = 1000

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

    `prepare` gives the jobs of an item, or None for an item that is not ready. The jobs that
    have begun are then finished, `resolve` is called (it may use the executor), and `prepare` is asked again.
    Items are taken only as workers become free. A job for which the infrastructure failed is run again after
    the jobs that have begun, up to `RETRIES` times.
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


# A problem and the code of an answer to it, None without code, or what was extracted from an answer.
Answer = tuple[Problem, "str | Extracted | None"]
Graded = tuple[int, Verdict]  # the position of an answer, and the verdict on it


@dataclass(frozen=True)
class FlakyAnswer:
    """An answer, by its position, whose verdicts differ from run to run."""

    index: int
    verdicts: tuple[Verdict, ...]


# Each other outcome, apart from `COMPLETED`, has the name of its status.
_STATUS = {
    Outcome.LOAD_ERROR: Status.ERROR,
    Outcome.NO_ENTRY_POINT: Status.NO_CODE,
    Outcome.EXITED: Status.ERROR,
}


def status_of(outcome: Outcome) -> Status:
    """The status of an answer whose job ended with `outcome`, which is not `COMPLETED`."""
    return _STATUS.get(outcome) or Status(outcome.value)


@dataclass(eq=False)
class _Submission:
    """Answers that are graded in the background, and what becomes of them."""

    answers: tuple[Answer, ...]
    verdicts: Future[list[Verdict]] = field(default_factory=Future)
    _found: dict[int, Verdict] = field(default_factory=dict)

    def take(self, *graded: Graded) -> None:
        """Adds verdicts; with the last one, the future is done."""
        self._found.update(graded)
        if len(self._found) == len(self.answers):
            self.verdicts.set_result(in_order(self._found.items()))


class ExecutionJudge(Closeable):
    """Judges answers by running them. A context manager; its methods may be called from several threads.

    A subclass says which `job` runs an answer and what `verdict` its result is, or more generally gives a
    `job_set`. `executor` is where jobs run, closed with the judge if `owns_executor`.
    """

    def __init__(self, executor: Executor, *, owns_executor: bool = False) -> None:
        self.executor = executor
        self._owns_executor = owns_executor
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="greenward-grading")
        self._submitted: deque[_Submission] = deque()  # in the order in which they are graded
        self._closing = threading.Event()

    def job(self, problem: Any, code: str) -> Job:
        """The job that runs `code` as an answer to `problem`."""
        raise NotImplementedError

    def verdict(self, problem: Any, result: RunResult) -> Verdict:
        """What the result of a job that completed says of the answer."""
        raise NotImplementedError

    def job_set(self, problem: Any, answer: Extracted) -> JobSet[Verdict] | None:
        """The jobs that judge an answer; None before `plan` was called for its problem, if that is needed."""
        code = answer.code
        if code is None or not code.strip():
            found = Verdict(answer.status, (False,), error_message=visible(answer.reason, MAX_MESSAGE_CHARS))
            return JobSet((), lambda _: found)

        def combine(results: Sequence[RunResult]) -> Verdict:
            (result,) = results
            if result.outcome is Outcome.COMPLETED:
                return self.verdict(problem, result)
            return Verdict(
                status_of(result.outcome),
                (False,),
                None if result.error_class is None else visible(result.error_class, 100),
                visible(result.error_message, MAX_MESSAGE_CHARS),
                cpu_seconds=result.cpu_seconds,
                wall_seconds=result.wall_seconds,
                layers=result.layers,
            )

        return JobSet((self.job(problem, code),), combine)

    def plan(self, problems: Iterable[Any]) -> None:
        """Finds out what must be known of problems before answers to them are judged."""

    def order(self, answers: Sequence[Answer]) -> Sequence[int]:
        """The positions of the answers, in the order in which they are to begin."""
        return range(len(answers))

    def complete(self, problems: ProblemSet) -> ProblemSet:
        """The problems with what only running their references can tell."""
        return problems

    @property
    def isolation(self) -> Isolation:
        """How well answers are contained."""
        return self.executor.isolation

    def grade(self, answers: Sequence[Answer]) -> list[Verdict]:
        """The verdict on each (problem, code), in order. A code of None means that an answer held no code."""
        return in_order(self.grade_stream(answers))

    def grade_stream(self, answers: Iterable[Answer]) -> Iterator[Graded]:
        """Verdicts with the answer's position, in order of completion.

        Answers are taken only as workers become free. Equal code for the same problem object is run
        once. On the local executor, gradings of other threads wait until the stream has ended or is closed,
        and one of the same thread raises `SandboxError`.
        """
        yield from self._run((0, problem, code) for problem, code in answers)

    def submit(self, answers: Sequence[Answer]) -> Future[list[Verdict]]:
        """Grades answers in a thread of the judge, while the caller goes on.

        Submissions are graded in their order. A worker that is free begins with the next submission while
        others finish the one before. Closing the judge cancels what is not finished.
        """
        self._submitted.append(submission := _Submission(tuple(answers)))
        self._thread.submit(self._grade_submitted)
        return submission.verdicts

    async def grade_async(self, answers: Sequence[Answer]) -> list[Verdict]:
        """As `grade`, leaving the event loop free."""
        import asyncio  # which whoever awaits this has loaded; commands have not

        return await asyncio.wrap_future(self.submit(answers))

    async def grade_stream_async(self, answers: Iterable[Answer]) -> AsyncIterator[Graded]:
        """As `grade_stream`, leaving the event loop free; `answers` is read in another thread.

        Leaving early ends the stream.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        graded: asyncio.Queue[Graded | None] = asyncio.Queue()  # None: the stream has ended
        left = threading.Event()

        def put(item: Graded | None) -> None:
            loop.call_soon_threadsafe(graded.put_nowait, item)

        def work() -> None:
            try:
                with closing(self._stoppable(self.grade_stream(answers), left)) as items:
                    for item in items:
                        put(item)
            finally:
                if not left.is_set():
                    put(None)

        future = self._thread.submit(work)
        try:
            while (item := await graded.get()) is not None:
                yield item
            await asyncio.wrap_future(future)
        finally:
            left.set()
            future.cancel()

    def flaky(self, answers: Sequence[Answer], repeats: int) -> list[FlakyAnswer]:
        """Runs each answer `repeats` times and names those whose status or passed tests differ.

        Runs in which the infrastructure failed say nothing about an answer and do not count.
        """
        if repeats < 2:
            raise GreenwardError(f"a difference takes at least two runs of each answer, not {repeats}.")
        self.plan([problem for problem, _ in answers])
        verdicts = in_order(self._run((number, *answer) for number in range(repeats) for answer in answers))
        found = []
        for index in range(len(answers)):
            runs = tuple(verdicts[index :: len(answers)])
            judged = [verdict for verdict in runs if verdict.status.family is not Family.INFRASTRUCTURE]
            if len({(verdict.status, verdict.tests_passed) for verdict in judged}) > 1:
                found.append(FlakyAnswer(index, runs))
        return found

    def close(self) -> None:
        """Ends all processes and cancels what was submitted. Safe to call twice."""
        self._closing.set()
        self._thread.shutdown(wait=True, cancel_futures=True)
        for submission in self._submitted:
            submission.verdicts.cancel()
        if self._owns_executor:
            self.executor.close()

    def _grade_submitted(self) -> None:
        """Grades all submissions, and those that arrive in the meantime, as one stream.

        If the stream fails, each submission without a result is graded by itself: its own error belongs to
        it, and that of another one does not.
        """
        if not self._submitted:  # the stream of an earlier call has graded them
            return
        places: list[tuple[_Submission, int]] = []  # of the answers in the stream

        def answers() -> Iterator[tuple[int, Problem, str | Extracted | None]]:
            while self._submitted and len(places) < MOST_SUBMITTED:
                submission = self._submitted.popleft()
                if submission.verdicts.set_running_or_notify_cancel():
                    submission.take()  # it may be empty
                    for place in self.order(submission.answers):
                        places.append((submission, place))
                        yield id(submission), *submission.answers[place]

        def plan_newest() -> None:
            newest, _ = places[-1]
            self.plan([problem for problem, _ in newest.answers])

        try:
            for index, verdict in self._stoppable(self._run(answers(), plan=plan_newest)):
                submission, place = places[index]
                submission.take((place, verdict))
        except BaseException:
            for submission in dict.fromkeys(submission for submission, _ in places):
                if submission.verdicts.done():
                    continue
                try:
                    verdicts = in_order(self._stoppable(self.grade_stream(submission.answers)))
                    submission.verdicts.set_result(verdicts)
                except BaseException as error:  # whatever it is, it reaches who waits for the verdicts
                    submission.verdicts.set_exception(error)

    def _stoppable(
        self, stream: Iterator[Graded], left: threading.Event | None = None
    ) -> Generator[Graded, None, None]:
        """The same stream. Raises `CancelledError` once the judge closes or `left` is set."""

        def is_left() -> bool:
            return self._closing.is_set() or (left is not None and left.is_set())

        try:
            with stopped_when(is_left), closing(stream) as graded:  # type: ignore[type-var]
                for item in graded:
                    if is_left():
                        raise CancelledError
                    yield item
        except Stopped:
            if not is_left():
                raise
            raise CancelledError from None

    def _run(
        self,
        answers: Iterable[tuple[int, Problem, str | Extracted | None]],
        plan: Callable[[], None] | None = None,
    ) -> Iterator[Graded]:
        """Verdicts on (round, problem, code); equal answers are run once in each round.

        `plan` plans the problem of the newest answer, and may plan others with it.
        """
        return run_unique(
            self.executor,
            answers,
            key_of=lambda answer: (answer[0], id(answer[1]), answer[2]),
            prepare=lambda answer: self.job_set(answer[1], extracted_answer(answer[2])),
            resolve=lambda answer: plan() if plan is not None else self.plan([answer[1]]),
        )


def in_order(results: Iterable[tuple[int, Value]]) -> list[Value]:
    """The values of all positions, in their order."""
    by_index = dict(results)
    return [by_index[index] for index in range(len(by_index))]


def extracted_answer(answer: str | Extracted | None) -> Extracted:
    """What was extracted from an answer, also where only its code was given."""
    if not isinstance(answer, str | Extracted | None):
        raise ConfigError(f"answers: expected code as text, or None, found {answer!r:.100}.")
    return answer if isinstance(answer, Extracted) else Extracted(answer)
