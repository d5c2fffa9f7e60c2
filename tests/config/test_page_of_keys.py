"""docs/keys is what docs/make_keys.py makes of the classes, and has a table for each section of recipes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from greenward.config.loading import all_recipes
from greenward.config.recipe import Recipe

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "keys" / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["README.md", "rules.md"])
def test_the_page_is_up_to_date(name: str) -> None:
    spec = importlib.util.spec_from_file_location("make_keys", DOCS / "make_keys.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.PAGES[name]() == (DOCS / "keys" / name).read_text("utf-8")


@pytest.mark.parametrize("recipe", all_recipes().values(), ids=lambda made: made.__name__)
def test_every_key_of_every_recipe_has_its_row(recipe: type[Recipe]) -> None:
    for name in recipe.model_fields:
        assert f"| `{name}` |" in PAGE or f"## `{name}`" in PAGE or name == "task"
