"""Problems of repair by name and from files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from greenward.common.errors import ProblemError
from greenward.config.section import BugsConfig, FamiliesConfig
from greenward.problems.catalog import load_problems, load_quixbugs, load_suite
from greenward.problems.formats import load_json, save_json
from greenward.problems.problem import Case, Check, Problem, original_id

ROW = {
    "task_id": "Python/0",
    "prompt": 'def double(n: int) -> int:\n    """Twice n."""\n',
    "declaration": "def double(n: int) -> int:\n",
    "canonical_solution": "    return 2 * n\n",
    "buggy_solution": "    return 2 + n\n",
    "bug_type": "operator misuse",
    "failure_symptoms": "incorrect output",
    "entry_point": "double",
    "test": "def check(double):\n    assert double(3) == 6\n\ncheck(double)\n",
}


def test_a_pack_file_is_known_by_its_fields(lines):
    (problem,) = load_suite(str(lines(ROW)))
    assert problem.buggy_code == "def double(n: int) -> int:\n    return 2 + n\n"
    assert problem.reference == "def double(n: int) -> int:\n    return 2 * n\n"
    assert problem.starter_code == ROW["declaration"]
    assert problem.sources(Check) == (ROW["test"],)  # it calls itself
    assert problem.tags == ("bug:operator_misuse",)


def test_a_check_that_is_only_defined_is_called(lines):
    (problem,) = load_suite(
        str(lines({**ROW, "test": "def check(candidate):\n    assert candidate(3) == 6\n"}))
    )
    assert problem.sources(Check)[0].endswith("\ncheck(double)\n")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("task_id", "Rust/0", "must name a problem in Python"),
        ("test", "assert double(3) == 6", "does not define check"),
        ("declaration", None, "must be text, found null"),
    ],
)
def test_a_wrong_row_is_named(lines, field, value, message):
    with pytest.raises(ProblemError, match=f"row 1 .*field '{field}' {message}"):
        load_suite(str(lines({**ROW, field: value})))


def test_quixbugs_gives_its_buggy_programs(public):
    folder = public("quixbugs")
    problems = load_quixbugs(folder)
    assert len(problems) == 40
    for problem in problems:
        name = problem.task_id.rpartition("/")[2]
        assert problem.buggy_code == (folder / "python_programs" / f"{name}.py").read_bytes().decode()
        assert problem.buggy_code != problem.reference


def test_problems_of_repair_survive_their_file(tmp_path):
    problem = Problem(
        "double#1",
        "Twice n.",
        "double",
        tests=(Case((1,), 2),),
        starter_code="def double(n):\n",
        reference="def double(n):\n    return 2 * n\n",
        buggy_code="def double(n):\n    return 3 * n\n",
        failing_test="double(1): expected 2, got 3",
        tags=("mutant", "bug:wrong_constant"),
    )
    original = replace(problem, task_id="double", buggy_code="", failing_test="", tags=())
    save_json([problem, original], tmp_path / "mine.json")
    loaded = load_json(tmp_path / "mine.json")
    assert [replace(p, comparison=problem.comparison) for p in loaded] == [problem, original]


def test_bugs_are_put_into_any_problems_with_references():
    candidates = load_problems("bugs:classic_training", FamiliesConfig(), "train", bugs=BugsConfig(seed=1))
    assert {original_id(c) for c in candidates} == {
        p.task_id for p in load_problems("classic_training", FamiliesConfig(), "train")
    }
    assert all(c.buggy_code for c in candidates)


def test_no_program_is_held_out_that_was_trained_on_with_another_bug():
    families = FamiliesConfig(limit=120, held_out=0.3)
    bugs = BugsConfig(per_problem=3)
    train, held_out = (
        {original_id(p) for p in load_problems("bugs:families", families, part, bugs=bugs)}
        for part in ("train", "held_out")
    )
    assert not train & held_out
    assert held_out == {p.task_id for p in load_problems("families", families, "held_out")}


def test_problems_without_references_and_unknown_names_are_refused(tmp_path):
    path = tmp_path / "bare.json"
    save_json([Problem("f", "One.", "f", tests=(Case((1,), 1),), starter_code="def f(n):\n")], path)
    with pytest.raises(ProblemError, match="none of the problems has a reference"):
        load_problems(f"bugs:{path}", FamiliesConfig(), "train")
    with pytest.raises(ProblemError, match="'families'"):
        load_problems("bugs:familes", FamiliesConfig(), "train")
