"""docs/keys/formats.md is what docs/make_formats.py makes of the formats that can be read."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from greenward import load_problems
from greenward.problems.catalog import formats
from greenward.problems.formats import save_json

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "keys" / "formats.md").read_text("utf-8")


def test_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_formats", DOCS / "make_formats.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.page() == PAGE


def test_every_format_has_its_row_with_its_fields() -> None:
    table = PAGE.partition("\n## ")[0]
    rows = {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}
    assert rows.keys() == {one.key for one in formats()}
    for one in formats():
        assert all(name in rows[one.key] for field in one.fields for name in field.split("|"))


def test_every_field_that_is_saved_has_its_row(tmp_path: Path) -> None:
    table = PAGE.partition("\n## Fields of the simple JSON format\n")[2]
    documented = {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}
    save_json(load_problems("classic_training"), tmp_path / "saved.json")
    saved = {name for row in json.loads((tmp_path / "saved.json").read_text("utf-8")) for name in row}
    assert {"hidden_test_cases", "reference", "starter_code"} <= saved <= documented
