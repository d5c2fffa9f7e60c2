"""What the tests of this room share."""

from __future__ import annotations

import pytest

from greenward.config.schema import FamiliesConfig
from greenward.problems.families import generate
from greenward.problems.problem import ProblemSet


@pytest.fixture(scope="session")
def problems() -> ProblemSet:
    """All generated problems of the default config."""
    return generate(FamiliesConfig())
