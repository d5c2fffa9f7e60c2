"""Which problems a recipe may train on."""

from __future__ import annotations

import json

import pytest

from greenward.config.recipe import GRPORecipe
from greenward.errors import ProblemError
from greenward.recipes.build import build_problems

ROW = {"text": "Double.", "code": "def f(x):\n  return 2 * x", "test_list": ["assert f(1) == 2"]}


@pytest.fixture(autouse=True)
def mbpp(tmp_path, monkeypatch):
    rows = "\n".join(json.dumps({"task_id": number, **ROW}) for number in (20, 30, 601, 602))
    (tmp_path / "mbpp.jsonl").write_text(rows)
    monkeypatch.delenv("MBPP_DATASET_PATH", raising=False)
    monkeypatch.setenv("GREENWARD_DATA", str(tmp_path))


def recipe(**problems):
    return GRPORecipe.model_validate({"problems": problems})


def test_parts_of_a_suite_are_trained_on_and_held_out():
    train, held_out = build_problems(recipe(train="mbpp:train", held_out="mbpp:test"))
    assert [p.task_id for p in train] == ["Mbpp/601", "Mbpp/602"]
    assert [p.task_id for p in held_out] == ["Mbpp/20", "Mbpp/30"]


def test_training_on_test_problems_is_refused_unless_allowed():
    with pytest.raises(ProblemError, match=r"2 of the problems .*\n.*problems\.allow_test_ids=true"):
        build_problems(recipe(train="mbpp"))
    assert len(build_problems(recipe(train="mbpp", allow_test_ids=True))[0]) == 4


def test_test_problems_are_known_by_their_ids_wherever_they_come_from(tmp_path):
    own = {"function_name": "f", "docstring": "Double.", "test_cases": [[1, 2]], "task_id": "Mbpp/20"}
    (tmp_path / "own.json").write_text(json.dumps(own))
    with pytest.raises(ProblemError, match="first: Mbpp/20"):
        build_problems(recipe(train=str(tmp_path / "own.json")))
