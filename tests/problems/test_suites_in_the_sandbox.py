"""References of the public suites pass in the sandbox; `benchmarks/verify_suites.py` runs them all."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from greenward.grading.judge import Grader
from greenward.grading.verdict import Status
from greenward.problems.catalog import load_suite
from greenward.problems.problem import ProblemSet
from greenward.sandbox.protocol import Limits


@pytest.fixture(scope="module")
def grader():
    with Grader(Limits(cpu_seconds=20.0, wall_seconds=60.0), workers=2) as grader:
        yield grader


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GREENWARD_CACHE", str(tmp_path))


@functools.cache
def mbpp_plus(path: Path) -> ProblemSet:
    return load_suite("mbpp+", path=path)


def failing(grader: Grader, problems: ProblemSet) -> list[str]:
    verdicts = grader.grade([(problem, problem.reference) for problem in problems])
    return [
        f"{problem.task_id}: {verdict.status.value} {verdict.first_failure}"
        for problem, verdict in zip(problems, verdicts, strict=True)
        if not verdict.passed
    ]


@pytest.mark.parametrize("factor", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "file", "every"),
    [
        ("mbpp", "mbpp/mbpp.jsonl", 10),
        ("mbpp-sanitized", "mbpp/sanitized-mbpp.json", 10),
        ("humaneval", "humaneval/HumanEval.jsonl.gz", 3),
        ("humaneval+mini", "evalplus/HumanEvalPlus-Mini.jsonl.gz", 5),
        ("mbpp+", "evalplus/MbppPlus.jsonl.gz", 24),
    ],
)
def test_references_pass(public, cache, grader, name, file, every, factor):
    problems = grader.complete(load_suite(name, path=public(file))[:: factor * every])
    assert failing(grader, problems) == []


@pytest.mark.parametrize("task_id", ["Mbpp/367", "Mbpp/596", "Mbpp/927"])
def test_tests_that_need_more_than_the_answer(public, grader, task_id):
    """367 and 927 set up after the solution; 596 uses a module that the solution imports."""
    problem = load_suite("mbpp", path=public("mbpp/mbpp.jsonl")).by_id(task_id)
    assert failing(grader, ProblemSet([problem])) == []


@pytest.mark.parametrize(
    ("form", "passes"),
    [
        ("list({})", True),
        ("iter({})", True),
        ("(x for x in {})", True),
        ("dict.fromkeys({}).keys()", True),
        ("iter([*{}, 'more'])", False),
        ("iter([])", False),
        ("object()", False),
    ],
)
def test_what_is_compared_as_a_set_may_be_any_iterable_as_in_evalplus(public, cache, grader, form, passes):
    problem = mbpp_plus(public("evalplus/MbppPlus.jsonl.gz")).by_id("Mbpp/2")
    (problem,) = grader.complete(ProblemSet([problem]))
    answer = f"def similar_elements(a, b):\n    return {form.format('(set(a) & set(b))')}\n"
    (verdict,) = grader.grade([(problem, answer)])
    assert verdict.passed is passes


def test_without_its_function_an_answer_to_a_set_problem_has_no_code(public, cache, grader):
    problem = mbpp_plus(public("evalplus/MbppPlus.jsonl.gz")).by_id("Mbpp/2")
    (problem,) = grader.complete(ProblemSet([problem]))
    (verdict,) = grader.grade([(problem, "def other(a, b): pass")])
    assert verdict.status is Status.NO_CODE


@pytest.mark.parametrize("task_id", ["Mbpp/2", "Mbpp/124", "Mbpp/252", "Mbpp/558", "Mbpp/581", "Mbpp/737"])
def test_oracles_and_restored_types(public, cache, grader, task_id):
    problem = mbpp_plus(public("evalplus/MbppPlus.jsonl.gz")).by_id(task_id)
    assert failing(grader, grader.complete(ProblemSet([problem]))) == []


@pytest.mark.slow
def test_quixbugs_tells_right_from_wrong(public):
    folder = public("quixbugs")
    problems = load_suite("quixbugs", path=folder)
    buggy = [(problem, problem.buggy_code) for problem in problems]
    # The slowest correct programs take one to two seconds on a slow machine.
    with Grader(Limits(cpu_seconds=6.0, wall_seconds=30.0), workers=2) as grader:
        assert failing(grader, problems) == []
        verdicts = grader.grade(buggy)
    assert not any(verdict.passed or verdict.status.value == "infrastructure" for verdict in verdicts)


def test_contest_programs_and_methods_are_judged(grader, lines):
    programs = {"question": "Add.", "input_output": {"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]}}
    methods = {"question": "Add.", "input_output": {"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "add"}}
    program, method = load_suite(str(lines(programs, methods)))
    source = "class Solution:\n    def add(self, a, b):\n        return a {} b\n"
    verdicts = grader.grade(
        [
            (program, "print(sum(map(int, input().split())))"),
            (program, "print(3)"),
            (method, source.format("+")),
            (method, "def add(a, b):\n    return a + b\n"),
            (method, source.format("-")),
        ]
    )
    assert [verdict.passed for verdict in verdicts] == [True, False, True, True, False]
