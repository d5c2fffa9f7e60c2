"""From a YAML file and `key=value` overrides to a checked recipe, and back to text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from greenward.config.explain import explain, field_at, kinds_with, only_keys_of
from greenward.config.recipe import KINDS, RECIPE, Recipe, is_from_random_weights
from greenward.config.source import (
    KeyPath,
    Override,
    child,
    compose,
    construct,
    describe,
    graft,
    is_overridden,
    leaves,
    parse_override,
)
from greenward.errors import ConfigError

PRETRAINED = "pretrained"
"""The section of a recipe file whose keys replace the others when `model.id` names a pretrained model."""
DEFAULT_KIND = "grpo"


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in the YAML file at `path` (or shipped under that name), with `overrides` applied.

    Overrides are `a.b.c=value` with the value as YAML (`training.max_steps=50`, `evaluation.k=[1,4]`,
    `rewards.0.weight=2`); the last one for a key wins, and `model=NAME` is short for `model.id=NAME`.
    Values are taken strictly: text is no number. Where a pretrained model is named, the section
    `pretrained` of the file replaces keys before the overrides do; `pretrained=null` leaves it out, and so
    does a model that `is_from_random_weights`.

    Keys that only other kinds have are errors, with two exceptions: the `config.yaml` of a run may be from
    a version that recorded them, and an override of `kind` leaves out what the file says for its own kind.

    Raises `ConfigError` naming file and line (or the override), the full dotted key, what was expected
    and what was found; for an unknown key, the nearest known ones.
    """
    file = find_recipe(path)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text (byte {error.start}).") from None
    recorded = file.name == "config.yaml" and (file.parent / "checkpoints").is_dir()
    return parse_recipe(text, overrides, name=str(file), recorded=recorded)


def parse_recipe(
    text: str, overrides: Sequence[str] = (), *, name: str = "recipe", recorded: bool = False
) -> Recipe:
    """As `load_recipe`, from text. `name` stands for the file in messages, `recorded` for a run's config."""
    tree = compose(text, name)
    data = construct(tree)  # before anything walks the tree, which may contain itself
    if not isinstance(data, dict | None):
        raise ConfigError(f"{name}: expected keys and values, found {describe(data)}.")
    validate = partial(_validate, kind_of_file=None if recorded else (data or {}).get("kind", DEFAULT_KIND))
    given = [parse_override(override) for override in overrides]
    switches = [value for path, value in given if path == (PRETRAINED,)]
    given = [(path, value) for path, value in given if path != (PRETRAINED,)]
    variant: list[Override] = []
    if found := child(tree, PRETRAINED):
        tree = yaml.MappingNode(
            tree.tag, [entry for entry in tree.value if entry[0].value != PRETRAINED], tree.start_mark
        )
        section = construct(found[1])
        if not isinstance(section, dict | None):
            raise ConfigError(f"{name}: {PRETRAINED}: expected a section, found {describe(section)}.")
        if section and (not switches or construct(switches[-1]) is not None):
            variant = list(leaves(found[1]))
    resolved = _grafted(tree, given)
    if variant:
        # Checked in any case: a mistake in it must not wait for the day on which a model is named.
        validate(_grafted(tree, [*variant, parse_override("model.id=any")]))
        model = construct(resolved).get("model")
        named = model.get("id") if isinstance(model, dict) else None
        if named is not None and not is_from_random_weights(str(named)):
            resolved = _grafted(tree, [*variant, *given])
    return validate(resolved)


def dump(recipe: Recipe) -> str:
    """The resolved recipe as YAML, every key written out. Loading it gives an equal recipe."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=100)


def has_key(kind: str, override: str) -> bool:
    """Whether recipes of this kind have the key of an override."""
    return field_at(kind, parse_override(override)[0]) is not None


def convert(recipe: Recipe, kind: str, **changes: Any) -> Recipe:
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


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with greenward, by name."""
    package = Path(__file__).resolve().parents[1]
    beside_source = package.parents[1] / "configs"  # a checkout; a wheel carries them inside
    folder = package / "configs" if (package / "configs").is_dir() else beside_source
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def find_recipe(path: str | Path) -> Path:
    """The file at `path`, or the shipped recipe of that name (`quickstart`).

    Raises `ConfigError` naming the YAML files beside the missing one and the shipped recipes.
    """
    file = Path(path)
    if file.exists() and not file.is_dir():  # a pipe will do
        return file
    shipped = shipped_recipes()
    if file.name == str(path) and file.suffix in {"", ".yaml", ".yml"} and file.stem in shipped:
        return shipped[file.stem]
    if file.is_dir():
        raise ConfigError(f"{file} is a folder, not a recipe.", remedy=_suggest(file / "recipe.yaml"))
    raise ConfigError(f"No recipe at {file}, and none of that name is shipped.", remedy=_suggest(file))


def _suggest(missing: Path) -> str:
    folder, shipped = missing.parent, shipped_recipes()
    beside = sorted(folder.glob("[!.]*.y*ml")) if folder.is_dir() else []
    candidates = {name: name for name in shipped}
    candidates |= {entry.stem: str(entry) for entry in beside if entry.is_file()}
    near = get_close_matches(missing.stem, candidates, n=3)
    if near:
        return f"Nearest: {', '.join(candidates[name] for name in near)}."
    return f"Shipped recipes: {', '.join(shipped)}."


def _grafted(tree: yaml.Node, overrides: Sequence[Override]) -> yaml.Node:
    for path, value in overrides:
        tree = graft(tree, path, value, _default_text)
    return tree


def _default_text(path: KeyPath) -> str:
    """What stands at a key that the file leaves out: the default list, or a section to fill."""
    kinds = kinds_with(path)
    field = field_at(kinds[0], path) if path and kinds and isinstance(path[-1], str) else None
    is_list = field is not None and isinstance(field.default, tuple)
    return json.dumps(to_jsonable_python(field.default)) if field and is_list else "{}"


def _validate(tree: yaml.Node, *, kind_of_file: str | None) -> Recipe:
    """Raises `ConfigError`. Keys of other kinds are left out unless the kind is `kind_of_file`."""
    data = construct(tree) or {}
    kind = str(data.setdefault("kind", DEFAULT_KIND))
    if kind in KINDS and kind != kind_of_file:
        data = only_keys_of(kind, data, keep=partial(is_overridden, tree))
    try:
        # JSON in between: strict about types, yet a YAML list may fill a tuple.
        return RECIPE.validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        raise explain(error, tree, kind) from None
