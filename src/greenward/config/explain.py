"""Validation errors of recipes as messages: place, key, expected, found, nearest key, kind that has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from greenward.config.recipe import KINDS
from greenward.config.source import KeyPath, describe, dotted, place_of
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


def field_at(kind: str, path: KeyPath) -> FieldInfo | None:
    """The field of a recipe of this kind that `path` leads to or into; None if there is none."""
    section: type[BaseModel] | None = KINDS[kind]
    field: FieldInfo | None = None
    for part in path:
        if isinstance(part, int):
            continue  # an entry of a list of sections has the keys of that section
        if section is None:
            return field  # a plain value, or data of the user's
        field = section.model_fields.get(str(part))
        if field is None:
            return None
        section = _section_in(field.annotation)
    return field


def kinds_with(path: KeyPath) -> list[str]:
    """The kinds that have a key at `path`."""
    return [kind for kind in KINDS if field_at(kind, path) is not None]


def only_keys_of(
    kind: str, data: dict[str, Any], keep: Callable[[KeyPath], bool] = lambda path: False, path: KeyPath = ()
) -> dict[str, Any]:
    """`data` without the keys that only other kinds have, unless `keep(their path)`."""
    kept = {}
    for key, value in data.items():
        here = (*path, key)
        others = kinds_with(here)
        if not others or kind in others or keep(here):
            kept[key] = only_keys_of(kind, value, keep, here) if isinstance(value, dict) else value
    return kept


@cache
def known_keys(*kinds: str) -> tuple[str, ...]:
    """Every dotted key of these kinds (of all without any), sections included. List entries are index 0."""
    return tuple(dict.fromkeys(key for kind in kinds or KINDS for key in _keys(KINDS[kind], "")))


def explain(error: ValidationError, tree: yaml.Node, kind: str) -> ConfigError:
    """One `ConfigError` with one line for each part of `error`, in the order of the config classes."""
    return ConfigError("\n".join(_message(item, tree, kind) for item in error.errors(include_url=False)))


def _message(item: Any, tree: yaml.Node, kind: str) -> str:
    path: KeyPath = tuple(item["loc"])[1:]  # the first part names the kind
    problem, context = item["type"], item.get("ctx", {})
    if problem == "union_tag_invalid":
        choices = ", ".join(f"'{name}'" for name in KINDS)
        nearest = _nearest(get_close_matches(kind, KINDS, n=1))
        return f"{place_of(tree, ('kind',))}: kind: expected one of {choices}, found {kind!r}.{nearest}"
    place, key = place_of(tree, path), dotted(path)
    if problem == "extra_forbidden":
        nearest = _nearest(_nearest_keys(kind, path))
        if others := kinds_with(path):
            needed = " or ".join(f"kind: {other}" for other in others)
            return f"{place}: {key} needs {needed}; this recipe has kind: {kind}.{nearest}"
        return f"{place}: unknown key {key}.{nearest}"
    if problem == "value_error":
        return f"{place}: {key and key + ': '}{context['error']}."
    if problem == "missing":
        if len(path) == 1 and (field := field_at(kind, path)):
            return f"{tree.start_mark.name}: kind: {kind} needs the section {key} ({field.description})."
        return f"{place_of(tree, path[:-1])}: the key {key} is missing."
    hint = ""
    if problem == "literal_error":
        choices = context["expected"].replace(" or ", ", ").replace("'", "").split(", ")
        hint = _nearest(get_close_matches(str(item["input"]), choices, n=1))
        if others := [other for other in kinds_with(path) if item["input"] in _choices(other, path)]:
            hint = f" It needs {' or '.join(f'kind: {other}' for other in others)}."
    return f"{place}: {key}: expected {_expected(item)}, found {describe(item['input'])}.{hint}"


def _expected(item: Any) -> str:
    problem: str = item["type"]
    if problem in _BOUNDS:
        words, bound = _BOUNDS[problem]
        return f"a number {words} {item['ctx'][bound]:g}"
    if problem == "literal_error":
        return str(item["ctx"]["expected"])
    return _EXPECTED.get(problem.split("_")[0]) or str(item["msg"]).removeprefix("Input should be ")


def _choices(kind: str, path: KeyPath) -> tuple[Any, ...]:
    field = field_at(kind, path)
    return get_args(field.annotation) if field else ()


def _nearest(names: list[str]) -> str:
    return f" Nearest: {', '.join(names)}." if names else ""


def _nearest_keys(kind: str, path: KeyPath) -> list[str]:
    """Up to three known keys that `path` may have meant: of the same section, else of the same name."""
    *parents, mistyped = map(str, path)
    prefix = "".join(f"{part}." for part in parents)
    field = field_at(kind, path[:-1])
    section = _section_in(field.annotation) if field else KINDS[kind]
    beside = get_close_matches(mistyped, section.model_fields, n=3, cutoff=0.72) if section else []
    if beside:
        return [prefix + name for name in beside]
    keys = known_keys(kind)
    names = get_close_matches(mistyped, {key.rpartition(".")[2] for key in keys}, n=1, cutoff=0.8)
    if names:
        return [key for key in keys if key.rpartition(".")[2] == names[0]][:3]
    return get_close_matches(dotted(path), keys, n=3, cutoff=0.6)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The section inside `X`, `X | None`, `tuple[X, ...]` or `Annotated[X, ...]`, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)


def _keys(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield prefix + name
        inner = _section_in(field.annotation)
        if inner is not None:
            is_list = get_origin(field.annotation) is tuple
            yield from _keys(inner, f"{prefix}{name}.0." if is_list else f"{prefix}{name}.")
