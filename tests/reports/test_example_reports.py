"""The reports in docs/examples, of one run with three planted faults, show what the original promised."""

from __future__ import annotations

import re
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def text(name: str) -> str:
    return re.sub(r"\s+", " ", (EXAMPLES / name).read_text("utf-8"))


def number(pattern: str, name: str) -> float:
    found = re.search(pattern, text(name))
    assert found is not None, (pattern, name)
    return float(found[1])


def test_memory_grows_by_the_planted_factor() -> None:
    assert abs(number(r"CRITICAL.*?grew to ([\d.]+) times", "compute_profile.md") - 2.1) <= 0.1


def test_gradients_explode_at_the_planted_step() -> None:
    assert abs(number(r"CRITICAL.*?left its scale at step (\d+)", "gradient_drift_card.md") - 301) <= 5


def test_calibration_is_below_the_threshold_and_critical() -> None:
    score = number(r"CRITICAL.*?calibration score is ([\d.]+), below 0\.7", "calibration_report.md")
    assert abs(score - 0.65) <= 0.03


def test_the_report_names_all_three_as_causes() -> None:
    report = (EXAMPLES / "reward_health.md").read_text("utf-8")
    causes = report[: report.index("\n## Remarks")] if "\n## Remarks" in report else report
    headings = re.findall(r"^### (?:CRITICAL|WARNING): (.*)$", causes, re.MULTILINE)
    for title in (
        "Memory grows at every step",
        "The reward model's probabilities",
        "The learning rate jumped",
    ):
        assert any(heading.startswith(title) for heading in headings), headings
    assert "gradient-explosion" in causes.replace("\\", "")
