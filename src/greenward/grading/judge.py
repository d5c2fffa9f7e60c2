"""Judges answers by execution: programs in, verdicts out. Expected values never leave this process.

Times are CPU seconds, so that a busy machine fails no answer. The limit of wall time is three times that,
and at least 30 s. A limit that the user has set (`timeout_seconds`) is that of the whole answer, or of each
test for a contest suite; it is raised where the reference needs more (`Problem.cpu_seconds`). Without one,
the times of the suite hold where it has them (`by_suite`):

- `humaneval+`, `mbpp+`: a test may take `max(1 s, 4 x reference)`, the reference's time for this test, and
  the answer the sum of that, at most 60 s or four times what the reference takes in all (EvalPlus 0.3.1).
- LiveCodeBench: 6 s for each test; APPS and TACO: 4 s; CodeContests and Codeforces: the row's `time_limit`.
  An answer has no limit beside these.
- All others, and HumanEval/32, Mbpp/164, 295, 558 and 581: 10 s for an answer, more where the reference
  needs more.

The first test that exceeds its limit ends the answer, and the tests after it count as not passed. The calls
of a problem whose reference takes long are spread over several jobs, which run in parallel.
Expected values that a suite does not store are what its references return (EvalPlus's files hold inputs and
references). They run in the sandbox, as trusted jobs, and what they return is cached, one file for each
problem, under a hash of all that it depends on. A cached file carries its own hash; one that is torn or
altered is computed again. A case whose value is too large to leave the sandbox is left out: no answer could
return it, either (five cases of Mbpp/255 in MBPP+, with up to 128 million elements).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from greenward.common.errors import ConfigError, SandboxError
from greenward.common.parsing import parse_json_text
from greenward.common.text import MAX_MESSAGE_CHARS, visible
from greenward.grading.execution import (
    Answer,
    ExecutionJudge,
    Graded,
    JobSet,
    extracted_answer,
    in_order,
    run_unique,
)
from greenward.grading.extracted import Extracted
from greenward.grading.testcases import (
    GradingPlan,
    Mode,
    expected_values_job,
    judge,
    make_plan,
    program_changes,
)
from greenward.grading.verdict import EDIT_ERRORS, Status, Verdict
from greenward.problems.catalog import cache_folder
from greenward.problems.problem import Case, Expected, Problem, ProblemSet, data_hash
from greenward.runs.files import write_atomically, writing
from greenward.sandbox.inside import codec
from greenward.sandbox.isolation import Level
from greenward.sandbox.pool import LocalExecutor, usual_workers
from greenward.sandbox.protocol import Call, Executor, Job, Limits, Outcome, RunResult

if TYPE_CHECKING:
    from greenward.config.section import HttpSandboxConfig, SandboxConfig

LEAST_TEST_SECONDS = 1.0
TIMES_REFERENCE = 4.0
MOST_SECONDS = 60.0
WALL_PER_CPU = 3.0
DEFAULT_TIMEOUT = 10.0  # CPU seconds for an answer to a suite without times of its own
PART_SECONDS = 2.0  # of the reference's time, in each job that a long problem is split into


def make_jobs(
    plan: GradingPlan, problem: Problem, code: str, limits: Limits, *, by_suite: bool
) -> tuple[Job, ...]:
    """The jobs that judge one answer, in the order of the tests."""
    if plan.max_output_bytes is not None:
        limits = replace(limits, output_bytes=plan.max_output_bytes)
    job = replace(plan.job, code=code, limits=limits)
    if problem.test_seconds and (job.stdins or job.calls):
        seconds = problem.test_seconds if by_suite else limits.cpu_seconds
        if job.stdins:  # the limits of a job are those of each run
            return (replace(job, limits=_with_cpu_seconds(limits, seconds)),)
        return (_limited(job, [seconds] * len(job.calls), seconds * len(job.calls)),)
    if by_suite and job.calls and len(job.calls) == len(problem.reference_seconds):
        return tuple(
            _limited(
                replace(job, calls=job.calls[part]),
                [max(LEAST_TEST_SECONDS, TIMES_REFERENCE * one) for one in problem.reference_seconds[part]],
                max(MOST_SECONDS, TIMES_REFERENCE * sum(problem.reference_seconds[part])),
            )
            for part in _parts(problem.reference_seconds)
        )
    if problem.cpu_seconds > limits.cpu_seconds:
        job = replace(job, limits=_with_cpu_seconds(limits, problem.cpu_seconds))
    return (job,)


def join_results(results: Sequence[RunResult]) -> RunResult:
    """The results of the jobs of one answer as those of one job.

    They are in order, and each but the last is complete.
    """
    return replace(
        results[-1],
        results=tuple(one for result in results for one in result.results),
        cpu_seconds=sum(result.cpu_seconds for result in results),
        wall_seconds=sum(result.wall_seconds for result in results),
    )


def _limited(job: Job, call_seconds: Sequence[float], most: float) -> Job:
    """The job with a limit for each call, and for all together their sum, but at most `most`."""
    limits = _with_cpu_seconds(job.limits, min(sum(call_seconds), most))
    wall_seconds = max(job.limits.wall_seconds, WALL_PER_CPU * max(call_seconds))
    return replace(job, limits=limits, call_seconds=tuple(call_seconds), call_wall_seconds=wall_seconds)


def _with_cpu_seconds(limits: Limits, cpu_seconds: float) -> Limits:
    wall_seconds = max(limits.wall_seconds, WALL_PER_CPU * cpu_seconds)
    return replace(limits, cpu_seconds=cpu_seconds, wall_seconds=wall_seconds)


def _parts(seconds: Sequence[float]) -> Iterator[slice]:
    """Runs of consecutive tests that take the reference about `PART_SECONDS` each."""
    start, total = 0, 0.0
    for position, one in enumerate(seconds, 1):
        total += one
        if total >= PART_SECONDS or position == len(seconds):
            yield slice(start, position)
            start, total = position, 0.0


_FORMAT = 2
_MAX_CHARS = 1 << 30
# References are trusted to end: the slowest take 20 s. Answers have no more memory, either.
_LIMITS = Limits(cpu_seconds=120.0, wall_seconds=400.0, memory_bytes=1 << 30)
# A match object cannot leave its process; whether there is one can.
_IS_SOMETHING = """

_reference = {name}

def {name}(*arguments):
    return _reference(*arguments) is not None
"""


@dataclass(frozen=True)
class _Values:
    """What a reference returned: a value for each case that is kept, and the time that it took.

    `case_seconds` are those of the cases that are kept, if they could be measured.
    """

    values: list[Any]
    left_out: list[int]
    cpu_seconds: float
    case_seconds: list[float]


def with_expected_values(
    problems: ProblemSet, executor: Executor, *, cache: Path | None = None
) -> ProblemSet:
    """The problems with every `Expected.FROM_REFERENCE` replaced by what the reference returns.

    Their `cpu_seconds` become at least four times what the reference took, as EvalPlus has it, and their
    `reference_seconds` what it took for each case.
    `executor` runs the references that the folder `cache` (by default `expected` in greenward's
    cache) does not know yet. Raises `ProblemError` when a reference fails.
    """
    folder = cache if cache is not None else cache_folder() / "expected"
    known: dict[str, _Values] = {}
    missing: list[tuple[Problem, Path]] = []
    for problem in problems:
        if any(case.expected is Expected.FROM_REFERENCE for case in problem.cases):
            path = folder / f"{_key(problem)}.json"
            values = _read(path)
            if values is None:
                missing.append((problem, path))
            else:
                known[problem.task_id] = values
    if missing:
        with writing(str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
    for index, result in executor.run(_job(problem) for problem, _ in missing):
        problem, path = missing[index]
        known[problem.task_id] = values = _returned(problem, result)
        text = codec.encode(list(vars(values).values()), max_chars=_MAX_CHARS)
        digest = hashlib.sha256(text.encode()).hexdigest()
        write_atomically(path, json.dumps({"sha256": digest, "content": text}).encode())
    return problems.with_problems(
        _completed(problem, known[problem.task_id]) if problem.task_id in known else problem
        for problem in problems
    )


def _key(problem: Problem) -> str:
    """Names all that the values depend on, the version of Python included."""
    limits = (codec.MAX_CHARS, _LIMITS)
    inputs = [(case.args, case.kwargs) for case in problem.cases]
    program = (_program(problem), problem.setup_code, problem.entry_point)
    return data_hash([_FORMAT, sys.version_info[:2], limits, program, inputs])


def _program(problem: Problem) -> str:
    if problem.comparison.rule == "not_none":
        return problem.reference + _IS_SOMETHING.format(name=problem.entry_point)
    return problem.reference


def _job(problem: Problem) -> Job:
    if not problem.reference.strip():
        raise problem.error("its expected values come from a reference, and it has none.")
    return Job(
        code=_program(problem),
        entry_point=problem.entry_point,
        calls=tuple(Call(case.args, case.kwargs) for case in problem.cases),
        setup_code=problem.setup_code,
        limits=_LIMITS,
        trusted=True,
    )


def _returned(problem: Problem, result: RunResult) -> _Values:
    if result.outcome is not Outcome.COMPLETED or len(result.results) != len(problem.cases):
        raise problem.error(
            f"the reference gave {len(result.results)} of {len(problem.cases)} values"
            f" ({result.outcome.value}): {result.error_message}."
        )
    values, left_out = [], []
    for position, one in enumerate(result.results):
        if one.returned and one.plain:
            values.append(codec.decode(codec.encode(one.value, max_chars=_MAX_CHARS)))
        elif one.returned or one.error_class == "MemoryError":
            left_out.append(position)
        else:
            raise problem.error(
                f"the reference fails on input {position + 1}: {one.error_class}: {one.error_message}."
            )
    if not values:
        raise problem.error(
            f"the reference returns nothing that can leave the sandbox: {result.results[0].error_message}."
        )
    kept = [seconds for position, seconds in enumerate(result.call_seconds) if position not in left_out]
    return _Values(values, left_out, result.cpu_seconds, kept)


def _completed(problem: Problem, known: _Values) -> Problem:
    kept = [case for position, case in enumerate(problem.cases) if position not in known.left_out]
    base = problem.base_tests
    cases = [
        replace(case, expected=value) if case.expected is Expected.FROM_REFERENCE else case
        for case, value in zip(kept, known.values, strict=True)
    ]
    others = [test for test in problem.tests if not isinstance(test, Case)]
    return replace(
        problem,
        tests=(*cases, *others),
        base_tests=None if base is None else base - sum(position < base for position in known.left_out),
        tests_left_out=problem.tests_left_out + len(known.left_out),
        cpu_seconds=max(problem.cpu_seconds, TIMES_REFERENCE * known.cpu_seconds),
        reference_seconds=tuple(known.case_seconds),
    )


def _read(path: Path) -> _Values | None:
    """What a cached file holds; None if there is none, or one that is not what was written."""
    try:
        file = parse_json_text(path.read_bytes())
        text = file["content"]
        if hashlib.sha256(text.encode()).hexdigest() != file["sha256"]:
            return None
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return _Values(*codec.decode(text))


MAX_CODE_CHARS = 1 << 20


class Grader(ExecutionJudge):
    """Judges answers to problems by running them. A context manager; its methods may be called from
    several threads.

    `executor` is where answers run, closed with the grader if `owns_executor`; without one, a pool of
    `workers` processes (one more than the cores) that belongs to the grader, isolated at least at level
    `require`, whose answers may import `packages`. `by_suite` says whether the times of a suite, where it
    has them, hold in place of the CPU time of `limits` (`grading.judge`); without `limits` they do.
    `tests_by_mode` counts the tests of the answers that were run, by how they were judged: an answer could
    forge a test of mode "in_process".

    Raises `ProblemError` for a problem that cannot be judged and `SandboxError` for a sandbox that cannot
    start.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        workers: int | None = None,
        *,
        by_suite: bool | None = None,
        require: Level = Level.B,
        packages: Sequence[str] = (),
        executor: Executor | None = None,
        owns_executor: bool = False,
    ) -> None:
        super().__init__(
            executor or LocalExecutor(workers, require=require, packages=packages),
            owns_executor=owns_executor or executor is None,
        )
        self.limits = Limits() if limits is None else limits
        self.by_suite = limits is None if by_suite is None else by_suite
        self.tests_by_mode: Counter[Mode] = Counter()
        self._plans: dict[int, tuple[Problem, GradingPlan]] = {}
        self._lock = threading.Lock()

    def with_limits(self, limits: Limits, *, by_suite: bool = False) -> Grader:
        """A grader with other limits that runs answers where this one does, and must be closed before it."""
        return Grader(limits, by_suite=by_suite, executor=self.executor)

    def complete(self, problems: ProblemSet) -> ProblemSet:
        """The problems with the expected values that only their references can tell (EvalPlus's).

        Sets without such cases come back as they are. Raises `ProblemError` when a reference fails.
        """
        return with_expected_values(problems, self.executor)

    def grade_stream(self, answers: Iterable[Answer]) -> Iterator[Graded]:
        if not isinstance(answers, Sequence):
            yield from super().grade_stream(answers)
            return
        self.plan([problem for problem, _ in answers])
        order = self.order(answers)
        for position, verdict in super().grade_stream([answers[index] for index in order]):
            yield order[position], verdict

    def order(self, answers: Sequence[Answer]) -> Sequence[int]:
        # What takes long begins first, so that no worker is left with it when all else is done.
        return sorted(range(len(answers)), key=lambda index: -answers[index][0].cpu_seconds)

    def run_on_inputs(self, answers: Sequence[Answer]) -> list[RunResult | None]:
        """What each answer returns for the inputs of its problem's tests, unjudged; None without code."""
        self.plan([problem for problem, _ in answers])

        def prepare(answer: Answer) -> JobSet[RunResult | None]:
            problem, found = answer[0], extracted_answer(answer[1])
            jobs = self._jobs(self._plan(problem), problem, found)
            return JobSet((), lambda _: None) if isinstance(jobs, Verdict) else JobSet(jobs, join_results)

        runs = run_unique(self.executor, answers, lambda answer: (id(answer[0]), answer[1]), prepare)
        return in_order(runs)

    def run_programs(self, codes: Sequence[str]) -> list[RunResult]:
        """Runs each program as `__main__` and reports how it ended and what it printed, in order."""

        def prepare(code: str) -> JobSet[RunResult]:
            return JobSet((Job(code, limits=self.limits),), lambda results: results[0])

        return in_order(run_unique(self.executor, codes, lambda code: code, prepare))

    def job_set(self, problem: Problem, answer: Extracted) -> JobSet[Verdict] | None:
        """The jobs that judge an answer; None before the problem's expected values were computed."""
        if problem.label is not None:
            judged = problem.label.judge(answer.code)
            return JobSet((), lambda _: judged)
        if id(problem) not in self._plans and expected_values_job(problem) is not None:
            return None
        plan = self._plan(problem)
        jobs = self._jobs(plan, problem, answer)
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

    def plan(self, problems: Iterable[Problem]) -> None:
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
        if len(self._plans) >= 50_000:
            self._plans.clear()
        self._plans[id(problem)] = (problem, plan)  # holding the problem keeps its id its own
        return plan


def _unfit(plan: GradingPlan, status: Status, reason: str) -> Verdict:
    message = visible(reason, MAX_MESSAGE_CHARS)
    return Verdict(
        status,
        tests_passed=(False,) * len(plan.expectations),
        error_message=message,
        first_failure=message if status in EDIT_ERRORS else "",
    )


def build_limits(sandbox: SandboxConfig) -> Limits:
    """What one answer may use."""
    return Limits(
        cpu_seconds=sandbox.cpu_seconds,
        wall_seconds=sandbox.wall_seconds,
        memory_bytes=sandbox.memory_mb << 20,
        output_bytes=sandbox.output_kb << 10,
    )


def build_executor(sandbox: SandboxConfig) -> Executor:
    """Where answers run by a recipe; to be closed. Raises `ConfigError` and `SandboxError`."""
    isolated: dict[str, Any] = {"require": Level(sandbox.require), "packages": sandbox.packages}
    if sandbox.backend == "ray":
        from greenward.sandbox.ray import RayExecutor

        isolated |= {"jobs_per_call": sandbox.jobs_per_call}
        return RayExecutor(sandbox.ray.address, sandbox.ray.workers_per_node, **isolated)
    if sandbox.http is not None:
        from greenward.sandbox.http import HttpHost
        from greenward.sandbox.remote import RemoteExecutor

        token = read_token(sandbox.http)
        hosts = [HttpHost(url, token, sandbox.packages) for url in sandbox.http.urls]
        return RemoteExecutor(hosts, require=isolated["require"], jobs_per_call=sandbox.jobs_per_call)
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # that train together on this machine
    return LocalExecutor(-(-(sandbox.workers or usual_workers()) // processes), **isolated)


def read_token(servers: HttpSandboxConfig) -> str | None:
    """The token of a recipe's sandbox servers. Raises `ConfigError` where the variable has none."""
    if servers.token_env is None:
        return None
    if not (token := os.environ.get(servers.token_env)):
        raise ConfigError(
            f"sandbox.http.token_env: the environment variable {servers.token_env} is not set.",
            remedy="Export the token that `greenward sandbox serve --token-env` was started with.",
        )
    return token


def build_grader(sandbox: SandboxConfig) -> Grader:
    """A grader with the recipe's limits and executor; to be closed."""
    return Grader(
        build_limits(sandbox),
        by_suite=sandbox.suite_times,
        executor=build_executor(sandbox),
        owns_executor=True,
    )
