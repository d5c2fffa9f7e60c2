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
    passed = [
        one.returned and one.plain and test.passes(one.value)
        for test, one in zip(plan.tests, result.results, strict=False)
    ]
    error_class, error_message, first_failure = result.error_class, result.error_message, ""
    if result.outcome is Outcome.COMPLETED and all(passed) and len(passed) == len(plan.tests):
        status = Status.PASSED
    elif result.outcome is Outcome.COMPLETED:
        failing = passed.index(False)
        one = result.results[failing]
        status, error_class, error_message = _failed(one), one.error_class, one.error_message
        first_failure = plan.tests[failing].failure(one)
    else:
        status = _STATUS[result.outcome]
        if False in passed:
            first_failure = plan.tests[passed.index(False)].failure(result.results[passed.index(False)])
        elif len(passed) < len(plan.tests):
            first_failure = f"{plan.tests[len(passed)].description}: not reached or not finished"
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
