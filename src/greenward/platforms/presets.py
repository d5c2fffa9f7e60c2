"""Recipes with the preset of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from greenward.config import loading
from greenward.config.recipe import Recipe
from greenward.platforms.detection import detect


@cache
def this_preset() -> str:
    """The preset that suits this machine."""
    return detect().preset


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in the file `path`, or shipped under that name, with `key=value` overrides applied.

    A pretrained model gets the preset of this machine, or the one that the key `preset` names. Raises
    `ConfigError` as `greenward.config.loading.load_recipe` does.
    """
    return loading.load_recipe(path, overrides, machine=this_preset)
