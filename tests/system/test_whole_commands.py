"""Whole commands, as a user types them, in processes of their own, on a very small recipe."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from greenward.runs.metrics import read_metrics, without_timing
from tiny_model import TINY_MODEL

SMALL = (
    "problems.families.limit=80",
    *TINY_MODEL,
    "warm_start.max_steps=30",
    "warm_start.batch_size=16",
    "training.max_steps=8",
    "training.prompts_per_step=4",
    "training.num_generations=4",
    "training.micro_batch_sequences=16",
    "training.checkpoint_interval_steps=3",
    "training.threads=1",
    "sampling.max_tokens=24",
    "evaluation.num_questions=8",
    "evaluation.samples=2",
    "evaluation.k=[1,2]",
    "evaluation.eval_interval_steps=4",
    "rewards.0.name=vowels:share",  # a model this small passes no test; its gradient must not be zero
)


REWARD = """
def share(prompts, completions, **columns):
    return [sum(letter in "aeiou" for letter in text) / max(1, len(text)) for text in completions]
"""


@pytest.fixture(scope="module", autouse=True)
def reward_on_the_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "vowels.py").write_text(REWARD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        yield


def command(output: Path, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "greenward",
        "train",
        "quickstart",
        *SMALL,
        *arguments,
        "--output",
        str(output),
    ]


def train(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(output, *arguments), capture_output=True, text=True, timeout=240)


def rows(run: Path) -> list[dict]:
    return [without_timing(row) for row in read_metrics(run / "metrics.jsonl").rows]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, str]:
    output = tmp_path_factory.mktemp("whole") / "run"
    done = train(output)
    assert done.returncode == 0, done.stderr
    return output, done.stdout


def test_a_run_leaves_everything_that_its_directory_promises(finished):
    run, said = finished
    assert len(rows(run)) == 8
    assert all(row["groups/trained"] > 0 and row["grad_norm"] > 0 for row in rows(run))
    assert len(rows(run / "warm_start")) == 30
    assert [path.name for path in sorted((run / "evaluations").iterdir())] == [
        "step_000000.json",
        "step_000004.json",
        "step_000008.json",
    ]
    evaluation = json.loads((run / "evaluations/step_000008.json").read_text())
    for metric in evaluation["metrics"].values():
        assert 0 <= metric["low"] <= metric["value"] <= metric["high"] <= 1
    rollouts = [json.loads(line) for line in (run / "rollouts/step_000001.jsonl").read_text().splitlines()]
    assert len(rollouts) == 16
    assert all("answer" in row and row["status"] for row in rollouts)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert (run / "checkpoints/last/model.safetensors").is_file()
    assert "<html" in (run / "report.html").read_text()
    assert "report.html" in said


@pytest.mark.slow
def test_the_same_seed_gives_the_same_metrics(finished, tmp_path):
    again = train(tmp_path / "again", "--quiet")
    assert again.returncode == 0, again.stderr
    assert rows(tmp_path / "again") == rows(finished[0])
    assert rows(tmp_path / "again/warm_start") == rows(finished[0] / "warm_start")


def test_a_run_killed_at_a_random_moment_and_resumed_equals_an_uninterrupted_one(finished, tmp_path):
    run = tmp_path / "killed"
    process = subprocess.Popen(command(run, "--quiet"), stderr=subprocess.PIPE)
    steps = random.Random(os.urandom(8)).randint(1, 7)
    deadline = time.monotonic() + 200
    while len(read_metrics(run / "metrics.jsonl").rows) < steps and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    resumed = train(run, "--resume", "--quiet")
    assert resumed.returncode == 0, resumed.stderr
    assert rows(run) == rows(finished[0]), f"killed after step {steps}"
    ours = json.loads((run / "evaluations/step_000008.json").read_text())
    theirs = json.loads((finished[0] / "evaluations/step_000008.json").read_text())
    assert ours["rows"] == theirs["rows"]


def test_a_second_run_in_the_same_directory_is_refused_and_nothing_is_lost(finished):
    run, _ = finished
    before = (run / "metrics.jsonl").read_bytes()
    again = train(run)
    assert again.returncode == 2
    assert "--resume" in again.stderr
    assert "Traceback" not in again.stderr
    other = train(run, "--resume", "seed=5")
    assert other.returncode == 2
    assert "seed: 0 -> 5" in other.stderr
    assert (run / "metrics.jsonl").read_bytes() == before


def test_ctrl_c_stops_with_a_checkpoint_and_exit_code_130(tmp_path):
    run = tmp_path / "interrupted"
    process = subprocess.Popen(
        command(run, "training.max_steps=500", "--quiet"), stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 200
    while len(read_metrics(run / "metrics.jsonl").rows) < 2 and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    assert "Traceback" not in said
    steps = len(rows(run))
    assert (run / f"checkpoints/step_{steps:06d}/model.safetensors").is_file()
    assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"
