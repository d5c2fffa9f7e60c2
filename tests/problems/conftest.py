"""Fixtures that several tests of problems use."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from greenward.config.sections import FamiliesConfig
from greenward.problems.generated import generate
from greenward.problems.problem import ProblemSet


@pytest.fixture(scope="session")
def problems() -> ProblemSet:
    """All generated problems of the default config."""
    return generate(FamiliesConfig())


DATA = Path(__file__).parents[2] / "../shared/data"


@pytest.fixture
def public() -> Callable[[str], Path]:
    """`public("mbpp/mbpp.jsonl")`: a file of the public suites, where this machine has them."""

    def find(path: str) -> Path:
        if not (DATA / path).exists():
            pytest.skip(f"needs {DATA / path}")
        return DATA / path

    return find


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., Path]:
    """`lines({…}, {…})`: a file of JSON lines with these rows; a text is a line as it is."""

    def write(*rows: Any, name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
        path.write_text(text, encoding="utf-8")
        return path

    return write
