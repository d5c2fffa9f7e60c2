"""The simple JSON format: what it means, what comes back, and what a bad row is told."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from greenward.common.errors import ProblemError, RunError
from greenward.problems.formats import load_json, save_json
from greenward.problems.problem import Assertion, Case, Comparison, Problem, ProblemSet

ADD = {
    "function_name": "add",
    "docstring": "Add two numbers.",
    "test_cases": [[2, 3, 5], [0, 0, 0]],
    "starter_code": "",
}

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
source_text = st.text(st.characters(exclude_characters="\0"))


@st.composite
def problems(draw: st.DrawFn, task_id: str) -> Problem:
    count = draw(st.integers(0, 3))
    starter = f"def f({', '.join('abc'[:count])}):\n    # {draw(st.text(alphabet='xyé 1', max_size=5))}\n"
    cases = []
    for _ in range(draw(st.integers(1, 3))):
        args = tuple(draw(json_values) for _ in range(count))
        raises = draw(st.sampled_from([None, None, "ValueError"]))
        cases.append(Case(args, draw(json_values) if raises is None else None, raises=raises))
    return Problem(
        task_id=task_id,
        prompt=draw(source_text),
        entry_point="f",
        tests=(
            *cases,
            *map(Assertion, draw(st.lists(st.sampled_from(["assert f", "assert not f"]), max_size=2))),
        ),
        setup_code=draw(source_text),
        starter_code=starter,
        reference=draw(st.sampled_from(["", starter + "    return 1\n"])),
        comparison=Comparison(
            draw(st.floats(0, 1)),
            draw(st.booleans()),
            draw(st.sampled_from(["equal", "same_set", "not_none"])),
            draw(st.none() | st.floats(0, 1)),
        ),
        tags=tuple(draw(st.lists(source_text, max_size=2))),
    )


@pytest.mark.parametrize("examples", [20, pytest.param(60, marks=pytest.mark.slow)])
def test_problems_come_back_equal(tmp_path: Path, examples: int) -> None:
    path = tmp_path / "problems.json"

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(st.tuples(problems("one"), problems("f")))
    def come_back(originals: tuple[Problem, Problem]) -> None:
        save_json(originals, path)
        loaded = load_json(path)
        assert tuple(loaded) == originals
        assert repr(tuple(loaded)) == repr(originals)  # 1, 1.0 and True are equal but not the same

    come_back()


def test_generated_problems_come_back_equal(tmp_path: Path, problems: ProblemSet) -> None:
    save_json(problems[::40], tmp_path / "families.json")
    assert list(load_json(tmp_path / "families.json")) == list(problems[::40])


def test_keyword_arguments_come_back(tmp_path: Path) -> None:
    starter = "def f(a, *, b):\n"
    original = Problem("f", "Add.", "f", (Case((1,), 3, {"b": 2}),), starter_code=starter)
    save_json([original], tmp_path / "p.json")
    (loaded,) = load_json(tmp_path / "p.json")
    assert loaded.cases == original.cases


@pytest.mark.parametrize("value", [(1, 2), {1, 2}, {1: "a"}, float("nan"), float("inf"), b"x", 1j, [(1,)]])
def test_values_that_json_would_change_are_refused(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "p.json"
    path.write_text("what stood here before")
    problem = Problem("p", "Do it.", "f", (Case((value,), 1),), starter_code="def f(a):\n")
    with pytest.raises(ProblemError, match="p: a test case holds a value that JSON would change"):
        save_json([problem], path)
    assert path.read_text() == "what stood here before"


def test_a_refusing_file_system_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        save_json([], tmp_path / "file" / "p.json")


def write(tmp_path: Path, rows: Any) -> Path:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return path


def load_one(tmp_path: Path, **changes: Any) -> Problem:
    (problem,) = load_json(write(tmp_path, [{**ADD, **changes}]))
    return problem


def test_last_element_of_a_test_case_is_the_expected_output(tmp_path: Path) -> None:
    problem = load_one(tmp_path)
    assert problem.cases == (Case((2, 3), 5), Case((0, 0), 0))
    assert (problem.task_id, problem.entry_point, problem.prompt) == ("add", "add", "Add two numbers.")
    assert problem.comparison == Comparison(tuple_is_list=True)


def test_object_form_names_input_and_output(tmp_path: Path) -> None:
    problem = load_one(tmp_path, test_cases=[{"input": [[1, 2]], "output": 3}])
    assert problem.cases == (Case(([1, 2],), 3),)


def test_older_form_is_spread_when_the_signature_tells(tmp_path: Path) -> None:
    older = [[[2, 3], 5], [[0, 0], 0]]
    spread = (Case((2, 3), 5), Case((0, 0), 0))
    assert load_one(tmp_path, test_cases=older, starter_code="def add(a, b):\n").cases == spread
    assert load_one(tmp_path, test_cases=older, reference="def add(a, b): return a + b").cases == spread
    one_list = (Case(([2, 3],), 5), Case(([0, 0],), 0))
    assert load_one(tmp_path, test_cases=older, reference="def add(xs): return sum(xs)").cases == one_list
    assert load_one(tmp_path, test_cases=older, reference="def add(xs, start=0): return 0").cases == one_list


@pytest.mark.parametrize(
    ("cases", "parameters", "arguments"),
    [
        ([[[2, 3], 5], [[0, 0], 0]], "a, b", (2, 3)),
        ([[[1, 2, 3], 3], [[3, 2, 1], 3], [[5, 5, 5], 5]], "a, b, c", (1, 2, 3)),
        ([[["ab", 2], "abab"]], "a, b", ("ab", 2)),  # of two types: no list
        ([[[1, 2, 3], 1], [[5, 2, 8, 1], 1], [[10], 10]], "a", ([1, 2, 3],)),
        ([[[1, 2], 3], [[], 0]], "a", ([1, 2],)),
        ([[[10], 10], [[7], 7]], "a", ([10],)),
        ([[[2, 3], 5], [4, 4]], "a", ([2, 3],)),
        ([["hello", 2], ["world", 1]], "a", ("hello",)),
    ],
)
def test_without_a_signature_lists_of_one_length_are_arguments(
    tmp_path: Path, cases: list[Any], parameters: str, arguments: tuple[Any, ...]
) -> None:
    problem = load_one(tmp_path, test_cases=cases)
    assert problem.starter_code.startswith(f"def add({parameters}):")
    assert problem.cases[0].args == arguments


def test_hidden_cases_count_when_lists_are_compared(tmp_path: Path) -> None:
    older = [[[2, 3], 5], [[0, 0], 0]]
    problem = load_one(tmp_path, test_cases=older, hidden_test_cases=[[[1], 1]])
    assert problem.cases[0].args == ([2, 3],)
    assert problem.hidden_cases[0].args == ([1],)


@pytest.mark.parametrize(
    "changes",
    [
        {"test_cases": [[[2, 3], 5]]},
        {"test_cases": [[[2, 3], 5], [[0, 0], 0]], "docstring": "Return the sum of a list."},
    ],
)
def test_lists_that_may_be_arguments_or_one_list_are_a_question(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(ProblemError, match=r"\[2, 3\] may be 2 arguments or one list") as error:
        load_one(tmp_path, **changes)
    assert error.value.remedy is not None
    for answer in ("def add(a, b):", "def add(values):"):
        assert answer in error.value.remedy
        assert load_one(tmp_path, **changes, starter_code=f"{answer}\n").starter_code == f"{answer}\n"


@pytest.mark.parametrize(
    ("changes", "first_line"),
    [
        ({}, "def add(a, b):"),
        ({"reference": "def add(left, right=0):\n    return left + right\n"}, "def add(left, right=0):"),
        ({"reference": "def add(x: List[int], *more: int) -> int:\n    return 0\n"}, "def add(x, *more):"),
        ({"test_cases": [[7]]}, "def add():"),
    ],
)
def test_missing_starter_code_is_made_up(tmp_path: Path, changes: dict[str, Any], first_line: str) -> None:
    starter = load_one(tmp_path, **changes).starter_code
    assert starter == f'{first_line}\n    """Add two numbers."""\n'


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.text(alphabet="\"\\ \nab'{", max_size=12))
def test_made_up_docstring_says_what_the_row_says(tmp_path: Path, docstring: str) -> None:
    starter = load_one(tmp_path, docstring=docstring).starter_code
    (function,) = ast.parse(starter).body
    assert isinstance(function, ast.FunctionDef)
    found = ast.get_docstring(function, clean=False) or ""
    assert [line.strip() for line in found.splitlines()] == [
        line.strip() for line in docstring.strip().splitlines()
    ]


def test_json_lines_and_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    rows = [ADD, {**ADD, "task_id": "again"}]
    path.write_text("\ufeff" + "\n\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    assert [p.task_id for p in load_json(path)] == ["add", "again"]


BAD_ROWS: dict[str, tuple[dict[str, Any], str, str]] = {
    "name missing": ({"function_name": None}, "function_name", "must be text, found null"),
    "name not python": ({"function_name": "2 add"}, "function_name", "name of a Python function"),
    "name is keyword": ({"function_name": "class"}, "function_name", "name of a Python function"),
    "docstring a number": ({"docstring": 3}, "docstring", "must be text, found a number"),
    "docstring with null": ({"docstring": "a\0b"}, "docstring", "null character"),
    "cases not a list": ({"test_cases": {"a": 1}}, "test_cases", "found an object"),
    "cases empty": ({"test_cases": []}, "test_cases", "nothing would judge"),
    "case not a list": ({"test_cases": [[1, 2, 3], 4]}, "test_cases", "found 4 as test case 2"),
    "case empty": ({"test_cases": [[]]}, "test_cases", r"found \[\] as test case 1"),
    "object case": ({"test_cases": [{"input": [1]}]}, "test_cases", "as test case 1"),
    "object case input": ({"test_cases": [{"input": 1, "output": 2}]}, "test_cases", "list of arguments"),
    "arity differs": ({"test_cases": [[1, 2], [1, 2, 3]]}, "starter_code", r"found \[1, 2\] inputs"),
    "arity of starter": ({"starter_code": "def add(a):\n"}, "test_cases", "gives 2 inputs in test case 1"),
    "starter not python": ({"starter_code": "def add(a b):\n"}, "starter_code", "is not Python"),
    "starter other name": ({"starter_code": "def sub(a, b):\n"}, "starter_code", "does not define"),
    "reference not python": ({"reference": "return 1 +"}, "reference", "is not Python"),
    "reference other name": ({"reference": "x = 1"}, "reference", "does not define the function 'add'"),
    "tests not texts": ({"tests": [1]}, "tests", "list of texts"),
    "tests not python": ({"tests": ["assert ("]}, "tests", "is not Python in test 1"),
    "tags not a list": ({"tags": "easy"}, "tags", "list of texts"),
    "empty id": ({"task_id": ""}, "task_id", "is empty"),
    "tolerance no float": ({"comparison": {"tolerance": 10**400}}, "comparison", "must be like"),
    "tolerance negative": ({"comparison": {"tolerance": -1}}, "comparison", "must be like"),
    "comparison key": ({"comparison": {"tol": 1}}, "comparison", "must be like"),
    "mistyped key": ({"referense": ""}, "referense", "Did you mean 'reference'"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_row_is_named_with_line_field_and_reason(tmp_path: Path, case: str) -> None:
    changes, field, reason = BAD_ROWS[case]
    path = write(tmp_path, [{**ADD, "task_id": "fine"}, {**ADD, **changes}])
    line = 1 + next(
        i for i, text in enumerate(path.read_text().splitlines()) if text == " {" and i > 1
    )  # where the second row opens
    with pytest.raises(ProblemError, match=reason) as caught:
        load_json(path)
    assert caught.value.message.startswith(f"{path}, row 2 (line {line}): field '{field}' ")


@pytest.mark.parametrize("field", ["function_name", "docstring", "test_cases"])
def test_missing_field_is_named(tmp_path: Path, field: str) -> None:
    row = {key: value for key, value in ADD.items() if key != field}
    with pytest.raises(ProblemError, match=rf"row 1 \(line 2\): field '{field}' is missing; this row has: "):
        load_json(write(tmp_path, [row]))


def test_duplicate_id_names_both_rows(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, [ADD, {**ADD, "function_name": "sub"}, ADD])))
    with pytest.raises(ProblemError, match=r"row 3 \(line 3\).*'add', which row 1 \(line 1\) has already"):
        load_json(path)


BAD_FILES = {
    "empty": (b"", "there is no problem in the file"),
    "empty list": (b"[]", "there is no problem in the file"),
    "not json": (b"function_name,docstring", r"line 1, column 1: not JSON"),
    "cut short": (b'[\n{"function_name": "a"', r"line 2, column \d+: not JSON"),
    "list not closed": (b'[\n{"function_name": "a", "docstring": "", "test_cases": [[1]]}', "not JSON"),
    "no comma": (b'[{"a": 1}\n{"a": 1}]', "row 1"),
    "trailing comma": (json.dumps([ADD])[:-1].encode() + b",]", "not JSON"),
    "text after list": (b"[] x", "text after the closing bracket"),
    "a key twice": (b'[\n{"docstring": "a", "docstring": "b"}]', r"line 2.*the key 'docstring' occurs twice"),
    "a huge number": (b'[{"test_cases": [[1e999]]}]', "1e999 is too large for a number"),
    "a number": (b"3", r"row 1 \(line 1\): expected an object, found a number"),
    "a row is a list": (b"[[1, 2]]", r"row 1 \(line 1\): expected an object, found a list"),
    "not a number": (b'[{"test_cases": [[NaN]]}]', "NaN is not a JSON value"),
    "not text": (b"\xff\xfe\x00", "not UTF-8 text"),
    "endless integer": (b"[" + b"9" * 60_000 + b"]", "50000 digits"),
    "bottomless": (b"[" * 100_000, "not JSON"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file_is_a_clear_error(tmp_path: Path, case: str) -> None:
    content, reason = BAD_FILES[case]
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(ProblemError, match=reason) as caught:
        load_json(path)
    assert str(path) in caught.value.message


def test_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ProblemError, match="there is no such file"):
            load_json(path)
