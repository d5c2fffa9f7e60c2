"""`eval_results.json` as EvalPlus 0.3.1 writes it, for tools that read that.

Without added tests, `plus_status` is null. The inputs of failed tests are those of the first 100.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from greenward.evaluation.drawing import Answer, AnswerKey
from greenward.evaluation.results import Result
from greenward.grading.verdict import Status
from greenward.problems.problem import Problem

_PASS, _FAIL, _TIMEOUT = "pass", "fail", "timeout"


def evalplus_results(
    samples: Mapping[AnswerKey, Answer],
    results: Mapping[AnswerKey, Result],
    summary: Mapping[str, Any],
) -> dict[str, Any]:
    """The record of all answers. One that the infrastructure lost has failed, as in pass@k."""
    evaluated: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for key, result in sorted(results.items()):
        evaluated[result.task_id].append(_answer(samples[key], result))
    metrics = {name: metric["value"] for name, metric in summary["metrics"].items()}
    base = {name.removeprefix("base_"): value for name, value in metrics.items() if name.startswith("base_")}
    whole = {name: value for name, value in metrics.items() if not name.startswith("base_")}
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M"),
        "hash": summary["data_hash"],
        "eval": dict(evaluated),
        "pass_at_k": {"base": base, "plus": whole} if base else {"base": whole},
    }


def _answer(answer: Answer, result: Result) -> dict[str, Any]:
    boundary = answer.problem.base_tests
    whole = _status(result.passed, result)
    added = boundary is not None
    failed = result.failed_tests
    base_failed = [index for index in failed if boundary is None or index < boundary]
    return {
        "task_id": result.task_id,
        "solution": answer.code or "",
        "base_status": _status(result.base_passed is True, result) if added else whole,
        "plus_status": whole if added else None,
        "base_fail_tests": [_input(answer.problem, index) for index in base_failed],
        "plus_fail_tests": [_input(answer.problem, index) for index in failed[len(base_failed) :]],
    }


def _status(passed: bool, result: Result) -> str:
    return _PASS if passed else _TIMEOUT if result.status is Status.TIMEOUT else _FAIL


def _input(problem: Problem, index: int) -> Any:
    """The arguments of a test as JSON can hold them; of a test that is code, the code."""
    if problem.cases:
        return json.loads(json.dumps(problem.cases[index].args, default=repr, skipkeys=True))
    programs = problem.tests or problem.checks or problem.in_process_tests
    return programs[index] if programs else problem.stdio_cases[index].stdin
