"""Which trainer wrote a log, and what that changes in its diagnosis. Names are those of the trainers' sources."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest

from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.families import family_of, setting_in
from greenward.diagnostics.findings import FINDINGS

NAMES = {
    "TRL, GRPO or RLOO": "loss grad_norm learning_rate num_tokens reward reward_std frac_reward_zero_std "
    "completions/mean_length completions/clipped_ratio rewards/accuracy/mean kl epoch",
    "TRL, PPO or RLOO": "eps objective/kl objective/entropy objective/rlhf_reward objective/scores "
    "policy/approxkl_avg policy/clipfrac_avg loss/policy_avg loss/value_avg val/ratio lr",
    "DPO": "loss grad_norm learning_rate rewards/chosen rewards/rejected rewards/accuracies rewards/margins "
    "logps/chosen logits/chosen",
    "LLaMA-Factory, preferences": "current_steps total_steps loss accuracy lr epoch percentage",
    "supervised training": "loss grad_norm learning_rate num_tokens mean_token_accuracy epoch",
    "ms-swift, GRPO": "loss grad_norm learning_rate memory(GiB) train_speed(iter/s) reward reward_std kl "
    "clip_ratio/low_mean global_step/max_steps",
    "verl": "actor/pg_loss actor/entropy actor/grad_norm critic/score/mean response_length/mean perf/throughput",
    "OpenRLHF": "policy_loss actor_lr kl reward return response_length critic_loss",
    "prime-rl": "reward/all/mean seq_len/all/mean is_truncated/all/mean entropy/all/mean optim/grad_norm",
    "Tinker cookbook": "env/all/reward/total env/all/by_group/frac_mixed optim/lr progress/batch",
    "rsl_rl": "Loss/value_function Loss/surrogate Policy/mean_noise_std Train/mean_reward Perf/total_fps",
    "Stable-Baselines3, on-policy": "rollout/ep_rew_mean rollout/ep_len_mean time/fps time/iterations "
    "train/approx_kl train/clip_fraction train/entropy_loss train/explained_variance train/value_loss",
    "Stable-Baselines3, off-policy": "rollout/ep_rew_mean rollout/ep_len_mean rollout/exploration_rate "
    "time/episodes time/fps train/loss train/n_updates",
    "CleanRL": "charts/episodic_return charts/SPS charts/learning_rate losses/approx_kl losses/entropy",
    "Tianshou": "n/ep n/st len loss rew",
    "slime": "rollout/raw_reward rollout/response_len/mean train/grad_norm train/kl_loss",
    "prime-rl, the console of its orchestrator": "Reward Seq._Length Max.\xa0Off-Policy\xa0Level",
    "DeepSpeed-Chat": "ppo_ep act_loss cri_loss unsuper_loss",
    "RLlib": "episode_reward_mean episode_len_mean timesteps_total training_iteration",
    "an agent's trainer, by the shape of its names": "episode_reward frame value",
    "a language model's trainer, by the shape of its names": "mean_reward format_rate loss_pg",
    "supervised training, by the shape of its names": "loss lr",
    "an unknown trainer": "score a b",
}


@pytest.mark.parametrize(
    ("names", "counted_by", "family"),
    [
        ("Score", "episode", "an agent's trainer, by the shape of its names"),
        ("policy_loss entropy value_loss", "step", "an agent's trainer, by the shape of its names"),
        ("return cost projection", "step", "an agent's trainer, by the shape of its names"),
        ("AverageReturn AverageDiscountedReturn NumTrajs", "iteration", "rllab, garage"),
        ("episode_reward_mean policy_loss kl", "training_iteration", "RLlib"),
        ("reward kl", "episode", "a language model's trainer, by the shape of its names"),
        ("Score", "step", "an unknown trainer"),
        ("Reward Alpha_Loss Critic_1_Loss", "", "an agent's trainer, by the shape of its names"),
        ("loss truncation_rate", "step", "a language model's trainer, by the shape of its names"),
    ],
)
def test_what_counts_the_steps_tells_an_agent_where_no_name_tells_of_answers(names, counted_by, family):
    assert family_of(names.split(), counted_by=counted_by).name == family


@pytest.mark.parametrize("family", NAMES)
def test_a_family_is_known_by_the_names_in_its_logs(family):
    names = [name.replace("\xa0", " ") for name in NAMES[family].split(" ")]
    assert family_of(names).name == family
    assert family_of([f"train/{name}" for name in names]).name == family
    assert family_of(names).silent <= FINDINGS.keys()


def test_settings_are_called_as_in_the_trainer_and_missing_ones_are_empty():
    assert setting_in("verl", "training.num_generations") == "actor_rollout_ref.rollout.n"
    assert setting_in("sb3", "algorithm.entropy_coefficient") == "ent_coef"
    assert setting_in("sb3", "sampling.temperature") == setting_in("trl", "nonsense") == ""
    assert setting_in("greenward", "sampling.temperature") == "sampling.temperature"


def agents(folder, rewards, **others):
    rows = [
        {"time/total_timesteps": 2048 * (i + 1), "rollout/ep_rew_mean": float(r)}
        | {name: float(values[i]) for name, values in others.items()}
        for i, r in enumerate(rewards)
    ]
    folder.mkdir()
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    (folder / "progress.csv").write_text("\n".join(lines))
    return diagnose_run(folder)


@pytest.mark.parametrize("seed", range(3))
def test_an_agent_that_lives_longer_is_healthy_and_hears_nothing_of_answers(tmp_path, seed):
    rng, n = np.random.default_rng(seed), 200
    rewards = 20 + 180 / (1 + np.exp(-np.linspace(-4, 6, n))) + rng.normal(0, 3, n)
    others = {
        "rollout/ep_len_mean": rewards,
        # Cumulative: the first row is of sampling alone, at 4,000 frames a second, all others learn as well.
        "time/fps": 2048 * (np.arange(n) + 1) / (2048 / 4000 + np.arange(n) * 2048 / 600),
        "time/iterations": np.arange(n) + 1,
        "train/entropy_loss": -0.69 + 0.4 * np.linspace(0, 1, n),
    }
    found = agents(tmp_path / "run", rewards, **others)
    assert found.verdict == "healthy" and not found.findings
    said = json.dumps([[gap.subject, gap.reason, gap.enable] for gap in found.gaps])
    assert not any(word in said for word in ("answer", "token", "group"))


@pytest.mark.parametrize("seed", range(3))
def test_an_early_collapse_of_an_agent_is_named_with_the_trainers_own_settings(tmp_path, seed):
    rng, n = np.random.default_rng(seed), 1000
    entropy = np.where(np.arange(n) < 60, 0.67 * np.exp(-np.arange(n) / 20), 0.02) + rng.random(n) * 0.01
    rewards = np.where(np.arange(n) < 50, 20 + 1.4 * np.arange(n), 37.0) + rng.normal(0, 2, n)
    others = {"time/iterations": np.arange(n), "train/entropy_loss": -entropy}
    found = agents(tmp_path / "run", rewards, **others)
    (one,) = (one for one in found.findings if one.name == "entropy-collapse")
    assert found.causes[0].finding.name == "entropy-collapse" and one.onset.step <= 2048 * 110
    said = " ".join(one.actions)
    assert "ent_coef" in said and "algorithm." not in said and "answers" not in said
    solved = agents(tmp_path / "solved", 20 + 1.4 * np.minimum(np.arange(n), 120), **others)
    assert "entropy-collapse" not in {one.name for one in solved.findings}


@pytest.mark.parametrize("values", [0.0, 0.25])
def test_what_is_exactly_so_is_found_from_the_third_row(tmp_path, values):
    usual = {"reward": values, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "grad_norm": 0.0}
    rows = [{"step": i + 1, "completions/clipped_ratio": 1.0, **usual} for i in range(3)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = {one.name for one in diagnose_run(tmp_path / "log.jsonl").findings}
    assert {"constant-reward", "dead-groups", "gradient-vanished", "truncated-answers"} <= names
    (tmp_path / "two.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    assert not diagnose_run(tmp_path / "two.jsonl").findings


def grpo(folder, rewards, **others):
    rows = [
        {"step": i + 1, "reward": float(r), "reward_std": 0.4, "grad_norm": 0.2 + 0.01 * (i % 7)}
        | {name: float(values[i]) for name, values in others.items()}
        for i, r in enumerate(rewards)
    ]
    folder.mkdir()
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return diagnose_run(folder / "log.jsonl")


@pytest.mark.parametrize(("rise", "called"), [(0.0, True), (0.3, False)])
def test_no_learning_needs_a_bound_below_the_noise_of_a_row(tmp_path, rise, called):
    """Of 100 rows the bound is 0.55 of their noise above the rise, so that 0.85 of it cannot be excluded."""
    noise = np.where(np.arange(100) % 2, 0.2, -0.2)
    found = grpo(tmp_path / "run", 0.5 + noise + 0.2 * rise * (np.arange(100) >= 50))
    assert ("no-learning" in {one.name for one in found.findings}) is called
    assert found.verdict == ("findings" if called else "cannot tell")


@pytest.mark.parametrize("seed", range(5))
def test_learning_is_shown_or_cannot_be_told(tmp_path, seed):
    noise = np.random.default_rng(seed).normal(0, 0.2, 300)
    rising = grpo(tmp_path / "rising", np.linspace(0.2, 0.7, 300) + noise)
    assert rising.verdict == "healthy"
    short = grpo(tmp_path / "short", 0.3 + noise[:40])
    assert short.verdict == "cannot tell" and "learning is not shown" in short.headline


def test_a_flat_reward_is_no_learning_but_for_chance(tmp_path):
    """By chance a rise is sure in 5 % of the logs, and of some it cannot be told."""
    named = []
    for seed in range(12):
        found = grpo(tmp_path / str(seed), 0.3 + np.random.default_rng(seed).normal(0, 0.2, 300))
        named.append([one.name for one in found.findings if one.severity != "info"])
    assert named.count(["no-learning"]) >= 8 and all(one in ([], ["no-learning"]) for one in named)


@pytest.mark.parametrize("seed", range(3))
def test_a_kl_that_leaves_at_once_and_a_single_huge_norm_are_warnings(tmp_path, seed):
    rng, n = np.random.default_rng(seed), 150
    rewards = np.linspace(0.2, 0.6, n) + rng.normal(0, 0.1, n)
    norms = rng.lognormal(-2, 0.3, n)
    norms[70] = 150.0
    spiked = grpo(tmp_path / "spiked", rewards, grad_norm=norms)
    (one,) = (one for one in spiked.findings if one.name == "gradient-spikes")
    assert one.severity == "warning" and one.onset.step == 71
    kl = np.where(np.arange(n) < 15, 0.003, 2.8) + rng.random(n) * 0.001
    flat = grpo(tmp_path / "flat", 0.3 + rng.normal(0, 0.1, n), kl=kl)
    (one,) = (one for one in flat.findings if one.name == "kl-runaway")
    assert one.onset.step == 16
    assert "kl-runaway" not in {one.name for one in grpo(tmp_path / "paid", rewards, kl=kl).findings}


@pytest.mark.parametrize(("group", "found"), [(1, True), (8, False)])
def test_groups_of_one_are_seen_in_the_numbers_of_verl(tmp_path, group, found):
    rng, rows = np.random.default_rng(0), []
    for step in range(1, 40):
        scores = rng.random((4, group))
        advantages = scores if group == 1 else scores - scores.mean(axis=1, keepdims=True)
        row = {"step": step, "actor/grad_norm": 0.1 + 0.01 * rng.random(), "actor/pg_loss": 0.0}
        for name, values in (("score", scores), ("advantages", advantages)):
            kinds = {"mean": values.mean(), "max": values.max(), "min": values.min()}
            row |= {f"critic/{name}/{kind}": float(value) for kind, value in kinds.items()}
        rows.append(row)
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = {one.name for one in diagnose_run(tmp_path / "log.jsonl").findings}
    assert ("group-of-one" in names) is found


def test_errors_of_values_beyond_every_return_are_a_divergence(tmp_path):
    rng, n = np.random.default_rng(0), 40
    loss = np.geomspace(1e4, 7e5, n) * rng.lognormal(0, 0.1, n)
    rows = [
        {"step": i, "loss": float(loss[i]), "AverageReturn": 30 - 0.4 * i + float(rng.normal())}
        for i in range(n)
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "value-loss-diverges" in {one.name for one in diagnose_run(tmp_path / "log.jsonl").findings}
    for row in rows:
        row["loss"] = 50.0
    (tmp_path / "small.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "value-loss-diverges" not in {one.name for one in diagnose_run(tmp_path / "small.jsonl").findings}


def test_a_mean_over_no_episode_is_no_fault_and_an_infinite_one_is(tmp_path):
    rewards = [float("nan")] * 3 + [20.0 + i for i in range(60)]
    others = {"time/iterations": range(63), "rollout/ep_len_mean": rewards}
    assert "non-finite" not in {one.name for one in agents(tmp_path / "one", rewards, **others).findings}
    rewards[40] = float("inf")
    assert "non-finite" in {one.name for one in agents(tmp_path / "two", rewards, **others).findings}


def test_what_was_pasted_without_its_first_brace_is_read_and_advice_is_a_sentence(tmp_path):
    row = "'loss': {}, 'grad_norm': nan, 'reward': 0.34375, 'reward_std': 0.44, 'epoch': 0.{}}}"
    (tmp_path / "pasted.txt").write_text("\n".join(row.format(0.1, i) for i in range(1, 6)))
    found = diagnose_run(tmp_path / "pasted.txt")
    assert len(found.run.steps) == 5 and found.run.family.name == "TRL, GRPO or RLOO"
    rows = [{"step": i, "score": 1.0, "a_norm": float("nan")} for i in range(1, 40)]
    (tmp_path / "unknown.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (one,) = (one for one in diagnose_run(tmp_path / "unknown.jsonl").findings if one.name == "non-finite")
    assert "a lower learning rate" in " ".join(one.actions)


@pytest.mark.parametrize(
    ("simulated", "family"),
    [
        ("TRL GRPO, printed", "TRL, GRPO or RLOO"),
        ("TRL GRPO, state", "TRL, GRPO or RLOO"),
        ("verl", "verl"),
        ("verl with a critic", "verl"),
        ("OpenRLHF", "OpenRLHF"),
        ("minimind", "minimind"),
        ("SB3 on-policy", "Stable-Baselines3, on-policy"),
        ("SB3 on-policy, printed", "Stable-Baselines3, on-policy"),
        ("SB3 off-policy", "Stable-Baselines3, off-policy"),
        ("CleanRL", "CleanRL"),
        ("rsl_rl", "rsl_rl"),
        ("own, episodes", "an agent's trainer, by the shape of its names"),
    ],
)
def test_simulated_logs_of_the_benchmark_are_read_as_those_of_their_trainer(
    tmp_path, monkeypatch, simulated, family
):
    """So that a fault which is missed there is missed by a check, not by a reader."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    from benchmarks.faultbench.families import FAMILIES
    from benchmarks.faultbench.logs import make
    from benchmarks.faultbench.planted import kinds_of

    for kind in ("healthy, fast", "reward lost after a peak"):
        make(simulated, kind, 1, tmp_path / kind)
        make(simulated, kind, 1, tmp_path / "again" / kind)
        (one,), (same,) = ((folder / kind).iterdir() for folder in (tmp_path, tmp_path / "again"))
        assert one.read_bytes() == same.read_bytes()
        run = diagnose_run(one).run
        assert run.family.name == family and len(run.steps) in FAMILIES[simulated].rows
        assert run.recorded["reward/mean"].all()
    named = {name for fault in kinds_of(FAMILIES[simulated]).values() for name in fault.names}
    assert named <= set(FINDINGS)


def test_simulated_logs_of_the_benchmark_know_nothing_of_the_checks():
    folder = Path(__file__).parents[2] / "benchmarks" / "faultbench"
    for name in ("families", "runs", "planted", "forms"):
        tree = ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))
        imported = {one.module or "" for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)}
        imported |= {
            alias.name for one in ast.walk(tree) if isinstance(one, ast.Import) for alias in one.names
        }
        assert not any(one.startswith("greenward") for one in imported), name


@pytest.mark.parametrize("seed", range(5))
def test_a_moving_mean_that_loses_its_gain_is_named_and_one_that_keeps_it_is_not(tmp_path, seed):
    rng, n, window = np.random.default_rng(seed), 200, 40
    level = np.where(np.arange(n + window) < 110, np.linspace(20, 600, n + window), 60.0)
    smooth = np.convolve(level + rng.normal(0, 60, n + window), np.ones(window) / window, "valid")[:n]
    others = {"time/iterations": range(n), "rollout/ep_len_mean": smooth}
    (one,) = (
        one for one in agents(tmp_path / "lost", smooth, **others).findings if one.name == "reward-drop"
    )
    assert abs(one.onset.step / 2048 - 90) <= 30
    kept = np.convolve(np.minimum(np.linspace(20, 500, n + window), 300) + rng.normal(0, 60, n + window),
                       np.ones(window) / window, "valid")[:n]  # fmt: skip
    assert agents(tmp_path / "kept", kept, **others).verdict == "healthy"


def test_rounded_rates_of_a_warm_up_are_no_jump_and_a_constant_rate_that_jumps_is(tmp_path):
    rewards = 0.3 + 0.002 * np.arange(60) + np.random.default_rng(0).normal(0, 0.01, 60)
    ramp = np.round(np.minimum(np.linspace(5e-7, 2e-5, 60), 2e-5), 6)
    names = {one.name for one in grpo(tmp_path / "ramp", rewards, learning_rate=ramp).findings}
    assert "learning-rate-jump" not in names
    jump = np.where(np.arange(60) < 30, 1e-6, 5e-6)
    names = {one.name for one in grpo(tmp_path / "jump", rewards, learning_rate=jump).findings}
    assert "learning-rate-jump" in names


def test_what_is_not_finite_in_the_first_rows_alone_is_a_remark(tmp_path):
    rewards = 0.3 + 0.002 * np.arange(60) + np.random.default_rng(0).normal(0, 0.01, 60)
    for row, severity in ((0, "info"), (30, "critical")):
        norms = np.full(60, 0.2)
        norms[row] = np.inf
        found = grpo(tmp_path / severity, rewards, grad_norm=norms).findings
        assert [one.severity for one in found if one.name == "non-finite"] == [severity]


def test_files_of_the_monitor_of_stable_baselines_are_read_as_episodes(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"{20 + i + rng.normal():.3f},{100 + i},{i * 1.5:.2f}" for i in range(80)]
    (tmp_path / "0.monitor.csv").write_text("\n".join(['#{"t_start": 1.0}', "r,l,t", *lines]))
    found = diagnose_run(tmp_path / "0.monitor.csv")
    assert found.run.family.kind == "agent" and found.verdict == "healthy"
