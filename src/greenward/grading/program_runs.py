"""The jobs of a program on several standard inputs, so that no run fails because of one before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from greenward.grading.judging import GradingPlan, judge
from greenward.grading.unique_jobs import JobSet
from greenward.grading.verdict import Verdict
from greenward.sandbox.protocol import Job, Outcome, RunResult


def jobs_apart(job: Job) -> tuple[Job, ...]:
    """A job for each standard input: no run meets what another one has left."""
    return tuple(replace(job, stdins=(text,)) for text in job.stdins)


def program_jobs(
    plan: GradingPlan, job: Job, combine: Callable[[Sequence[RunResult]], Verdict]
) -> JobSet[Verdict]:
    """One job for all inputs; one for each where a run that fails prints something else in its own process.

    Runs share a process as long as none leaves anything visible (`sandbox.programs`). What cannot be seen
    there, such as the state of a module, shows in this: some runs pass, and the first later one that fails
    gives another output when it is repeated alone. If it gives yet another one then, the program leaves that
    to chance, and the first runs count. A repetition that the machine does not allow is no verdict.
    """
    apart = jobs_apart(job)

    def look_for_suspects(together: Sequence[RunResult]) -> Verdict | JobSet[Verdict]:
        (result,) = together
        passed = judge(plan, result).tests_passed
        failed = [at for at, ok in zip(plan.positions, passed, strict=True) if not ok]
        suspect = next((at for at in failed if 0 < at < len(result.results)), None)
        if suspect is None or not any(passed):
            return combine(together)

        def compare(repeated: Sequence[RunResult]) -> Verdict | JobSet[Verdict]:
            if repeated[0].outcome is Outcome.INFRASTRUCTURE:
                return combine(repeated)
            if repeated[0].results == result.results[suspect : suspect + 1]:
                return combine(together)
            return JobSet(apart, lambda results: combine_apart(repeated[0], results))

        def combine_apart(repeated: RunResult, results: Sequence[RunResult]) -> Verdict:
            is_judged = results[-1].outcome is not Outcome.INFRASTRUCTURE
            if is_judged and suspect < len(results) and results[suspect].results != repeated.results:
                return combine(together)
            return replace(combine(results), cpu_seconds=max(one.cpu_seconds for one in results))

        return JobSet(apart[suspect : suspect + 1], compare)

    return JobSet((job,), look_for_suspects)
