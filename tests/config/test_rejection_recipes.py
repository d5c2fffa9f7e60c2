from __future__ import annotations

import pytest

from greenward.common.errors import ConfigError
from greenward.config.loading import dump, load_recipe, parse_recipe


def test_a_resolved_recipe_loads_again() -> None:
    recipe = parse_recipe("algorithm: {name: rejection, min_reward: 0.5, replay_rounds: 3}")
    assert (recipe.algorithm.min_reward, recipe.algorithm.replay_rounds) == (0.5, 3)
    assert parse_recipe(dump(recipe)) == recipe


@pytest.mark.parametrize(
    "text",
    [
        "training: {num_generations: 1}",  # no group is compared
        "sampling: {top_p: 0.9}",  # what is kept is data: no ratio to the sampler's distribution is taken
        "reward_model: {}",
        "training: {max_seconds: 60}",
    ],
)
def test_what_a_policy_gradient_could_not_use_is_possible(text: str) -> None:
    assert parse_recipe(text, ["algorithm=rejection"]).algorithm.name == "rejection"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "algorithm: rejection\nfaults: {memory_leak: {}}",
            "faults needs algorithm.name: grpo or algorithm.name: ppo; this recipe has task: functions, algorithm.name: rejection.",
        ),
        (
            "algorithm: {name: rejection, max_per_prompt: 0}",
            "algorithm.max_per_prompt: expected a number greater than 0, found 0",
        ),
        ("algorithm: {name: rejection, epoch: 2}", "unknown key algorithm.epoch. Nearest: algorithm.epochs"),
        (
            "algorithm: rejection\ntraining: {max_seconds: 0}",
            "training.max_seconds: expected a number greater than 0",
        ),
        ("algorithm: rejection\nrewards: []", "rewards is empty"),
    ],
)
def test_impossible_combinations_name_the_way_out(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_recipe(text)
    assert said in str(caught.value)


def test_a_real_model_gets_settings_of_its_own() -> None:
    overrides = ["model=Qwen/Qwen2.5-Coder-0.5B-Instruct", "preset=a100"]
    recipe = load_recipe("rejection_sampling", overrides)
    assert recipe.warm_start is None and recipe.model.dtype == "bfloat16"
    assert recipe.training.learning_rate <= 2e-5 and recipe.sampling.max_tokens >= 256
