"""The jobs of a program on several standard inputs, so that no run fails because of one before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from greenward.grading.judging import GradingPlan, judge
from greenward.grading.unique_jobs import JobSet
from greenward.grading.verdict import Verdict
from greenward.sandbox.protocol import Job, Outcome, RunResult


def program_jobs(
    plan: GradingPlan, job: Job, combine: Callable[[Sequence[RunResult]], Verdict]
) -> JobSet[Verdict]:
    """One job for all inputs; one for each where a run that fails prints something else in its own process.

    Runs share a process as long as none leaves anything visible (`sandbox.programs`). What cannot be seen
    there, such as the state of a module, shows in this: some runs pass, and the first later one that fails
    gives another output when it is repeated alone.
    """
    alone = tuple(replace(job, stdins=(text,)) for text in job.stdins)

    def look_for_suspects(results: Sequence[RunResult]) -> Verdict | JobSet[Verdict]:
        (together,) = results
        passed = judge(plan, together).tests_passed
        failed = [at for at, ok in zip(plan.positions, passed, strict=True) if not ok and at > 0]
        if together.outcome is not Outcome.COMPLETED or not failed or not any(passed):
            return combine(results)
        suspect = failed[0]

        def compare(repeated: Sequence[RunResult]) -> Verdict | JobSet[Verdict]:
            is_same = repeated[0].results == together.results[suspect : suspect + 1]
            return combine(results) if is_same else JobSet(alone, combine)

        return JobSet(alone[suspect : suspect + 1], compare)

    return JobSet((job,), look_for_suspects)
