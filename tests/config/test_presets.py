"""Presets: what they give, to which models, and that a value of the user's wins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from greenward.common.errors import ConfigError
from greenward.config.loading import (
    PRESETS,
    dump,
    load_recipe,
    parse_recipe,
    preset_line,
    schema_json,
    shipped_recipes,
)
from greenward.config.recipe import Recipe
from greenward.hardware import detection

MODEL = "model=owner/name"
LANGUAGE_MODELS = sorted(name for name in shipped_recipes() if name != "dqn_code_generation")


def on(name: str) -> Callable[[], str]:
    return lambda: name


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
    assert recipe.model.offline == (machine == "v100")
    assert (recipe.model.cache_dir == "./model_cache") == (machine == "v100")
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
    assert recipe.preset_keys == ("model.cache_dir", "model.offline")
    line = preset_line(recipe)
    assert line is not None and 'model.cache_dir="./model_cache"' in line and "dtype" not in line
    off = parse_recipe(text, [MODEL, "model.cache_dir=null", "model.offline=false"], machine=on("v100"))
    assert (off.model.cache_dir, off.model.offline) == (None, False)


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

    monkeypatch.setattr(detection, "this_preset", on("v100"))
    assert greenward.load_recipe("quickstart", [MODEL]).preset == "v100"
