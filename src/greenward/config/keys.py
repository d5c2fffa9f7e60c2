"""The known keys of a recipe, read off the config model, and the ones nearest to a mistyped key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from greenward.config.schema import Recipe


def section_at(path: Sequence[str | int]) -> type[BaseModel] | None:
    """The config section that `path` leads to; None when it leads to a plain value or nowhere."""
    section: type[BaseModel] | None = Recipe
    for part in path:
        if isinstance(part, int):
            continue  # an entry of a list of sections has the keys of that section
        if section is None or part not in section.model_fields:
            return None
        section = _section_in(section.model_fields[part].annotation)
    return section


@cache
def known_keys() -> tuple[str, ...]:
    """Every dotted key, sections included, in the order of the schema. List entries are index 0."""
    return tuple(_keys(Recipe, ""))


def nearest_keys(path: Sequence[str | int]) -> list[str]:
    """Up to three known dotted keys that `path` may have meant, most likely first.

    A slip of spelling within the section comes first, then the same key in another section.
    """
    *parent, mistyped = path
    section = section_at(parent)
    prefix = "".join(f"{part}." for part in parent)
    beside = get_close_matches(str(mistyped), section.model_fields, n=3, cutoff=0.72) if section else []
    if beside:
        return [prefix + name for name in beside]
    by_name: dict[str, list[str]] = {}
    for key in known_keys():
        by_name.setdefault(key.rpartition(".")[2], []).append(key)
    near = get_close_matches(str(mistyped), by_name, n=1, cutoff=0.8)
    if near:
        return by_name[near[0]][:3]
    dotted = ".".join(map(str, path))
    return get_close_matches(dotted, known_keys(), n=3, cutoff=0.6)


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
