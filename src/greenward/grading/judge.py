"""From what running an answer gave to the verdict on it: a pure function in the trusted process."""

from __future__ import annotations

from greenward.grading.plan import Plan
from greenward.grading.text import sanitise
from greenward.grading.verdict import Status, Verdict
from greenward.sandbox.protocol import CallResult, Outcome, RunResult

_STATUS = {
    Outcome.LOAD_ERROR: Status.ERROR,
    Outcome.SYNTAX_ERROR: Status.SYNTAX_ERROR,
    Outcome.NO_ENTRY_POINT: Status.NO_CODE,
    Outcome.EXITED: Status.ERROR,
    Outcome.TIMEOUT: Status.TIMEOUT,
    Outcome.MEMORY: Status.MEMORY,
    Outcome.OUTPUT_LIMIT: Status.OUTPUT_LIMIT,
    Outcome.CHEATING: Status.CHEATING,
    Outcome.INFRASTRUCTURE: Status.INFRASTRUCTURE,
}


def judge(plan: Plan, result: RunResult) -> Verdict:
    """The verdict: every test that was reached is compared; all must pass and the run complete."""
    reached = list(zip(plan.tests, result.results, strict=False))
    passed = [one.returned and one.plain and test.passes(one.value) for test, one in reached]
    failing = passed.index(False) if False in passed else None
    error_class, error_message, first_failure = result.error_class, result.error_message, ""
    if failing is not None:
        test, failed = reached[failing]
        first_failure = test.failure(failed)
    elif len(reached) < len(plan.tests):
        first_failure = f"{plan.tests[len(reached)].description}: not reached or not finished"
    if result.outcome is not Outcome.COMPLETED:
        status = _STATUS[result.outcome]
    elif len(result.results) != len(plan.tests):
        status = Status.INFRASTRUCTURE
        error_message = f"the sandbox reported {len(result.results)} results for {len(plan.tests)} tests"
    elif failing is None:
        status = Status.PASSED
    else:
        status, error_class, error_message = _failed(failed), failed.error_class, failed.error_message
    return Verdict(
        status=status,
        tests_passed=tuple(passed) + (False,) * (len(plan.tests) - len(passed)),
        error_class=None if error_class is None else sanitise(error_class, 100),
        error_message=sanitise(error_message),
        first_failure=first_failure,
        stdout=sanitise(result.stdout, len(result.stdout)),
        stderr=sanitise(result.stderr, len(result.stderr)),
        cpu_seconds=result.cpu_seconds,
        wall_seconds=result.wall_seconds,
    )


def _failed(result: CallResult) -> Status:
    if not result.returned:
        return Status.MEMORY if result.error_class == "MemoryError" else Status.ERROR
    return Status.FAILED if result.plain else Status.WRONG_TYPE
