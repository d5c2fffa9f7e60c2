"""The judge by execution: answers in, verdicts out. Expected values never leave this process."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeVar

from greenward.closing import Closing
from greenward.errors import ConfigError, GreenwardError, SandboxError
from greenward.grading.answer_files import program_changes
from greenward.grading.extraction import Extracted
from greenward.grading.grading_plan import expected_values_job, make_plan
from greenward.grading.judging import GradingPlan, Mode, judge
from greenward.grading.labels import judge_label
from greenward.grading.reference_values import with_expected_values
from greenward.grading.time_limits import join_results, make_jobs
from greenward.grading.unique_jobs import JobSet, run_unique
from greenward.grading.verdict import EDIT_ERRORS, Family, Status, Verdict
from greenward.problems.problem import Problem, ProblemSet
from greenward.sandbox.isolation import Isolation, Level
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Executor, Job, Limits, RunResult
from greenward.text import MAX_MESSAGE_CHARS, visible

MAX_CODE_CHARS = 1 << 20
_MAX_PLANS = 50_000

# A problem and the code of an answer to it, None without code, or what was extracted from an answer.
Answer = tuple[Problem, "str | Extracted | None"]
Graded = tuple[int, Verdict]  # the position of an answer, and the verdict on it
Value = TypeVar("Value")


@dataclass(frozen=True)
class FlakyAnswer:
    """An answer, by its position, whose verdicts differ from run to run."""

    index: int
    verdicts: tuple[Verdict, ...]


class Grader(Closing["Grader"]):
    """Judges answers to problems by running them. A context manager; its methods may be called from
    several threads.

    `executor` is where answers run, closed with the grader if `owns_executor`; without one, a pool of
    `workers` processes that belongs to the grader, isolated at least at level `require`, whose answers may
    import `packages`. `by_suite` says whether the times of a suite, where it has them, hold in place of the
    CPU time of `limits` (`grading.time_limits`); without `limits` they do. `tests_by_mode` counts the tests
    of the answers that were run, by how they were judged: an answer could forge a test of mode "in_process".

    Raises `ProblemError` for a problem that cannot be judged and `SandboxError` for a sandbox that cannot
    start.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        workers: int = 2,
        *,
        by_suite: bool | None = None,
        require: Level = Level.B,
        packages: Sequence[str] = (),
        executor: Executor | None = None,
        owns_executor: bool = False,
    ) -> None:
        self.limits = Limits() if limits is None else limits
        self.by_suite = limits is None if by_suite is None else by_suite
        self.tests_by_mode: Counter[Mode] = Counter()
        self.executor = executor or LocalExecutor(workers, require=require, packages=packages)
        self._owns_executor = owns_executor or executor is None
        self._plans: dict[int, tuple[Problem, GradingPlan]] = {}
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="greenward-grading")
        self._closing = threading.Event()

    @property
    def isolation(self) -> Isolation:
        """How well answers are contained."""
        return self.executor.isolation

    def with_limits(self, limits: Limits, *, by_suite: bool = False) -> Grader:
        """A grader with other limits that runs answers where this one does, and must be closed before it."""
        return Grader(limits, by_suite=by_suite, executor=self.executor)

    def complete(self, problems: ProblemSet) -> ProblemSet:
        """The problems with the expected values that only their references can tell (EvalPlus's).

        Sets without such cases come back as they are. Raises `ProblemError` when a reference fails.
        """
        return with_expected_values(problems, self.executor)

    def grade(self, answers: Sequence[Answer]) -> list[Verdict]:
        """The verdict on each (problem, code), in order. Code None is an answer without code."""
        return _in_order(self.grade_stream(answers))

    def grade_stream(self, answers: Iterable[Answer]) -> Iterator[Graded]:
        """Verdicts with the answer's position, in order of completion.

        Answers are taken only as workers become free. Equal code for the same problem object is run
        once. Other gradings wait until the stream has ended or is closed.
        """
        if not isinstance(answers, Sequence):
            yield from self._run((0, problem, code) for problem, code in answers)
            return
        self._compute_expected_values([problem for problem, _ in answers])
        # What takes long begins first, so that no worker is left with it when all else is done.
        order = sorted(range(len(answers)), key=lambda index: -answers[index][0].cpu_seconds)
        for position, verdict in self._run((0, *answers[index]) for index in order):
            yield order[position], verdict

    def submit(self, answers: Sequence[Answer]) -> Future[list[Verdict]]:
        """Grades answers in a thread of the grader, while the caller goes on.

        What was submitted is graded in that order. Closing the grader cancels what is not finished.
        """
        answers = tuple(answers)
        return self._thread.submit(lambda: _in_order(self._stoppable_stream(answers)))

    async def grade_async(self, answers: Sequence[Answer]) -> list[Verdict]:
        """As `grade`, leaving the event loop free."""
        return await asyncio.wrap_future(self.submit(answers))

    async def grade_stream_async(self, answers: Iterable[Answer]) -> AsyncIterator[Graded]:
        """As `grade_stream`, leaving the event loop free; `answers` is read in another thread.

        Leaving early ends the stream at its next verdict.
        """
        loop = asyncio.get_running_loop()
        graded: asyncio.Queue[Graded | None] = asyncio.Queue()  # None: the stream has ended
        left = threading.Event()

        def put(item: Graded | None) -> None:
            loop.call_soon_threadsafe(graded.put_nowait, item)

        def work() -> None:
            try:
                with closing(self._stoppable_stream(answers, left)) as items:
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
        self._compute_expected_values([problem for problem, _ in answers])
        verdicts = _in_order(self._run((number, *answer) for number in range(repeats) for answer in answers))
        found = []
        for index in range(len(answers)):
            runs = tuple(verdicts[index :: len(answers)])
            judged = [verdict for verdict in runs if verdict.status.family is not Family.INFRASTRUCTURE]
            if len({(verdict.status, verdict.tests_passed) for verdict in judged}) > 1:
                found.append(FlakyAnswer(index, runs))
        return found

    def run_on_inputs(self, answers: Sequence[Answer]) -> list[RunResult | None]:
        """What each answer returns for the inputs of its problem's tests, unjudged; None without code."""
        self._compute_expected_values([problem for problem, _ in answers])

        def prepare(answer: Answer) -> JobSet[RunResult | None]:
            problem, found = answer[0], _extracted(answer[1])
            jobs = self._jobs(self._plan(problem), problem, found)
            if isinstance(jobs, Verdict):
                return JobSet((), lambda _: None)
            return JobSet(jobs, join_results)

        return _in_order(
            run_unique(self.executor, answers, lambda answer: (id(answer[0]), answer[1]), prepare)
        )

    def run_programs(self, codes: Sequence[str]) -> list[RunResult]:
        """Runs each program as `__main__` and reports how it ended and what it printed, in order."""

        def prepare(code: str) -> JobSet[RunResult]:
            return JobSet((Job(code, limits=self.limits),), lambda results: results[0])

        return _in_order(run_unique(self.executor, codes, lambda code: code, prepare))

    def close(self) -> None:
        """Ends all processes and cancels what was submitted. Safe to call twice."""
        self._closing.set()
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._owns_executor:
            self.executor.close()

    def _stoppable_stream(
        self, answers: Iterable[Answer], left: threading.Event | None = None
    ) -> Generator[Graded, None, None]:
        """As `grade_stream`. Raises `CancelledError` once the grader closes or `left` is set."""
        with closing(self.grade_stream(answers)) as graded:  # type: ignore[type-var]
            for item in graded:
                if self._closing.is_set() or (left is not None and left.is_set()):
                    raise CancelledError
                yield item

    def _run(self, answers: Iterable[tuple[int, Problem, str | Extracted | None]]) -> Iterator[Graded]:
        """Verdicts on (round, problem, code); equal answers are run once in each round."""
        return run_unique(
            self.executor,
            answers,
            key_of=lambda answer: (answer[0], id(answer[1]), answer[2]),
            prepare=lambda answer: self._prepare(*answer[1:]),
            resolve=lambda answer: self._compute_expected_values([answer[1]]),
        )

    def _prepare(self, problem: Problem, answer: str | Extracted | None) -> JobSet[Verdict] | None:
        """The jobs that judge an answer; None before the problem's expected values were computed."""
        if problem.label is not None:
            judged = judge_label(problem.label, _extracted(answer).code)
            return JobSet((), lambda _: judged)
        if id(problem) not in self._plans and expected_values_job(problem) is not None:
            return None
        plan = self._plan(problem)
        jobs = self._jobs(plan, problem, _extracted(answer))
        if isinstance(jobs, Verdict):
            return JobSet((), lambda _: jobs)

        def combine(results: Sequence[RunResult]) -> Verdict:
            with self._lock:
                self.tests_by_mode.update(expectation.mode for expectation in plan.expectations)
            return judge(plan, join_results(results))

        return JobSet(jobs, combine)

    def _jobs(self, plan: GradingPlan, problem: Problem, answer: Extracted) -> tuple[Job, ...] | Verdict:
        """What runs an answer, or the verdict on one that cannot be run."""
        code, status = answer.code, answer.status
        if code is None or not code.strip():
            reason = answer.reason if status in EDIT_ERRORS else "there is no code in the answer"
            return _unfit(plan, status, reason)
        if len(code) > MAX_CODE_CHARS:
            return _unfit(plan, Status.ERROR, f"the code is longer than {MAX_CODE_CHARS} characters")
        jobs = make_jobs(plan, problem, code, self.limits, by_suite=self.by_suite)
        if answer.files or problem.path:
            changes = program_changes(answer.files, problem)
            jobs = tuple(replace(job, changes=changes) for job in jobs)
            try:
                jobs[0].check_files()
            except SandboxError as error:
                return _unfit(plan, Status.ERROR, error.message)
        return jobs

    def _compute_expected_values(self, problems: Iterable[Problem]) -> None:
        """Makes the plans of problems whose expected values take a run of trusted code."""
        unplanned = (one for one in problems if one.label is None and id(one) not in self._plans)
        missing = {id(problem): problem for problem in unplanned}
        asked = [(one, job) for one in missing.values() if (job := expected_values_job(one)) is not None]
        for index, result in self.executor.run(job for _, job in asked) if asked else ():
            problem = asked[index][0]
            self._keep_plan(problem, make_plan(problem, result))

    def _plan(self, problem: Problem) -> GradingPlan:
        """The plan of a problem whose expected values are known."""
        known = self._plans.get(id(problem))
        return known[1] if known is not None else self._keep_plan(problem, make_plan(problem))

    def _keep_plan(self, problem: Problem, plan: GradingPlan) -> GradingPlan:
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        self._plans[id(problem)] = (problem, plan)  # holding the problem keeps its id its own
        return plan


def _in_order(results: Iterable[tuple[int, Value]]) -> list[Value]:
    by_index = dict(results)
    return [by_index[index] for index in range(len(by_index))]


def _extracted(answer: str | Extracted | None) -> Extracted:
    if not isinstance(answer, str | Extracted | None):
        raise ConfigError(f"answers: expected code as text, or None, found {answer!r:.100}.")
    return answer if isinstance(answer, Extracted) else Extracted(answer)


def _unfit(plan: GradingPlan, status: Status, reason: str) -> Verdict:
    message = visible(reason, MAX_MESSAGE_CHARS)
    return Verdict(
        status,
        tests_passed=(False,) * len(plan.expectations),
        error_message=message,
        first_failure=message if status in EDIT_ERRORS else "",
    )
