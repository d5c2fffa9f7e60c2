"""The answers that a finding points at show it, in simulated runs whose answers were drawn with the fault."""

from __future__ import annotations

import json

import numpy as np
import pytest
from benchmarks.faultbench.selections import SHOWS, judge

from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.findings import FINDINGS, answers_behind
from greenward.diagnostics.simulation import World, play, write
from greenward.runs.answers import read_answer_columns
from greenward.runs.selection import parse_query


def test_each_finding_with_a_selection_of_its_own_is_proven():
    assert SHOWS.keys() == {name for name, one in FINDINGS.items() if one.selection}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWS)
def test_the_selected_answers_show_the_finding_more_than_the_others(name):
    found = [one for seed in range(2) if (one := judge(name, seed)) is not None]
    assert found and all(one.holds for one in found), found


@pytest.mark.parametrize("bias", [0.5, -0.5])
def test_the_first_answers_behind_a_bias_of_length_are_those_that_it_pays(tmp_path, bias):
    found = []
    for seed in range(3):
        rng = np.random.default_rng((seed, int(bias > 0)))
        world = World(rng, 200)
        folder = write(world, play(world), tmp_path / str(seed))
        for file in (folder / "rollouts").iterdir():
            file.unlink()
        for step in range(10, 200, 10):
            tokens = np.exp(rng.normal(4, 0.5, 32)).astype(int) + 1
            rows = [
                {"problem": f"t/{i // 8}", "group": i // 8, "answer": f"{step} {i}", "status": "failed",
                 "tokens": int(count), "rewards": {"policy": float(bias * np.log(count) + rng.normal(0, 0.1))}}
                for i, count in enumerate(tokens)
            ]  # fmt: skip
            text = "".join(f"{json.dumps(row)}\n" for row in rows)
            (folder / "rollouts" / f"step_{step:06d}.jsonl").write_text(text)
        one = next(one for one in diagnose_run(folder).findings if one.name == "length-bias")
        columns = read_answer_columns(folder)
        selection = parse_query(answers_behind(one), strict=True)
        first = selection.order(columns, np.flatnonzero(selection.mask(columns)))[:60]
        rewards = columns.numbers["reward"]
        found.append(float(rewards[first].mean() - rewards.mean()))
    assert min(found) > 0.2
