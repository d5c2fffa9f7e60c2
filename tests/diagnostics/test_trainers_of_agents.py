"""Logs of agents' trainers, in the forms and under the names in which these write them."""

from __future__ import annotations

import json

import numpy as np

from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.signals import REWARD

ROWS = 120
RETURNS = np.round(
    20 + 180 * (1 - np.exp(-np.arange(ROWS) / 40)) + np.random.default_rng(0).standard_normal(ROWS), 3
)
LOSSES = np.round(0.5 + np.random.default_rng(1).random(ROWS), 4)


def checked(path, family, signals):
    """The run at `path`, which is healthy, of a family, and has the signals and its returns."""
    run = read_run_signals(path)
    assert run.family.name.startswith(family) and run.family.kind == "agent"
    assert run.values[REWARD][run.recorded[REWARD]].tolist() == RETURNS.tolist()
    for name, values in signals.items():
        assert run.values[name][run.recorded[name]].tolist() == np.broadcast_to(values, ROWS).tolist()
    assert diagnose_run(path).verdict == "healthy"
    return run


def written(path, rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def test_rl_games_logs_each_reward_by_frames_by_epochs_and_by_seconds(tmp_path):
    events = []
    for i, (reward, loss) in enumerate(zip(RETURNS, LOSSES, strict=True), 1):
        tags = {"losses/a_loss": loss, "losses/c_loss": 2 * loss, "losses/entropy": 9.0, "info/kl": 0.008}
        events += [{"step": 65536 * i, "name": name, "value": one} for name, one in tags.items()]
        by = {"step": 65536 * i, "iter": i, "time": 2 * i}
        events += [{"step": step, "name": f"rewards/{name}", "value": reward} for name, step in by.items()]
    run = checked(
        written(tmp_path / "events.jsonl", events),
        "rl_games",
        {"loss": LOSSES, "value/loss": 2 * LOSSES, "approx_kl": 0.008},
    )
    assert run.steps.tolist() == [65536 * (i + 1) for i in range(ROWS)]


def test_skrl_parts_its_names_by_spaces(tmp_path):
    rows = [
        {"step": 800 * i, "Reward / Total reward (mean)": reward, "Reward / Total reward (max)": 300.0,
         "Reward / Instantaneous reward (mean)": 0.1, "Loss / Policy loss": loss, "Loss / Value loss": 2 * loss,
         "Policy / Standard deviation": 0.9, "Learning / Learning rate": 3e-4}
        for i, (reward, loss) in enumerate(zip(RETURNS, LOSSES, strict=True), 1)
    ]  # fmt: skip
    checked(
        written(tmp_path / "log.jsonl", rows),
        "skrl",
        {"loss": LOSSES, "value/loss": 2 * LOSSES, "learning_rate": 3e-4},
    )


def test_rllib_names_the_policy_of_each_number_of_its_learners(tmp_path):
    learned = {"vf_explained_var": 0.5, "entropy": 0.6, "default_optimizer_learning_rate": 5e-5}
    for kind in ("learners", "info/learner"):
        rows = []
        for i, (reward, loss) in enumerate(zip(RETURNS, LOSSES, strict=True), 1):
            policy = {**learned, "policy_loss": loss, "vf_loss": 2 * loss, "mean_kl_loss": 0.01}
            policy["gradients_default_optimizer_global_norm"] = 1 + loss
            learners = {"learners": {"default_policy": policy}}
            if kind != "learners":
                learners = {"info": {"learner": {"default_policy": {"learner_stats": policy}}}}
            rows.append({
                **learners, "training_iteration": i, "env_runners": {"episode_return_mean": reward},
                "timers": {"training_iteration": 3.1}, "time_this_iter_s": 4.0, "config": {"lr": 5e-5}, "pid": 1,
            })  # fmt: skip
        run = checked(
            written(tmp_path / "result.json", rows),
            "RLlib",
            {"loss": LOSSES, "value/loss": 2 * LOSSES, "entropy": 0.6, "explained_variance": 0.5,
             "approx_kl": 0.01, "grad_norm": 1 + LOSSES, "learning_rate": 5e-5, "time/step": 4.0},
        )  # fmt: skip
        assert not any("not known" in note for note in run.notes)


def test_sample_factory_prints_its_rewards_below_its_frames_by_policy(tmp_path):
    lines = []
    for i, reward in enumerate(RETURNS, 1):
        stamp = f"[2023-02-25 10:{i // 60:02}:{i % 60:02},123]"
        lines += [
            f"{stamp}[05555] Fps is (10 sec: 1638.4, 60 sec: 1650.0, 300 sec: 1640.0). Total num frames: {8192 * i}. "
            f"Throughput: 0: 410.0. Samples: {2048 * i}. Policy #0 lag: (min: 0.0, avg: 0.6, max: 2.0)",
            f"{stamp}[05555] Avg episode reward: [(0, '{reward - 1:.3f}'), (1, '{reward + 1:.3f}')]",
            f"{stamp}[12345] Updated weights for policy 0, policy_version {10 * i} (0.0011)",
        ]
        if i % 20 == 0:
            lines.append(f"{stamp}[05555] Saving new best policy, reward={reward + 50:.3f}!")
    run = checked(written(tmp_path / "sf_log.txt", lines), "Sample Factory", {})
    assert run.steps.tolist() == [8192 * (i + 1) for i in range(ROWS)]


def test_a_folder_of_d3rlpy_is_one_run_of_files_without_headings(tmp_path):
    signals = {"environment": RETURNS, "loss": LOSSES, "time_step": 0.002 + 0 * LOSSES}
    signals["time_algorithm_update"] = signals["time_step"]
    for name, values in signals.items():
        written(tmp_path / f"{name}.csv", [f"{i},{1000 * i},{one}" for i, one in enumerate(values, 1)])
    (tmp_path / "params.json").write_text(json.dumps({"action_size": 2, "config": {"gamma": 0.99}}))
    run = checked(tmp_path, "d3rlpy", {"loss": LOSSES})
    assert run.steps.tolist() == [1000 * (i + 1) for i in range(ROWS)]
