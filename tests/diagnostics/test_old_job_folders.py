"""The files of a job of the first GRPO scripts: printed steps, and MBPP in a file for each evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.signals import HELD_OUT

STEPS = 90


def printed(path: Path) -> Path:
    """What a job prints, among it a dict of TRL for each step."""
    rows = [
        {"loss": 0.01, "grad_norm": 0.5, "reward": step / 100, "kl": 0.001} for step in range(1, STEPS + 1)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["Job ID: 77", "  0%|  | 0/90 [00:00<?]", *map(str, rows)]) + "\n")
    return path


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = printed(tmp_path / "logs" / "job_77" / "training_output.log").parent
    for step, phase, passed in ((0, "initial", 2), (20, "interval", 3), (90, "final", 5)):
        said = {
            "step": step,
            "phase": phase,
            "total_problems": 5,
            "problems_passed": passed,
            "pass_rate": passed / 5,
        }
        stem = f"step_{step}_{phase}_20250731_002937.json"
        (folder / f"mbpp_summary_{stem}").write_text(json.dumps(said))
        (folder / f"mbpp_details_{stem}").write_text(json.dumps({"summary": said, "detailed_results": []}))
    return folder


def test_the_output_of_slurm_is_read_by_its_name(tmp_path: Path) -> None:
    run = read_run_signals(printed(tmp_path / "slurm-grpo-77.out"))
    assert run.steps.tolist() == list(range(1, STEPS + 1))
    assert run.series("reward/mean")[1][-1] == pytest.approx(0.9)
    assert HELD_OUT not in run.values


def test_the_folder_of_a_job_holds_its_evaluations(job: Path) -> None:
    """The initial one counts for the first step that was printed."""
    run = read_run_signals(job)
    steps, scores = run.series(HELD_OUT)
    assert (steps.tolist(), scores.tolist()) == ([1, 20, 90], [0.4, 0.6, 1.0])
    assert any("3 file(s) mbpp_summary_step_*.json" in note for note in run.notes)


@pytest.mark.parametrize("text", ["{", "[]", '{"pass_rate": "high"}', '{"pass_rate": 7}', "{}"])
def test_a_damaged_evaluation_is_left_out(job: Path, text: str) -> None:
    (job / "mbpp_summary_step_20_interval_20250731_002937.json").write_text(text)
    assert read_run_signals(job).series(HELD_OUT)[1].tolist() == [0.4, 1.0]
