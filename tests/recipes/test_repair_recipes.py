"""Recipes that train the repair of buggy programs."""

from __future__ import annotations

import json

import pytest

from greenward.config.loading import load_recipe
from greenward.config.recipe import GRPORecipe
from greenward.errors import ProblemError
from greenward.problems.families.supervised import generated_examples
from greenward.problems.mutation.repair import original_id
from greenward.recipes.build import build_problems
from greenward.recipes.suites import find_suite
from greenward.recipes.train import train
from greenward.runs.metrics import read_metrics

SMALL = (
    "problems.train=bugs:families",
    "problems.held_out=bugs:families",
    "problems.families.limit=40",
    "problems.bugs.show_failing_test=true",
    "model.shape={layers: 1, hidden_size: 32, heads: 2, kv_heads: 2, intermediate_size: 64, max_positions: 512}",
    "warm_start.max_steps=2",
    "warm_start.batch_size=8",
    "training.max_steps=2",
    "training.prompts_per_step=2",
    "training.num_generations=2",
    "training.checkpoint_interval_steps=2",
    "training.threads=1",
    "sampling.max_tokens=24",
    "evaluation.num_questions=4",
    "evaluation.samples=1",
    "evaluation.k=[1]",
    "evaluation.eval_interval_steps=2",
)


def problem_file(path, name):
    row = {
        "function_name": name,
        "docstring": "Return twice n.",
        "test_cases": [[1, 2], [3, 6]],
        "starter_code": "",
        "reference": f"def {name}(n):\n    return 2 * n\n",
    }
    path.write_text(json.dumps([row]))
    return str(path)


def recipe(train, held_out, **keys):
    return GRPORecipe.model_validate({"problems": {"train": train, "held_out": held_out, **keys}})


def test_repair_is_trained_from_a_recipe(tmp_path):
    assert train(load_recipe("quickstart", SMALL), tmp_path / "run", quiet=True)
    assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl").rows] == [1, 2]
    warm = read_metrics(tmp_path / "run" / "warm_start" / "metrics.jsonl").rows
    assert [row["step"] for row in warm] == [1, 2]
    for file in (tmp_path / "run" / "rollouts").iterdir():
        assert all("#" in json.loads(line)["problem"] for line in file.read_text().splitlines())


def test_both_sides_hold_verified_bugs_of_different_programs():
    settings = load_recipe("quickstart", SMALL)
    train_problems, held_out = build_problems(settings)
    assert not set(map(original_id, train_problems)) & set(map(original_id, held_out))
    assert all(problem.buggy_code and problem.failing_test for problem in (*train_problems, *held_out))
    assert list(find_suite("held_out", settings)) == list(held_out)


def test_one_program_on_both_sides_is_refused_whatever_its_bugs(tmp_path):
    file = problem_file(tmp_path / "one.json", "double")
    with pytest.raises(ProblemError, match="both trained on and held out"):
        build_problems(recipe(f"bugs:{file}", file))


def test_test_problems_of_mbpp_are_refused_with_a_bug_as_well(tmp_path, monkeypatch):
    row = {"text": "Double.", "code": "def f(x):\n  return 2 * x", "test_list": ["assert f(3) == 6"]}
    (tmp_path / "mbpp.jsonl").write_text(json.dumps({"task_id": 20, **row}))
    monkeypatch.delenv("MBPP_DATASET_PATH", raising=False)
    monkeypatch.setenv("GREENWARD_DATA", str(tmp_path))
    with pytest.raises(ProblemError, match="test problems of MBPP"):
        build_problems(recipe("bugs:mbpp", "classic_evaluation"))


def test_the_warm_start_repairs_or_leaves_the_bug_in(tmp_path):
    file = problem_file(tmp_path / "one.json", "double")
    train_problems, _ = build_problems(recipe(f"bugs:{file}", "classic_evaluation"))
    (problem,) = train_problems
    examples = generated_examples(train_problems, 0.5, seed=0, examples_per_problem=40)
    assert {example.is_wrong for example in examples} == {True, False}
    for example in examples:
        program = example.prompt_text + example.completion_text
        assert program == (problem.buggy_code if example.is_wrong else problem.reference)


def test_given_bugs_are_shown_with_their_failing_test_where_that_is_asked_for(tmp_path):
    file = tmp_path / "one.json"
    problem_file(file, "double")
    (row,) = json.loads(file.read_text())
    file.write_text(json.dumps([{**row, "buggy_code": "def double(n):\n    return 3 * n\n"}]))
    for shown, told in ((True, "double(1): expected 2, got 3"), (False, "")):
        settings = recipe(str(file), "classic_evaluation", bugs={"show_failing_test": shown})
        train_problems, held_out = build_problems(settings)
        assert [problem.failing_test for problem in train_problems] == [told]
        assert not any(problem.failing_test for problem in held_out)


def test_a_warm_start_needs_programs_that_continue_the_starter_code(tmp_path):
    file = tmp_path / "one.json"
    problem_file(file, "double")
    (row,) = json.loads(file.read_text())
    file.write_text(json.dumps([{**row, "buggy_code": "def double(m):\n    return 3 * m\n"}]))
    train_problems, _ = build_problems(recipe(str(file), "classic_evaluation"))
    with pytest.raises(ProblemError, match="double: expected a reference and a buggy program"):
        generated_examples(train_problems, 0.5, seed=0)
