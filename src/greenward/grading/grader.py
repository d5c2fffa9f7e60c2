"""The grader: answers in, verdicts out. Expected values never leave this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from greenward.grading.judge import judge
from greenward.grading.plan import Plan, make_plan
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Problem
from greenward.sandbox.pool import LocalExecutor, check_limits
from greenward.sandbox.protocol import Executor, Job, Limits, RunResult

MAX_CODE_CHARS = 1 << 20
DEFAULT_LIMITS = Limits()
_MAX_PLANS = 50_000

Settled = TypeVar("Settled")


class Grader:
    """Judges answers to problems by running them. A context manager.

    `executor` is where answers run; without one, a pool of `workers` processes on this machine
    that belongs to the grader. `unsplit_tests` counts the tests judged so far whose two sides could
    not be evaluated apart (an answer could tamper with those).

    Raises `ProblemError` for a problem that cannot be judged and `SandboxError` for limits that
    make no sense or a sandbox that cannot start.
    """

    def __init__(
        self, limits: Limits = DEFAULT_LIMITS, workers: int = 2, *, executor: Executor | None = None
    ) -> None:
        check_limits(limits)
        self.limits = limits
        self.unsplit_tests = 0
        self._executor = LocalExecutor(workers) if executor is None else executor
        self._owns_executor = executor is None
        self._oracle: LocalExecutor | None = None
        self._plans: dict[int, tuple[Problem, Plan]] = {}

    def grade(self, answers: Sequence[tuple[Problem, str | None]]) -> list[Verdict]:
        """The verdict on each (problem, code), in order. Code None is an answer without code."""
        verdicts = dict(self.grade_stream(answers))
        return [verdicts[index] for index in range(len(answers))]

    def grade_stream(self, answers: Iterable[tuple[Problem, str | None]]) -> Iterator[tuple[int, Verdict]]:
        """Verdicts with the answer's position, in order of completion.

        Answers are taken only as workers become free. Equal code for the same problem object is run
        once.
        """
        plans: list[Plan] = []

        def prepare(answer: tuple[Problem, str | None]) -> Job | Verdict:
            problem, code = answer
            plan = self._plan(problem)
            if code is None or not code.strip():
                return _without_running(plan, Status.NO_CODE, "there is no code in the answer")
            if len(code) > MAX_CODE_CHARS:
                return _without_running(
                    plan, Status.ERROR, f"the code is longer than {MAX_CODE_CHARS} characters"
                )
            plans.append(plan)
            return Job(
                code, problem.entry_point, plan.calls, plan.expressions, problem.setup_code, self.limits
            )

        def settle(job: int, result: RunResult) -> Verdict:
            self.unsplit_tests += sum(not test.split for test in plans[job].tests)
            return judge(plans[job], result)

        return self._run_once(answers, lambda answer: (id(answer[0]), answer[1]), prepare, settle)

    def run_programs(self, codes: Sequence[str]) -> list[RunResult]:
        """Runs each program as `__main__` and reports how it ended and what it printed, in order."""
        results = dict(
            self._run_once(
                codes, lambda code: code, lambda code: Job(code, limits=self.limits), lambda _, r: r
            )
        )
        return [results[index] for index in range(len(codes))]

    def close(self) -> None:
        """Ends all processes. Safe to call twice."""
        if self._owns_executor:
            self._executor.close()
        if self._oracle is not None:
            self._oracle.close()

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_once(
        self,
        items: Iterable[Item],
        key_of: Callable[[Item], Hashable],
        prepare: Callable[[Item], Job | Settled],
        settle: Callable[[int, RunResult], Settled],
    ) -> Iterator[tuple[int, Settled]]:
        """Runs one job per distinct item; yields each item's position with what its job gave."""
        settled: dict[Hashable, Settled] = {}
        waiting: dict[Hashable, list[int]] = {}
        running: list[Hashable] = []
        immediate: deque[tuple[int, Settled]] = deque()
        held: list[Item] = []  # keeps what ids in the keys refer to alive

        def jobs() -> Iterator[Job]:
            for index, item in enumerate(items):
                key = key_of(item)
                if key in waiting:
                    waiting[key].append(index)
                    continue
                if key not in settled:
                    held.append(item)
                    prepared = prepare(item)
                    if isinstance(prepared, Job):
                        waiting[key] = [index]
                        running.append(key)
                        yield prepared
                        continue
                    settled[key] = prepared
                immediate.append((index, settled[key]))

        for job, result in self._executor.run(jobs()):
            key = running[job]
            settled[key] = settle(job, result)
            immediate.extend((index, settled[key]) for index in waiting.pop(key))
            while immediate:
                yield immediate.popleft()
        yield from immediate

    def _plan(self, problem: Problem) -> Plan:
        known = self._plans.get(id(problem))
        if known is not None:
            return known[1]
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        plan = make_plan(problem, self._oracle_executor)
        self._plans[id(problem)] = (problem, plan)  # holding the problem keeps its id its own
        return plan

    def _oracle_executor(self) -> Executor:
        """Where expected sides are evaluated: workers of its own, so that no answer inherits their memory."""
        if self._oracle is None:
            self._oracle = LocalExecutor(1)
        return self._oracle


Item = TypeVar("Item")


def _without_running(plan: Plan, status: Status, message: str) -> Verdict:
    return Verdict(status, tests_passed=(False,) * len(plan.tests), error_message=message)
