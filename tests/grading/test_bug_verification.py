"""Which candidates are kept as bugs, and what becomes of the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from greenward.config.section import FamiliesConfig
from greenward.grading.verification import verified_bugs, with_failing_tests
from greenward.problems.generated import generate
from greenward.problems.mutation import repair_candidates
from greenward.problems.problem import Case, Problem, ProblemSet, bug_kind, original_id

RIGHT = "def double(n):\n    return 2 * n\n"


def candidate(number: int, kind: str, code: str) -> Problem:
    return Problem(
        f"double#{number}",
        "Twice n.",
        "double",
        tests=(Case((1,), 2), Case((3,), 6)),
        reference=RIGHT,
        buggy_code=code,
        tags=("mutant", f"bug:{kind}"),
    )


EQUIVALENT = candidate(1, "swapped_operands", "def double(n):\n    return n * 2\n")
ENDLESS = candidate(2, "missing_update", "def double(n):\n    while n:\n        pass\n")
WRONG = candidate(3, "wrong_constant", "def double(n):\n    return 3 * n\n")
RAISING = candidate(4, "wrong_variable", "def double(n):\n    return 2 * m\n")
BROKEN = candidate(5, "missing_return", "raise ValueError('no')\n")


def test_only_bugs_that_a_test_finds_are_kept(grader):
    found = verified_bugs(ProblemSet([EQUIVALENT, ENDLESS, WRONG, RAISING, BROKEN]), grader)
    assert [p.task_id for p in found.problems] == ["double#3", "double#4", "double#5"]
    assert found.counts == {
        "swapped_operands": Counter(equivalent=1),
        "missing_update": Counter(misbehaved=1),
        "wrong_constant": Counter(verified=1),
        "wrong_variable": Counter(verified=1),
        "missing_return": Counter(verified=1),
    }


def test_the_first_failing_test_is_told(grader):
    wrong, raising, broken = verified_bugs(ProblemSet([WRONG, RAISING, BROKEN]), grader).problems
    assert wrong.failing_test == "double(1): expected 2, got 3"
    assert "double(1)" in raising.failing_test
    assert "NameError" in raising.failing_test
    assert "ValueError" in broken.failing_test


def test_others_are_tried_only_where_the_first_are_no_bugs(grader):
    found = verified_bugs(ProblemSet([EQUIVALENT, WRONG, RAISING]), grader, per_problem=1)
    assert [p.task_id for p in found.problems] == ["double#3"]
    assert "wrong_variable" not in found.counts


def test_rows_that_were_skipped_stay_told(grader):
    originals = ProblemSet(
        [replace(WRONG, task_id="double", buggy_code="", tags=())], skipped=("row 2 is bad",)
    )
    candidates = repair_candidates(originals, per_problem=1, seed=0)
    found = verified_bugs(candidates, grader).problems
    told = with_failing_tests(ProblemSet([WRONG], skipped=originals.skipped), grader)
    completed = grader.complete(originals)
    for problems in (candidates, found, told, completed):
        assert len(problems) == 1
        assert problems.skipped == ("row 2 is bad",)


@pytest.fixture(scope="module")
def candidates() -> ProblemSet:
    problems = generate(FamiliesConfig(limit=40))
    return repair_candidates(problems, per_problem=4, seed=3)


def test_verified_bugs_fail_when_they_are_run_without_a_sandbox(grader, candidates):
    """Generated programs are our own, so plain `exec` can say what they compute."""
    found = verified_bugs(candidates, grader, per_problem=2)
    assert max(Counter(map(original_id, found.problems)).values()) == 2
    for problem in found.problems:
        assert passes(problem, problem.reference)
        assert not passes(problem, problem.buggy_code)
    kept = {problem.task_id for problem in found.problems}
    equivalent = [p for p in candidates if p.task_id not in kept and passes(p, p.buggy_code)]
    tried = sum(counts["equivalent"] for counts in found.counts.values())
    assert tried <= len(equivalent)
    assert {bug_kind(problem) for problem in found.problems} <= found.counts.keys()


def passes(problem: Problem, code: str) -> bool:
    names: dict = {}
    exec(code, names)
    try:
        results = [names[problem.entry_point](*case.args) for case in problem.cases]
    except Exception:
        return False
    return all(
        result == case.expected and type(result) is type(case.expected)
        for result, case in zip(results, problem.cases, strict=True)
    )
