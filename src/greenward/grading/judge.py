"""From what running an answer gave to the verdict on it: a pure function in the trusted process."""

from __future__ import annotations

from greenward.grading.plan import Plan
from greenward.grading.verdict import Status, Verdict
from greenward.sandbox.protocol import Outcome, RunResult
from greenward.text import MAX_MESSAGE_CHARS, visible

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
    """The verdict: every test that was reached is compared; all must pass and the run complete.

    What an answer returned may be what no test foresaw: a value that breaks its comparison is that
    answer's failure, and costs no other answer its verdict.
    """
    try:
        return _judge(plan, result)
    except Exception as error:
        return Verdict(
            status=Status.WRONG_TYPE,
            tests_passed=(False,) * len(plan.tests),
            error_class=type(error).__name__,
            error_message=visible(f"what the answer returned cannot be judged: {error}", MAX_MESSAGE_CHARS),
            cpu_seconds=result.cpu_seconds,
            wall_seconds=result.wall_seconds,
            layers=result.layers,
        )


def _judge(plan: Plan, result: RunResult) -> Verdict:
    results = [result.results[place] if place < len(result.results) else None for place in plan.places]
    passed = tuple(
        one is not None and test.passes(one) for test, one in zip(plan.tests, results, strict=True)
    )
    error_class, error_message, first_failure = result.error_class, result.error_message, ""
    # What a test found tells more than that another was not reached.
    failing = min(
        (i for i, ok in enumerate(passed) if not ok), key=lambda i: results[i] is None, default=None
    )
    failed = None if failing is None else results[failing]
    if failing is not None:
        test = plan.tests[failing]
        first_failure = (
            f"{test.description}: not reached or not finished" if failed is None else test.failure(failed)
        )
    if result.outcome is not Outcome.COMPLETED:
        status = _STATUS[result.outcome]
    elif len(result.results) != len(plan.tests):
        status = Status.INFRASTRUCTURE
        error_message = f"the sandbox reported {len(result.results)} results for {len(plan.tests)} tests"
    elif failing is None:
        status = Status.PASSED
    else:
        assert failed is not None  # as many results as tests: every test was reached
        status = plan.tests[failing].failing_status(failed)
        error_class, error_message = failed.error_class, failed.error_message
    return Verdict(
        status=status,
        tests_passed=passed,
        error_class=None if error_class is None else visible(error_class, 100),
        error_message=visible(error_message, MAX_MESSAGE_CHARS),
        first_failure=first_failure,
        stdout=visible(result.stdout),
        stderr=visible(result.stderr),
        cpu_seconds=result.cpu_seconds,
        wall_seconds=result.wall_seconds,
        layers=result.layers,
    )
