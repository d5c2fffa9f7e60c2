"""EvalPlus's files: the types that JSON lost, and the oracles."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest

from greenward.common.errors import ProblemError
from greenward.problems.catalog import load_file
from greenward.problems.formats import RULES, oracle_for, with_types
from greenward.problems.problem import Assertion, Check, Expected

ROW = {
    "task_id": "Mbpp/2",
    "prompt": '"""\nFind the shared elements.\nassert 1\n"""\n',
    "entry_point": "similar_elements",
    "canonical_solution": "def similar_elements(a, b):\n  return tuple(set(a) & set(b))\n",
    "base_input": [[[3, 4], [4]]],
    "plus_input": [[[], []], [[1], [1]]],
    "contract": "",
    "atol": 0,
}


def test_cases_expect_what_the_reference_returns(lines):
    (problem,) = load_file(lines(ROW))
    assert problem.prompt == "Find the shared elements.\nassert 1"
    assert [case.args for case in problem.cases] == [((3, 4), (4,)), ((), ()), ((1,), (1,))]
    assert {case.expected for case in problem.cases} == {Expected.FROM_REFERENCE}
    assert problem.base_tests == 1
    assert problem.comparison.rule == "same_set"
    assert (problem.comparison.tolerance, problem.comparison.relative_tolerance) == (1e-6, 1e-7)


def test_own_tolerance_and_no_added_inputs(lines):
    (problem,) = load_file(lines({**ROW, "task_id": "Mbpp/793", "plus_input": {}, "atol": 1e-4}))
    assert problem.comparison.tolerance == 1e-4
    assert len(problem.cases) == problem.base_tests == 1


def test_rules_hold_for_mbpp_only(lines):
    row = {**ROW, "task_id": "HumanEval/2", "prompt": "def similar_elements(a, b):\n    '''x'''\n"}
    assert load_file(lines(row))[0].comparison.rule == "equal"


@pytest.mark.parametrize(
    ("task_id", "arguments", "expected"),
    [
        ("Mbpp/1", [[1, [2]]], ([1, [2]],)),
        ("Mbpp/116", [[1, 2]], ((1, 2),)),
        ("Mbpp/63", [[[1, 2], [3, 4]]], ([(1, 2), (3, 4)],)),
        ("Mbpp/75", [[[6, 24], [7]], 6], ([(6, 24), (7,)], 6)),
        ("Mbpp/106", [[1], [2, 3]], ([1], (2, 3))),
        ("Mbpp/115", [[[1, 2], [], {}]], ([{1, 2}, {}, {}],)),
        ("Mbpp/124", ["0", "1j"], (0.0, 1j)),
        ("Mbpp/252", ["(1+2j)"], (1 + 2j,)),
        ("Mbpp/259", [[[1, 3]], [[6, 7]]], (((1, 3),), ((6, 7),))),
        ("Mbpp/278", [[1, [2, 3], 4]], ((1, (2, 3), 4),)),
        ("Mbpp/307", [["H", 5, [], True], 2, 50], (("H", 5, [], True), 2, 50)),
        ("Mbpp/580", [[4, [7, [6, [2]]]]], ((4, (7, (6, (2,)))),)),
        ("Mbpp/722", [{"a": [6.2, 70]}, 6.0, 70], ({"a": (6.2, 70)}, 6.0, 70)),
        ("HumanEval/63", [[[1, 2]]], ([[1, 2]],)),
    ],
)
def test_types_are_restored(task_id, arguments, expected):
    restored = with_types(task_id, arguments)
    assert restored == expected
    assert repr(restored) == repr(expected)  # tells 1 from 1.0


def judge(source: str) -> Callable[..., None]:
    """The judge of an oracle as a test program calls it."""
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    return namespace["judge"]


def passes(
    task_id: str, entry_point: str, arguments: tuple[Any, ...], value: Any, *, atol: float = 1e-6
) -> bool:
    try:
        judge(oracle_for(task_id, entry_point, atol))(lambda *_: value, arguments)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize(
    ("value", "right"), [(1.0, True), (2.0, True), (1.00001, True), (1.5, False), (-1.0, False)]
)
def test_any_root_is_a_zero(value, right):
    assert passes("HumanEval/32", "find_zero", ([2, -3, 1],), value, atol=1e-4) is right


@pytest.mark.parametrize(
    ("task_id", "name", "arguments", "values", "wrong"),
    [
        # 36 has the divisors 1 2 3 4 6 9 12 18 36; 57: 1 3 19 57.
        ("Mbpp/164", "are_equivalent", (36, 57), [False], True),
        # 6 and 11 share the sum of divisors 12, but not that of proper ones (6 and 1).
        ("Mbpp/164", "are_equivalent", (6, 11), [False, True], 7),
        ("Mbpp/295", "sum_div", (8,), [7, 0], 15),
        ("Mbpp/558", "digit_distance_nums", (23, 56), [6], 7),
        # 12345 and 9: from the first digit 8; from the last, 1+2+3+4+4.
        ("Mbpp/558", "digit_distance_nums", (12345, 9), [8, 14], 9),
        # Base 3, slant height 4: 9 + 4 * 6. Height 4: 9 + 6 * sqrt(1.5**2 + 16), rounded.
        ("Mbpp/581", "surface_Area", (3, 4), [33, 35], 34),
    ],
)
def test_every_reading_of_the_specification_is_right(task_id, name, arguments, values, wrong):
    assert all(passes(task_id, name, arguments, value) for value in values)
    assert not passes(task_id, name, arguments, wrong)
    assert not passes(task_id, name, arguments, str(values[0]))


def test_problems_with_an_oracle_have_a_program_for_each_input(lines):
    row = {**ROW, "task_id": "Mbpp/558", "entry_point": "digit_distance_nums", "base_input": [[1, 2]]}
    (problem,) = load_file(lines({**row, "plus_input": [[3, 4]]}))
    assert problem.sources(Check) == tuple(f"judge(digit_distance_nums, {pair})" for pair in ((1, 2), (3, 4)))
    assert not problem.cases


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_input": 5}, "'base_input' must be a list of argument lists, found a number"),
        ({"base_input": [3]}, "'base_input' must be a list of argument lists"),
        ({"base_input": [[3, 4]]}, "'base_input' does not have the shape that Mbpp/2 has in EvalPlus"),
        ({"base_input": [], "plus_input": []}, "'base_input' is empty"),
        ({"atol": "0"}, "'atol' must be a number from 0 to 1"),
        ({"entry_point": None}, "'entry_point' must be text"),
    ],
)
def test_wrong_row_is_named(lines, change, message):
    with pytest.raises(ProblemError, match=rf"row 1 \(line 1\).*{message}"):
        load_file(lines({**ROW, **change}))


@pytest.mark.parametrize(
    ("file", "count"), [("MbppPlus", 378), ("HumanEvalPlus-Mini", 164), ("HumanEvalPlus", 164)]
)
def test_public_files(public, file, count):
    problems = load_file(public(f"evalplus/{file}.jsonl.gz"))
    assert len(problems) == count
    special = [problem.task_id for problem in problems if problem.sources(Check)]
    assert special == (["Mbpp/558", "Mbpp/581"] if file == "MbppPlus" else ["HumanEval/32"])


def test_restored_types_are_those_of_mbpps_own_tests(public):
    """MBPP's assert statements call the same functions with the same inputs, as Python literals."""
    tests = {p.task_id: p.sources(Assertion) for p in load_file(public("mbpp/sanitized-mbpp.json"))}
    compared = 0
    for problem in load_file(public("evalplus/MbppPlus.jsonl.gz")):
        inputs = [case.args for case in problem.cases[: problem.base_tests]]
        for test in tests[problem.task_id]:
            for arguments in literal_calls(test, problem.entry_point):
                if arguments in inputs:
                    compared += 1
                    # Equal and of equal types, but for the numbers that Mbpp/124 and 252 make complex.
                    if problem.task_id not in ("Mbpp/124", "Mbpp/252"):
                        assert repr(arguments) in map(repr, inputs), problem.task_id
    assert compared > 1000


def literal_calls(test: str, name: str) -> list[tuple[Any, ...]]:
    """The arguments of the calls of a function, where they are literals."""
    found = []
    for node in ast.walk(ast.parse(test)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            try:
                found.append(tuple(ast.literal_eval(argument) for argument in node.args))
            except ValueError:
                continue
    return found


def test_rules_name_functions_of_the_public_file(public):
    names = {problem.entry_point for problem in load_file(public("evalplus/MbppPlus.jsonl.gz"))}
    assert set(RULES) - names == {"intersection_array"}  # Mbpp/249 was withdrawn in v0.2.0
