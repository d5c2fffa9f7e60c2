"""Presets: what they give, to which models, and that a value of the user's wins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from greenward.common.errors import ConfigError
from greenward.config.loading import (
    PRESETS,
    Surroundings,
    dump,
    load_recipe,
    parse_recipe,
    preset_line,
    schema_json,
    shipped_recipes,
)
from greenward.config.recipe import ModelRecipe, Recipe
from greenward.hardware import detection
from greenward.models.memory import find_gpu, plan_lines

MODEL = "model=owner/name"
LANGUAGE_MODELS = sorted(name for name in shipped_recipes() if name != "dqn_code_generation")


def on(name: str, **facts: object) -> Callable[[], Surroundings]:
    return lambda: Surroundings(name, **facts)  # type: ignore[arg-type]


def settings(recipe: Recipe) -> tuple[object, ...]:
    return recipe.model.dtype, recipe.model.gradient_checkpointing, recipe.training.micro_batch_sequences  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("machine", "expected", "questions"),
    [
        ("v100", ("float16", "auto", 4), 40),
        ("a100", ("bfloat16", "auto", 8), 100),
        ("h100", ("bfloat16", "auto", 16), 100),
        ("cpu", ("auto", "auto", 8), 20),
    ],
)
def test_shipped_recipes_take_the_settings_of_the_machine(
    machine: str, expected: tuple[object, ...], questions: int
) -> None:
    recipe = load_recipe("quickstart", [MODEL], machine=on(machine))
    assert (recipe.preset, settings(recipe), recipe.evaluation.num_questions) == (
        machine,
        expected,
        questions,
    )
    assert (recipe.model.lora is not None) == (machine == "v100")
    assert set(recipe.preset_keys) == PRESETS[machine].keys() - {"model.id"}
    named = load_recipe("quickstart", [MODEL, f"preset={machine}"], machine=on("cpu"))
    assert named == recipe


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_decoder_from_random_weights_has_no_preset(name: str) -> None:
    plain = load_recipe(name)
    for machine in PRESETS:
        assert load_recipe(name, machine=on(machine)) == plain
        assert load_recipe(name, [f"preset={machine}"]) == plain.model_copy(update={"preset": machine})
    assert preset_line(plain) is None


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_fits_every_shipped_recipe_and_what_it_resolves_to_loads_again(
    name: str, preset: str
) -> None:
    recipe = load_recipe(name, [MODEL], machine=on(preset))
    assert parse_recipe(dump(recipe), machine=on("h100")) == recipe


def test_values_of_the_user_win_wherever_they_are_given() -> None:
    text = """
        model: {dtype: float32}
        tracking: {wandb: {project: mine}}
        pretrained: {training: {micro_batch_sequences: 6}}
    """
    recipe = parse_recipe(text, [MODEL, "evaluation.num_questions=7"], machine=on("v100"))
    assert settings(recipe) == ("float32", "auto", 6)
    assert recipe.evaluation.num_questions == 7 and recipe.tracking.wandb is not None
    assert recipe.preset_keys == ("model.lora",)
    line = preset_line(recipe)
    assert line is not None and "model.lora" in line and "dtype" not in line
    given = ["model.cache_dir=null", "model.offline=false", "model.lora=null"]
    away = on("v100", offline="there is no default route", cache="./model_cache")
    off = parse_recipe(text, [MODEL, *given], machine=away)
    assert (off.model.cache_dir, off.model.offline, off.model.lora) == (None, False, None)
    assert off.tracking.wandb is not None


@pytest.mark.parametrize("name", ["v100", "a100", "h100", "cpu"])
def test_the_site_decides_what_is_offline_not_the_card(name: str) -> None:
    there = load_recipe("quickstart", [MODEL], machine=on(name))
    assert (there.model.offline, there.model.cache_dir, there.tracking.wandb) == (False, None, None)
    away = load_recipe(
        "quickstart", [MODEL], machine=on(name, offline="MIT Supercloud", cache="./model_cache")
    )
    assert (away.model.offline, away.model.cache_dir, away.tracking.wandb) == (True, "./model_cache", None)
    own = load_recipe("quickstart", [MODEL], machine=on(name, offline="HF_HUB_OFFLINE is set"))
    assert (own.model.offline, own.model.cache_dir) == (True, None)
    none = load_recipe("quickstart", [MODEL, "preset=none"], machine=on(name, offline="MIT Supercloud"))
    assert not none.model.offline


@pytest.mark.parametrize(
    ("name", "offline", "online"),
    [("a100", "", True), ("h100", "", True), ("v100", "", False), ("cpu", "", False), ("h100", "no", False)],
)
def test_wandb_is_on_where_it_has_a_key_and_the_card_is_large(name: str, offline: str, online: bool) -> None:
    recipe = load_recipe("quickstart", [MODEL], machine=on(name, offline=offline, wandb=True))
    assert (recipe.tracking.wandb is not None) == online
    assert not online or recipe.tracking.wandb.mode == "online"
    assert load_recipe("quickstart", [MODEL], machine=on(name)).tracking.wandb is None
    off = load_recipe("quickstart", [MODEL, "tracking.wandb=null"], machine=on(name, wandb=True))
    assert off.tracking.wandb is None


@pytest.mark.parametrize("name", ["grpo_code_execution", "spiral_self_play", "grpo_code_game"])
@pytest.mark.parametrize(
    ("gpu", "model"),
    [
        ("v100-16", "Qwen/Qwen2.5-1.5B"),
        ("v100", "Qwen/Qwen2.5-1.5B"),
        ("a100", "Qwen/Qwen2.5-3B"),
        ("h100", "Qwen/Qwen2.5-3B"),
    ],
)
def test_the_model_of_a_preset_fits_the_memory_of_its_card(name: str, gpu: str, model: str) -> None:
    """By whole copies on one card: an adapter on a V100, all weights on the others."""
    preset = find_gpu(gpu).preset
    recipe = load_recipe(name, ["model=auto"], machine=on(preset))
    assert isinstance(recipe, ModelRecipe) and recipe.model.id == model
    assert (recipe.model.lora is not None) == (preset == "v100")
    for named in ("auto", model):
        lines = plan_lines(name, [f"model={named}"], gpu=gpu, gpus=1, price=None, prompt_tokens=512)
        (line,) = [one for one in lines if one.startswith("memory of each GPU, whole copies")]
        assert line.endswith(": fits"), line


def test_mbpp_is_measured_at_the_start_every_20_steps_and_at_the_end_less_on_small_cards() -> None:
    for name, count in (("v100", 40), ("a100", 100), ("cpu", 20)):
        evaluation = load_recipe("grpo_code_execution", [MODEL], machine=on(name)).evaluation
        (suite,) = evaluation.suites
        assert (suite.name, suite.num_questions, suite.temperature) == ("mbpp", count, 0.2)
        assert (evaluation.enabled, evaluation.at_start, evaluation.eval_interval_steps) == (True, True, 20)
    few = load_recipe("grpo_code_execution", [MODEL, "evaluation.num_questions=5"]).evaluation
    assert few.suites[0].num_questions == few.num_questions == 5
    assert load_recipe("grpo_code_execution").evaluation.suites == ()


def test_a_suite_that_was_named_alone_takes_further_keys() -> None:
    given = ["evaluation.suites=[mbpp]", "evaluation.suites.0.num_questions=5"]
    (suite,) = load_recipe("quickstart", given).evaluation.suites
    assert (suite.name, suite.num_questions) == ("mbpp", 5)


def test_options_of_vllm_are_overrides_with_and_without_the_switch() -> None:
    given = ["vllm.gpu_memory_utilization=0.85", "vllm.max_model_len=2048"]
    recipe = load_recipe("quickstart", [MODEL, *given])
    assert (recipe.rollouts.engine, recipe.rollouts.vllm.gpu_memory_utilization) == ("native", 0.85)
    for switch, engine in (("true", "vllm"), ("false", "native")):
        recipe = load_recipe("quickstart", [MODEL, *given, f"vllm.enabled={switch}"])
        assert (recipe.rollouts.engine, recipe.rollouts.vllm.max_model_len) == (engine, 2048)
    with pytest.raises(ConfigError, match=r"unknown key rollouts\.vllm\.gpu_share"):
        load_recipe("quickstart", [MODEL, "vllm.gpu_share=1"])


def test_none_leaves_everything_and_auto_then_means_the_default() -> None:
    plain = parse_recipe("", [MODEL])
    for overrides in (["preset=none"], ["preset=none", "training.micro_batch_sequences=auto"]):
        recipe = parse_recipe("", [MODEL, *overrides], machine=on("h100"))
        assert recipe == plain.model_copy(update={"preset": "none"})
    toy = parse_recipe("training: {micro_batch_sequences: auto}", machine=on("h100"))
    assert toy == parse_recipe("")


def test_the_model_may_follow_from_the_machine_too() -> None:
    found = {
        name: load_recipe("quickstart", ["model=auto"], machine=on(name)).model.id
        for name in ("v100", "h100")
    }
    assert found == {"v100": "Qwen/Qwen2.5-1.5B", "h100": "Qwen/Qwen2.5-3B"}
    with pytest.raises(ConfigError, match=r"model\.id is auto, which needs a preset"):
        load_recipe("quickstart", ["model=auto", "preset=none"])


def test_the_cpu_preset_serves_a_model_on_the_cpu_of_a_machine_with_a_gpu() -> None:
    assert parse_recipe("", [MODEL, "model.device=cpu"], machine=on("h100")).preset == "cpu"


def test_a_recorded_config_keeps_its_preset_until_another_is_named(tmp_path: Path) -> None:
    recorded = dump(
        load_recipe("quickstart", [MODEL, "training.micro_batch_sequences=2"], machine=on("v100"))
    )
    there = parse_recipe(recorded, machine=on("h100"))
    assert (there.preset, settings(there)) == ("v100", ("float16", "auto", 2))
    changed = parse_recipe(recorded, ["preset=a100"])
    assert settings(changed) == ("bfloat16", "auto", 2)
    own = parse_recipe(recorded, ["model.dtype=float32"])
    assert "model.dtype" not in own.preset_keys and own.preset == "v100"


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"preset: expected .*'v100'.* found 'v10'\. Nearest: v100"):
        parse_recipe("", [MODEL, "preset=v10"])
    assert '"preset"' in schema_json()


def test_recipes_are_loaded_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    import greenward

    monkeypatch.setattr(detection, "this_machine", on("v100"))
    assert greenward.load_recipe("quickstart", [MODEL]).preset == "v100"
