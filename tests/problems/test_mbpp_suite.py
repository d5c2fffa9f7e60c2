"""MBPP's files and their traps."""

from __future__ import annotations

from collections import Counter

import pytest

from greenward.common.errors import ProblemError
from greenward.problems.catalog import load_file
from greenward.problems.formats import load_challenge_tests, part_of, refuse_test_ids
from greenward.problems.problem import Assertion

ROW = {
    "task_id": 602,
    "text": "Write a function to double.",
    "code": "import sys\r\ndef helper(x):\r\n  return x\r\ndef double(x):\r\n  return helper(x) * 2",
    "test_setup_code": "",
    "test_list": ["assert double(2) == 4", "assert double(0) == 0"],
    "challenge_test_list": ["assert double(-1) == -2"],
}


def test_rows_of_the_full_set(lines):
    (problem,) = load_file(lines(ROW))
    assert problem.task_id == "Mbpp/602"
    assert problem.entry_point == "double"  # not the helper, which no test calls
    assert problem.sources(Assertion) == ("assert double(2) == 4", "assert double(0) == 0")
    assert problem.starter_code == '"""\nWrite a function to double.\nassert double(2) == 4\n"""\n'
    assert problem.tags == ("train",)


def test_line_ends_are_plain(lines):
    (problem,) = load_file(lines({**ROW, "test_setup_code": "a = 1\r\nb = 2"}))
    assert "\r" not in problem.reference + problem.setup_code + "".join(problem.sources(Assertion))


def test_challenge_tests_are_added_on_request(lines):
    assert load_challenge_tests(lines(ROW))[0].tests[-1].source == "assert double(-1) == -2"


def test_rows_of_the_sanitized_set(lines):
    row = {"source_file": "x", "task_id": 20, "prompt": "Double.", "code": ROW["code"]}
    row |= {"test_imports": ["import math"], "test_list": ["assert math.isclose(double(1.5), 3.0)"]}
    (problem,) = load_file(lines(row))
    assert problem.prompt == "Double."
    assert problem.setup_code == "import math"
    assert problem.tags == ("test",)


def test_modules_that_only_the_solution_imports_are_there_for_the_tests(lines):
    (problem,) = load_file(lines({**ROW, "test_list": ["assert double(sys.maxsize) == sys.maxsize * 2"]}))
    assert problem.setup_code == "import sys"


@pytest.mark.parametrize(
    ("task_id", "part"),
    [
        *[("Mbpp/1", "prompt"), ("Mbpp/10", "prompt"), ("Mbpp/11", "test"), ("Mbpp/510", "test")],
        *[("Mbpp/511", "validation"), ("Mbpp/600", "validation"), ("Mbpp/601", "train")],
        *[("mbpp/974", "train"), ("Mbpp/975", None), ("HumanEval/11", None), ("11", None)],
    ],
)
def test_split_by_id(task_id, part):
    assert part_of(task_id) == part


def test_test_problems_are_refused_for_training(lines):
    problems = load_file(lines(ROW, {**ROW, "task_id": 11}, {**ROW, "task_id": 510}))
    with pytest.raises(ProblemError, match=r"2 of the problems .* \(first: Mbpp/11\).*\n.*a\.b=true"):
        refuse_test_ids(problems, override="a.b=true")
    refuse_test_ids(problems.filter(lambda p: p.task_id == "Mbpp/602"), override="a.b=true")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task_id": "602"}, "'task_id' must be a positive number, found '602'"),
        ({"task_id": True}, "'task_id' must be a positive number"),
        ({"text": None}, "'text' must be text"),
        ({"code": "def double(:"}, "'code' is not Python"),
        ({"test_list": []}, "'test_list' is empty"),
        ({"test_list": "assert 1"}, "'test_list' must be a list of texts"),
        ({"test_list": ["assert triple(2) == 6"]}, "calls no function that 'code' defines"),
    ],
)
def test_wrong_row_is_named(lines, change, message):
    good = {**ROW, "task_id": 1}
    with pytest.raises(ProblemError, match=rf"row 2 \(line 2\).*{message}"):
        load_file(lines(good, {**ROW, **change}))


def test_file_errors_name_the_line(lines, tmp_path):
    with pytest.raises(ProblemError, match="gives the id 'Mbpp/602', which row 1"):
        load_file(lines(ROW, ROW))
    with pytest.raises(ProblemError, match=r"not JSON .*in the row that begins in line 2"):
        load_file(lines(ROW, '{"task_id":'))
    with pytest.raises(ProblemError, match="there is no problem in the file"):
        load_file(lines())
    with pytest.raises(ProblemError, match="there is no such file"):
        load_file(tmp_path / "absent.jsonl")


def test_public_files(public):
    parts = Counter(problem.tags for problem in load_file(public("mbpp/mbpp.jsonl")))
    assert parts == {("prompt",): 10, ("test",): 500, ("validation",): 90, ("train",): 374}
    parts = Counter(problem.tags for problem in load_file(public("mbpp/sanitized-mbpp.json")))
    assert parts == {("prompt",): 7, ("test",): 257, ("validation",): 43, ("train",): 120}
    path = public("mbpp/mbpp.jsonl")
    plain, challenge = load_file(path), load_challenge_tests(path)
    assert sum(a.tests != b.tests for a, b in zip(plain, challenge, strict=True)) == 11
