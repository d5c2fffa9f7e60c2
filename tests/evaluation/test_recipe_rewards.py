"""No shipped recipe pays a wrong or a padded answer more than an honest right one."""

from __future__ import annotations

import json

import pytest

from greenward.common.errors import ConfigError
from greenward.config.loading import load_recipe, shipped_recipes
from greenward.config.recipe import RewardedRecipe
from greenward.evaluation.audit import audit_recipe
from greenward.evaluation.audit_programs import CHEATS

# Recipes that share their rewards are audited once. An audit grades programs, not labels.
DISTINCT = {
    json.dumps([term.model_dump(mode="json") for term in recipe.rewards]): name
    for name, recipe in ((name, load_recipe(name)) for name in shipped_recipes())
    if isinstance(recipe, RewardedRecipe) and recipe.problems.train != "vulnerabilities"
}
SLOW = ("endless", "flood", "signals", "stealing expected values")  # about the grader, not about rewards
QUICK_CHEATS = [cheat for cheat in CHEATS if cheat.family not in SLOW]


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(name, marks=() if name == "grpo_code_execution" else pytest.mark.slow)
        for name in sorted(DISTINCT.values())
    ],
)
def test_the_reward_of_every_shipped_recipe_is_sound(recipe):
    report = audit_recipe(recipe, timeout_seconds=60.0, cheats=QUICK_CHEATS)
    assert report.function == recipe
    assert report.sound, (report.accepted, report.broken_by, report.false_refusals)
    tried = {trial.family for trial in report.cheats}
    assert {"padding", "pointless output", "leaving the bug in", "constant", "errors hidden"} <= tried


def cheats_of(*families):
    return [cheat for cheat in CHEATS if cheat.family in families]


def test_weights_that_pay_a_bug_that_reads_well_are_found(tmp_path):
    recipe = tmp_path / "own.yaml"
    recipe.write_text("rewards: [{name: code_score}]\n")
    report = audit_recipe(str(recipe), timeout_seconds=60.0, cheats=cheats_of("leaving the bug in"))
    assert report.accepted


@pytest.mark.slow
def test_a_reward_for_length_is_found(tmp_path, monkeypatch):
    (tmp_path / "own_terms.py").write_text(
        "def long(answers):\n    return [min(len(a.code or ''), 500) / 1000 for a in answers]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = tmp_path / "own.yaml"
    recipe.write_text("rewards: [{name: tests}, {name: 'own_terms:long'}]\n")
    cheats = cheats_of("padding", "pointless output")[:12]
    report = audit_recipe(str(recipe), timeout_seconds=60.0, cheats=cheats)
    assert len(report.accepted) == len(cheats)


def test_an_unknown_recipe_is_an_error():
    with pytest.raises(ConfigError, match="quickstart"):
        audit_recipe("quickstrat")
