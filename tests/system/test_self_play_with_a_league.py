"""Whole trainings of self-play with a league: exact resumption, what is recorded, opponents from folders."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from recording import call, run_until, train

from greenward.runs.reading import read_metrics, without_timing
from tiny_model import TINY_MODEL

pytestmark = pytest.mark.usefixtures("kept_sandbox")

SMALL = (
    *TINY_MODEL,
    "model.device=cpu",
    "model.dtype=float32",
    "warm_start={max_steps: 2, batch_size: 16}",
    "training.num_generations=8",
    "training.max_steps=1",
    "training.threads=1",
    "training.rollouts_per_step=3",
    "evaluation.enabled=false",
)
LEAGUE = (
    *SMALL,
    "warm_start.max_steps=20",
    "self_play.games=[tictactoe, kuhn_poker]",
    "self_play.opponents={self: 0.3, league: 0.4, random: 0.3}",
    "self_play.league={snapshot_every: 2, size: 3}",
    "self_play.illegal_moves=retry",
    "sampling.max_tokens=3",
    "algorithm.entropy_coefficient=0.05",
    "training.weight_average=0.9",
    "training.max_steps=7",
    "training.checkpoint_interval_steps=3",
)


@pytest.fixture(scope="module")
def with_league(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("league") / "run"
    train("spiral_self_play", run, *LEAGUE)
    return run


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [without_timing(row) for row in read_metrics(run / "metrics.jsonl").rows]


@pytest.mark.slow
def test_a_run_with_a_league_killed_at_a_random_moment_resumes_exactly(
    with_league: Path, tmp_path: Path
) -> None:
    run, steps = tmp_path / "killed", random.Random(os.urandom(8)).randint(4, 6)
    command = [sys.executable, "-m", "greenward", "train", "spiral_self_play", *LEAGUE]
    command += ["--quiet", "--output", str(run)]
    run_until(command, lambda: len(read_metrics(run / "metrics.jsonl").rows) >= steps, signal.SIGKILL)
    train("spiral_self_play", run, *LEAGUE, "--resume")
    assert steps_of(run) == steps_of(with_league), f"killed after step {steps}"
    final = "checkpoints/last/model.safetensors"
    assert (run / final).read_bytes() == (with_league / final).read_bytes()


def test_a_run_records_each_opponent_and_role_and_keeps_few_games(with_league: Path) -> None:
    rows = steps_of(with_league)
    names = {name for row in rows for name in row}
    for opponent in ("self", "league", "random"):
        for role in ("first", "second"):
            assert {f"games/tictactoe/{opponent}/{role}/{x}" for x in ("win", "draw", "loss")} <= names
    for row in rows:
        for name in names & row.keys():
            if name.endswith("/win"):
                parts = [row[name.removesuffix("win") + result] for result in ("win", "draw", "loss")]
                assert sum(parts) == pytest.approx(1.0)
        assert 0 <= row["games/illegal"] <= 1 and row["episodes/infrastructure"] == 0
    for path in sorted((with_league / "rollouts").iterdir()):
        assert 0 < len(path.read_text().splitlines()) <= 3


def test_opponents_from_folders_need_the_tokens_of_the_policy(
    with_league: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    against = f"self_play.opponents={{self: 0.5, '{with_league}': 0.5}}"
    same = ("self_play.games=[tictactoe, kuhn_poker]", "sampling.max_tokens=3", against)
    train("spiral_self_play", tmp_path / "same", *SMALL, *same, "training.prompts_per_step=4")
    names = {name for name in steps_of(tmp_path / "same")[0] if str(with_league) in name}
    assert {name.rpartition("/")[2] for name in names} >= {"win", "draw", "loss"}
    other = ("self_play.games=[negotiation]", "sampling.max_tokens=8", against)
    output = str(tmp_path / "other")
    code, _ = call("train", "spiral_self_play", *SMALL, *other, "--quiet", "--output", output)
    said = " ".join(capsys.readouterr().err.split())
    assert code == 2 and "is not that of the policy" in said and f"model={with_league}" in said
    assert not list(tmp_path.glob("other/**/metrics.jsonl"))
