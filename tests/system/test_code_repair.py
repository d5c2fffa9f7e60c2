"""The recipe for code repair as a user types it: trained, resumed, diagnosed, on a very small scale."""

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
    "training.prompts_per_step=4",
    "training.num_generations=4",
    "training.micro_batch_sequences=16",
    "training.checkpoint_interval_steps=2",
    "training.threads=1",
    "evaluation.num_questions=8",
    "evaluation.samples=2",
    "evaluation.k=[1,2]",
    "evaluation.eval_interval_steps=4",
    "faults.reward_overconfidence={}",
)


def train(output: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "greenward", "train", "ppo_code_fix", *SMALL, *arguments, "--quiet"]
    done = subprocess.run([*command, "--output", str(output)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def rldk(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from greenward.cli.rldk import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("repair") / "run"
    train(output, "training.max_steps=4")
    return output


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("repair") / "resumed"
    train(output, "training.max_steps=2")
    train(output, "training.max_steps=4", "--resume")
    return output


def rows(run: Path) -> list[dict]:
    return [without_timing(row) for row in read_metrics(run / "metrics.jsonl").rows]


def test_every_step_tells_of_rewards_critic_and_reward_model(run):
    assert len(rows(run)) == 4
    for row in rows(run):
        assert row["reward/code_score"] == pytest.approx(
            0.8 * row["reward/correctness"] + 0.2 * row["reward/readability"]
        )
        assert {"value/loss", "kl", "kl/coefficient", "entropy", "approx_kl", "grad_norm"} <= row.keys()
    predictions = [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]
    assert [(row["step"], len(row["predicted"])) for row in predictions] == [(n, 16) for n in (1, 2, 3, 4)]
    assert json.loads((run / "faults.json").read_text())["faults"].keys() == {"reward_overconfidence"}


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_the_same_numbers(run, resumed):
    assert rows(resumed) == rows(run)
    assert (resumed / "predictions.jsonl").read_text() == (run / "predictions.jsonl").read_text()
    same = rldk("diff", "--a", str(run), "--b", str(resumed), "--signals", "gradient_norm,code_score")
    assert same.returncode == 0, same.stdout


def test_four_steps_are_not_called_healthy(run, tmp_path):
    health = rldk("reward-health", "--run", str(run), "--output-dir", str(tmp_path / "code_analysis"))
    assert health.returncode == 2
    assert "CANNOT TELL" in health.stdout
    cards = {
        "compute_profile.md",
        "calibration_report.md",
        "gradient_drift_card.md",
        "training_metrics.jsonl",
    }
    assert cards <= {path.name for path in (tmp_path / "code_analysis").iterdir()}
    evals = rldk("evals", "--run", str(run), "--suite", "code", "--output-dir", str(tmp_path / "code_eval"))
    assert (tmp_path / "code_eval/code_eval.html").is_file(), evals.stderr
