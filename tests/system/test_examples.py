"""The programs in examples/: that they run as they say, and that their numbers are those of the trainer."""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from pathlib import Path

import pytest

from greenward import Grader, Policy, load_problems
from greenward.config.loading import load_recipe
from greenward.recipes.run import train
from tiny_model import DATA, REINFORCED

pytestmark = pytest.mark.usefixtures("kept_sandbox")

LOOP = Path(__file__).parents[2] / "examples" / "grpo_loop.py"
STEPS = 4


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_loop_has_the_numbers_of_the_trainer(tmp_path, seed):
    overrides = (
        *REINFORCED,
        f"seed={seed}",
        "algorithm=grpo",
        "algorithm={advantage: grpo, loss: grpo, clip_low: 0.2, clip_high: 0.2, minibatches: 1}",
        f"training.max_steps={STEPS}",
        "evaluation.enabled=false",
    )
    assert train(load_recipe("quickstart", overrides), tmp_path / "run", quiet=True)
    rows = [json.loads(row) for row in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    spec = importlib.util.spec_from_file_location("grpo_loop", LOOP)
    loop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loop)
    policy = Policy.from_folder(DATA / "starter", device="cpu")
    problems = load_problems(DATA / "problems.json")
    with Grader(workers=1) as grader:
        settings = {"prompts": 4, "answers": 8, "max_tokens": 20, "rows": 16, "learning_rate": 1e-3}
        found = list(loop.grpo(policy, problems, grader, steps=STEPS, seed=seed, **settings))
    assert len(found) == STEPS and {row["reward/mean"] for row in rows} != {rows[0]["reward/mean"]}
    for ours, row in zip(found, rows, strict=True):
        assert ours == pytest.approx({name: row[name] for name in ours}, rel=1e-3, abs=1e-5)


def test_the_loop_is_short_and_runs_as_a_program(tmp_path, monkeypatch, capsys):
    assert len(LOOP.read_text().splitlines()) <= 120
    options = ["--problems", DATA / "problems.json", "--steps", "2", "--output", tmp_path / "model"]
    monkeypatch.setattr(sys, "argv", [str(LOOP), *map(str, (DATA / "starter", *options))])
    runpy.run_path(str(LOOP), run_name="__main__")
    assert capsys.readouterr().out.count("reward/mean") == 2
    assert Policy.from_folder(tmp_path / "model").tokenizer.vocab_size
