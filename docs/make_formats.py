"""Writes the page of the formats of files of problems: .venv/bin/python docs/make_formats.py"""

from __future__ import annotations

from pathlib import Path

from greenward.problems.catalog import formats
from greenward.problems.formats import SIMPLE_FIELDS

PAGE = Path(__file__).parent / "keys" / "formats.md"
HEAD = """# Formats of files of problems

`docs/make_formats.py` writes this page.
[Problems](../problems.md#formats-of-files) says how a format is chosen and judged.

| name | files of | fields that tell it | a row |
|---|---|---|---|
"""


FIELDS = """
## Fields of the simple JSON format

| field | meaning |
|---|---|
"""


def page() -> str:
    """The page: a row for each format, in the order of their trial, and for each field of our own."""
    rows = [
        f"| `{one.key}` | {one.name} | {one.fields_text} | `{one.example.replace('|', chr(92) + '|')}` |\n"
        for one in formats()
    ]
    fields = [f"| `{name}` | {meaning} |\n" for name, meaning in SIMPLE_FIELDS.items()]
    return "".join((HEAD, *rows, FIELDS, *fields))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
