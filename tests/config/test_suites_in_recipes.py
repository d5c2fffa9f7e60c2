"""Public suites in a recipe: by name or as sections, and the environment's word on MBPP."""

from __future__ import annotations

import pytest

from greenward.common.errors import ConfigError
from greenward.config.loading import all_recipes, dump, fields_of, parse_recipe, schema_json


def suites(text: str, *overrides: str):
    return parse_recipe(text, overrides).evaluation.suites


def test_a_suite_is_a_name_or_a_section():
    found = suites("evaluation: {suites: [mbpp, {name: humaneval+, num_questions: 5, temperature: 0}]}")
    assert [(suite.name, suite.num_questions, suite.temperature) for suite in found] == [
        ("mbpp", None, 0.2),
        ("humaneval+", 5, 0.0),
    ]
    assert suites("", "evaluation.suites=[mbpp]")[0].timeout_seconds is None
    assert suites("evaluation: {suites: [{name: mbpp}]}", "evaluation.suites.0.fewshot=3")[0].fewshot == 3


def test_a_dumped_recipe_gives_the_same_suites():
    recipe = parse_recipe("evaluation: {suites: [mbpp]}")
    assert parse_recipe(dump(recipe)) == recipe


def test_unknown_keys_of_a_suite_are_named_with_the_nearest():
    with pytest.raises(ConfigError, match="num_questions"):
        suites("evaluation: {suites: [{name: mbpp, num_question: 5}]}")
    assert "evaluation.suites.0.num_questions" in fields_of(all_recipes()["functions", "grpo"])
    assert '"SuiteConfig"' in schema_json()


def test_the_environment_wins_over_recipe_and_command_line(monkeypatch):
    monkeypatch.setenv("MBPP_EVAL_NUM_QUESTIONS", "10")
    text = "evaluation: {suites: [{name: mbpp, num_questions: 3}, 'mbpp:test', mbpp+, humaneval]}"
    found = suites(text, "evaluation.suites.0.num_questions=4")
    assert [suite.num_questions for suite in found] == [10, 10, None, None]


@pytest.mark.parametrize("text", ["ten", "0", "-1", "1.5", ""])
def test_an_environment_variable_that_is_no_number_is_named(monkeypatch, text):
    monkeypatch.setenv("MBPP_EVAL_NUM_QUESTIONS", text)
    with pytest.raises(ConfigError, match="MBPP_EVAL_NUM_QUESTIONS"):
        suites("evaluation: {suites: [mbpp]}")
