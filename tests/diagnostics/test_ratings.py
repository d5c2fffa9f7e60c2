"""In self-play the rating of a player tells what it learned: its rewards have a mean of 0."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.signals import REWARD

ROWS = 120
FORMS = {
    "ELO": "[INFO] Soccer. Step: {step}000. Time Elapsed: {step}.1 s. Mean Reward: {reward:.3f}. "
    "Std of Reward: 0.900. Training. ELO: {elo:.3f}.",
    "self_play/elo": '{{"step": {step}, "self_play/elo": {elo:.3f}, "reward_mean": {reward:.3f}}}',
    "elo_rating": "Iteration {step}: policy_loss=0.500 elo_rating={elo:.3f} best_elo=1900.0",
}


def logged(folder, elo, form="ELO"):
    rng = np.random.default_rng(len(elo))
    path = folder / "train.log"
    lines = (
        FORMS[form].format(step=i, elo=one, reward=0.1 * rng.standard_normal())
        for i, one in enumerate(elo, 1)
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def diagnosed(path):
    found = diagnose_run(path)
    return found.verdict, {one.name for one in found.findings if one.severity != "info"}


@pytest.mark.parametrize("form", FORMS)
def test_a_smooth_rise_of_a_rating_is_learning_and_a_smooth_fall_is_found(tmp_path, form):
    curve = 300 * (1 - np.exp(-np.arange(ROWS) / 40)) + np.random.default_rng(0).standard_normal(ROWS)
    path = logged(tmp_path, 1200 + curve, form)
    run = read_run_signals(path)
    assert run.logged_as(REWARD) == form and run.is_rated and run.family.kind == "agent"
    assert "reward/std" not in run.values  # that of the games is none of the rating
    assert diagnosed(path) == ("healthy", set())
    assert "reward-drop" in diagnosed(logged(tmp_path, 1500 - curve, form))[1]


def test_ratings_that_wander_are_no_learning_and_no_fall(tmp_path):
    """Without progress a rating is a martingale: its changes have no mean."""
    verdicts = Counter()
    for seed in range(40):
        changes = 12 * np.random.default_rng(seed).standard_normal(ROWS)
        verdict, names = diagnosed(logged(tmp_path, 1200 + np.cumsum(changes)))
        verdicts[verdict] += 1
        assert not names - {"no-learning"}
    assert verdicts["healthy"] <= 5  # of 40 at 5 %: above with a chance of 1.4 %
    assert verdicts["cannot tell"] >= 30


def test_a_rise_by_which_the_former_self_is_hardly_beaten_is_none_that_matters(tmp_path):
    for points, healthy in ((10, False), (200, True)):
        elo = 1200 + np.linspace(0, points, ROWS) + 0.2 * np.random.default_rng(1).standard_normal(ROWS)
        assert (diagnosed(logged(tmp_path, elo))[0] == "healthy") is healthy
