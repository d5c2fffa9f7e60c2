"""The environment variable that wins over a recipe: `MBPP_EVAL_NUM_QUESTIONS`.

It is applied when a recipe is loaded, so that the resolved recipe says what was done.
(`MBPP_DATASET_PATH`, where MBPP's file lies, is read where suites are found.)
"""

from __future__ import annotations

from collections.abc import Mapping

from greenward.config.evaluation import SuiteConfig
from greenward.config.schema import Recipe
from greenward.errors import ConfigError

NUM_QUESTIONS = "MBPP_EVAL_NUM_QUESTIONS"


def with_environment(recipe: Recipe, environment: Mapping[str, str]) -> Recipe:
    """The recipe with so many questions of MBPP, or of a part of it, as the environment says.

    Raises `ConfigError` for a variable that holds no positive whole number.
    """
    text = environment.get(NUM_QUESTIONS)
    if text is None:
        return recipe
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigError(f"{NUM_QUESTIONS}: expected a positive whole number, found {text!r}.")
    suites = tuple(_asked(suite, int(text)) for suite in recipe.evaluation.suites)
    return recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"suites": suites})})


def _asked(suite: SuiteConfig, questions: int) -> SuiteConfig:
    is_mbpp = suite.name.partition(":")[0] == "mbpp"
    return suite.model_copy(update={"num_questions": questions}) if is_mbpp else suite
