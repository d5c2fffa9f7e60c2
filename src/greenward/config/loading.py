"""From a YAML file and `key=value` overrides to a checked `Recipe`, and back to text."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from greenward.config.environment import with_environment
from greenward.config.explain import Origin, explain
from greenward.config.keys import section_at
from greenward.config.pretrained import is_from_random_weights
from greenward.config.schema import Recipe
from greenward.config.source import KeyPath, RecipeText, describe, parse_yaml
from greenward.errors import ConfigError

PRETRAINED = "pretrained"
"""The section of a recipe file whose keys replace the others when `model.id` names a pretrained model."""


@dataclass(frozen=True)
class Override:
    """One `a.b.c=value` of the command line, parsed."""

    text: str
    path: KeyPath
    value: Any

    @classmethod
    def parse(cls, text: str) -> Override:
        """Raises `ConfigError` when there is no `=`, no key, or a value that is not YAML."""
        key, equals, value = text.partition("=")
        parts = [part.strip() for part in key.split(".")]
        if not equals or not all(parts):
            raise ConfigError(
                f"Override {text!r}: expected key=value, for example training.max_steps=50.",
                remedy="Keys are dotted; entries of a list are numbered from 0: rewards.0.weight=2.",
            )
        path = tuple(int(part) if part.isdigit() else part for part in parts)
        parsed = parse_yaml(value, name=f"Override {describe(text)}")
        if path == ("model",) and isinstance(parsed, str):
            path = ("model", "id")  # model=NAME keeps the other keys of the section
        return cls(text, path, parsed)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in the YAML file at `path` (or shipped under that name), with `overrides` applied.

    Overrides are `a.b.c=value` with the value as YAML (`training.max_steps=50`, `evaluation.k=[1,4]`,
    `rewards.0.weight=2`); the last one for a key wins, and `model=NAME` is short for `model.id=NAME`.
    Values are taken strictly: text is no number. Where a pretrained model is named, the section
    `pretrained` of the file replaces keys before the overrides do; `pretrained=null` leaves it out, and so
    does a model that `is_from_random_weights`.

    Raises `ConfigError` naming file and line (or the override), the full dotted key, what was expected
    and what was found; for an unknown key, the nearest known ones.
    """
    file = find_recipe(path)
    try:
        text = RecipeText(file.read_text(encoding="utf-8"), name=str(file))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text (byte {error.start}).") from None
    return _validated(text, [Override.parse(item) for item in overrides])


def parse_recipe(text: str, overrides: Sequence[str] = (), *, name: str = "recipe") -> Recipe:
    """As `load_recipe`, from text. `name` stands for the file in messages."""
    return _validated(RecipeText(text, name=name), [Override.parse(item) for item in overrides])


def dump(recipe: Recipe) -> str:
    """The resolved recipe as YAML, every key written out. Loading it gives an equal recipe."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=100)


def schema_json() -> str:
    """The JSON Schema of a recipe, for editors that complete and check YAML."""
    schema = Recipe.model_json_schema()
    schema["properties"][PRETRAINED] = {
        "type": "object",
        "description": "keys that replace the others when model.id names a pretrained model",
    }
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
    folder = missing.parent
    beside = (
        [entry for entry in sorted(folder.glob("[!.]*.y*ml")) if entry.is_file()] if folder.is_dir() else []
    )
    shipped = shipped_recipes()
    candidates = {name: name for name in shipped} | {entry.stem: str(entry) for entry in beside}
    near = get_close_matches(missing.stem, candidates, n=3)
    if near:
        return f"Nearest: {', '.join(candidates[name] for name in near)}."
    return f"Shipped recipes: {', '.join(shipped)}."


def _validated(text: RecipeText, overrides: Sequence[Override]) -> Recipe:
    switched = [override for override in overrides if override.path == (PRETRAINED,)]
    overrides = [override for override in overrides if override not in switched]
    variant = [] if switched and switched[-1].value is None else _variant(text)
    if variant:
        # Checked in any case: a mistake in it must not wait for the day on which a model is named.
        _recipe(text, [*variant, Override("model.id", ("model", "id"), "any")])
        named = _named_model(text, overrides)
        if named is not None and not is_from_random_weights(str(named)):
            overrides = [*variant, *overrides]
    return with_environment(_recipe(text, overrides), os.environ)


def _recipe(text: RecipeText, overrides: Sequence[Override]) -> Recipe:
    data = copy.deepcopy(text.data)
    data.pop(PRETRAINED, None)
    for override in overrides:
        _apply(data, override)
    origin = Origin(text, [(override.path, override.text) for override in overrides])
    try:
        # JSON in between: strict about types, yet a YAML list may fill a tuple.
        recipe = Recipe.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        raise explain(error, origin) from None
    return recipe


def _variant(text: RecipeText) -> list[Override]:
    """The keys of the section `pretrained`, as overrides."""
    section = text.data.get(PRETRAINED)
    if section is None:
        return []
    if not isinstance(section, dict):
        raise ConfigError(f"{text.name}: {PRETRAINED}: expected a section, found {describe(section)}.")
    return [
        Override(f"{PRETRAINED}.{_dotted(path)}", path, value) for path, value in _leaves(section, path=())
    ]


def _leaves(section: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _named_model(text: RecipeText, overrides: Sequence[Override]) -> Any:
    section = text.data.get("model")
    named = section.get("id") if isinstance(section, dict) else None
    for override in overrides:
        if override.path == ("model", "id"):
            named = override.value
        elif override.path == ("model",):
            named = override.value.get("id") if isinstance(override.value, dict) else None
    return named


def _apply(data: dict[str, Any], override: Override) -> None:
    """Sets the value in `data`, making the sections on the way; fills a list from its default."""
    place: Any = data
    for depth, part in enumerate(override.path):
        last = depth == len(override.path) - 1
        if isinstance(place, list):
            if not isinstance(part, int) or part > len(place):
                raise ConfigError(
                    f"Override {override.text!r}: {_dotted(override.path[:depth])} is a list of "
                    f"{len(place)}: expected a number from 0 to {len(place)}, found {part!r}."
                )
            if part == len(place):
                place.append(None)
        elif isinstance(place, dict):
            part = str(part)
            place.setdefault(part, None)
        else:
            raise ConfigError(
                f"Override {override.text!r}: {_dotted(override.path[:depth])} is {describe(place)}, "
                "which has no keys of its own."
            )
        if last:
            place[part] = override.value
        elif place[part] is None:
            place[part] = _empty(override.path[: depth + 1])
        place = place[part]


def _empty(path: KeyPath) -> Any:
    """What stands at a key that the file leaves out: the default list, or a section to fill."""
    *parents, name = path
    section = section_at(parents)
    field = section.model_fields.get(str(name)) if section else None
    if field is not None and isinstance(field.default, tuple):
        return json.loads(section.model_construct().model_dump_json(include={str(name)}))[str(name)]  # type: ignore[union-attr]
    return {}


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))
