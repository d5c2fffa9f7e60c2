"""A problem as the columns that a reward function with TRL's signature gets, and as verl's ground truth."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args

from greenward.problems.problem import Problem

GroundTruth = Literal["json", "assertions", "assertions-json", "json-lines"]
GROUND_TRUTHS: tuple[GroundTruth, ...] = get_args(GroundTruth)


def problem_columns(problem: Problem, form: GroundTruth = "json") -> dict[str, Any]:
    """What a data set for TRL would hold of the problem: one value for each column, by name.

    `form` is that of the columns `ground_truth` and `answer`. The problem's own `columns` win.
    """
    tests = assertions(problem)
    truth = ground_truth(problem, form)
    cases = _test_cases(problem)
    kind = "function_call" if problem.entry_point else "stdin_stdout"
    return {
        "task_id": problem.task_id,
        "entry_point": problem.entry_point,
        "function_name": problem.entry_point,
        "docstring": problem.prompt,
        "starter_code": problem.starter_code,
        "setup_code": problem.setup_code,
        "tags": list(problem.tags),
        "tests": tests,
        "test_list": tests,
        "test": "\n".join(tests or problem.checks),
        "test_cases": cases,
        "ground_truth": truth,
        "answer": truth,
        "reference": problem.reference,
        "solution": problem.reference,
        "language": "python",
        # The layout of open-r1's data sets of code.
        "verification_info": {
            "language": "python",
            "test_cases": [{"fn_name": problem.entry_point, **case, "type": kind} for case in cases],
        },
        **(problem.columns or {}),
    }


def assertions(problem: Problem) -> list[str]:
    """The cases that expect a value as assert statements, and the assert statements of the problem."""
    calls = []
    for case in problem.cases:
        if case.raises is None:
            named = (f"{name}={value!r}" for name, value in case.kwargs.items())
            arguments = ", ".join((*map(repr, case.args), *named))
            calls.append(f"assert {problem.entry_point}({arguments}) == {case.expected!r}")
    return [*calls, *problem.tests]


def ground_truth(problem: Problem, form: GroundTruth) -> str:
    """The tests as text.

    `json`: one object {fn_name, inputs, outputs}, as in APPS; without fn_name for programs that read and
    print. `json-lines`: one object {input, output} a line. `assertions`: assert statements, one a line.
    `assertions-json`: a JSON list of them.
    """
    if form == "assertions":
        return "\n".join(assertions(problem))
    if form == "assertions-json":
        return json.dumps(assertions(problem))
    cases = _test_cases(problem)
    if form == "json-lines":
        return "\n".join(map(_json, cases))
    name = {"fn_name": problem.entry_point} if problem.entry_point else {}
    return _json(
        {**name, "inputs": [case["input"] for case in cases], "outputs": [case["output"] for case in cases]}
    )


def _test_cases(problem: Problem) -> list[dict[str, Any]]:
    """{input, output} of each case: a list of arguments and a value, or what is read and printed."""
    if problem.stdio_cases:
        return [{"input": case.stdin, "output": case.stdout} for case in problem.stdio_cases]
    return [
        {"input": list(case.args), "output": case.expected} for case in problem.cases if case.raises is None
    ]


def _json(value: Any) -> str:
    """JSON, with the representation of what JSON cannot hold (sets, keys that are no text)."""
    try:
        return json.dumps(value, default=repr)
    except TypeError:
        return json.dumps(repr(value))


COLUMNS = tuple(problem_columns(Problem("", "", "")))
