"""Solved training problems and collapses look alike: groups teach nothing, entropy and distinct answers go."""

from __future__ import annotations

import json

import numpy as np
import pytest
from synthetic_runs import healthy, write_run

from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.findings import FINDINGS
from greenward.diagnostics.monitor import LiveTests
from greenward.diagnostics.simulation import World, every_kind, simulate, write

STEPS = 240
BY_SUCCESS = {name for name, one in FINDINGS.items() if one.by_success}


def first_of(count):
    """Seeds, all but the first two for slow tests."""
    return [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, count))]


def played(folder, kind, seed):
    world = World(np.random.default_rng((seed, 41)), STEPS)
    return write(world, simulate(every_kind()[kind], world, STEPS // 3), folder)


def severities(run):
    return {one.name: one.severity for one in diagnose_run(run).findings}


def alarms(run):
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    live = LiveTests(algorithm="grpo")
    return [one.name for row in rows for one in live.add(row.pop("step"), row)]


@pytest.mark.parametrize("seed", first_of(8))
def test_a_run_that_solves_its_problems_is_healthy_and_says_so(tmp_path, seed):
    run = played(tmp_path / "run", "training problems are solved", seed)
    found = severities(run)
    assert found["problems-solved"] == "info"
    assert not BY_SUCCESS & found.keys()
    assert diagnose_run(run).verdict == "healthy"


@pytest.mark.parametrize("seed", first_of(8))
def test_groups_that_agree_without_passing_more_are_a_collapse(tmp_path, seed):
    run = played(tmp_path / "run", "groups agree and entropy collapses", seed)
    found = severities(run)
    assert found["entropy-collapse"] == "critical"
    assert "problems-solved" not in found


@pytest.mark.parametrize("seed", first_of(4))
def test_the_monitor_alarms_on_the_collapse_alone(tmp_path, seed):
    solved = played(tmp_path / "solved", "training problems are solved", seed)
    assert not BY_SUCCESS & set(alarms(solved))
    collapsed = played(tmp_path / "collapsed", "groups agree and entropy collapses", seed)
    assert BY_SUCCESS & set(alarms(collapsed))


def saturated(seed, steps):
    """A run that comes to pass nearly all, of 64 groups of 4 answers."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 1, steps)
    chance = 0.25 + 0.72 * (1 - np.exp(-5 * t))
    passed = rng.random((steps, 64, 4)) < chance[:, None, None]
    count = passed.sum(2)
    rate = passed.mean((1, 2))
    return healthy(seed, steps) | {
        "pass_rate": rate,
        "reward/mean": rate,
        "reward/correctness": rate,
        "reward/code_score": rate,
        "status/passed": rate,
        "reward/std": np.sqrt(rate * (1 - rate)),
        "entropy": 0.4 * np.exp(-4 * t) * np.exp(0.03 * rng.standard_normal(steps)),
        "completion/unique": 0.9 - 0.75 * t,
        "groups/with_signal": ((count > 0) & (count < 4)).sum(1).astype(float),
        "groups/dead_all_pass": (count == 4).sum(1).astype(float),
        "groups/dead_all_fail": (count == 0).sum(1).astype(float),
    }


@pytest.mark.parametrize("steps", [14, 40, 200])
@pytest.mark.parametrize("seed", first_of(3))
def test_entropy_may_go_in_a_run_of_any_length_that_solves_its_problems(tmp_path, seed, steps):
    found = severities(write_run(tmp_path / "run", saturated(seed, steps), algorithm={"name": "grpo"}))
    assert found["problems-solved"] == "info"
    assert not BY_SUCCESS & found.keys()


def all_wrong(signals):
    swapped = {"groups/dead_all_pass": signals["groups/dead_all_fail"]}
    return signals | swapped | {"groups/dead_all_fail": signals["groups/dead_all_pass"]}


def not_learned(signals):
    level = 0.95 + 0.01 * np.random.default_rng(3).standard_normal(len(signals["pass_rate"]))
    names = ("pass_rate", "reward/mean", "reward/correctness", "reward/code_score", "status/passed")
    return signals | dict.fromkeys(names, level)


def lost_again(signals):
    falls = np.where(np.linspace(0, 1, len(signals["pass_rate"])) > 0.8, 0.35, 0.0)
    return signals | {"pass_rate": signals["pass_rate"] - falls}


def held_out_falls(signals):
    steps = len(signals["pass_rate"])
    score = 0.6 - 0.3 * np.linspace(0, 1, steps) + 0.01 * np.random.default_rng(4).standard_normal(steps)
    return signals | {"evaluation/score": score}


@pytest.mark.parametrize("change", [all_wrong, not_learned, lost_again, held_out_falls])
@pytest.mark.parametrize("seed", first_of(3))
def test_without_success_the_loss_of_entropy_is_critical(tmp_path, seed, change):
    signals = change(saturated(seed, 200))
    found = severities(write_run(tmp_path / "run", signals, algorithm={"name": "grpo"}))
    assert found["entropy-collapse"] == "critical"
    assert "problems-solved" not in found


@pytest.mark.parametrize(("top", "severity"), [(1.0, None), (0.5, "critical")])
def test_logs_of_others_are_judged_by_the_level_of_their_reward(tmp_path, top, severity):
    """Rewards of 0 to 1 that end at 1, or at half of it, where the answers to each prompt are one."""
    signals = saturated(1, 200)
    rows = [
        {
            "step": step,
            "reward": top * float(signals["pass_rate"][place]),
            "reward_std": top * float(signals["reward/std"][place]),
            "frac_reward_zero_std": float(1 - signals["groups/with_signal"][place] / 64),
            "entropy": float(signals["entropy"][place]),
            "grad_norm": float(signals["grad_norm"][place]),
            "learning_rate": 1e-5,
        }
        for place, step in enumerate(range(1, 201))
    ]
    state = {"global_step": 200, "max_steps": 200, "log_history": rows}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    found = severities(tmp_path / "trainer_state.json")
    assert found.get("entropy-collapse") == severity
    assert ("problems-solved" in found) is (severity is None)


def test_the_course_of_a_long_run_is_thinned_and_survives_a_restart(tmp_path):
    signals = saturated(2, 3000)
    live = LiveTests(algorithm="grpo")
    for place in range(3000):
        if place % 700 == 699:
            state = json.loads(json.dumps(live.state_dict()))
            assert len(state["course"]) <= 1024
            live = LiveTests(algorithm="grpo")
            live.load_state_dict(state)
        row = {name: float(values[place]) for name, values in signals.items()}
        assert not [one for one in live.add(place + 1, row) if one.name in BY_SUCCESS]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("end", "solves"), [(10.5, True), (4.0, False)])
def test_steps_without_a_signal_at_the_highest_reward_are_solved(tmp_path, seed, end, solves):
    """A log of TRL with a group a step, whose reward is a sum of terms of any size."""
    rng = np.random.default_rng(seed)
    dead = rng.random(300) < np.linspace(0, 1, 300) ** 0.5
    rewards = np.where(dead, end, np.where(rng.random(300) < 0.1, 10.5, rng.uniform(0, 6, 300)))
    rewards[:60] = np.where(dead[:60], 0.5, rewards[:60] / 2)
    columns = {"reward": rewards, "reward_std": np.where(dead, 0, 3.0), "frac_reward_zero_std": dead}
    columns |= {"grad_norm": np.where(dead, 0.005, 3.0), "epoch": np.arange(300) / 300}
    rows = [{name: float(values[at]) for name, values in columns.items()} for at in range(300)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = severities(tmp_path)
    assert ("problems-solved" in found) == solves
    assert ("dead-groups" in found) != solves
    for row in rows:  # a rate alone tells nothing of steps without a signal
        row["pass_rate"] = row.pop("reward") / 10.5
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert diagnose_run(tmp_path).verdict
