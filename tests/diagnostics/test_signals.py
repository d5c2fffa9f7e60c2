"""Reading the signals of a run: names, gaps, restarts and torn files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from greenward.cli.rldk import rldk
from greenward.common.errors import DiagnosticsError
from greenward.diagnostics import Monitor
from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.families import family_of
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.signal_tests import find_impossible
from greenward.diagnostics.signals import RANGES, possible_range

KL_INPUTS = Path(__file__).parents[3] / "shared/data/field_inputs/kl"
STEPS, SEEDS = 200, range(40)


@pytest.fixture
def written(tmp_path):
    def write(*rows, tail=""):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "metrics.jsonl").write_text(text + tail)
        return read_run_signals(tmp_path)

    return write


def test_series_are_aligned_and_gaps_are_not_broken_numbers(written):
    signals = written(
        {"step": 1, "loss": 0.5}, {"step": 2, "kl": 1}, {"step": 3, "loss": "NaN", "note": "text"}
    )
    assert signals.steps.tolist() == [1, 2, 3]
    assert np.isnan(signals.values["loss"]).tolist() == [False, True, True]
    assert signals.not_finite("loss").tolist() == [False, False, True]
    assert signals.series("kl")[0].tolist() == [2]
    assert "note" not in signals.values
    assert signals.notes == ()


def test_restarts_disorder_and_a_torn_tail_are_mended_and_said(written):
    signals = written(
        {"step": 1, "loss": 1},
        {"step": 3, "loss": 3},
        {"step": 2, "loss": 2},
        {"step": 3, "loss": 4},
        {"loss": 9},
        tail='{"step": 4, "lo',
    )
    assert signals.steps.tolist() == [1, 2, 3]
    assert signals.values["loss"].tolist() == [1, 2, 4]
    assert [part in " ".join(signals.notes) for part in ("torn", "without a step", "again", "order")] == [
        True
    ] * 4


def test_names_are_found_by_alias_and_by_last_part(written):
    signals = written({"step": 1, "grad_norm": 1, "reward/tests": 1, "reward/mean": 1, "value/loss": 1})
    assert signals.resolve("gradient_norm") == "grad_norm"
    assert signals.resolve("code_score") == "reward/tests"
    assert signals.resolve("tests") == "reward/tests"
    assert signals.resolve("loss") == "value/loss"


def test_a_misspelled_name_lists_the_nearest(written):
    with pytest.raises(DiagnosticsError, match="did you mean grad_norm"):
        written({"step": 1, "grad_norm": 1}).resolve("gradnrom")


def test_no_metrics_is_an_error_that_names_the_runs_inside(tmp_path):
    for seed in ("seed_0", "seed_1"):
        (tmp_path / seed).mkdir()
        (tmp_path / seed / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(DiagnosticsError, match="seed_0"):
        read_run_signals(tmp_path)


def test_broken_lines_are_left_out_and_rows_without_steps_are_counted(written):
    assert written({"loss": 1}, {"loss": 2}).steps.tolist() == [1, 2]
    assert "1 line(s) cannot be read" in written(tail='nonsense\n{"step": 1}\n').notes[0]
    with pytest.raises(DiagnosticsError, match="no row with the name of a signal"):
        written(tail="nonsense\n")


def test_diagnostics_load_without_torch():
    code = "import sys, greenward.diagnostics.diff, greenward.cli.rldk; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def kl_range(logged_as, names=(), **settings):
    return possible_range("kl", logged_as, family_of({logged_as, *names}), settings, is_own=False)


def estimates(seed, apart, tokens=256):
    """(k1, k3) of the KL of a policy to its reference, both categorical, at tokens sampled from the policy."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal(50)
    policy = np.exp(logits) / np.exp(logits).sum()
    moved = logits + apart * rng.standard_normal(50)
    reference = np.exp(moved) / np.exp(moved).sum()
    log_ratio = np.log(policy / reference)[rng.choice(50, (STEPS, tokens), p=policy)]
    return log_ratio.mean(1), (np.exp(-log_ratio) - 1 + log_ratio).mean(1)


@pytest.mark.parametrize("apart", [0.0, 0.03, 0.3])
def test_the_estimators_of_a_kl_are_possible_and_a_kl_below_0_is_found(apart):
    may_cross, never = kl_range("objective/kl"), kl_range("kl", {"reward_std", "grad_norm"})
    assert may_cross.visible and never.visible is None
    alarms = missed = 0
    for seed in SEEDS:
        k1, k3 = estimates(seed, apart)
        assert find_impossible(k3, never) is None and k3.min() >= 0
        alarms += find_impossible(k1, may_cross) is not None
        scale = k1 - k1.mean()
        for wrong in (scale - 0.1, k1 - np.linspace(0, 5, STEPS), np.where(np.arange(STEPS) < 150, k1, -1.0)):
            missed += find_impossible(wrong, may_cross) is None
            missed += find_impossible(wrong, never) is None
    assert alarms <= 0.05 * len(SEEDS) and missed <= 0.05 * 6 * len(SEEDS)


@pytest.mark.parametrize("sd", [0.02, 0.2, 2.0])
@pytest.mark.parametrize("phi", [0.0, 0.7])
def test_noise_around_0_is_no_alarm(sd, phi):
    alarms = 0
    for seed in SEEDS:
        noise = sd * np.random.default_rng(seed).standard_normal(STEPS)
        for place in range(1, STEPS):
            noise[place] += phi * noise[place - 1]
        alarms += find_impossible(noise, kl_range("critic/kl")) is not None
    assert alarms <= 0.05 * len(SEEDS)


BELOW_0 = np.full(60, -0.2)
CROSSING = 0.004 * np.where(np.arange(60) % 2, 1.0, -1.0)


@pytest.mark.parametrize(
    ("name", "beside", "crossing"),
    [
        ("objective/kl", "objective/scores", False),  # TRL's PPO: k1, the sum over an answer
        ("kl", "frac_reward_zero_std", True),  # TRL's GRPO: k3
        ("train/kl", "train/reward_std", True),
        ("actor/kl_loss", "critic/score/mean", True),  # verl: low_var_kl
        ("actor/ppo_kl", "critic/score/mean", False),
        ("kl", "response_length", False),  # OpenRLHF: k1
        ("train/approx_kl", "rollout/ep_rew_mean", True),  # Stable-Baselines3
        ("losses/approx_kl", "charts/episodic_return", True),  # CleanRL
    ],
)
def test_a_kl_is_judged_by_the_estimator_of_its_trainer(written, name, beside, crossing):
    def found(values):
        run = written(*({"global_step": i, name: v, beside: 1.0} for i, v in enumerate(values)))
        assert "kl" in run.possible_ranges or "approx_kl" in run.possible_ranges
        return "impossible-value" in {one.name for one in diagnose_run(run.path).findings}

    assert found(BELOW_0) and found(CROSSING) is crossing and not found(np.abs(CROSSING))


def test_a_k1_between_two_versions_of_a_policy_is_not_read(written):
    run = written(*({"step": i, "losses/old_approx_kl": -0.2} for i in range(60)))
    assert not run.possible_ranges


def test_the_config_says_the_estimator():
    assert kl_range("actor/kl_loss", **{"actor_rollout_ref.actor.kl_loss_type": "kl"}).visible
    own = {"algorithm.kl.estimator": "k1"}
    assert possible_range("kl", "kl", family_of({"kl"}), own, is_own=True).visible
    assert possible_range("kl", "kl", family_of({"kl"}), {}, is_own=True).visible is None


@pytest.mark.parametrize(
    ("signal", "good", "bad"),
    [
        ("pass_rate", [0.0, 0.4, 1.0], [0.5, 0.4, 1.2]),
        ("completion/truncated", [0.0, 30.5, 80.0], [0.1, -0.1, 0.2]),  # the first in per cent
        ("clip/fraction", [0.0, 0.1], [0.9, 1.1]),
        ("status/timeout", [0.0, 12.0, 3.0], [0.2, 1.3]),  # the first as counts
        ("explained_variance", [-72.0, 1.0], [0.3, 1.1]),
        ("entropy", [0.0, 11.9], [0.4, -0.1]),
        ("learning_rate", [0.0, 1e-6], [1e-6, -1e-8]),
        ("grad_norm", [0.0, 1e9], [1.0, -1.0]),
        ("ratio/mean", [0.4, 1.0], [1.0, 0.0]),
        ("completion/mean_length", [0.0, 12.5], [12.5, -1.0]),
        ("value/loss", [0.0, 3.0], [3.0, -0.1]),
        ("reward/std", [0.0, 0.1], [0.1, -0.1]),
        ("time/step", [0.0, 0.1], [0.1, -0.1]),
    ],
)
def test_what_is_outside_of_its_range_is_found_from_the_first_step_on(written, signal, good, bad):
    for values, found in ((good, False), (bad, True)):
        run = written(*({"step": i, signal: value} for i, value in enumerate(values)))
        (one,) = [f for f in diagnose_run(run.path).findings if f.name == "impossible-value"] or (None,)
        assert (one is not None) is found
        monitor = Monitor(say=lambda text: None)
        for step, value in enumerate(values):
            monitor.log(step, {signal: value})
        assert ("impossible-value" in {alarm.name for alarm in monitor.found}) is found
        if one:
            first = 1 if signal == "completion/truncated" else len(values) - 1
            assert signal in one.measured and one.onset.step == first


def test_whole_numbers_vocabularies_agents_and_declared_ranges():
    def holds(signal, value, names=(), *, own=False, **settings):
        possible = possible_range(signal, signal, family_of({signal, *names}), settings, is_own=own)
        return possible is None or find_impossible(np.array([value]), possible) is None

    assert not holds("groups/with_signal", 3.5, own=True) and holds("groups/with_signal", 3.5)
    assert holds("entropy", 6.9, vocab_size=1000) and not holds("entropy", 7.0, vocab_size=1000)
    assert holds("entropy", -1.0, {"rollout/ep_rew_mean"}) and not holds("entropy", -1.0, {"reward"})
    assert holds("reward/mean", -7.0) and not holds("reward/mean", -7.0, reward_range=[-1, 1])


@pytest.mark.parametrize("seed", range(5))
def test_advantages_less_the_mean_of_their_group_have_the_mean_0(seed):
    rng = np.random.default_rng(seed)
    rewards = rng.random((STEPS, 8, 4)) < 0.4
    raw = rewards.mean(axis=(1, 2))
    grouped = (rewards - rewards.mean(axis=2, keepdims=True)).mean(axis=(1, 2))
    family = family_of({"reward_std", "grad_norm"})
    possible = possible_range("advantage/mean", "advantages/mean", family, {}, is_own=False)
    assert find_impossible(grouped, possible) is None and find_impossible(raw, possible) is not None
    other = family_of({"loss"})
    assert possible_range("advantage/mean", "advantages/mean", other, {}, is_own=False) is None


@pytest.mark.skipif(not KL_INPUTS.is_dir(), reason="the folder of field inputs is not there")
@pytest.mark.parametrize("name", ["neg5", "neg_from_start", "printed", "slight"])
def test_the_field_inputs_of_a_kl_below_0(name):
    (log,) = (KL_INPUTS / name).iterdir()
    faulty = name != "slight"
    assert ("impossible-value" in {one.name for one in diagnose_run(log).findings}) is faulty
    done = CliRunner().invoke(rldk, ["kl-drift", str(log)])
    assert done.exit_code == faulty and ("objective/kl is below 0" in done.output) is faulty
    scanned = CliRunner().invoke(rldk, ["log-scan", str(log), "--rules", "default"])
    assert ("impossible-value" in scanned.output) is faulty


def test_the_documentation_has_every_row():
    text = (Path(__file__).parents[2] / "docs/findings/impossible-value.md").read_text(encoding="utf-8")
    assert [name for name in RANGES if f"`{name}*`" not in text and f"`{name}`" not in text] == []
