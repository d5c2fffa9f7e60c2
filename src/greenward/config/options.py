"""Checks of the options of the Python API, whose errors are those of `greenward.errors`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from greenward.errors import ConfigError

Made = TypeVar("Made")


def checked(make: Callable[..., Made], **options: Any) -> Made:
    """What is made of these options. Raises `ConfigError` for the first one that cannot be."""
    from pydantic import ValidationError

    try:
        return make(**options)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ConfigError(f"{wrong['loc'][0]}: {wrong['msg']}, found {wrong['input']!r:.200}.") from None


def check_names(options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raises `ConfigError` for an option that is not known, naming the nearest."""
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            remedy = f"Did you mean {near[0]}?" if near else f"Options: {', '.join(known)}."
            raise ConfigError(f"there is no option {name!r}.", remedy=remedy)


def unexpected(name: str, expected: str, found: Any) -> ConfigError:
    """The error of an argument that is of another kind than expected."""
    return ConfigError(f"{name}: expected {expected}, found {found!r:.200}.")
