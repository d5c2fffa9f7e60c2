"""The files that greenward ships with its problems."""

from __future__ import annotations

import re
from pathlib import Path

DATA = Path(__file__).with_name("data")


def read_sections(name: str) -> dict[str, list[str]]:
    """The lines of each section of a text file, which a line `## HEADING` begins."""
    parts = re.split(r"^## (.+)\n", (DATA / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        heading: content.strip("\n").split("\n")
        for heading, content in zip(parts[1::2], parts[2::2], strict=True)
    }


def read_table(name: str) -> dict[str, list[list[str]]]:
    """As `read_sections`, with each line as its cells, between which ` | ` stands."""
    sections = read_sections(name).items()
    return {heading: [line.split(" | ") for line in lines] for heading, lines in sections}


def read_programs(name: str) -> dict[str, str]:
    """The program of each section, an empty line before it; `## NAME: REMARK` is the heading of NAME."""
    sections = read_sections(name).items()
    return {heading.partition(": ")[0]: "\n".join(["", *lines, ""]) for heading, lines in sections}
