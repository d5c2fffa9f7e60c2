"""Presets: the settings of a pretrained model that follow from the machine, for keys that nobody set."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from greenward.config.explain import field_at
from greenward.config.recipe import BaseRecipe, ModelRecipe
from greenward.config.source import RecipeText, key_path
from greenward.errors import ConfigError

AUTO = "auto"
_ABSENT = object()
_BFLOAT16 = {
    "model.dtype": "bfloat16",
    "model.gradient_checkpointing": True,
    "evaluation.num_questions": 100,
    "model.id": "Qwen/Qwen2.5-3B",
}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "cpu": {
        "model.dtype": AUTO,
        "model.gradient_checkpointing": True,
        "training.micro_batch_sequences": 4,
        "evaluation.num_questions": 20,
        "model.id": "Qwen/Qwen2.5-Coder-0.5B-Instruct",
    },
    "v100": {
        "model.dtype": "float16",
        "model.gradient_checkpointing": True,
        "training.micro_batch_sequences": 4,
        "evaluation.num_questions": 40,
        "model.id": "Qwen/Qwen2.5-1.5B",
        "model.cache_dir": "./model_cache",
        "model.offline": True,
        "tracking.wandb": None,
    },
    "a100": {"training.micro_batch_sequences": 8, **_BFLOAT16},
    "h100": {"training.micro_batch_sequences": 16, **_BFLOAT16},
    "none": {},
}
"""What each preset gives, by dotted key. `v100`: GPUs without bfloat16, in clusters without a network."""


def with_preset(
    text: RecipeText, kind: str, pretrained: bool, machine: Callable[[], str] | None
) -> RecipeText:
    """The recipe with the preset's value for each of its keys that is not set, or set to `auto`.

    `preset: auto` is that of `machine`, or `cpu` where the recipe asks for that device. A model from random
    weights has no preset: there, as with `preset: none`, keys that are `auto` get their defaults.
    `preset_keys` records the keys that have their values from a preset; in the recorded config of a run they
    keep these until an override names the key, or another preset. Raises `ConfigError` for
    `model.id: auto` without a preset.
    """
    name = text.data.get("preset", AUTO)
    if pretrained and name == AUTO:
        name = "cpu" if _value(text.data, "model.device") == "cpu" else machine() if machine else "none"
    values = PRESETS.get(name, {}) if pretrained and isinstance(name, str) else {}
    place = f"preset {name}"
    recorded = text.data.get("preset_keys") if isinstance(text.data.get("preset_keys"), list) else None
    earlier = [key for key in recorded or () if not text.is_overridden(key_path(str(key)))]
    given = set(earlier)
    for key in dict.fromkeys(key for preset in PRESETS.values() for key in preset):
        chosen_anew = key in earlier and text.is_overridden(("preset",))
        asked = AUTO if chosen_anew else _value(text.data, key, absent=_ABSENT)
        if asked not in (_ABSENT, AUTO):
            continue
        path = key_path(key)
        if key in values and field_at(kind, path) is not None:
            text = text.with_value(path, values[key], place, {})
            given.add(key)
        elif asked == AUTO and key == "model.id":
            raise ConfigError(
                f"{text.place_of(path)}: model.id is auto, which needs a preset, found preset: {name}.",
                remedy="Name a model, or set preset to v100, a100, h100 or cpu.",
            )
        elif asked == AUTO and key != "model.dtype":  # for which auto is a value of its own
            text = replace(text, data=_without(text.data, *map(str, path)))
    if given or (pretrained and machine):
        text = text.with_value(("preset",), name, place, {})
    if given or recorded:
        text = text.with_value(("preset_keys",), sorted(given), place, {})
    return text


def _value(data: Any, key: str, *, absent: Any = None) -> Any:
    """The value of a key, None in a section that is null, and `absent` where the recipe does not name it."""
    for part in key.split("."):
        if not isinstance(data, dict) or part not in data:
            return None if data is None else absent
        data = data[part]
    return data


def _without(data: dict[str, Any], section: str, key: str) -> dict[str, Any]:
    return {**data, section: {name: value for name, value in data[section].items() if name != key}}


def preset_line(recipe: BaseRecipe) -> str | None:
    """What the preset of a recipe gave, for people; None where it gave nothing."""
    if not isinstance(recipe, ModelRecipe) or not recipe.preset_keys:
        return None
    data = recipe.model_dump(mode="json")
    given = ", ".join(f"{key}={json.dumps(_value(data, key))}" for key in recipe.preset_keys)
    return f"Preset {recipe.preset}: {given}. Overrides win; preset=none leaves all of it out."
