"""From a YAML file and `key=value` overrides to a checked recipe, and back to text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from greenward.config.dqn import with_dqn_preset
from greenward.config.explain import explain, field_at, fields_of, only_keys_of
from greenward.config.presets import with_preset
from greenward.config.recipe import KINDS, RECIPE, AnyRecipe, is_from_random_weights
from greenward.config.source import RecipeText, describe, key_path, leaves
from greenward.errors import ConfigError
from greenward.user_files import read_file
from greenward.user_text import MAX_YAML_CHARS

PRETRAINED = "pretrained"
"""The section of a recipe file whose keys replace the others when `model.id` names a pretrained model."""
DEFAULT_KIND = "grpo"


def load_recipe(
    path: str | Path, overrides: Sequence[str] = (), *, machine: Callable[[], str] | None = None
) -> AnyRecipe:
    """The recipe in the YAML file at `path` (or shipped under that name), with `overrides` applied.

    Overrides are `a.b.c=value` with the value as YAML (`training.max_steps=50`, `evaluation.k=[1,4]`,
    `rewards.0.weight=2`); the last one for a key wins, and `model=NAME` is short for `model.id=NAME`.
    Values are taken strictly: text is no number. Where a pretrained model is named, the section
    `pretrained` of the file replaces keys before the overrides do; `pretrained=null` leaves it out, and so
    does a model that `is_from_random_weights`. Keys of a pretrained model that are not set, or `auto`, get
    the values of the preset (`with_preset`); `machine` says which one `preset: auto` is; without it, none.

    Keys that only other kinds have are errors, with two exceptions: the `config.yaml` of a run may be from
    a version that recorded them, and an override of `kind` leaves out what the file says for its own kind.

    Raises `ConfigError` naming file and line (or the override), the full dotted key, what was expected
    and what was found; for an unknown key, the nearest known ones.
    """
    file = find_recipe(path)
    try:
        text = read_file(file, 4 * MAX_YAML_CHARS).decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text (byte {error.start}).") from None
    recorded = file.name == "config.yaml" and (file.parent / "checkpoints").is_dir()
    return parse_recipe(text, overrides, name=str(file), recorded=recorded, machine=machine)


def parse_recipe(
    text: str,
    overrides: Sequence[str] = (),
    *,
    name: str = "recipe",
    recorded: bool = False,
    machine: Callable[[], str] | None = None,
) -> AnyRecipe:
    """As `load_recipe`, from text. `name` stands for the file in messages, `recorded` for a run's config."""
    source = RecipeText.read_recipe(text, name)
    validate = partial(_validate, kind_of_file=None if recorded else source.data.get("kind", DEFAULT_KIND))
    resolved = _overridden(source, overrides)
    section = resolved.data.pop(PRETRAINED, None)
    if not isinstance(section, dict | None):
        place = resolved.place_of((PRETRAINED,))
        raise ConfigError(f"{place}: {PRETRAINED}: expected a section, found {describe(section)}.")
    if section:
        variant = source
        for path, value in leaves(section):
            variant = variant.with_value(path, value, resolved.place_of((PRETRAINED, *path)), _lists())
        # Checked in any case: a mistake in it must not wait for the day on which a model is named.
        named = _overridden(variant, ["model.id=any"])
        validate(with_preset(named, _kind(named), True, lambda: "cpu"))
        if _is_pretrained(resolved):
            resolved = _overridden(variant, overrides)
    return validate(with_preset(resolved, _kind(resolved), _is_pretrained(resolved), machine))


def _kind(source: RecipeText) -> str:
    return str(source.data.get("kind", DEFAULT_KIND))


def _is_pretrained(source: RecipeText) -> bool:
    model = source.data.get("model")
    named = model.get("id") if isinstance(model, dict) else None
    return named is not None and not is_from_random_weights(str(named))


def dump(recipe: AnyRecipe) -> str:
    """The resolved recipe as YAML, every key written out. Loading it gives an equal recipe."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=100)


def has_key(kind: str, override: str) -> bool:
    """Whether recipes of this kind have the key of an override."""
    return field_at(kind, key_path(override)) is not None


def convert(recipe: AnyRecipe, kind: str, **changes: Any) -> AnyRecipe:
    """The recipe as one of another kind: the keys that both have, with `changes` to top-level keys."""
    return RECIPE.validate_python(only_keys_of(kind, recipe.model_dump() | {"kind": kind} | changes))


def schema_json() -> str:
    """The JSON Schema of recipes, for editors that complete and check YAML."""
    schema = RECIPE.json_schema()
    for recipe in KINDS.values():
        definition = schema["$defs"][recipe.__name__]
        definition["properties"][PRETRAINED] = {
            "type": "object",
            "description": "keys that replace the others when model.id names a pretrained model",
        }
        if definition["properties"]["kind"]["const"] != DEFAULT_KIND:
            definition.setdefault("required", []).append("kind")
    return json.dumps(schema, indent=2)


def shipped_folder() -> Path:
    """The folder of the recipes, and of other settings, that come with greenward."""
    package = Path(__file__).resolve().parents[1]
    beside_source = package.parents[1] / "configs"  # a checkout; a wheel carries them inside
    return package / "configs" if (package / "configs").is_dir() else beside_source


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with greenward, by name."""
    return {file.stem: file for file in sorted(shipped_folder().glob("*.yaml"))}


def find_recipe(path: str | Path) -> Path:
    """The file at `path`, or the shipped recipe of that name (`quickstart`).

    Raises `ConfigError` naming the YAML files beside the missing one and the shipped recipes.
    """
    file, shipped = Path(path), shipped_recipes()
    if file.exists() and not file.is_dir():  # a pipe will do
        return file
    if file.name == str(path) and file.suffix in {"", ".yaml", ".yml"} and file.stem in shipped:
        return shipped[file.stem]
    folder = file if file.is_dir() else file.parent
    candidates = {name: name for name in shipped}
    candidates |= {entry.stem: str(entry) for entry in folder.glob("[!.]*.y*ml") if entry.is_file()}
    near = get_close_matches("recipe" if file.is_dir() else file.stem, candidates, n=3)
    remedy = f"Nearest: {', '.join(map(candidates.__getitem__, near))}."
    raise ConfigError(
        f"{file} is a folder, not a recipe."
        if file.is_dir()
        else f"No recipe at {file}, and none of that name is shipped.",
        remedy=remedy if near else f"Shipped recipes: {', '.join(shipped)}.",
    )


def _overridden(source: RecipeText, overrides: Sequence[str]) -> RecipeText:
    for override in overrides:
        source = source.with_override(override, _lists())
    return source


@cache
def _lists() -> dict[str, Any]:
    """The default of every key that holds a list, by dotted key."""
    fields = {key: field.default for kind in KINDS for key, field in fields_of(kind).items()}
    return {key: to_jsonable_python(value) for key, value in fields.items() if isinstance(value, tuple)}


def _validate(source: RecipeText, *, kind_of_file: str | None) -> AnyRecipe:
    """Raises `ConfigError`. Keys of other kinds are left out unless the kind is `kind_of_file`."""
    data = {"kind": DEFAULT_KIND, **source.data}
    data.pop(PRETRAINED, None)
    kind = str(data["kind"])
    if kind in KINDS and kind != kind_of_file:
        data = only_keys_of(kind, data, keep=source.is_overridden)
    data = _with_present_keys(data)
    if kind == "dqn":
        data = with_dqn_preset(data)
    try:
        # JSON in between: strict about types, yet a YAML list may fill a tuple.
        return RECIPE.validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        raise explain(error, source, kind) from None


def _with_present_keys(data: dict[str, Any]) -> dict[str, Any]:
    """The data of a recipe with other forms of keys replaced.

    `vllm: {enabled: true, …}` is `rollouts: {engine: vllm, vllm: {…}}`, and `algorithm.importance_cap: C`, of
    version 0.1.0, is `algorithm.importance: {high: C}`. `learning_rate: null` is to leave it out.
    """
    for name in ("training", "warm_start"):
        section = data.get(name)
        if isinstance(section, dict) and section.get("learning_rate", 0) is None:
            data = data | {name: {key: value for key, value in section.items() if key != "learning_rate"}}
    algorithm, vllm, rollouts = data.get("algorithm"), data.get("vllm"), data.get("rollouts", {})
    if isinstance(algorithm, dict) and "importance_cap" in algorithm:
        cap = algorithm["importance_cap"]
        others = {key: value for key, value in algorithm.items() if key != "importance_cap"}
        data = data | {"algorithm": others | ({} if cap is None else {"importance": {"high": cap}})}
    if isinstance(vllm, dict) and isinstance(rollouts, dict) and "enabled" in vllm:
        settings = {key: value for key, value in vllm.items() if key != "enabled"}
        engine = "vllm" if vllm["enabled"] else "native"
        data = {key: value for key, value in data.items() if key != "vllm"}
        data["rollouts"] = {"engine": engine, "vllm": settings} | rollouts
    return data
