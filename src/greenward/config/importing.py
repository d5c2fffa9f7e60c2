"""Turns the configuration of another system into a recipe, and says what became of each of its keys."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from greenward.common.errors import ConfigError
from greenward.common.yaml_text import yaml_text
from greenward.config.loading import (
    RecipeText,
    describe,
    dotted,
    key_path,
    leaves,
    parse_recipe,
    read_recipe,
    read_recipe_file,
    shipped_recipes,
)
from greenward.config.originals import ORIGINALS, PARTS, Original, Row, WithoutCounterpart, WrongValue
from greenward.config.upgrade import PRETRAINED

Fate = Literal["taken over", "renamed", "without counterpart"]

_DEFAULTS = "defaults"  # hydra's list of the files that a file is composed of
_TREES = ("grpo_config.yaml", "sft_config.yaml")  # of a folder of hydra's, the first that is there
_MOST_FILES = 50  # of a tree; files that name each other several times count each time


@dataclass(frozen=True)
class KeyFate:
    """What became of one key and its value `given`: `ours` and the value there, or `why` there is none."""

    theirs: str
    given: Any
    fate: Fate
    ours: str = ""
    value: Any = None
    why: str = ""


@dataclass(frozen=True)
class Imported:
    """A recipe as YAML text that loads, the system that it came from, and what became of each key."""

    original: str
    recipe: str
    text: str
    fates: tuple[KeyFate, ...]


def import_config(path: str | Path) -> Imported:
    """The recipe for the configuration of another system at `path`: a YAML file, or a folder of hydra's.

    Raises `ConfigError` for what cannot be read, a file of no system that is known, a value that its own
    system would not take (with file and line), and values that no recipe can have together.
    """
    path = Path(path)
    if path.is_dir():
        path = next((file for name in _TREES if (file := path / name).is_file()), path / _TREES[0])
    source = _whole(_composed(path, Path(os.path.realpath(path.parent)), (), []))
    given = {dotted(key): value for key, value in leaves(source.data)}
    original = _original_of(given)
    if original is None:
        raise ConfigError(
            f"{path}: not the configuration of a system that is known: found the keys {_some(source.data)}.",
            remedy=f"Known are {'; '.join(dict.fromkeys(one.title for one in ORIGINALS))}. "
            "A recipe of greenward's own needs no import. From another trainer, write "
            "the settings into the recipe that `greenward init FOLDER` makes.",
        )
    fates = tuple(fate for key in given for fate in _fates(key, given, original, source))
    recipe = _recipe(original, fates, path)
    text = yaml_text(recipe.data, width=100)
    parse_recipe(text, name=f"{path}, as a recipe")
    return Imported(original.title, original.recipe, text, fates)


def is_original(path: str | Path) -> bool:
    """Whether `path` is a file of another system, or a folder of hydra's, rather than a recipe.

    Raises `ConfigError` for a file that cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        return any((path / name).is_file() for name in _TREES)
    if not path.is_file():
        return False
    data = read_recipe(path).data
    if {"task", "extends", "kind", "algorithm", PRETRAINED} & data.keys():
        return False
    if _DEFAULTS in data:
        return True
    whole = _whole(RecipeText(str(path), data, {})).data
    return _original_of({dotted(key): value for key, value in leaves(whole)}) is not None


def _original_of(given: Mapping[str, Any]) -> Original | None:
    def has(mark: str) -> bool:
        key, equals, value = mark.partition("=")
        if equals:
            return str(given.get(key)) == value
        return key in given or (key.endswith(".") and any(one.startswith(key) for one in given))

    return next((one for one in ORIGINALS if all(any(map(has, mark.split("|"))) for mark in one.marks)), None)


def _whole(source: RecipeText) -> RecipeText:
    """The text of a file; that of one section without its name is put below it."""
    name = next((name for keys, name in PARTS if any(key in source.data for key in keys)), None)
    return source if name is None or name in source.data else _below(name, source)


def _below(name: str, source: RecipeText) -> RecipeText:
    """The text as the section of that name."""
    places = {(name, *key): place for key, place in source.places.items()}
    return RecipeText(source.name, {name: source.data}, places)


def _composed(file: Path, root: Path, on_the_way: tuple[Path, ...], read: list[Path]) -> RecipeText:
    """The file with those that hydra's list of defaults names, later ones above earlier ones.

    Files are found below `root` alone; `read` counts them. `_self_` is the place of the file's own keys, the
    end without it.
    """
    file = Path(os.path.realpath(file))  # Path.resolve raises RuntimeError for links that go in a circle
    if not file.is_relative_to(root):
        raise ConfigError(f"{file} lies outside of {root}.", remedy="Files of a tree lie below its folder.")
    if file in on_the_way:
        raise ConfigError(f"{file}: {_DEFAULTS} that name each other.")
    read.append(file)
    if len(read) > _MOST_FILES:
        raise ConfigError(f"{file}: {_DEFAULTS} of more than {_MOST_FILES} files.")
    source = RecipeText.read(read_recipe_file(file), str(file))
    if not isinstance(source.data, dict):
        raise ConfigError(f"{file}: expected keys and values, found {describe(source.data)}.")
    own = {key: value for key, value in source.data.items() if key != _DEFAULTS}
    names = source.data.get(_DEFAULTS, [])
    if not isinstance(names, list):
        raise ConfigError(f"{source.place_of((_DEFAULTS,))}: expected a list, found {describe(names)}.")
    parts: list[RecipeText] = []
    placed = False
    for name in names:
        if name == "_self_":
            parts.append(RecipeText(source.name, own, source.places))
            placed = True
            continue
        group, chosen = _named(name, source)
        if chosen is None:
            continue
        folder = file.parent / group if group else file.parent
        part = _composed(folder / f"{chosen}.yaml", root, (*on_the_way, file), read)
        parts.append(_below(group, part) if group else part)
    if not placed:
        parts.append(RecipeText(source.name, own, source.places))
    whole = RecipeText(str(file), {}, {})
    for part in parts:
        for key, value in leaves(part.data):
            whole = whole.with_value(key, value, part.place_of(key), {})
    return whole


def _named(name: Any, source: RecipeText) -> tuple[str, str | None]:
    """(group, file) of an entry of hydra's defaults; no file for one of hydra itself or of nothing."""
    if isinstance(name, str) and "\0" not in name:
        return "", name
    if isinstance(name, dict) and len(name) == 1:
        ((group, chosen),) = name.items()
        words = str(group).removeprefix("optional ").removeprefix("override ").strip("/")
        if words.startswith("hydra/") or chosen is None:
            return words, None
        if isinstance(chosen, str) and "\0" not in f"{words}{chosen}":
            return words.partition("@")[0], chosen
    raise ConfigError(
        f"{source.place_of((_DEFAULTS,))}: expected names of files, or one group with its file, "
        f"found {describe(name)}."
    )


def _fates(key: str, given: Mapping[str, Any], original: Original, source: RecipeText) -> Iterator[KeyFate]:
    rows, value = original.keys.get(key), given[key]
    if rows is None:
        near = get_close_matches(key, original.keys, n=1, cutoff=0.85)
        why = f"not a key of this system that is known{f'; meant: {near[0]}?' if near else ''}"
        yield KeyFate(key, value, "without counterpart", why=why)
        return
    if isinstance(value, str) and ("${" in value or value == "???"):
        yield KeyFate(
            key, value, "without counterpart", why="hydra fills it in when it runs; set it in the recipe"
        )
        return
    for row in rows:
        yield _fate(key, value, row, given, source)


def _fate(key: str, value: Any, row: Row, given: Mapping[str, Any], source: RecipeText) -> KeyFate:
    if row.ours is None or row.convert is None:
        return KeyFate(key, value, "without counterpart", why=row.why)
    try:
        converted = row.convert(value, given)
    except WithoutCounterpart as reason:
        return KeyFate(key, value, "without counterpart", why=str(reason))
    except WrongValue as expected:
        if value is None:
            return KeyFate(key, value, "without counterpart", why="null: the recipe's own value stays")
        place = source.place_of(key_path(key))
        raise ConfigError(f"{place}: {key}: expected {expected}, found {describe(value)}.") from None
    return KeyFate(key, value, "taken over" if row.ours == key else "renamed", row.ours, converted)


def _recipe(original: Original, fates: tuple[KeyFate, ...], path: Path) -> RecipeText:
    """The shipped recipe with the keys that were taken over; that of a pretrained model if one is named."""
    recipe = read_recipe(shipped_recipes()[original.recipe])
    data = dict(recipe.data)
    pretrained = data.pop(PRETRAINED, None)
    recipe = RecipeText(recipe.name, data, recipe.places)
    if pretrained and any(one.ours == "model.id" for one in fates):
        for key, value in leaves(pretrained):
            recipe = recipe.with_value(key, value, recipe.name, {})
        recipe.data.get("model", {}).pop("shape", None)
    for ours, value in original.fixed.items():
        recipe = recipe.with_value(key_path(ours), value, str(path), {})
    lists: dict[str, Any] = {"evaluation.suites": []}
    for one in fates:
        if one.ours:
            recipe = recipe.with_value(key_path(one.ours), one.value, f"{path}: {one.theirs}", lists)
    return recipe


def _some(data: Mapping[str, Any]) -> str:
    names = list(map(str, data))
    return (", ".join(names[:8]) + (" …" if len(names) > 8 else "")) or "none"
