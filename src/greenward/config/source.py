"""Recipe text as data in which every value knows its place: a line of the file, or an override."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from greenward.errors import ConfigError
from greenward.user_text import compose_yaml, construct_yaml, with_present_names

KeyPath = tuple[str | int, ...]

_OVERRIDE = "Override "


@dataclass(frozen=True)
class RecipeText:
    """The data of a YAML document called `name`, with overrides, and the place of each key."""

    name: str
    data: Any
    places: Mapping[KeyPath, str]

    @classmethod
    def read(cls, text: str, name: str) -> RecipeText:
        """Raises `ConfigError` with line and column when the text is not YAML."""
        try:
            node = compose_yaml(text)
            data = construct_yaml(node)  # before anything walks the nodes, which may contain themselves
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = f"{name}, line {mark.line + 1}, column {mark.column + 1}" if mark else name
            raise ConfigError(f"{place}: not valid YAML: {error.problem or error.context}.") from None
        except yaml.reader.ReaderError as error:  # a character that YAML does not allow
            line = text.count("\n", 0, error.position) + 1
            raise ConfigError(f"{name}, line {line}: not valid YAML: {error.reason}.") from None
        return cls(name, data, {path: f"{name}, line {line}" for path, line in _lines(node)})

    @classmethod
    def read_recipe(cls, text: str, name: str) -> RecipeText:
        """As `read`; raises `ConfigError` for a document that is no section as well."""
        source = cls.read(text, name)
        if not isinstance(source.data, dict | None):
            raise ConfigError(f"{name}: expected keys and values, found {describe(source.data)}.")
        return replace(source, data=with_present_names(source.data or {}))

    def place_of(self, path: KeyPath) -> str:
        """How a message names the place of a key, or else of its section: an override, or file and line."""
        prefixes = (path[:end] for end in range(len(path), 0, -1))
        return next((self.places[prefix] for prefix in prefixes if prefix in self.places), self.name)

    def place_of_named(self, path: KeyPath, message: str) -> str:
        """The place of the given key under `path` that a message names, an override before a line.

        The place of `path` itself where the message names no key that was given.
        """
        words = re.findall(r"[\w.]+", message)
        named = [
            place
            for key, place in self.places.items()
            if key[: len(path)] == path and {str(key[-1]), dotted(key)} & set(words)
        ]
        return min(named, key=lambda place: not place.startswith(_OVERRIDE), default=self.place_of(path))

    def is_overridden(self, path: KeyPath) -> bool:
        """Whether an override gives the value at `path` or a part of it."""
        return any(
            place.startswith(_OVERRIDE) for key, place in self.places.items() if key[: len(path)] == path
        )

    def with_override(self, text: str, defaults: Mapping[str, Any]) -> RecipeText:
        """The recipe with `a.b.c=value` applied, the value as YAML; see `with_value`.

        `model=NAME` is short for `model.id=NAME`. Raises `ConfigError` when there is no `=`, no key, or a
        value that is not YAML.
        """
        key, equals, value = text.partition("=")
        parts = [part.strip() for part in key.split(".")]
        if not equals or not all(parts):
            raise ConfigError(
                f"Override {text!r}: expected key=value, for example training.max_steps=50.",
                remedy="Keys are dotted; entries of a list are numbered from 0: rewards.0.weight=2.",
            )
        place = f"{_OVERRIDE}{describe(text)}"
        data = RecipeText.read(value, place).data
        path = key_path(text)
        return self.with_value(
            ("model", "id") if path == ("model",) and isinstance(data, str) else path, data, place, defaults
        )

    def with_value(self, path: KeyPath, value: Any, place: str, defaults: Mapping[str, Any]) -> RecipeText:
        """The recipe with `value` at `path`, which `place` gives.

        Missing sections on the way are made; `defaults` fills missing lists, by dotted key. Raises
        `ConfigError` for a key of a plain value and for a number beyond the end of a list.
        """

        def put(old: Any, depth: int) -> Any:
            above, part = path[:depth], path[depth] if depth < len(path) else None
            if part is None:
                return value
            if old is None:
                old = defaults.get(dotted(above), {})
            if isinstance(old, dict):
                return {**old, str(part): put(old.get(str(part)), depth + 1)}
            if not isinstance(old, list):
                found = f"{describe(old)}, which has no keys of its own"
                raise ConfigError(f"{place}: {dotted(above)} is {found}.")
            if not isinstance(part, int) or part > len(old):
                expected = f"a number from 0 to {len(old)}, found {part!r}"
                raise ConfigError(f"{place}: {dotted(above)} is a list of {len(old)}: expected {expected}.")
            return [*old[:part], put(dict(enumerate(old)).get(part), depth + 1), *old[part + 1 :]]

        others = {key: given for key, given in self.places.items() if key[: len(path)] != path}
        on_the_way = {path[:end]: place for end in range(1, len(path) + 1)}
        return replace(self, data=put(self.data, 0), places=on_the_way | others)


def key_path(override: str) -> KeyPath:
    """The path that an override sets."""
    parts = (part.strip() for part in override.partition("=")[0].split("."))
    return tuple(int(part) if part.isdigit() else part for part in parts)


def leaves(section: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """The plain values, lists and empty sections in a section, with their paths."""
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def describe(value: Any) -> str:
    """A value as a message shows it: as YAML would write it, bounded."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, dict):
        return f"a section with the keys {', '.join(map(str, value))}" if value else "an empty section"
    shown = json.dumps(value) if isinstance(value, bool) else repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def dotted(path: KeyPath) -> str:
    """The path as users write it."""
    return ".".join(map(str, path))


def _lines(node: yaml.Node | None, path: KeyPath = ()) -> Iterator[tuple[KeyPath, int]]:
    """The path and line (from 1) of every key and list entry."""
    entries: list[tuple[str | int, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        entries = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        entries = [(number, value, value) for number, value in enumerate(node.value)]
    for part, key, value in entries:
        yield (*path, part), key.start_mark.line + 1
        yield from _lines(value, (*path, part))
