"""Problem sets by name, and the sets that come with greenward."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from greenward.common.errors import ProblemError
from greenward.config.section import FamiliesConfig
from greenward.grading.judge import Grader
from greenward.problems.catalog import load_problems, load_suite
from greenward.problems.formats import save_json
from greenward.problems.generated import generate, split
from greenward.problems.names import SHIPPED
from greenward.sandbox.protocol import Limits

# The classic problems, answered a second time.
ORACLES: dict[str, Callable[..., Any]] = {
    "add_numbers": lambda a, b: a - -b,
    "is_even": lambda n: str(n)[-1] in "02468",
    "max_of_three": lambda *numbers: sorted(numbers)[-1],
    "is_palindrome": lambda s: list(s) == list(reversed(s)),
    "factorial": lambda n: prod(range(1, n + 1)),
    "reverse_string": lambda s: "".join(reversed(s)),
    "count_vowels": lambda s: len([c for c in s if c in "aeiouAEIOU"]),
    "sum_list": sum,
    "multiply": lambda a, b: a * b,
    "is_prime": lambda n: [d for d in range(1, n + 1) if n % d == 0] == [1, n],
    "find_min": lambda numbers: sorted(numbers)[0],
}
EDGES = {
    "add_numbers": (0, 0), "is_even": (0,), "max_of_three": (5, 5, 5), "is_palindrome": ("",), "factorial": (0,),
    "reverse_string": ("",), "count_vowels": ("",), "sum_list": ([],),
    "multiply": (0, 5), "is_prime": (1,), "find_min": ([10],),
}  # fmt: skip


def test_eight_problems_to_train_on_and_three_to_evaluate() -> None:
    assert [p.task_id for name in SHIPPED for p in load_suite(name)] == list(ORACLES)
    assert [len(load_suite(name)) for name in SHIPPED] == [8, 3]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_cases_are_right_and_have_an_edge_case(name: str) -> None:
    for problem in load_suite(name):
        assert len(problem.cases) >= 8
        assert len(set(map(repr, problem.cases))) == len(problem.cases)
        assert EDGES[problem.task_id] in [case.args for case in problem.cases]
        for case in problem.cases:
            expected = ORACLES[problem.task_id](*case.args)
            assert (case.expected, type(case.expected)) == (expected, type(expected))


def test_shipped_references_pass_in_the_sandbox() -> None:
    problems = [problem for name in SHIPPED for problem in load_suite(name)]
    with Grader(Limits(), workers=2) as grader:
        verdicts = grader.grade([(problem, problem.reference) for problem in problems])
        empty = grader.grade([(problem, problem.starter_code) for problem in problems])
    assert [v.status.value for v in verdicts] == ["passed"] * 11
    assert not any(v.passed for v in empty)


def test_families_are_the_two_sides_of_the_split() -> None:
    config = FamiliesConfig(limit=100, held_out=0.3, seed=2)
    train, held_out = split(generate(config), 0.3, 2)
    assert list(load_problems("families", config, "train")) == list(train)
    assert list(load_problems("families", config, "held_out")) == list(held_out)


def test_shipped_sets_and_files_are_taken_whole(tmp_path: Path) -> None:
    shipped = load_suite("classic_training")
    path = tmp_path / "mine.json"
    save_json(shipped, path)
    for source in ("classic_training", str(path)):
        assert list(load_problems(source, FamiliesConfig(), "train")) == list(shipped)
        assert list(load_problems(source, FamiliesConfig(), "held_out")) == list(shipped)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("classic_trainig", "Did you mean 'classic_training'?"),
        ("mbp", "Did you mean 'mbpp'?"),
        ("humanevl+", "Did you mean 'humaneval+'?"),
        ("famillies", "Did you mean 'families'?"),
        ("zzz", "Known: families, modules, vulnerabilities, classic_training, classic_evaluation"),
    ],
)
def test_unknown_name_is_told_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ProblemError) as caught:
        load_problems(name, FamiliesConfig(), "train")
    assert caught.value.message == f"no problem set is called {name!r}."
    assert (caught.value.remedy or "").startswith(hint)
    if "families" not in hint:  # those are no suite
        with pytest.raises(ProblemError, match=re.escape(hint)):
            load_suite(name)


def test_missing_file_is_told_as_such() -> None:
    with pytest.raises(ProblemError, match=r"mine\.json: there is no such file"):
        load_problems("mine.json", FamiliesConfig(), "train")


def test_a_misspelt_format_before_a_file_is_told_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    save_json(load_suite("classic_training"), path)
    assert list(load_suite(f"json:{path}")) == list(load_suite("classic_training"))
    with pytest.raises(ProblemError, match=re.escape(f"Did you mean 'kodcode:{path}'?")):
        load_suite(f"kodcod:{path}")
    with pytest.raises(ProblemError, match=r"mine\.parquet: there is no such file"):
        load_suite(f"kodcode:{tmp_path / 'mine.parquet'}")
