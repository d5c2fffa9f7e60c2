"""docs/keys/formats.md is what docs/make_formats.py makes of the formats that can be read."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from greenward.problems.catalog import formats

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "keys" / "formats.md").read_text("utf-8")


def test_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_formats", DOCS / "make_formats.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.page() == PAGE


def test_every_format_has_its_row_with_its_fields() -> None:
    rows = {line.split("`")[1]: line for line in PAGE.splitlines() if line.startswith("| `")}
    assert rows.keys() == {one.key for one in formats()}
    for one in formats():
        assert all(name in rows[one.key] for field in one.fields for name in field.split("|"))
