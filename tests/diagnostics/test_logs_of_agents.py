"""What is said of agents' logs: falls under a moving mean, speeds of episodes, sizes of steps, losses."""

from __future__ import annotations

import numpy as np
import pytest

from greenward.diagnostics.diagnose import diagnose_run

SEEDS = range(5)


def findings(folder, **columns):
    """Severities by name of the findings of a CSV file with these columns."""
    folder.mkdir(parents=True)
    names = [name.replace("__", "/") for name in columns]
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(names), *(",".join(f"{cell:.6g}" for cell in row) for row in rows)]
    (folder / "progress.csv").write_text("\n".join(lines) + "\n")
    return {one.name: one.severity for one in diagnose_run(folder / "progress.csv").findings}


def mean_of_last(values, window=100):
    """The mean of the last `window` values at each place, as Stable-Baselines3 logs returns."""
    sums = np.concatenate(([0.0], values.cumsum()))
    places = np.arange(1, len(values) + 1)
    first = np.maximum(places - window, 0)
    return (sums[places] - sums[first]) / (places - first)


def test_a_fall_that_no_test_of_change_can_tell_from_a_moving_mean_is_no_learning(tmp_path):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        episodes = np.where(np.arange(560) < 25, -8, -33) + 3 * rng.standard_normal(560)
        returns = mean_of_last(episodes)[3::4]  # a row for each fourth episode
        steps = 1400 * np.arange(1, len(returns) + 1)
        found = findings(
            tmp_path / str(seed),
            time__total_timesteps=steps,
            rollout__ep_rew_mean=returns,
            rollout__ep_len_mean=np.full(len(steps), 350.0),
            rollout__exploration_rate=np.full(len(steps), 0.5),
            train__loss=0.001 * np.exp(rng.standard_normal(len(steps))),
        )
        assert {"no-learning", "reward-drop"} & found.keys(), seed


def test_a_loss_above_all_returns_diverges_only_if_it_grows(tmp_path):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        usual = {"episode": np.arange(60), "episode_reward": 0.05 * rng.standard_normal(60)}
        noise = np.exp(0.1 * rng.standard_normal(60))
        flat = findings(tmp_path / f"flat{seed}", **usual, loss=1.5 * noise)
        grows = findings(tmp_path / f"grows{seed}", **usual, loss=1.5 * noise * 1.1 ** np.arange(60))
        assert "value-loss-diverges" not in flat and "value-loss-diverges" in grows


@pytest.mark.parametrize(("slower", "found"), [(1, False), (4, True)])
def test_episodes_that_become_longer_are_no_slower_machine(tmp_path, slower, found):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        lengths = np.round(np.linspace(20, 500, 300) * np.exp(0.2 * rng.standard_normal(300)))
        seconds = lengths / 2000 * np.exp(0.05 * rng.standard_normal(300))
        seconds *= np.where(np.arange(300) > 150, slower, 1)
        folder = tmp_path / str(seed)
        folder.mkdir(parents=True)
        rows = zip(lengths, lengths, seconds.cumsum(), strict=True)  # a Monitor of Stable-Baselines3
        lines = ['#{"t_start": 1783772504.6, "env_id": "CartPole-v1"}', "r,l,t"]
        lines += [f"{reward},{length:.0f},{time:.6f}" for reward, length, time in rows]
        (folder / "monitor.csv").write_text("\n".join(lines) + "\n")
        named = {one.name for one in diagnose_run(folder / "monitor.csv").findings}
        assert ("throughput-drop" in named) is found, seed


@pytest.mark.parametrize(("gain", "severity"), [(300, "info"), (0, "warning")])
def test_large_steps_by_which_an_agent_learned_are_no_warning(tmp_path, gain, severity):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        episodes = 20 + gain * np.linspace(0, 1, 1200) + 30 * rng.standard_normal(1200)
        found = findings(
            tmp_path / str(seed),
            time__total_timesteps=2048 * np.arange(1, 121),
            rollout__ep_rew_mean=mean_of_last(episodes)[9::10],
            rollout__ep_len_mean=np.full(120, 200.0),
            train__approx_kl=0.05 * np.exp(0.3 * rng.standard_normal(120)),
            train__value_loss=10 * np.exp(0.3 * rng.standard_normal(120)),
        )
        assert found.get("large-policy-steps") == severity, seed


def test_one_pause_at_the_end_is_no_slower_machine(tmp_path):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        lengths = rng.integers(5, 15, 232)
        seconds = lengths / 1100 * rng.uniform(0.9, 1.1, 232)
        for name, pauses in (("pause", [227]), ("slow", range(150, 232))):
            took = seconds.copy()
            took[[*pauses]] += 0.2
            found = findings(
                tmp_path / f"{name} {seed}",
                episode_reward=np.arange(232) + rng.standard_normal(232),
                episode_length=lengths,
                time_elapsed=took.cumsum(),
            )
            assert ("throughput-drop" in found) is (name == "slow")


def test_a_few_lucky_episodes_of_an_evaluation_are_no_best(tmp_path):
    """Evaluations of an agent that learns nothing have heavy tails: few of its episodes last long."""
    alarms = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        scores = 20 + rng.exponential(1, 30) ** 2 * 15
        alarms += "held-out-regression" in findings(
            tmp_path / str(seed),
            time__total_timesteps=2048 * np.arange(1, 31),
            rollout__ep_rew_mean=120 + 5 * rng.standard_normal(30),
            time__fps=np.full(30, 900),
            eval__mean_reward=scores,
        )
    assert alarms <= 2
    fallen = findings(
        tmp_path / "fallen",
        time__total_timesteps=2048 * np.arange(1, 31),
        rollout__ep_rew_mean=120 + 5 * np.random.default_rng(0).standard_normal(30),
        time__fps=np.full(30, 900),
        eval__mean_reward=np.where(np.arange(30) < 20, 180, 40)
        + 8 * np.random.default_rng(1).standard_normal(30),
    )
    assert "held-out-regression" in fallen


def test_an_agent_has_actions_where_a_language_model_has_tokens(tmp_path):
    rng = np.random.default_rng(0)
    findings(
        tmp_path / "run",
        time__total_timesteps=2048 * np.arange(1, 101),
        rollout__ep_rew_mean=np.arange(100) + rng.standard_normal(100),
        time__fps=np.full(100, 900),
        train__clip_fraction=0.6 + 0.05 * rng.standard_normal(100),
    )
    diagnosis = diagnose_run(tmp_path / "run" / "progress.csv")
    (found,) = (one for one in diagnosis.findings if one.name == "clip-fraction-high")
    assert "60% of the actions clipped" in found.brief
    assert "token" not in f"{found.title} {found.measured} {found.brief} {' '.join(found.actions)}"


def test_a_quantity_that_the_environment_never_had_is_no_number_that_went_wrong(tmp_path):
    rewards = 100 + np.arange(40.0)
    for name, found in (("beacons_mean", False), ("value_norm", True)):
        never = findings(
            tmp_path / name, episode=np.arange(40), reward=rewards, **{name: np.full(40, np.nan)}
        )
        assert ("non-finite" in never) is found
    once = findings(
        tmp_path / "once",
        episode=np.arange(40),
        reward=rewards,
        beacons_mean=np.where(rewards < 120, 1, np.inf),
    )
    assert "non-finite" in once


@pytest.mark.parametrize(("last", "found"), [(60, True), (230, False)])
def test_a_moving_mean_that_falls_back_within_the_last_sixth_is_named(tmp_path, last, found):
    """Of such a fall the mean of the last sixth shows little: it begins with the best rows."""
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        levels = np.interp(np.arange(4000), [0, 2500, 3600, 3700, 4000], [20, 80, 230, 230, last])
        returns = mean_of_last(levels + 40 * rng.standard_normal(4000))[3::4]
        steps = 800 * np.arange(1, len(returns) + 1)
        named = findings(
            tmp_path / str(seed),
            time__total_timesteps=steps,
            rollout__ep_rew_mean=returns,
            rollout__ep_len_mean=np.full(len(steps), 200.0),
            rollout__exploration_rate=np.full(len(steps), 0.05),
            train__loss=0.001 * np.exp(rng.standard_normal(len(steps))),
        )
        assert ("reward-drop" in named) is found, seed


@pytest.mark.parametrize(("end", "found"), [(1.0, False), (0.2, True)])
def test_a_short_run_of_an_agent_that_is_sure_of_its_best_has_not_collapsed(tmp_path, end, found):
    rows = 25  # too few for a test
    reward = np.interp(np.arange(rows), [0, 10, 15, rows - 1], [0, 1, 1, end])
    named = findings(
        tmp_path / "run",
        time__total_timesteps=2048 * np.arange(1, rows + 1),
        rollout__ep_rew_mean=reward,
        train__entropy_loss=-1.4 * 0.8 ** np.arange(rows),
        train__approx_kl=np.full(rows, 0.01),
    )
    assert ("entropy-collapse" in named) is found
