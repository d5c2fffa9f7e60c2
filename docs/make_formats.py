"""Writes the page of the formats of files of problems: .venv/bin/python docs/make_formats.py"""

from __future__ import annotations

from pathlib import Path

from greenward.problems.catalog import formats

PAGE = Path(__file__).parent / "keys" / "formats.md"
HEAD = """# Formats of files of problems

`docs/make_formats.py` writes this page.
[Problems](../problems.md#formats-of-files) says how a format is chosen and judged.

| name | files of | fields that tell it | a row |
|---|---|---|---|
"""


def page() -> str:
    """The page: a row for each format, in the order in which they are tried."""
    return HEAD + "".join(
        f"| `{one.key}` | {one.name} | {one.fields_text} | `{one.example.replace('|', chr(92) + '|')}` |\n"
        for one in formats()
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
