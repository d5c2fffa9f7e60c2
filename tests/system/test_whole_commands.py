"""Whole commands as a user types them, on the committed starter model; processes where signals are the subject."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from recording import call, run_until, train

from greenward.cli.main import run as run_command
from greenward.cli.rldk import rldk
from greenward.runs.reading import read_metrics, without_timing
from tiny_model import BUGS, REINFORCED

pytestmark = pytest.mark.usefixtures("kept_sandbox")

SHORT = (
    *REINFORCED,
    "training.max_steps=8",
    "training.checkpoint_interval_steps=3",
    "evaluation.at_start=true",
    "evaluation.eval_interval_steps=4",
)


def rows(run: Path) -> list[dict[str, Any]]:
    return [without_timing(row) for row in read_metrics(run / "metrics.jsonl").rows]


def evaluated(run: Path) -> list[dict[str, Any]]:
    """The rows of the last evaluation, without what it took of the clock and the processor."""
    record = json.loads((run / "evaluations/step_000008.json").read_text())
    return [{name: v for name, v in row.items() if "seconds" not in name} for row in record["rows"]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("whole") / "run"
    train("quickstart", output, *SHORT)
    return output


def test_a_run_leaves_everything_that_its_directory_promises(finished: Path) -> None:
    assert len(rows(finished)) == 8
    assert all(row["groups/trained"] > 0 and row["grad_norm"] > 0 for row in rows(finished))
    names = [path.name for path in sorted((finished / "evaluations").iterdir())]
    assert names == [f"step_{step:06d}.json" for step in (0, 4, 8)]
    evaluation = json.loads((finished / "evaluations/step_000008.json").read_text())
    for metric in evaluation["metrics"].values():
        assert 0 <= metric["low"] <= metric["value"] <= metric["high"] <= 1
    lines = (finished / "rollouts/step_000001.jsonl").read_text().splitlines()
    assert len(lines) == 32
    assert all("answer" in row and row["status"] for row in map(json.loads, lines))
    assert json.loads((finished / "summary.json").read_text())["status"] == "finished"
    assert (finished / "checkpoints/last/model.safetensors").is_file()
    assert "<html" in (finished / "report.html").read_text()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_metrics_and_another_seed_others(finished: Path, tmp_path: Path) -> None:
    for name, seed, same in (("again", 0, True), ("other", 1, False)):
        train("quickstart", tmp_path / name, *SHORT, f"seed={seed}")
        assert (rows(tmp_path / name) == rows(finished)) == same
        assert (evaluated(tmp_path / name) == evaluated(finished)) == same


def signalled(run: Path, number: int, steps: int, *arguments: str) -> tuple[int, str]:
    """Starts a training and sends it a signal after `steps` rows of metrics: exit code and standard error."""
    command = [sys.executable, "-m", "greenward", "train", "quickstart", *SHORT, *arguments, "--quiet"]
    command += ["--output", str(run)]
    return run_until(command, lambda: len(read_metrics(run / "metrics.jsonl").rows) >= steps, number)


@pytest.mark.slow
def test_a_run_killed_at_a_random_moment_and_resumed_equals_an_uninterrupted_one(
    finished: Path, tmp_path: Path
) -> None:
    run, steps = tmp_path / "killed", random.Random(os.urandom(8)).randint(1, 7)
    signalled(run, signal.SIGKILL, steps)
    train("quickstart", run, *SHORT, "--resume")
    assert rows(run) == rows(finished), f"killed after step {steps}"
    assert evaluated(run) == evaluated(finished)


@pytest.mark.slow
def test_ctrl_c_stops_with_a_checkpoint_and_exit_code_130(tmp_path: Path) -> None:
    run = tmp_path / "interrupted"
    code, said = signalled(run, signal.SIGINT, 2, "training.max_steps=500")
    assert code == 130 and "Traceback" not in said, said
    assert (run / f"checkpoints/step_{len(rows(run)):06d}/model.safetensors").is_file()
    assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"


@pytest.mark.parametrize(
    ("arguments", "message"), [((), "--resume"), (("--resume", "seed=5"), "seed: 0 -> 5")]
)
def test_a_second_run_in_the_same_directory_is_refused_and_nothing_is_lost(
    finished: Path, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (finished / "metrics.jsonl").read_bytes()
    code, _ = call("train", "quickstart", *SHORT, *arguments, "--output", str(finished))
    said = capsys.readouterr().err
    assert code == 2 and message in said and "Traceback" not in said
    assert (finished / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_run_is_overwritten_only_where_nothing_else_lies_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, short = tmp_path / "run", (*SHORT, "training.max_steps=1")
    train("quickstart", run, *short)
    (run / "notes.md").write_text("mine")
    overwrite = ("train", "quickstart", *short, "seed=1", "--quiet", "--overwrite", "--output", str(run))
    assert call(*overwrite)[0] == 2 and "notes.md" in capsys.readouterr().err
    assert (run / "summary.json").is_file()
    (run / "notes.md").unlink()
    assert call(*overwrite)[0] == 0
    assert len(rows(run)) == 1 and "seed: 1" in (run / "config.yaml").read_text()


def test_rounds_of_rejection_that_keep_nothing_are_counted_and_said_but_no_error(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="kept no answer"):
        train("rejection_sampling", tmp_path / "run", *REINFORCED, *BUGS, "sampling.max_tokens=1")
    assert [row["rejection/empty_rounds"] for row in rows(tmp_path / "run")] == [1, 2]
    assert all(row["rejection/kept"] == row["updates/applied"] == 0 for row in rows(tmp_path / "run"))
    assert "2 of 2 rounds kept no answer" in (tmp_path / "run/report.md").read_text()


def test_a_limit_on_training_time_ends_the_run_and_a_resumed_one_too(tmp_path: Path) -> None:
    arguments = (*SHORT, "algorithm=grpo", "training.max_seconds=0.000001")
    train("rejection_sampling", tmp_path / "run", *arguments)
    train("rejection_sampling", tmp_path / "run", *arguments, "--resume")
    assert len(rows(tmp_path / "run")) == 1
    assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "finished"


def test_a_run_of_code_repair_can_be_diagnosed_and_four_steps_are_not_called_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def diagnose(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            run_command(rldk, "rldk", arguments)
        return int(ended.value.code or 0)

    run, folder = tmp_path / "run", tmp_path / "diagnosis"
    few = ("training.max_steps=4", "training.prompts_per_step=2", "training.num_generations=2")
    overrides = (*REINFORCED, *BUGS, *few, "faults.reward_overconfidence={}")
    train("ppo_code_fix", run, *overrides)
    assert len(rows(run)) == 4
    for row in rows(run):
        parts = 0.8 * row["reward/correctness"] + 0.2 * row["reward/readability"]
        assert row["reward/code_score"] == pytest.approx(parts)
        assert {"value/loss", "kl", "kl/coefficient", "entropy", "approx_kl", "grad_norm"} <= row.keys()
    predictions = [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]
    assert [(row["step"], len(row["predicted"])) for row in predictions] == [(n, 4) for n in (1, 2, 3, 4)]
    assert json.loads((run / "faults.json").read_text())["faults"].keys() == {"reward_overconfidence"}

    assert diagnose("reward-health", "--run", str(run), "--output-dir", str(folder)) == 2
    assert "CANNOT TELL" in capsys.readouterr().out
    cards = {
        "compute_profile.md",
        "calibration_report.md",
        "gradient_drift_card.md",
        "training_metrics.jsonl",
    }
    assert cards <= {path.name for path in folder.iterdir()}
    diagnose("evals", "--run", str(run), "--suite", "code", "--output-dir", str(folder))
    assert (folder / "code_eval.html").is_file()
    assert diagnose("diff", "--a", str(run), "--b", str(run), "--signals", "gradient_norm,code_score") == 0
