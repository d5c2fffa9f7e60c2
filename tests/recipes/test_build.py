import json

import pytest

from greenward.config.recipe import GRPORecipe
from greenward.errors import ProblemError
from greenward.recipes.build import build_grader, build_problems, verify_references


def problem_file(path, name, reference):
    row = {
        "function_name": name,
        "docstring": "Return twice n.",
        "test_cases": [[1, 2], [3, 6]],
        "starter_code": "",
        "reference": reference,
    }
    path.write_text(json.dumps([row]))
    return str(path)


def recipe(train, held_out, **keys):
    return GRPORecipe.model_validate({"problems": {"train": train, "held_out": held_out, **keys}})


def test_a_reference_that_fails_its_own_tests_stops_the_run_before_it_begins(tmp_path):
    good = problem_file(tmp_path / "good.json", "double", "def double(n):\n    return 2 * n\n")
    bad = problem_file(tmp_path / "bad.json", "triple", "def triple(n):\n    return 3 * n\n")
    settings = recipe(good, bad)
    with build_grader(settings.sandbox) as grader:
        with pytest.raises(ProblemError, match=r"1 of 2 reference solutions fail.*\n  triple: failed"):
            verify_references(settings, grader, *build_problems(settings))
        unchecked = recipe(good, bad, verify_references=False)
        verify_references(unchecked, grader, *build_problems(unchecked))


def test_a_problem_on_both_sides_is_refused(tmp_path):
    file = problem_file(tmp_path / "one.json", "double", "def double(n):\n    return 2 * n\n")
    with pytest.raises(ProblemError, match=r"both trained on and held out \(first: 'double'\)"):
        build_problems(recipe(file, file))
