"""APPS-, TACO- and LiveCodeBench-shaped files; nothing in them is ever unpickled."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from greenward.common.errors import ProblemError
from greenward.problems.catalog import load_file
from greenward.problems.contests import unpacked_tests
from greenward.problems.problem import Case, StdioCase

STDIO = {
    "problem_id": 7,
    "question": "Add two numbers.",
    "input_output": json.dumps({"inputs": ["1 2\n", ["3", "4"]], "outputs": ["3\n", ["7"]]}),
    "solutions": json.dumps(["print(sum(map(int, input().split())))", "…"]),
    "starter_code": "",
    "difficulty": "introductory",
    "url": "",
}
TESTS = [
    {"input": "[1, 2]\n3", "output": "[1, 2, 3]", "testtype": "functional"},
    {"input": '[]\n"x"', "output": "null", "testtype": "functional"},
]
LIVE = {
    "question_id": "abc301_a",
    "question_content": "Append.",
    "starter_code": "class Solution:\n    def append(self, xs, x):\n",
    "public_test_cases": json.dumps(TESTS[:1]),
    "private_test_cases": json.dumps(TESTS[1:]),
    "metadata": json.dumps({"func_name": "append"}),
    "difficulty": "easy",
    "platform": "leetcode",
}


def packed(value: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_programs_that_read_and_print(lines):
    (problem,) = load_file(lines(STDIO))
    assert problem.task_id == "Apps/7"
    assert problem.entry_point == ""
    assert problem.tests == (StdioCase("1 2\n", "3\n"), StdioCase("3\n4", "7"))
    assert problem.reference == "print(sum(map(int, input().split())))"
    assert problem.tags == ("introductory",)


@pytest.mark.parametrize(("outputs", "expected"), [([[3], [7]], (3, 7)), ([[3], [7, 8]], ([3], [7, 8]))])
def test_functions(lines, outputs, expected):
    tests = {"inputs": [[1, 2], [3, 4]], "outputs": outputs, "fn_name": "add"}
    (problem,) = load_file(lines({**STDIO, "input_output": tests}))
    assert problem.entry_point == "add"
    assert problem.cases == (Case((1, 2), expected[0]), Case((3, 4), expected[1]))
    assert problem.comparison.tuple_is_list


def test_methods_of_solution_are_found_and_functions_left(lines):
    tests = {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}
    (problem,) = load_file(lines({**STDIO, "input_output": tests}))
    method = "class Solution:\n    def add(self, a, b):\n        return a + b"
    for code in (method, "def add(a, b):\n    return a + b"):
        namespace: dict[str, Any] = {}
        exec(code, namespace)
        exec(problem.setup_code, namespace)
        assert namespace["add"](1, 2) == 3


def test_rows_of_taco_are_numbered_and_tagged(lines):
    row = {**STDIO, "difficulty": "EASY", "tags": "['Math', 'Greedy algorithms']"}
    del row["problem_id"]
    problems = load_file(lines(row, row))
    assert [problem.task_id for problem in problems] == ["Taco/0", "Taco/1"]
    assert problems[0].tags == ("EASY", "Math", "Greedy algorithms")


def test_folders_of_apps(tmp_path: Path):
    folder = tmp_path / "test" / "0042"
    folder.mkdir(parents=True)
    (folder / "question.txt").write_text("Add.")
    (folder / "input_output.json").write_text(STDIO["input_output"])
    (problem,) = load_file(tmp_path / "test")
    assert (problem.task_id, problem.prompt) == ("Apps/0042", "Add.")


@pytest.mark.parametrize("private", [json.dumps(TESTS[1:]), packed(json.dumps(TESTS[1:]))])
def test_livecodebench(lines, private):
    (problem,) = load_file(lines({**LIVE, "private_test_cases": private}))
    assert problem.task_id == "LiveCodeBench/abc301_a"
    assert problem.entry_point == "append"
    assert problem.cases == (Case(([1, 2], 3), [1, 2, 3]), Case(([], "x"), None))
    assert problem.tags == ("easy", "leetcode")


def test_livecodebench_programs(lines):
    tests = json.dumps([{"input": "1\n", "output": "2\n", "testtype": "stdin"}])
    row = {**LIVE, "public_test_cases": tests, "private_test_cases": ""}
    (problem,) = load_file(lines(row))
    assert problem.tests == (StdioCase("1\n", "2\n"),)


class RunsWhenUnpickled:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def test_pickle_that_does_more_than_give_a_text_is_refused_unread(lines, tmp_path):
    marker = tmp_path / "was_here"
    row = {**LIVE, "private_test_cases": packed(RunsWhenUnpickled(marker))}
    with pytest.raises(ProblemError, match=r"'private_test_cases' holds a pickle that does more"):
        load_file(lines(row))
    assert not marker.exists()


@pytest.mark.parametrize("protocol", range(6))
def test_texts_of_every_pickle_protocol_are_read(protocol):
    text = "é" * 300
    content = pickle.dumps(text, protocol=protocol)
    assert unpacked_tests(base64.b64encode(zlib.compress(content)).decode()) == text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no base64!", "neither JSON nor base64 of zlib"),
        (base64.b64encode(b"no zlib").decode(), "neither JSON nor base64 of zlib"),
        (base64.b64encode(zlib.compress(b"x" * 1000)[:-8]).decode(), "cut short"),
        (base64.b64encode(zlib.compress(b"no pickle")).decode(), "pickle that cannot be read"),
        (packed(["a"]), "does more than give a text"),
        (packed(5), "does more than give a text"),
    ],
)
def test_other_content_is_refused(content, message):
    with pytest.raises(ProblemError, match=message):
        unpacked_tests(content)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**STDIO, "input_output": "{"}, "'input_output' is not JSON"),
        ({**STDIO, "input_output": {"inputs": ["1"], "outputs": []}}, "as many inputs as outputs"),
        ({**STDIO, "input_output": {"inputs": [], "outputs": []}}, "'input_output' is empty"),
        ({**STDIO, "question": None}, "'question' must be text"),
        ({**LIVE, "public_test_cases": "[]", "private_test_cases": "[]"}, "'public_test_cases' is empty"),
        ({**LIVE, "metadata": "{}"}, "'metadata' must name the function"),
        ({**LIVE, "public_test_cases": "[1]"}, "must be a list of objects with input, output"),
    ],
)
def test_wrong_row_is_named(lines, row, message):
    with pytest.raises(ProblemError, match=rf"row 1 \(line 1\).*{message}"):
        load_file(lines(row))
