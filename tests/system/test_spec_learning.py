"""The recipe grpo_spec teaches the small decoder to write functions of modules that it has never seen."""

from __future__ import annotations

import pytest

from greenward import train


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_held_out_modules_are_solved_more_often_than_after_the_warm_start(tmp_path, seed):
    overrides = [
        f"seed={seed}",
        "training.threads=1",
        "training.max_steps=30",
        "evaluation.num_questions=100",
    ]
    overrides += ["evaluation.samples=4", "evaluation.k=[1]", "evaluation.eval_interval_steps=30"]
    result = train("grpo_spec", overrides, output=tmp_path / "run", quiet=True)
    before, after = result.evaluations[0]["metrics"], result.evaluations[-1]["metrics"]
    # With seed 0, 20 % becomes 80 % after 25 steps; without self-imitation 50 %.
    assert after["pass@1"]["value"] - before["pass@1"]["value"] > 0.3
