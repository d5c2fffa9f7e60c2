"""Validation errors of the config model, told as: where, which key, expected, found, nearest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from greenward.config.keys import nearest_keys
from greenward.config.source import KeyPath, RecipeText, describe
from greenward.errors import ConfigError

_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "model": "a section (keys and values)",
    "dict": "a section (keys and values)",
}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


@dataclass(frozen=True)
class Origin:
    """Where each value of a recipe came from: the text, or an override (key path and text, in order)."""

    text: RecipeText
    overrides: Sequence[tuple[KeyPath, str]]

    def of(self, path: KeyPath) -> str:
        """How a message names the place: `Override 'a=b'`, `file, line 3`, or the file."""
        for overridden, shown in reversed(self.overrides):
            if path and path[: len(overridden)] == overridden:
                return f"Override {shown!r}"
        line = self.text.line_of(path)
        if line is not None:
            return f"{self.text.name}, line {line}"
        for overridden, shown in reversed(self.overrides):
            if path and overridden[: len(path)] == path:
                return f"Override {shown!r}"
        return self.text.name


def explain(error: ValidationError, origin: Origin) -> ConfigError:
    """One `ConfigError` that tells all of `error`, one line each, in the order of the schema."""
    return ConfigError("\n".join(_tell(item, origin) for item in error.errors(include_url=False)))


def _tell(item: Any, origin: Origin) -> str:
    path: KeyPath = tuple(item["loc"])
    place, key, kind = origin.of(path), ".".join(map(str, path)), item["type"]
    if kind == "extra_forbidden":
        return f"{place}: unknown key {key}.{_nearest(nearest_keys(path))}"
    if kind == "value_error":
        return f"{place}: {key and key + ': '}{item['ctx']['error']}."
    if kind == "missing":
        return f"{origin.of(path[:-1])}: the key {key} is missing."
    nearest = ""
    if kind == "literal_error":
        choices = item["ctx"]["expected"].replace(" or ", ", ").replace("'", "").split(", ")
        nearest = _nearest(get_close_matches(str(item["input"]), choices, n=1))
    return f"{place}: {key}: expected {_expected(item)}, found {describe(item['input'])}.{nearest}"


def _expected(item: Any) -> str:
    kind: str = item["type"]
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"a number {words} {item['ctx'][bound]:g}"
    if kind == "literal_error":
        return str(item["ctx"]["expected"])
    return _EXPECTED.get(kind.split("_")[0]) or str(item["msg"]).removeprefix("Input should be ")


def _nearest(names: list[str]) -> str:
    return f" Nearest: {', '.join(names)}." if names else ""
