"""The benchmark that compares ways to train the repair of code, on a very small scale."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from greenward.runs.reading import read_config, read_metrics
from tiny_model import TINY_STUDY

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "code_repair_arms.py"


def run(folder: Path, *options: str) -> str:
    command = [sys.executable, str(BENCHMARK), *TINY_STUDY, "--seeds", "4", "--steps", "2", *options]
    command += ["--output", str(folder / "study"), "--json", str(folder / "kept.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_all_arms_train_for_the_seconds_of_ppo_and_are_not_repeated(tmp_path):
    said = run(tmp_path)
    seed = tmp_path / "study/seed_4"
    record = json.loads((tmp_path / "kept.json").read_text())
    assert [arm["label"] for arm in record["arms"]] == ["PPO", "GRPO", "Rejection sampling"]
    assert read_metrics(seed / "metrics.jsonl").rows[-1]["step"] == 2
    ppo_seconds = record["training_seconds"]["seed_4"]
    for name, algorithm in (("grpo", "grpo"), ("rejection", "rejection")):
        config = read_config(seed / name)
        assert config["algorithm"]["name"] == algorithm and config["training"]["max_seconds"] == round(
            ppo_seconds, 3
        )
        assert config["model"]["id"] == str(seed / "warm_start/checkpoints/last")
        assert config["problems"] == read_config(seed)["problems"]
        assert record["training_seconds"][f"seed_4/{name}"] >= round(ppo_seconds, 3)
    header = "| Held-out | Before | PPO | GRPO | Rejection sampling |"
    assert header in said and "PPO − GRPO" in said and "PPO − Rejection sampling" in said
    before = {path: path.stat().st_mtime_ns for path in seed.rglob("metrics.jsonl")}
    assert run(tmp_path) == said
    assert {path: path.stat().st_mtime_ns for path in seed.rglob("metrics.jsonl")} == before


@pytest.mark.slow
def test_answers_that_are_edits_are_trained_by_tests_and_by_similarity(tmp_path):
    said = run(tmp_path, "--recipe", "grpo_code_repair")
    seed = tmp_path / "study/seed_4"
    assert "| Held-out | Before | GRPO | Similarity reward | Rejection sampling |" in said
    assert "GRPO − Similarity reward" in said
    rewards = {name: read_config(seed / name)["rewards"] for name in (".", "similarity", "rejection")}
    names = {name: [one["name"] for one in terms if one["weight"]] for name, terms in rewards.items()}
    assert names == {".": ["all_tests"], "similarity": ["swe_rl"], "rejection": ["all_tests"]}
    assert "reward/swe_rl" in read_metrics(seed / "similarity/metrics.jsonl").rows[-1]
