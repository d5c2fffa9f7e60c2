"""Audits the reward of a recipe: the weighted sum of its terms, as training pays it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from greenward.config.loading import load_recipe
from greenward.config.recipe import ReinforcementRecipe
from greenward.errors import ConfigError
from greenward.evaluation.audit.audit import audit
from greenward.evaluation.audit.report import AuditReport

_WEIGHTED = "greenward.grading.reward_functions:weighted"


def audit_recipe(name: str, **settings: Any) -> AuditReport:
    """Audits the section `rewards` of the recipe at the path `name`, or shipped under that name.

    Penalties for length and a learned reward model are no part of it. `settings` are those of `audit`.
    Raises `ConfigError` for an unknown recipe or one without rewards.
    """
    recipe = load_recipe(name)
    if not isinstance(recipe, ReinforcementRecipe):
        raise ConfigError(f"the recipe {name} has no rewards.", remedy="Name a recipe with reward terms.")
    rewards = [term.model_dump(mode="json") for term in recipe.rewards]
    report = audit(_WEIGHTED, signature="ours", options={"rewards": rewards}, **settings)
    return replace(report, function=name)
