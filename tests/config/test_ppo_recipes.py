from __future__ import annotations

import pytest

from greenward.config.loading import dump, parse_recipe
from greenward.config.schema import Recipe
from greenward.errors import ConfigError


def test_ppo_chooses_its_own_defaults() -> None:
    algorithm = parse_recipe("kind: ppo").algorithm
    assert (algorithm.advantage, algorithm.loss) == ("gae", "ppo")
    assert algorithm.critic is not None and algorithm.critic.gae_lambda == 0.95
    assert Recipe(kind="ppo").algorithm == algorithm


def test_what_a_ppo_recipe_says_wins_over_its_defaults() -> None:
    recipe = parse_recipe("kind: ppo\nalgorithm: {loss: dapo}", ["algorithm.critic.clip=null"])
    assert recipe.algorithm.loss == "dapo" and recipe.algorithm.advantage == "gae"
    assert recipe.algorithm.critic is not None and recipe.algorithm.critic.clip is None


def test_a_resolved_ppo_recipe_loads_again() -> None:
    recipe = parse_recipe("kind: ppo\ntraining: {num_generations: 1}")
    assert parse_recipe(dump(recipe)) == recipe


def test_other_kinds_have_no_critic() -> None:
    assert parse_recipe("kind: grpo").algorithm.critic is None
    assert parse_recipe("kind: grpo").algorithm.advantage == "grpo"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("algorithm: {advantage: gae}", "need kind: ppo"),
        ("algorithm: {critic: {}}", "need kind: ppo"),
        ("kind: ppo\nalgorithm: {advantage: rloo}", "leave the key out, or set kind: grpo"),
        ("kind: ppo\nalgorithm: {critic: null}", "leave the key out for its defaults"),
        ("kind: ppo\nalgorithm: {dynamic_sampling: true}", "leave it off for kind: ppo"),
        ("training: {num_generations: 1}", "needs at least 2 (kind: ppo does with 1)"),
        (
            "algorithm: {kl: {coefficient: 0.1, in_reward: true}}",
            "in_reward needs rewards per token, so kind: ppo",
        ),
        ("algorithm: {kl: {target: 0.1}}", "give it a first value above 0"),
    ],
)
def test_impossible_combinations_name_the_way_out(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_recipe(text)
    assert said in str(caught.value)
