"""What is said of logs that lack what greenward logs: no groups, no throughput, moving means, excerpts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from greenward.diagnostics.diagnose import diagnose_run

SEEDS = range(5)


def findings(folder, **series):
    """Severities by name of the findings of a log with these series."""
    count = len(next(iter(series.values())))
    rows = [{"step": i + 1, **{name: float(one[i]) for name, one in series.items()}} for i in range(count)]
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {one.name: one.severity for one in diagnose_run(folder).findings}


def learning(rng, count=200, gain=0.4, noise=0.05):
    """The mean reward of a step while a policy learns."""
    return 0.2 + gain * np.linspace(0, 1, count) + noise * rng.standard_normal(count)


def test_steps_whose_rewards_have_no_spread_are_dead_groups(tmp_path):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        for count in (25, 200):
            dead = rng.random(count) < 0.99
            rewards, spread = np.where(dead, 0.0, 0.25), np.where(dead, 0.0, 0.4)
            series = {"reward": rewards, "reward_std": spread, "grad_norm": spread + 0.01, "epoch": spread}
            assert "dead-groups" in findings(tmp_path / f"dead{seed}{count}", **series)
            alive = {**series, "reward_std": np.where(rng.random(count) < 0.5, 0.0, 0.4)}
            assert "dead-groups" not in findings(tmp_path / f"alive{seed}{count}", **alive)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_few_steps_with_a_signal_are_no_spikes_beside_those_without(tmp_path, seed):
    """The KL penalty alone moves a policy little: its gradient is no measure of those that a reward makes."""
    rng = np.random.default_rng(seed)
    dead = rng.random(300) < np.linspace(0.5, 0.95, 300)
    norms = np.where(dead, 0.005, 3.0) * np.exp(0.3 * rng.standard_normal(300))
    series = {"reward": learning(rng, 300), "reward_std": np.where(dead, 0, 0.4), "grad_norm": norms}
    series |= {"frac_reward_zero_std": dead.astype(float), "epoch": np.arange(300) / 300}
    assert "gradient-spikes" not in findings(tmp_path / "usual", **series)
    lasting = np.flatnonzero(~dead)[-25::5]
    series["grad_norm"] = np.where(np.isin(np.arange(300), lasting), 100, norms)
    assert "gradient-spikes" in findings(tmp_path / "spikes", **series)


@pytest.mark.parametrize(("level", "first"), [(1.0, "All pass"), (0.0, "All fail")])
def test_what_to_do_about_dead_groups_fits_what_most_of_them_are(tmp_path, level, first):
    rng = np.random.default_rng(0)
    dead = rng.random(200) < 0.95
    rewards = np.where(dead, level, 0.5)
    series = {"reward": rewards, "frac_reward_zero_std": dead.astype(float), "epoch": rewards}
    rows = [{key: float(values[at]) for key, values in series.items()} for at in range(200)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (found,) = (one for one in diagnose_run(tmp_path).findings if one.name == "dead-groups")
    assert found.actions[0].startswith(first)
    assert "not logged" not in found.confirm


def test_rewards_without_a_spread_whose_mean_varies_are_of_single_answers(tmp_path):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        rewards = rng.binomial(8, 0.4, 40) / 8
        found = findings(tmp_path / str(seed), reward=rewards, reward_std=np.zeros(40), kl=rng.random(40))
        assert "group-of-one" in found and "constant-reward" not in found


def test_longer_steps_are_slower_unless_answers_became_longer(tmp_path):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        late = np.arange(200) >= 100
        usual = {"reward": learning(rng), "reward_std": np.full(200, 0.4), "grad_norm": rng.random(200) + 0.5}
        seconds = 10 * np.exp(0.06 * rng.standard_normal(200))
        tokens = 100 * np.exp(0.05 * rng.standard_normal(200))
        for name, took, length, slow in (
            ("same", seconds, tokens, False),
            ("slower", seconds * np.where(late, 3, 1), tokens, True),
            ("longer", seconds * np.where(late, 1.7, 1), tokens * np.where(late, 1.7, 1), False),
            ("shorter", seconds * np.where(late, 0.8, 1), tokens * np.where(late, 0.5, 1), False),
        ):
            series = {**usual, "step_time": took, "completions/mean_length": length}
            counted = {**series, "num_tokens": np.cumsum(8 * length)}
            for kind, one in (("length", series), ("tokens", counted)):
                found = findings(tmp_path / f"{name}{kind}{seed}", **one)
                assert ("throughput-drop" in found) is slow, (name, kind, seed)


def test_an_agents_speed_is_that_between_rows_once_updates_have_begun(tmp_path):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        n = 200
        returns = 20 + 0.8 * np.arange(n) + rng.standard_normal(n)
        for name, seconds, slow in (
            ("updates", np.where(np.arange(n) < 20, 0.5, 5.0), False),
            ("slower", np.where(np.arange(n) < 100, 5.0, 15.0), True),
        ):
            loss = np.where(np.arange(n) < 20, np.nan, 1.0)
            elapsed = np.cumsum(seconds * np.exp(0.05 * rng.standard_normal(n)))
            frames = 2048.0 * (np.arange(n) + 1)
            lines = ["rollout/ep_rew_mean,time/iterations,time/total_timesteps,time/time_elapsed,train/loss"]
            for i in range(n):
                cell = "" if np.isnan(loss[i]) else "1.0"
                lines.append(f"{returns[i]},{i + 1},{frames[i]},{elapsed[i]:.0f},{cell}")
            folder = tmp_path / f"{name}{seed}"
            folder.mkdir()
            (folder / "progress.csv").write_text("\n".join(lines))
            names = {one.name for one in diagnose_run(folder).findings}
            assert ("throughput-drop" in names) is slow, (name, seed)


def test_a_sure_rise_below_the_noise_of_a_row_is_learning(tmp_path):
    """A mean of 4 answers has noise of half of their spread, and a gain of 0.3 of it is seen in 1,000 "
    "rows."""
    alarms = 0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        rewards = rng.binomial(4, np.linspace(0.3, 0.45, 1000)) / 4
        alarms += "no-learning" in findings(
            tmp_path / str(seed), Reward=rewards, avg_response_len=rng.random(1000)
        )
    assert alarms <= 1


def test_moving_means_of_episodes_that_learn_nothing_are_named(tmp_path):
    found = 0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        played = 50 + 100 * rng.standard_normal(100 + 400 * 4)
        means = np.convolve(played, np.ones(100) / 100, "valid")[::4][:400]
        series = {"Mean reward": means, "Mean action noise std": 1 + 0.1 * rng.random(400)}
        found += "no-learning" in findings(tmp_path / str(seed), **series)
    assert found >= len(SEEDS) - 1


def test_a_rise_that_does_not_matter_pays_for_no_kl(tmp_path):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        kl = 3 * (1 - np.exp(-np.arange(400) / 15)) * np.exp(0.05 * rng.standard_normal(400)) + 0.003
        # A tenth of the spread (0.04) matters, and √3 times as much pays for 3 nats; the rise from the first
        # sixth to the last third is three quarters of the gain.
        for gain, named in ((0.01, True), (0.04 / 0.7, True), (0.04 / 0.7 * 3**0.5, False), (0.4, False)):
            rewards = learning(rng, 400, gain, noise=0.002)
            series = {
                "reward": rewards,
                "reward_std": np.full(400, 0.4),
                "kl": kl,
                "grad_norm": rng.random(400) + 1,
            }
            assert ("kl-runaway" in findings(tmp_path / f"{seed}{gain}", **series)) is named


@pytest.mark.parametrize(("last", "named"), [(-5.0, True), (1.0, False)])
def test_a_reward_that_froze_below_its_best_is_constant(tmp_path, last, named):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        rewards = np.where(np.arange(120) < 40, rng.choice([-10.0, 0.7], 120), last)
        assert ("constant-reward" in findings(tmp_path / str(seed), reward=rewards)) is named


def boxes(folder, rewards, first=1000, **others):
    rows = [{"rollout/ep_rew_mean": r, "time/total_timesteps": first + 10 * i} for i, r in enumerate(rewards)]
    for i, row in enumerate(rows):
        row |= {name: float(values[i]) for name, values in others.items()}
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    folder.mkdir()
    (folder / "progress.csv").write_text("\n".join(lines))
    return diagnose_run(folder)


def test_an_excerpt_of_an_agent_at_its_best_is_no_constant_reward_and_one_at_0_is_reported(tmp_path):
    assert boxes(tmp_path / "best", [500.0] * 12).verdict == "cannot tell"
    zero = boxes(tmp_path / "zero", [0.0] * 12)
    assert [one.name for one in zero.findings] == ["constant-reward"] and zero.findings[0].actions


def test_equal_returns_leave_no_variance_to_explain(tmp_path):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        n = 200
        returns = np.minimum(10 + 10 * np.arange(n), 1000.0) + 0.01 * rng.standard_normal(n)
        solved = np.arange(n) >= 100
        error = np.where(solved, 1e-6, 20.0) * np.exp(0.3 * rng.standard_normal(n))
        explained = np.where(solved, -10.0, 0.8) + 0.1 * rng.standard_normal(n)
        unknown = np.where(np.arange(n) % 3 == 0, np.nan, explained)
        series = {"train/value_loss": error, "train/explained_variance": explained}
        names = {one.name for one in boxes(tmp_path / f"solved{seed}", returns, **series).findings}
        assert "value-function-useless" not in names
        series = {"train/value_loss": np.full(n, 20.0), "train/explained_variance": unknown}
        names = {one.name for one in boxes(tmp_path / f"useless{seed}", returns, **series).findings}
        assert "value-function-useless" in names and "non-finite" not in names


def test_what_dpo_learns_is_told_by_its_accuracy_where_it_logs_no_margins(tmp_path):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        usual = {"loss": np.linspace(0.69, 0.4, 300), "logps/chosen": np.full(300, -90.0)}
        for name, end in (("learns", 0.8), ("flat", 0.5)):
            accuracy = rng.binomial(32, np.linspace(0.5, end, 300)) / 32
            found = findings(tmp_path / f"{name}{seed}", **usual, **{"rewards/accuracies": accuracy})
            assert ("no-learning" in found) <= (name == "flat")
            if name == "learns":
                assert not found
