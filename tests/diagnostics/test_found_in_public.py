"""Kinds of logs that people keep in public repositories, written anew: each was once read wrongly."""

from __future__ import annotations

import json

import numpy as np
import pytest

from greenward.common.errors import DiagnosticsError
from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.readers import read_run_signals, run_names
from greenward.diagnostics.signals import REWARD

SEEDS = range(5)


def as_csv(path, **columns):
    names = [name.replace("__", "/").replace("_", " ") for name in columns]
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(names), *(",".join(f"{cell:.6g}" for cell in row) for row in rows)]))
    return path


def severities(path):
    return {one.name: one.severity for one in diagnose_run(path).findings}


def test_what_ml_agents_logs_is_an_agents_reward_and_entropy(tmp_path):
    rng = np.random.default_rng(0)
    reward = np.linspace(-0.5, 0.8, 60) + 0.05 * rng.standard_normal(60)
    columns = {
        "Environment__Cumulative_Reward": reward,
        "Policy__Entropy": np.linspace(1.4, 0.9, 60),
        "Policy__Learning_Rate": np.linspace(3e-4, 1e-6, 60),
        "Policy__Extrinsic_Value_Estimate": reward,
        "Losses__Policy_Loss": np.full(60, 0.03),
    }
    path = as_csv(tmp_path / "worm.csv", step=50_000 * np.arange(1, 61), **columns)
    run = read_run_signals(path)
    assert run.family.name == "ML-Agents" and run.family.kind == "agent"
    assert run.values[REWARD] == pytest.approx(reward, rel=1e-4)
    assert {"entropy", "learning_rate", "loss"} <= run.values.keys()
    assert not any("not known" in note for note in run.notes)
    # Where agents play against themselves, their rating tells what they learned, and the reward is about 0.
    zero_sum = {**columns, "Environment__Cumulative_Reward": 0.05 * rng.standard_normal(60)}
    rating = 1000 + 200 * np.tanh(np.arange(60) / 10) + 5 * rng.standard_normal(60)
    path = as_csv(tmp_path / "soccer.csv", step=np.arange(60), **zero_sum, **{"Self-play__ELO": rating})
    assert read_run_signals(path).logged_as(REWARD) == "Self-play/ELO"
    assert diagnose_run(path).unanswered is None and not severities(path)


def test_a_rows_total_of_its_rewards_is_the_reward(tmp_path):
    path = tmp_path / "rewards.jsonl"
    rows = [
        {"task": "a", "reward": {"correctness": i % 2, "format": 1, "total": i % 2 + 0.1}} for i in range(40)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    run = read_run_signals(path)
    assert run.logged_as(REWARD) == "reward/total" and "reward/correctness" in run.values
    assert run.values[REWARD].max() == pytest.approx(1.1)


@pytest.mark.parametrize("name", ["Avg_Fitness", "mean fitness", "MeanReward", "RewardMean", "EpisodeReturn"])
def test_names_of_the_reward_in_other_spellings(tmp_path, name):
    path = tmp_path / "log.csv"
    path.write_text("\n".join([f"generation,{name}", *(f"{i},{i / 10}" for i in range(40))]))
    assert read_run_signals(path).logged_as(REWARD) == name


def test_the_best_of_a_population_is_not_its_mean(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(
        "\n".join(["generation,Best_Fitness,Avg_Fitness", *(f"{i},9,{i / 10}" for i in range(40))])
    )
    assert read_run_signals(path).logged_as(REWARD) == "Avg_Fitness"


def updates(passes, length=4):
    """What a loop prints that updates a policy `length` times on each batch."""
    for batch in range(passes):
        yield f"##########  epoch: {batch}  ##########"
        for update in range(1, length + 1):
            reward = batch / passes + 0.001 * update
            yield f"[Update {update}/{length}] PolicyLoss=-0.0{update} RewardMean={reward:.4f} Entropy=0.9{batch % 7}"


def test_a_counter_that_begins_anew_more_often_than_it_counts_is_of_an_inner_loop(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("\n".join(updates(40)))
    run = read_run_signals(path)
    assert len(run.steps) == 160 and {REWARD, "loss", "entropy"} <= run.values.keys()
    assert any("begins anew after every 4 rows; rows are counted" in note for note in run.notes)
    assert np.all(np.diff(run.values[REWARD][::4]) > 0)
    path.write_text("\n".join(updates(3, 40)))
    assert len(run_names(path)) == 3  # three runs of 40 updates


def test_short_runs_that_a_setting_tells_apart_stay_apart(tmp_path):
    path = tmp_path / "sweep.csv"
    lines = [f"{rate},{step},{rate * step}" for rate in np.arange(1, 21) for step in range(5)]
    path.write_text("\n".join(["rate,step,reward", *lines]))
    last = read_run_signals(path)
    assert last.reading.runs == 20 and last.values[REWARD].tolist() == [20.0 * step for step in range(5)]


def test_episodes_that_are_counted_over_all_stages_are_the_steps(tmp_path):
    lines = [f"{stage},{i},{20 * stage + i},{stage + i / 20}" for stage in range(3) for i in range(20)]
    path = tmp_path / "training_log.csv"
    path.write_text("\n".join(["volume,episode,global_episode,total_reward", *lines]))
    run = read_run_signals(path)
    assert run.counted_by == "global_episode" and len(run.steps) == 60


def test_a_term_that_fell_while_the_reward_rose_is_no_warning(tmp_path):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        late = np.arange(200) > 60
        for name, gain, severity in (("rose", 2.0, "info"), ("flat", 0.0, "warning")):
            path = tmp_path / f"{name}{seed}.csv"
            columns = {
                "reward": 0.5 + gain * late + 0.1 * rng.standard_normal(200),
                "rewards__brevity__mean": np.where(late, -0.3, 0.0) + 0.05 * rng.standard_normal(200),
                "rewards__rest__mean": 0.5 + (gain + 0.3) * late + 0.1 * rng.standard_normal(200),
            }
            as_csv(path, step=np.arange(200), **columns)
            assert severities(path).get("reward-drop") == severity, (name, seed)


def test_an_agents_tests_that_fell_while_its_reward_rose_stay_a_warning(tmp_path):
    rng = np.random.default_rng(0)
    late = np.arange(200) > 60
    columns = {
        "reward": 0.5 + 2.0 * late + 0.1 * rng.standard_normal(200),
        "rewards__correctness__mean": np.where(late, 0.2, 0.6) + 0.05 * rng.standard_normal(200),
        "rewards__format__mean": 0.1 + 2.4 * late + 0.1 * rng.standard_normal(200),
    }
    path = as_csv(tmp_path / "log.csv", step=np.arange(200), **columns)
    assert severities(path).get("reward-drop") == "warning"


@pytest.mark.parametrize(("until", "found"), [(20, False), (150, True)])
def test_episodes_before_the_first_update_are_faster_than_those_after(tmp_path, until, found):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        seconds = np.where(np.arange(300) < until, 0.1, 4.0) * np.exp(0.05 * rng.standard_normal(300))
        path = tmp_path / f"{seed}.monitor.csv"
        rows = zip(np.arange(300) + rng.standard_normal(300), seconds.cumsum(), strict=True)
        lines = [f"{reward:.3f},200,{time:.4f}" for reward, time in rows]
        path.write_text("\n".join(['#{"t_start": 1.5, "env_id": "Pong-v4"}', "r,l,t", *lines]))
        assert ("throughput-drop" in severities(path)) is found, seed


def test_a_notebook_whose_outputs_tell_no_training_is_not_read_as_json(tmp_path):
    cells = [
        {"cell_type": "code", "execution_count": 3, "metadata": {}, "outputs": [], "source": "train()"},
        {"cell_type": "code", "execution_count": 4, "metadata": {"height": 17}, "source": "",
         "outputs": [{"output_type": "stream", "text": ["Collecting pip\n"]}]},
    ]  # fmt: skip
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5}, indent=1))
    with pytest.raises(DiagnosticsError, match="no rows of signals in its 1 outputs") as caught:
        read_run_signals(path)
    assert "outputs" in (caught.value.remedy or "")


def test_the_first_column_without_a_heading_may_count_the_rows(tmp_path):
    path = tmp_path / "rewards.csv"
    path.write_text("\n".join(f"{i},{i / 7:.4f},{20 + i % 3}" for i in range(40)))
    run = read_run_signals(path)
    assert run.counted_by == "step" and run.steps.tolist() == [*range(40)]
    (gap,) = (gap for gap in diagnose_run(path).gaps if gap.subject == "reward")
    assert "--map 'column 2=reward/mean'" in gap.enable
    path.write_text("\n".join(f"{i},{i / 7:.4f}" for _ in range(2) for i in range(1, 41)))
    assert len(run_names(path)) == 2
    path.write_text("\n".join(f"{i % 2},{i / 7:.4f},{20 + i % 3}" for i in range(40)))
    assert read_run_signals(path).counted_by == ""


def test_where_no_reward_is_known_the_option_is_said_that_names_it(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["step,volume,env_1_bonus_score", *(f"{i},3,{i / 9}" for i in range(40))]))
    gaps = [gap for gap in diagnose_run(path).gaps if gap.subject == "reward"]
    assert gaps and "--map env_1_bonus_score=reward/mean" in gaps[0].enable


def test_a_loop_of_ones_own_is_not_taken_for_stable_baselines(tmp_path):
    rng = np.random.default_rng(0)
    columns = {name: rng.uniform(0.04, 0.06, 60) for name in ("approx_kl", "value_loss", "mean_return")}
    lines = [
        ",".join(["update", *columns]),
        *(f"{i}," + ",".join(f"{one[i]:.4f}" for one in columns.values()) for i in range(60)),
    ]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines))
    family = read_run_signals(path).family
    assert family.kind == "agent" and family.dialect == ""


@pytest.mark.parametrize(("name", "found"), [("eval_entropy", False), ("eval_loss", True)])
def test_what_no_evaluation_measured_is_not_a_number_without_harm(tmp_path, name, found):
    """What an evaluation judges by must be a number; its other means may be over nothing."""
    rng = np.random.default_rng(0)
    margins = np.linspace(0, 1, 40) + 0.05 * rng.standard_normal(40)
    rows = [
        {
            **{"step": i + 1, "loss": 0.7 - 0.3 * margins[i], "grad_norm": 2.0, "learning_rate": 1e-6},
            **{"rewards/margins": margins[i], "rewards/accuracies": 0.5 + margins[i] / 3},
        }
        for i in range(40)
    ]
    evaluated = {"eval_loss": 0.6, "eval_rewards/accuracies": 0.6, "eval_entropy": 1.5, name: float("nan")}
    rows += [{"step": 20, **evaluated}, {"step": 40, **evaluated}]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": sorted(rows, key=lambda row: row["step"])}))
    assert ("non-finite" in severities(path)) is found


@pytest.mark.parametrize(("gain", "healthy"), [(0.3, True), (0.0, False)])
def test_what_surely_learned_had_a_gradient(tmp_path, gain, healthy):
    """A loop of one's own that logs a learning rate and no norm of the gradient."""
    rng = np.random.default_rng(0)
    rows = [
        {
            **{"step": i, "learning_rate": 1e-6, "loss": 0.01, "mean_reward": 0.5 + gain * i / 200},
            **{"reward_std": 0.4, "kl": 0.001 + 1e-5 * i, "frac_reward_zero_std": 0.3},
        }
        for i in range(200)
    ]
    for row in rows:
        row["mean_reward"] += 0.05 * rng.standard_normal()
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = diagnose_run(path)
    assert (found.verdict == "healthy") is healthy
    assert healthy or found.unanswered == "grad_norm could not be tested"


def test_no_counter_is_offered_as_the_reward(tmp_path):
    path = tmp_path / "trainer_log.jsonl"
    rows = [{"current_steps": i, "total_steps": 900, "gain": 0.5 + i / 100} for i in range(1, 40)]
    path.write_text("\n".join(map(json.dumps, rows)))
    gaps = [gap for card in diagnose_run(path).cards for gap in card.gaps]
    assert gaps and not any("total_steps=" in gap.enable for gap in gaps)
