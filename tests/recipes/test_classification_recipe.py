"""`grpo_vulnerability`: trains, evaluates by pairs, and is asked in the same way about files of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from greenward import evaluate, train
from greenward.reports.write import report_of, write_report
from greenward.runs.reading import read_evaluations
from greenward.tasks.vulnerability import data

TINY = {
    "model": {"shape": {"layers": 1, "hidden_size": 32, "heads": 2, "kv_heads": 2, "intermediate_size": 64,
                        "max_positions": 256}},
    "warm_start": {"max_steps": 3, "batch_size": 8},
    "training": {"max_steps": 2, "prompts_per_step": 4, "num_generations": 2, "threads": 1},
    "sampling": {"max_tokens": 8},
    "evaluation": {"num_questions": 20, "eval_interval_steps": 2, "greedy": False},
    "sandbox": {"workers": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "TRAINING_PAIRS", 200)
        result = train("grpo_vulnerability", output=tmp_path_factory.mktemp("v") / "run", quiet=True, **TINY)
    assert result.finished
    terms = {name for name in result.metrics[-1] if name.startswith("reward/")}
    assert {"reward/detection", "reward/weakness", "reward/evidence"} <= terms
    return result.run


def test_every_evaluation_has_the_figures_of_pairs(run: Path) -> None:
    for evaluation in read_evaluations(run):
        assert evaluation["classification"]["pairs"]["whole"] == 10
        assert evaluation["metrics"]["paired_accuracy"]["problems"] == 10
        assert evaluation["metrics"]["accuracy"]["problems"] == 20
        assert evaluation["isolation"] is None
    assert "paired accuracy" in write_report(report_of(run), run)["markdown"].read_text()


def test_a_file_of_pairs_is_asked_as_in_training(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    pair = {"vulnerable": "def f(x):\n    eval(x)", "fixed": "def f(x):\n    int(x)", "cwe": "CWE-94"}
    file.write_text(json.dumps(pair) + "\n")
    found = evaluate(str(run), str(file), samples=3, workers=1, output=tmp_path / "out", quiet=True)
    figures = found.summary["classification"]
    assert figures["pairs"]["whole"] == 1 and figures["majority"]["answers"] == 3
    assert figures["vd_s"] is None
    prompts = [json.loads(line) for line in (tmp_path / "out/prompts.jsonl").read_text().splitlines()]
    assert prompts[0]["prompt"] == "1 def f(x):\n2     eval(x)\n"
    assert "Majority: risk and coverage" in (tmp_path / "out/report.md").read_text()
