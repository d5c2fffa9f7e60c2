"""What the answers that a run kept show when all of them are read."""

from __future__ import annotations

import json

import numpy as np
import pytest
from synthetic_runs import healthy, write_run

from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.readers.answers import read_rollouts

STEPS = 120


def diagnosed(folder, rows_of):
    run = write_run(folder, healthy(3, STEPS))
    (run / "rollouts").mkdir()
    for step in range(1, STEPS + 1):
        text = "".join(json.dumps(row) + "\n" for row in rows_of(step))
        (run / "rollouts" / f"step_{step:06d}.jsonl").write_text(text)
    return {finding.name: finding for finding in diagnose_run(run).findings}


def answer(task, text, passed):
    status = "passed" if passed else "failed"
    return {"problem": f"t{task}", "answer": text, "status": status, "rewards": {"policy": float(passed)}}


@pytest.mark.parametrize("flaky", [0.0, 0.2])
def test_equal_answers_are_compared_over_all_steps(tmp_path, flaky):
    """Two answers to one task in a step are hardly ever equal, those of distant steps are."""
    rng = np.random.default_rng(1)

    def rows(step):
        for place in range(16):
            text = int(rng.integers(100))
            yield answer((step + place // 8) % 6, f"return {text}", (text % 3 == 0) ^ (rng.random() < flaky))

    found = diagnosed(tmp_path, rows)
    assert ("flaky-grades" in found) == (flaky > 0)
    if flaky:
        assert f"{16 * STEPS:,} answers were compared" in found["flaky-grades"].measured


@pytest.mark.parametrize("tasks", [2, 4])
@pytest.mark.parametrize("share", [0.3, 0.75, 1.0])
def test_a_dominant_answer_is_found_with_few_tasks_in_a_step(tmp_path, tasks, share):
    rng = np.random.default_rng(2)

    def rows(step):
        for task in rng.choice(60, tasks, replace=False):
            copied = step > 60 and rng.random() < share
            for _ in range(4):
                yield answer(task, "return 0" if copied else f"return {task} + {rng.integers(30)}", False)

    found = diagnosed(tmp_path, rows)
    assert ("dominant-answer" in found) == (share > 0.5)
    if share > 0.5:
        said = found["dominant-answer"]
        assert abs(said.onset.step - 61) <= 12 / tasks and "'return 0'" in said.measured
        assert float(said.measured.split("%")[0]) == pytest.approx(100 * share, abs=12)


def test_numbers_that_no_float_can_hold_are_left_out(tmp_path):
    file = tmp_path / "1.jsonl"
    rows = (
        {"reward": 10**400, "tokens": 10**400, "rewards": {"a": 0.5}, "answer": "abc"},
        {"reward": 2, "tokens": 7},
    )
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [(one.reward, one.length) for one in read_rollouts(file)] == [(0.5, 3.0), (2.0, 7.0)]
