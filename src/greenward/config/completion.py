"""What an override may begin with, for the completion in shells. No code that a recipe names is imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from greenward.common.errors import GreenwardError
from greenward.config.loading import (
    all_recipes,
    fields_of,
    find_recipe,
    identity,
    names_code,
    read_recipe,
    recipe_class,
)
from greenward.config.recipe import Recipe
from greenward.tasks import TASKS

SHORT_KEYS = ("model", "algorithm")
"""Sections that an override may give one text: the model's name, the algorithm's."""
_MOST_CALLED = 3


def keys_of_override(recipe: str | None, overrides: Sequence[str], typed: str) -> list[tuple[str, str]]:
    """The keys of this recipe that begin with `typed`, each with `=` at its end and with what it means."""
    fields = _fields(_class(recipe, overrides))
    return [
        (f"{key}=", (field.description or "").partition("\n")[0])
        for key, field in fields.items()
        if key.startswith(typed) and (key in SHORT_KEYS or not _is_section(field))
    ]


def values_of_override(recipe: str | None, overrides: Sequence[str], key: str) -> list[str] | None:
    """The values that the key can have; None where it takes a text, which may be the name of a file.

    The algorithms are those of the recipe's task, since an override of them leaves out what the recipe says
    for its own.
    """
    made = _class(recipe, overrides)
    if key == "task":
        return list(TASKS)
    if key in ("algorithm", "algorithm.name"):
        task = identity(made)[0] if made is not None else None
        return list(dict.fromkeys(name for of, name in all_recipes() if task in (None, of)))
    field = _fields(made).get(key)
    if key == "model" or field is None:
        return None if key == "model" else []
    parts = (field.annotation, *get_args(field.annotation))
    values = [str(one) for part in parts if get_origin(part) is Literal for one in get_args(part)]
    if bool in parts:
        values += ["true", "false"]
    if not values and str in parts:
        return None
    return [*values, *(["null"] if type(None) in parts else [])]


def keys_called(name: str, words: Sequence[str] = ()) -> list[str]:
    """The keys whose last part is `name` (dashes for underscores), those of training first.

    They are those of the first of `words` that is a recipe, or else of all recipes.
    """
    wanted = name.replace("-", "_")
    made = next(filter(None, (_class(word, ()) for word in words)), None)
    keys = [key for key, field in _fields(made).items() if not _is_section(field)]
    found = [key for key in keys if f".{key}".endswith(f".{wanted}")]
    return sorted(found, key=lambda key: (not key.startswith("training."), key.count(".")))[:_MOST_CALLED]


def _is_section(field: FieldInfo) -> bool:
    """Whether a field always holds keys, and so is no key of an override; one that can be null is."""
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _fields(made: type[Recipe] | None) -> dict[str, FieldInfo]:
    """The fields of a recipe by key; those of all recipes without one."""
    classes = all_recipes().values() if made is None else [made]
    return {key: field for one in classes for key, field in fields_of(one).items()}


def _class(recipe: str | None, overrides: Sequence[str]) -> type[Recipe] | None:
    """The class of a recipe with these overrides; None where that cannot be told."""
    if recipe is None:
        return None
    try:
        text = read_recipe(find_recipe(recipe))
        for override in overrides:
            text = text.with_override(override, {})
    except GreenwardError:  # the command itself will say what is wrong
        return None
    return None if names_code(text.data) or "extends" in text.data else recipe_class(text.data)
