from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_study import write_study


@pytest.fixture(scope="session")
def study(tmp_path_factory) -> Path:
    """Two seeds with warm start and control. Read only."""
    return write_study(tmp_path_factory.mktemp("reports") / "study", problems=60)
