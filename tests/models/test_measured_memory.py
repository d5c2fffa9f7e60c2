"""The estimate of memory beside the measured peak of training two published shapes, on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from greenward.models.memory import ESTIMATE_ERROR

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "memory_estimate.py"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the peak is read from /proc")
@pytest.mark.parametrize("name", ["SmolLM2-135M", "Qwen2.5-0.5B, adapter"])
def test_the_estimate_is_that_of_the_peak_on_published_shapes(name: str, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    subprocess.run([sys.executable, BENCHMARK, "--only", name, "--output", found], check=True)
    (row,) = json.loads(found.read_text())["cases"]
    assert row["case"] == name and row["measured_mib"] > 1000
    assert abs(row["error"]) <= ESTIMATE_ERROR, row
