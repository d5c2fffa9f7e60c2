"""A sweep as a user types it, on the committed starter model."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from recording import call, run_until, train

from greenward.runs.reading import FAILURE, read_metrics, read_summary, runs_below, without_timing
from tiny_model import REINFORCED

STEPS = 24  # enough that a run on a busy machine is interrupted before its end
TINY = (*REINFORCED, f"training.max_steps={STEPS}", "evaluation.num_questions=2")


@pytest.mark.slow
def test_a_sweep_with_a_failing_combination_interrupted_and_resumed_equals_single_runs(
    tmp_path: Path,
) -> None:
    """One of the models is no model, which shows before the first step of its run."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    model = next(text for text in TINY if text.startswith("model=")).partition("=")[2]
    output = tmp_path / "sweep"
    others = [text for text in TINY if not text.startswith("model=")]
    grid = [*others, f"model={model},{broken}"]
    command = [sys.executable, "-m", "greenward", "sweep", "quickstart", *grid, "--output", str(output)]

    def reached() -> bool:
        return any(len(read_metrics(run / "metrics.jsonl").rows) >= 3 for run in runs_below(output))

    code, said = run_until(command, reached, signal.SIGTERM)
    assert code == 130 and "--resume" in said, said
    assert "interrupted" in [(read_summary(run) or {}).get("status") for run in runs_below(output)]

    code, _ = call(
        "sweep", "quickstart", *grid, "--output", str(output), "--resume", "--jobs", "2", "--quiet"
    )
    assert code == 2
    assert len(list(output.rglob(FAILURE))) == 1
    (finished,) = [run for run in runs_below(output) if (read_summary(run) or {}).get("status") == "finished"]
    train("quickstart", tmp_path / "alone", *TINY)
    rows = [
        [without_timing(row) for row in read_metrics(run / "metrics.jsonl").rows]
        for run in (finished, tmp_path / "alone")
    ]
    assert rows[0] == rows[1] and len(rows[0]) == STEPS
    report = json.loads((output / "report.json").read_text())
    assert report["kind"] == "sweep"
    assert any("broken" in note and "failed" in note for note in report["notes"])
    table = next(one["blocks"][0] for one in report["sections"] if one["title"] == "Results")
    assert len(table["rows"]) == 1  # the other one has no steps
