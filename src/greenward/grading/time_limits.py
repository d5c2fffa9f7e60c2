"""How much time an answer gets, and the jobs that it takes to judge it.

Times are CPU seconds; the wall clock only catches sleepers. Without a limit that the user has set, the
times of the suite hold where it has them (`by_suite`):

- a contest suite limits each test (`Problem.test_seconds`);
- where the reference's time for each test is known, a test may take `max(1 s, 4 x reference)` and the
  answer the sum of that, at most 60 s or four times what the reference takes in all (EvalPlus 0.3.1).

A limit that the user has set is that of the whole answer, or of each test for a contest suite. It is
raised where the reference needs more (`Problem.cpu_seconds`).

The calls of a problem whose reference takes long are spread over several jobs, which run in parallel.
Their results are joined in the order of the tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from greenward.grading.judging import GradingPlan
from greenward.problems.problem import Problem
from greenward.sandbox.protocol import Job, Limits, RunResult

LEAST_TEST_SECONDS = 1.0
TIMES_REFERENCE = 4.0
MOST_SECONDS = 60.0
WALL_PER_CPU_SECOND = 3.0
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
    wall_seconds = max(job.limits.wall_seconds, WALL_PER_CPU_SECOND * max(call_seconds))
    return replace(job, limits=limits, call_seconds=tuple(call_seconds), call_wall_seconds=wall_seconds)


def _with_cpu_seconds(limits: Limits, cpu_seconds: float) -> Limits:
    wall_seconds = max(limits.wall_seconds, WALL_PER_CPU_SECOND * cpu_seconds)
    return replace(limits, cpu_seconds=cpu_seconds, wall_seconds=wall_seconds)


def _parts(seconds: Sequence[float]) -> Iterator[slice]:
    """Runs of consecutive tests that take the reference about `PART_SECONDS` each."""
    start, total = 0, 0.0
    for position, one in enumerate(seconds, 1):
        total += one
        if total >= PART_SECONDS or position == len(seconds):
            yield slice(start, position)
            start, total = position, 0.0
