"""Fixtures that several tests of problems use."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from greenward.config.section import FamiliesConfig
from greenward.problems.generated import generate
from greenward.problems.problem import ProblemSet


@pytest.fixture(scope="session")
def problems() -> ProblemSet:
    """All generated problems of the default config."""
    return generate(FamiliesConfig())


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., Path]:
    """`lines({…}, {…})`: a file of JSON lines with these rows; a text is a line as it is."""

    def write(*rows: Any, name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
        path.write_text(text, encoding="utf-8")
        return path

    return write
