"""`kind: rejection` as a user runs it: resumed, limited in time, on programs to repair, on a very small scale."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from greenward.runs.metrics import read_metrics, without_timing
from tiny_model import TINY_MODEL

SMALL = (
    "problems.families.limit=60",
    *TINY_MODEL,
    "warm_start.max_steps=20",
    "warm_start.batch_size=16",
    "sampling.max_tokens=24",
    "algorithm.overlong.mask_truncated=false",
    "training.prompts_per_step=4",
    "training.num_generations=4",
    "training.micro_batch_sequences=4",
    "training.checkpoint_interval_steps=2",
    "training.threads=1",
    "evaluation.num_questions=8",
    "evaluation.samples=2",
    "evaluation.k=[1,2]",
    "evaluation.eval_interval_steps=3",
)
VOWELS = """
def share(prompts, completions, **columns):
    return [sum(letter in "aeiou" for letter in text) / max(1, len(text)) for text in completions]
"""


def train(output: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "greenward", "train", "rejection_sampling", *SMALL, *arguments]
    done = subprocess.run(
        [*command, "--quiet", "--output", str(output)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def rows(run: Path) -> list[dict]:
    return [without_timing(row) for row in read_metrics(run / "metrics.jsonl").rows]


@pytest.fixture
def vowels(tmp_path, monkeypatch) -> tuple[str, ...]:
    """A reward that answers of a model this small do earn, and the least that is kept."""
    (tmp_path / "vowels.py").write_text(VOWELS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return (
        "rewards=[{name: 'vowels:share'}]",
        "rejection={min_reward: 0.1, replay_rounds: 2, epochs: 2, batch_size: 4}",
    )


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_the_same_numbers(tmp_path, vowels):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(whole, "training.max_steps=5", *vowels)
    train(cut, "training.max_steps=3", *vowels)
    train(cut, "training.max_steps=5", *vowels, "--resume")
    assert rows(cut) == rows(whole) and len(rows(whole)) == 5
    assert all(row["rejection/pool"] > 0 and row["grad_norm"] > 0 for row in rows(whole))
    ours, theirs = (json.loads((run / "evaluations/step_000005.json").read_text()) for run in (cut, whole))
    assert ours["rows"] == theirs["rows"]


def test_rounds_without_a_passing_repair_are_counted_and_said_but_no_error(tmp_path):
    bugs = ("problems.train=bugs:families", "problems.held_out=bugs:families")
    said = train(tmp_path / "run", "training.max_steps=2", *bugs)
    assert "kept no answer" in said
    assert [row["rejection/empty_rounds"] for row in rows(tmp_path / "run")] == [1, 2]
    assert all(row["rejection/kept"] == row["updates/applied"] == 0 for row in rows(tmp_path / "run"))
    assert "2 of 2 rounds kept no answer" in (tmp_path / "run/report.md").read_text()


@pytest.mark.slow
def test_a_limit_on_training_time_ends_the_run_and_a_resumed_one_too(tmp_path):
    arguments = ("kind=grpo", "training.max_seconds=0.000001", "training.max_steps=50")
    train(tmp_path / "run", *arguments)
    train(tmp_path / "run", *arguments, "--resume")
    assert len(rows(tmp_path / "run")) == 1
    assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "finished"
