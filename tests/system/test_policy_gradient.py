"""The benchmark that compares policy gradients with their controls, on a very small scale."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from greenward.evaluation.store import read_rows
from greenward.runs.reading import read_config, read_metrics
from tiny_model import TINY_STUDY

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "policy_gradient.py"
TINY = [override for override in TINY_STUDY if not override.startswith("evaluation.")]


def run(study: str, folder: Path, *options: str) -> str:
    command = [sys.executable, str(BENCHMARK), study, *TINY, "--seeds", "4", "--steps", "2", *options]
    command += ["--samples", "4", "--problems", "4", "--output", str(folder / "study")]
    command += ["--json", str(folder / "kept.json"), "--svg", str(folder / "curves.svg")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_all_arms_train_for_the_same_time_or_samples_and_are_not_repeated(tmp_path):
    arms = "rejection sampling,rejection sampling at equal samples,oracle"
    said = run("functions", tmp_path, "--arms", arms)
    seed = tmp_path / "study/seed_4"
    record = json.loads((tmp_path / "kept.json").read_text())
    assert [arm["name"] for arm in record["arms"]] == ["before", record["label"], *arms.split(",")]
    rows = {name: read_metrics(seed / name / "metrics.jsonl").rows for name in (".", "rejection_sampling")}
    seconds = record["arms"][1]["seconds"][0]
    config = read_config(seed / "rejection_sampling")
    assert config["algorithm"]["name"] == "rejection"
    assert config["training"]["max_seconds"] == round(seconds, 3)
    assert rows["rejection_sampling"][-1]["time/training"] >= round(seconds, 3)
    assert len(rows["."]) == 2
    assert record["arms"][3]["steps"] == [2] and record["arms"][3]["name"].endswith("at equal samples")
    oracle = read_config(seed / "oracle")
    assert oracle["algorithm"]["name"] == "sft" and oracle["warm_start"]["error_rate"] == 0
    for name in ("rejection_sampling", "rejection_sampling_at_equal_samples", "oracle"):
        config = read_config(seed / name)
        assert config["model"]["id"] == str(seed / "warm_start/checkpoints/last")
        assert config["problems"] == read_config(seed)["problems"]
    before = {path: path.stat().st_mtime_ns for path in seed.rglob("*.jsonl")}
    assert run("functions", tmp_path, "--arms", arms) == said
    assert {path: path.stat().st_mtime_ns for path in seed.rglob("*.jsonl")} == before


@pytest.mark.slow
def test_temperatures_are_chosen_on_other_problems_than_those_that_are_reported(tmp_path):
    run("repair", tmp_path, "--arms", "GRPO")
    seed = tmp_path / "study/seed_4"
    asked = {
        part: {row.task_id for row in read_rows(seed / "evaluated" / name / "results.jsonl")}
        for part, name in (("validation", "validation_0.3"), ("test", "test_1"))
    }
    assert asked["validation"] and asked["test"] and not asked["validation"] & asked["test"]
    trained = {
        json.loads(line)["problem"]
        for path in seed.glob("rollouts/*.jsonl")
        for line in path.read_text().splitlines()
    }
    assert trained and not trained & (asked["validation"] | asked["test"])
    record = json.loads((tmp_path / "kept.json").read_text())
    rows = list(read_rows(seed / "GRPO" / "evaluated" / "test_1" / "results.jsonl"))
    by_problem = [[r.success for r in rows if r.task_id == name] for name in asked["test"]]
    any_of_four = sum(any(one) for one in by_problem) / len(by_problem)
    assert record["arms"][2]["at_1"]["4"]["value"]["value"] == pytest.approx(any_of_four)
