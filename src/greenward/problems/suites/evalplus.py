"""HumanEval+ and MBPP+ (Liu et al. 2023, arXiv:2305.01210), from EvalPlus's own files.

Rows hold `task_id`, `prompt`, `entry_point`, `canonical_solution`, `base_input` (the original inputs),
`plus_input` (EvalPlus's) and `atol`. Expected values are not stored: every case expects what the reference
returns, which `grading.reference_values` computes. The problems for which a comparison with the reference
would be wrong are those that EvalPlus declares: some follow another rule of comparison (`RULES`); where a
specification can be read in two ways, or has many right answers, a test program judges the value: each oracle
is Python source that defines `judge(candidate, arguments)`. One is stricter than EvalPlus's: for Mbpp/164
EvalPlus accepts whatever is returned.

JSON lost types of the inputs: tuples, sets, complex numbers. Which arguments had which type is known by
problem only: MBPP's own tests call the same functions with Python literals, and EvalPlus has a table of the
same content.

EvalPlus compares numbers as numpy's `allclose` does, with a relative tolerance of 1e-7 and the
row's absolute one, 1e-6 where it is 0; both hold here for every float, however deep it lies, where
EvalPlus compares those in nested values exactly unless an earlier input of the problem gave floats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from greenward.problems.data_files import read_programs
from greenward.problems.json_rows import Format, Row
from greenward.problems.problem import Case, Comparison, Expected, Problem, Rule
from greenward.problems.suites.check_programs import docstring
from greenward.problems.suites.mbpp import part_of

RELATIVE_TOLERANCE = 1e-7
_FLOAT_TOLERANCE = 1e-6

_PROGRAMS = read_programs("evalplus_programs.txt")

Restore = Callable[[Any], Any]


def _problem(row: Row) -> Problem:
    task_id = row.text("task_id")
    entry_point = row.name("entry_point")
    prompt = row.text("prompt")
    base = _inputs(row, "base_input", task_id)
    inputs = base + _inputs(row, "plus_input", task_id)
    if not inputs:
        raise row.error("base_input", "is empty: nothing would judge an answer")
    reference = prompt + row.text("canonical_solution")
    tree = row.python("canonical_solution", reference, problem="is not Python after the prompt")
    tolerance = _tolerance(row)
    oracle = oracle_for(task_id, entry_point, tolerance)
    is_mbpp = task_id.startswith("Mbpp/")
    rule = RULES.get(entry_point, "equal") if is_mbpp else "equal"
    part = part_of(task_id)
    return Problem(
        task_id=task_id,
        prompt=prompt.strip().strip('"').strip() if is_mbpp else docstring(tree, entry_point, prompt),
        entry_point=entry_point,
        cases=() if oracle else tuple(Case(arguments, Expected.FROM_REFERENCE) for arguments in inputs),
        checks=tuple(f"judge({entry_point}, {arguments!r})" for arguments in inputs) if oracle else (),
        check_setup_code=oracle or "",
        # What is compared as a set may be anything that has elements. Iterators and views cannot leave their
        # process as they are.
        setup_code=_PROGRAMS["elements"].replace("NAME", entry_point) if rule == "same_set" else "",
        starter_code=prompt,
        reference=reference,
        comparison=Comparison(tolerance, rule=rule, relative_tolerance=RELATIVE_TOLERANCE),
        tags=(part,) if part else (),
        base_tests=len(base),
    )


EVALPLUS = Format(
    "HumanEval+, MBPP+",
    ("base_input",),
    '{"task_id": …, "prompt": …, "entry_point": …, "base_input": [[…], …], "plus_input": …, "atol": …}',
    _problem,
    non_finite=True,
)


def _inputs(row: Row, field: str, task_id: str) -> list[tuple[Any, ...]]:
    if row.values.get(field) == {}:  # EvalPlus's notation for no inputs (Mbpp/793)
        return []
    values = row.typed(field, list, "a list of argument lists")
    if not all(isinstance(arguments, list) for arguments in values):
        raise row.error(field, "must be a list of argument lists, found a list of other values")
    try:
        return [with_types(task_id, arguments) for arguments in values]
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise row.error(field, f"does not have the shape that {task_id} has in EvalPlus: {error}") from None


def _tolerance(row: Row) -> float:
    value = row.values.get("atol")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise row.error("atol", f"must be a number from 0 to 1, found {value!r}")
    return float(value) or _FLOAT_TOLERANCE


def with_types(task_id: str, arguments: list[Any]) -> tuple[Any, ...]:
    """The arguments of one call with the types that they had before JSON.

    Raises `TypeError`, `ValueError`, `AttributeError` or `IndexError` if the arguments do not have the shape
    that those of the problem have.
    """
    restore = _RESTORE.get(task_id, tuple)
    return tuple(restore(arguments))


def _list_of(restore_one: Restore) -> Restore:
    return lambda values: [restore_one(value) for value in values]


def _tuple_of(restore_one: Restore) -> Restore:
    return lambda values: tuple(restore_one(value) for value in values)


def _by_position(*restore_one: Restore | None) -> Restore:
    """The first arguments each in its own way; None and the arguments after them are left as they are."""

    def restore(arguments: list[Any]) -> list[Any]:
        known = [one(value) if one else value for one, value in zip(restore_one, arguments, strict=False)]
        return known + arguments[len(restore_one) :]

    return restore


def _deep_tuple(value: Any) -> Any:
    return tuple(map(_deep_tuple, value)) if isinstance(value, list) else value


def _set_or_empty_dict(value: Any) -> Any:
    """Mbpp/115 asks whether all are empty dictionaries; those that are not were sets."""
    return set(value) if isinstance(value, list) and value else {}


# What restores the list of arguments, and the ids of the problems of MBPP for which it does.
_MBPP_RESTORE: tuple[tuple[Restore, tuple[int, ...]], ...] = (
    (_list_of(tuple), (2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424)),
    (_list_of(tuple), (429, 470, 560, 579, 596, 616, 630, 726, 740, 744, 809)),
    (_list_of(_list_of(tuple)), (63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780)),
    (_list_of(_tuple_of(tuple)), (259, 401, 445)),
    (_list_of(_tuple_of(lambda value: tuple(value) if isinstance(value, list) else value)), (278,)),
    (_list_of(_deep_tuple), (580, 615, 791)),
    (_by_position(tuple), (250, 307, 405, 446, 617, 720, 763, 808)),
    (_by_position(_list_of(tuple)), (75, 413, 444, 753)),
    (_by_position(None, tuple), (106, 750)),
    (_by_position(lambda values: {key: tuple(value) for key, value in values.items()}), (722,)),
    (_by_position(_list_of(_set_or_empty_dict)), (115,)),
    (_by_position(float, complex), (124,)),
    (_by_position(complex), (252,)),
)
_RESTORE = {f"Mbpp/{number}": restore for restore, numbers in _MBPP_RESTORE for number in numbers}

# By entry point, MBPP+ only. The others' results cannot leave their process (match objects).
RULES: Mapping[str, Rule] = {
    "similar_elements": "same_set",  # Mbpp/2
    "find_char_long": "same_set",  # Mbpp/7
    "common_in_nested_lists": "same_set",  # Mbpp/111
    "extract_singly": "same_set",  # Mbpp/140
    "larg_nnum": "same_set",  # Mbpp/232
    "intersection_array": "same_set",  # Mbpp/249
    "find_dissimilar": "same_set",  # Mbpp/579
    "Diff": "same_set",  # Mbpp/769
    "check_str": "not_none",  # Mbpp/737
    "text_match_three": "not_none",  # Mbpp/787
    "text_starta_endb": "not_none",  # Mbpp/794
}


def oracle_for(task_id: str, entry_point: str, tolerance: float) -> str | None:
    """The source of a problem's own oracle; None when it has none.

    `tolerance` is how far numbers may lie apart; it is absolute, since what rounding leaves of a root grows
    with the numbers.
    """
    oracle = _PROGRAMS.get(f"{task_id} {entry_point}")
    if oracle is None:
        return None
    if task_id.startswith("Mbpp/"):
        oracle += _PROGRAMS["readings"]
    return oracle.replace("TOLERANCE", repr(tolerance))
