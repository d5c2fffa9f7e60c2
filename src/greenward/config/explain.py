"""Validation errors of recipes as messages: place, key, expected, found, nearest key, kinds that have it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from greenward.config.recipe import KINDS
from greenward.config.source import KeyPath, RecipeText, describe, dotted
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
_MOST_MISTAKES = 20  # that one error tells; to look for the nearest key takes milliseconds each


@cache
def fields_of(kind: str) -> dict[str, FieldInfo]:
    """The fields of a kind by dotted key, sections included, in order. List entries have the index 0."""
    return dict(_fields(KINDS[kind], ""))


def field_at(kind: str, path: KeyPath) -> FieldInfo | None:
    """The field of a kind that `path` leads to, or into where its value is data of the user's."""
    fields = fields_of(kind)
    parts = ["0" if isinstance(part, int) else part for part in path]
    if parts[-1:] == ["0"]:
        parts.pop()
    found = [field for end in range(1, len(parts) + 1) if (field := fields.get(".".join(parts[:end])))]
    is_whole = ".".join(parts) in fields
    return found[-1] if found and (is_whole or _section_in(found[-1].annotation) is None) else None


def kinds_with(path: KeyPath) -> list[str]:
    """The kinds that have a key at `path`."""
    return [kind for kind in KINDS if field_at(kind, path) is not None]


def only_keys_of(
    kind: str, data: dict[str, Any], keep: Callable[[KeyPath], bool] = lambda path: False, path: KeyPath = ()
) -> dict[str, Any]:
    """`data` without the keys and choices that only other kinds have, unless `keep(their path)`."""
    kept = {}
    for key, value in data.items():
        here = (*path, key)
        kinds = kinds_with(here)
        if isinstance(value, str) and _choices(kind, here):
            kinds = [other for other in kinds if value in _choices(other, here)]
        if not kinds or kind in kinds or keep(here):
            kept[key] = only_keys_of(kind, value, keep, here) if isinstance(value, dict) else value
    return kept


def explain(error: ValidationError, text: RecipeText, kind: str) -> ConfigError:
    """One `ConfigError` with a line for each of the first mistakes, in the order of the config classes."""
    mistakes = error.errors(include_url=False)
    messages = [_message(item, text, kind) for item in mistakes[:_MOST_MISTAKES]]
    if len(mistakes) > _MOST_MISTAKES:
        messages.append(f"and {len(mistakes) - _MOST_MISTAKES} more")
    return ConfigError("\n".join(messages))


def _message(item: Any, text: RecipeText, kind: str) -> str:
    path: KeyPath = tuple(item["loc"])[1:]  # the first part names the kind
    problem, context, value = item["type"], item.get("ctx", {}), item["input"]
    if problem == "union_tag_invalid":
        path, value, choices = ("kind",), kind, list(KINDS)
    elif problem == "literal_error":
        choices = list(_choices(kind, path))
    place, key = text.place_of(path), dotted(path)
    if problem == "extra_forbidden":
        nearest = _nearest(_nearest_keys(kind, path))
        if kinds := kinds_with(path):
            return f"{place}: {key} needs {_or(kinds)}; this recipe has kind: {kind}.{nearest}"
        return f"{place}: unknown key {key}.{nearest}"
    if problem == "value_error":
        place = text.place_of_named(path, str(context["error"]))
        return f"{place}: {key and key + ': '}{context['error']}."
    if problem == "missing":
        if len(path) == 1 and (field := field_at(kind, path)):
            return f"{place}: kind: {kind} needs the section {key} ({field.description})."
        return f"{place}: the key {key} is missing."
    message = re.sub(r"^(Input should be|\w+ should have) | after validation.*", "", item["msg"])
    expected, hint = _EXPECTED.get(problem.split("_")[0], message), ""
    if message.startswith(("greater", "less")):
        expected = f"a number {message}"
    elif problem in ("literal_error", "union_tag_invalid"):
        expected = " or ".join(map(repr, choices)).replace(" or ", ", ", len(choices) - 2)
        kinds = [other for other in kinds_with(path) if value in _choices(other, path)]
        hint = f" It needs {_or(kinds)}." if kinds else _nearest(get_close_matches(str(value), choices, n=1))
    return f"{place}: {key}: expected {expected}, found {describe(value)}.{hint}"


def _choices(kind: str, path: KeyPath) -> tuple[Any, ...]:
    field = field_at(kind, path)
    return get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()


def _or(kinds: list[str]) -> str:
    return " or ".join(f"kind: {kind}" for kind in kinds)


def _nearest(names: list[str]) -> str:
    return f" Nearest: {', '.join(names)}." if names else ""


def _nearest_keys(kind: str, path: KeyPath) -> list[str]:
    """Up to three known keys that `path` may have meant: of the same section, else of the same name."""
    *section, mistyped = ["0" if isinstance(part, int) else part for part in path]
    prefix = "".join(f"{part}." for part in section)
    keys = [(key, key.rpartition(".")[2]) for key in fields_of(kind)]
    beside = [name for key, name in keys if key == prefix + name]
    if names := get_close_matches(mistyped, beside, n=3, cutoff=0.72):
        return [dotted((*path[:-1], name)) for name in names]
    if names := get_close_matches(mistyped, [name for _, name in keys], n=1, cutoff=0.8):
        return [key for key, name in keys if name == names[0]][:3]
    for other in KINDS:
        if same := [key for key in fields_of(other) if key.rpartition(".")[2] == mistyped]:
            return [f"{key} (kind: {other})" for key in same[:3]]
    return get_close_matches(dotted(path), fields_of(kind), n=3, cutoff=0.6)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The section inside `X`, `X | None`, `tuple[X, ...]` or `Annotated[X, ...]`, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)


def _fields(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        yield prefix + name, field
        inner = _section_in(field.annotation)
        if inner is not None:
            entry = ".0." if get_origin(field.annotation) is tuple else "."
            yield from _fields(inner, f"{prefix}{name}{entry}")
