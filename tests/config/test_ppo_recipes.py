from __future__ import annotations

import pytest

from greenward.common.errors import ConfigError
from greenward.config.loading import dump, parse_recipe
from greenward.config.recipe import PPORecipe


def test_ppo_chooses_its_own_defaults() -> None:
    algorithm = parse_recipe("algorithm: ppo").algorithm
    assert (algorithm.advantage, algorithm.loss) == ("gae", "ppo")
    assert algorithm.critic is not None and algorithm.critic.gae_lambda == 0.95
    assert PPORecipe().algorithm == algorithm


def test_what_a_ppo_recipe_says_wins_over_its_defaults() -> None:
    recipe = parse_recipe("algorithm: {name: ppo, loss: dapo}", ["algorithm.critic.clip=null"])
    assert recipe.algorithm.loss == "dapo" and recipe.algorithm.advantage == "gae"
    assert recipe.algorithm.critic is not None and recipe.algorithm.critic.clip is None


def test_a_resolved_ppo_recipe_loads_again() -> None:
    recipe = parse_recipe("algorithm: ppo\ntraining: {num_generations: 1}")
    assert parse_recipe(dump(recipe)) == recipe


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("algorithm: {advantage: gae}", "found 'gae'. It needs algorithm.name: ppo."),
        (
            "algorithm: {critic: {}}",
            "algorithm.critic needs algorithm.name: ppo; this recipe has task: functions, algorithm.name: grpo.",
        ),
        (
            "algorithm: {name: ppo, advantage: rloo}",
            "expected 'gae', found 'rloo'. It needs algorithm.name: grpo.",
        ),
        ("algorithm: {name: ppo, critic: null}", "algorithm.critic: expected a section"),
        (
            "algorithm: {name: ppo, dynamic_sampling: true}",
            "algorithm.dynamic_sampling needs algorithm.name: grpo",
        ),
        ("training: {num_generations: 1}", "needs at least 2 (algorithm.name: ppo works with 1)"),
        (
            "algorithm: {kl: {coefficient: 0.1, in_reward: true}}",
            "algorithm.kl.in_reward needs algorithm.name: ppo",
        ),
        ("algorithm: {kl: {target: 0.1}}", "give it a first value above 0"),
    ],
)
def test_impossible_combinations_name_the_way_out(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_recipe(text)
    assert said in str(caught.value)
