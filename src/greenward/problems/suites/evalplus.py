"""HumanEval+ and MBPP+ (Liu et al. 2023, arXiv:2305.01210), from EvalPlus's own files.

Rows hold `task_id`, `prompt`, `entry_point`, `canonical_solution`, `base_input` (the original
inputs), `plus_input` (EvalPlus's) and `atol`. Expected values are not stored: every case expects
what the reference returns, which `grading.expected_values` finds out. Types that JSON lost are restored by
`evalplus_inputs`; the problems for which a comparison with the reference would be wrong have
oracles of their own in `evalplus_oracles`.

EvalPlus compares numbers as numpy's `allclose` does, with a relative tolerance of 1e-7 and the
row's absolute one, 1e-6 where it is 0; both hold here for every float, however deep it lies, where
EvalPlus compares those in nested values exactly unless an earlier input of the problem gave floats.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from greenward.problems.json_rows import Row, found
from greenward.problems.problem import Case, Comparison, Expected, Problem, ProblemSet
from greenward.problems.python_source import parse
from greenward.problems.suites.evalplus_inputs import restore
from greenward.problems.suites.evalplus_oracles import RULES, oracle_for, setup_for
from greenward.problems.suites.humaneval import docstring
from greenward.problems.suites.mbpp import part_of
from greenward.problems.suites.rows import problem_set

EXAMPLE = '{"task_id": …, "prompt": …, "entry_point": …, "base_input": [[…], …], "plus_input": …, "atol": …}'
RELATIVE_TOLERANCE = 1e-7
_FLOAT_TOLERANCE = 1e-6


def load_evalplus(path: str | Path, *, skip_bad_rows: bool = False) -> ProblemSet:
    """The problems of `HumanEvalPlus.jsonl.gz`, its Mini form, or `MbppPlus.jsonl.gz`.

    The expected values are yet to be had from the references. Raises `ProblemError`.
    """
    return problem_set(Path(path), _problem, example=EXAMPLE, non_finite=True, skip_bad_rows=skip_bad_rows)


def _problem(row: Row) -> Problem:
    task_id = row.text("task_id")
    entry_point = row.name("entry_point")
    prompt = row.text("prompt")
    base = _inputs(row, "base_input", task_id)
    inputs = base + _inputs(row, "plus_input", task_id)
    if not inputs:
        raise row.error("base_input", "is empty: nothing would judge an answer")
    reference = prompt + row.text("canonical_solution")
    try:
        parse(reference)
    except (SyntaxError, ValueError) as error:
        raise row.error("canonical_solution", f"is not Python after the prompt: {error}") from None
    tolerance = _tolerance(row)
    oracle = oracle_for(task_id, entry_point, tolerance)
    is_mbpp = task_id.startswith("Mbpp/")
    part = part_of(task_id)
    return Problem(
        task_id=task_id,
        prompt=prompt.strip().strip('"').strip() if is_mbpp else docstring(row, entry_point),
        entry_point=entry_point,
        cases=() if oracle else tuple(Case(arguments, Expected.FROM_REFERENCE) for arguments in inputs),
        checks=tuple(f"judge({entry_point}, {arguments!r})" for arguments in inputs) if oracle else (),
        check_setup_code=oracle or "",
        setup_code=setup_for(entry_point) if is_mbpp else "",
        starter_code=prompt,
        reference=reference,
        comparison=Comparison(
            tolerance=tolerance,
            relative_tolerance=RELATIVE_TOLERANCE,
            rule=RULES.get(entry_point, "equal") if is_mbpp else "equal",
        ),
        tags=(part,) if part else (),
        base_tests=len(base),
    )


def _inputs(row: Row, field: str, task_id: str) -> list[tuple[Any, ...]]:
    values = row.values.get(field)
    if values == {}:  # how EvalPlus writes "none" (Mbpp/793)
        values = []
    if not isinstance(values, list) or not all(isinstance(arguments, list) for arguments in values):
        raise row.error(field, f"must be a list of argument lists, found {found(row.values, field)}")
    try:
        return [restore(task_id, arguments) for arguments in values]
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise row.error(field, f"does not have the shape that {task_id} has in EvalPlus: {error}") from None


def _tolerance(row: Row) -> float:
    value = row.values.get("atol")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise row.error("atol", f"must be a number from 0 to 1, found {value!r}")
    return float(value) or _FLOAT_TOLERANCE
