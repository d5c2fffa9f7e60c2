"""`greenward diagnose`: one verdict with one cause, for runs of every tracker."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from synthetic_runs import healthy, predictions, with_explosion, write_run
from test_readers import FIXTURES, RUNS, fixture, needs_fixtures

from greenward.cli.main import cli
from greenward.cli.rldk import rldk
from greenward.common.errors import DiagnosticsError
from greenward.config.loading import all_recipes
from greenward.diagnostics.diagnose import _SETTING, diagnose_run, diagnosis_report
from greenward.diagnostics.families import SETTINGS
from greenward.diagnostics.finding import causes_of
from greenward.diagnostics.findings import CAUSES, FINDINGS
from greenward.diagnostics.monitor import LiveTests
from greenward.diagnostics.readers import read_run_signals
from greenward.reports.document import Occurrence, Onset
from greenward.reports.write import render
from greenward.tasks import TASKS, find_task

STEPS = 300
T = np.arange(1, STEPS + 1)
LATE = T >= 150
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_draws_in_any_order():
    RNG.bit_generator.state = np.random.default_rng(1).bit_generator.state


def command(*arguments, program=cli):
    return CliRunner().invoke(program, ["diagnose", *map(str, arguments)])


def diagnosed(folder, changed, predicted=None, **config):
    return diagnose_run(write_run(folder, {**healthy(3, STEPS), **changed}, predicted, **config))


@needs_fixtures
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("form", ["hf", "tensorboard", "wandb", "trackio", "verl"])
def test_the_same_run_gets_the_right_verdict_in_every_format(form, run):
    path, pick = fixture(form, run)
    found = diagnose_run(path, run_name=pick)
    if run == "healthy":
        assert found.verdict == "healthy" and found.exit_code("warning") == 0, found.headline
        return
    cause = found.causes[0].finding
    assert cause.name == {"memory_leak": "memory-leak"}.get(run, "gradient-explosion")
    assert abs(cause.onset.step - {"memory_leak": 1}.get(run, 41)) <= 2
    assert found.exit_code("critical") == 1


def noisy(level, spread=0.05):
    return level * np.exp(spread * RNG.standard_normal(STEPS))


FAULTS = {
    "gradient-always-clipped": {"grad_norm": noisy(6.0, 0.2)},
    "gradient-explosion": {"grad_norm": np.where((T > 150) & (T <= 170), 20, 1) * noisy(0.5, 0.2)},
    "gradient-vanished": {"grad_norm": np.exp(-np.clip(T - 150, 0, 90) / 15) * noisy(0.5, 0.2)},
    "reward-term-dead": {"reward/readability": np.zeros(STEPS)},
    "reward-scale-jump": {
        "reward/std": np.where(LATE, 4, 1) * noisy(0.4),
        "reward/mean": np.where(LATE, 4, 1) * noisy(0.6),
    },
    "no-learning": {
        name: 0.3 + 0.02 * RNG.standard_normal(STEPS)
        for name in ("pass_rate", "reward/mean", "reward/code_score", "reward/correctness", "status/passed")
    },
    "group-signal-fades": {"groups/with_signal": np.where(LATE, 3, 12) + np.round(RNG.random(STEPS))},
    "entropy-rise": {
        "entropy": 0.4 * np.where(LATE, 1 + (T - 150) / 50, 1) * noisy(1),
        "pass_rate": noisy(0.4),
    },
    "clip-fraction-high": {"clip/fraction": np.where(LATE, noisy(0.45), noisy(0.02))},
    "learning-rate-jump": {"learning_rate": np.where(LATE, np.minimum((T - 149) / 20, 1), 1.0) * 1e-4},
    "stale-policy": {"rollouts/staleness": np.where(LATE, 8.0, 0.0)},
    "sampler-mismatch": {"importance/difference": np.where(LATE, noisy(0.12), noisy(0.005))},
    "sandbox-timeouts": {"status/timeout": np.where(LATE, 0.3, 0.01) + 0.01 * RNG.random(STEPS)},
    "length-collapse": {"completion/mean_length": np.where(LATE, 3, 30) * noisy(1), "pass_rate": noisy(0.4)},
    "memory-leak": {"perf/rss_mb": 900 + 8 * np.clip(T - 150, 0, None) + 5 * RNG.random(STEPS)},
}
FROM_START = {"gradient-always-clipped", "reward-term-dead", "no-learning"}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named_and_dated(tmp_path, name):
    found = diagnosed(tmp_path / "run", FAULTS[name], training={"max_grad_norm": 1.0, "learning_rate": 1e-4})
    by_name = {finding.name: finding for finding in found.findings if finding.severity != "info"}
    assert name in by_name, found.headline
    if name not in FROM_START:
        assert abs(by_name[name].onset.step - 150) <= 12
    assert found.exit_code("warning") == 1


@pytest.mark.parametrize(
    ("signal", "value", "name"),
    [("approx_kl", 0.3, "large-policy-steps"), ("clip/fraction", 0.6, "clip-fraction-high")],
)
def test_what_is_beyond_its_limit_at_the_last_steps_is_found(tmp_path, signal, value, name):
    changed = {signal: np.where(T > STEPS - 25, value, noisy(0.002))}
    found = {finding.name: finding for finding in diagnosed(tmp_path / "run", changed).findings}
    assert found[name].onset.step == STEPS - 24


@pytest.mark.parametrize("seed", range(3))
def test_spikes_are_dated_by_where_they_become_frequent(tmp_path, seed):
    rng = np.random.default_rng(seed)
    spikes = (T > 160) & (rng.random(STEPS) < 0.1) | (T == 41)
    changed = {"grad_norm": np.where(spikes, 20, 1) * np.exp(0.15 * rng.standard_normal(STEPS))}
    found = {finding.name: finding for finding in diagnosed(tmp_path / "run", changed).findings}
    assert found["gradient-spikes"].severity == "warning"
    assert found["gradient-spikes"].onset.step == T[(T > 160) & spikes][0]


def test_rewards_that_become_constant_are_no_jump_of_their_scale(tmp_path):
    short = {key: np.where(np.arange(46) < 18, values[:46], 0.0) for key, values in healthy(3, STEPS).items()}
    found = diagnose_run(
        write_run(tmp_path / "run", {key: short[key] for key in ("reward/mean", "reward/std")})
    )
    assert found.causes[0].finding.name == "constant-reward" and found.causes[0].finding.onset.step == 19
    assert "reward-scale-jump" not in {finding.name for finding in found.findings}


def test_rewards_that_end_are_no_jump_of_their_scale(tmp_path):
    """At some steps there is still an answer that earns something."""
    few = np.where(LATE, np.where(T % 5 < 3, 0.03, 0.0), noisy(0.4))
    changed = {"reward/std": few, "reward/mean": few, "pass_rate": np.where(LATE, 0.0, 0.05)}
    names = {finding.name for finding in diagnosed(tmp_path / "run", changed).findings}
    assert "reward-drop" in names and "reward-scale-jump" not in names


@pytest.mark.parametrize(
    ("status", "name"), [("timeout", "sandbox-timeouts"), ("syntax_error", "failing-answers-rise")]
)
def test_a_status_that_no_answer_had_before_is_one_that_rises(tmp_path, status, name):
    """Trainers log the share of a status only at steps at which an answer has it."""
    share = np.where(LATE, np.random.default_rng(5).binomial(128, 0.25, STEPS) / 128, np.nan)
    signals = {key: value for key, value in healthy(3, STEPS).items() if not key.startswith("status/")}
    signals |= {"status/passed": noisy(0.5), f"status/{status}": share}
    rows = [{key: value for key, value in zip(signals, row, strict=True) if not np.isnan(value)}
            for row in zip(*signals.values(), strict=True)]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": step, **row}) + "\n" for step, row in enumerate(rows, start=1))
    )
    by_name = {finding.name: finding for finding in diagnose_run(tmp_path).findings}
    assert abs(by_name[name].onset.step - 150) <= 3
    live = LiveTests()
    alarms = [one for step, row in enumerate(rows, start=1) for one in live.add(step, row)]
    assert [one.name for one in alarms if one.name == name]


@pytest.mark.parametrize(
    ("factor", "falls", "severity"), [(4, 0, "warning"), (4, 1, "critical"), (40, 0, "critical")]
)
def test_norms_that_grow_a_few_times_are_critical_only_where_a_reward_falls(
    tmp_path, factor, falls, severity
):
    """Clipping bounds the steps: such a growth alone does no harm."""
    signals = healthy(3, STEPS)
    exploded = with_explosion(signals, after=150, factor=factor)
    changed = exploded if falls else {"grad_norm": exploded["grad_norm"]}
    by_name = {found.name: found for found in diagnosed(tmp_path / "run", changed).findings}
    assert by_name["gradient-explosion"].severity == severity


@pytest.mark.parametrize(
    ("config", "changed"),
    [
        ({"algorithm": {"name": "rejection"}}, FAULTS["group-signal-fades"]),
        ({"algorithm": {"name": "ppo"}}, FAULTS["group-signal-fades"]),
        ({"task": "self_play"}, {"reward/mean": np.zeros(STEPS)}),
        ({"task": "code_game"}, {"completion/unique": np.where(LATE, 0.1, 0.9) + 0.02 * RNG.random(STEPS)}),
    ],
)
def test_what_means_nothing_for_a_task_or_an_algorithm_is_no_finding(tmp_path, config, changed):
    """Rejection and PPO learn from groups that all pass; in a zero-sum game the mean is 0 and moves are alike."""
    usual = {"task": "functions", "algorithm": {"name": "grpo"}}
    assert diagnosed(tmp_path / "grpo", changed, **usual).exit_code("warning") == 1
    assert diagnosed(tmp_path / "run", changed, **config).exit_code("warning") == 0
    signals = read_run_signals(tmp_path / "run")
    live = LiveTests(algorithm=signals.algorithm, silent=signals.silent)
    for step, values in enumerate(zip(*changed.values(), strict=True), start=1):
        assert not live.add(step, dict(zip(changed, values, strict=True)))


def test_a_negative_reward_that_rises_has_not_fallen(tmp_path):
    rising = -0.05 + 0.4 * (T > 40) + 0.02 * RNG.standard_normal(STEPS)
    assert diagnosed(tmp_path / "run", {"reward/mean": rising}).exit_code("warning") == 0
    falling = diagnosed(tmp_path / "falling", {"reward/mean": -rising})
    assert "reward-drop" in {finding.name for finding in falling.findings}


def test_a_small_fall_of_a_small_term_is_none(tmp_path):
    term = 0.03 - 0.006 * LATE + 0.002 * RNG.standard_normal(STEPS)
    for spread, found in ((1.0, False), (0.1, True)):
        changed = {"reward/efficiency": term, "reward/std": noisy(spread)}
        diagnosis = diagnosed(tmp_path / f"{spread}", changed)
        assert ("reward-drop" in {finding.name for finding in diagnosis.findings}) is found


def test_supervised_training_is_judged_without_rewards(tmp_path):
    signals = {name: healthy(3, STEPS)[name] for name in ("grad_norm", "perf/rss_mb")}
    run = write_run(tmp_path / "run", {**signals, "loss": noisy(1.0)}, kind="sft")
    found = diagnose_run(run)
    assert found.verdict == "healthy" and len(found.gaps) < 6, found.headline
    assert diagnose_run(write_run(tmp_path / "none", signals, kind="sft")).verdict == "cannot tell"


def test_a_leak_in_steps_is_one_and_two_allocations_are_none(tmp_path):
    flat = 900 + 5 * RNG.random(STEPS)
    steps = diagnosed(tmp_path / "steps", {"perf/rss_mb": flat + 100 * (T // 37)})
    assert [cause.finding.name for cause in steps.causes] == ["memory-leak"]
    kept = diagnosed(tmp_path / "kept", {"perf/rss_mb": flat + 200 * (T > 90) + 200 * (T > 220)})
    assert "memory-leak" not in {finding.name for finding in kept.findings}


@pytest.mark.parametrize("seed", range(6))
def test_healthy_runs_are_healthy(tmp_path, seed):
    found = diagnose_run(
        write_run(tmp_path / "run", healthy(100 + seed, STEPS), predictions(seed, steps=STEPS))
    )
    assert found.exit_code("warning") != 1, found.headline


def test_calibration_is_judged_by_region_and_by_discrimination(tmp_path):
    predicted, passed = predictions(5, steps=STEPS)
    local = np.where((predicted > 0.55) & (predicted < 0.8), 0.95, predicted)
    found = diagnosed(tmp_path / "local", {}, (local, passed))
    assert "poor-calibration" in {finding.name for finding in found.findings}
    useless = np.full(predicted.shape, passed.mean()) + 0.04 * RNG.standard_normal(predicted.shape)
    found = diagnosed(tmp_path / "useless", {}, (useless, passed))
    named = {finding.name for finding in found.findings}
    assert "calibration-no-discrimination" in named and "poor-calibration" not in named
    found = diagnosed(tmp_path / "random", {}, (RNG.permuted(predicted), passed))
    assert "poor-calibration" in {one.name for one in found.causes[0].consequences}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("off", "found"), [(0.08, False), (0.25, True)])
def test_a_region_is_wrong_where_it_is_surely_off_by_more_than_ten_points(tmp_path, seed, off, found):
    """600 predictions a bin: an interval of all bins together reaches 5 points to both sides."""
    rng = np.random.default_rng(seed)
    predicted = rng.random((STEPS, 20))
    lowest = (predicted > 0.1) & (predicted < 0.25)
    passed = rng.random(predicted.shape) < predicted + off * lowest
    names = {one.name for one in diagnosed(tmp_path / "run", {}, (predicted, passed)).findings}
    assert ("poor-calibration" in names) is found


@pytest.mark.parametrize(
    ("work", "machine"), [(1.0, 1.0), (1.1, 1.0), (1.35, 1.0), (1.6, 1.5), (2.2, 2.0), (2.2, 1.0)]
)
def test_less_throughput_is_information_where_other_work_explains_it(tmp_path, work, machine):
    """Steps take 2.2 times as long: the process waits, or the machine is slower, or it does more work."""
    slower = np.where(LATE, 2.2, 1.0)
    changed = {
        "perf/tokens_per_second": noisy(20_000) / slower,
        "time/step": noisy(1.0) * slower,
        "perf/cpu_seconds": noisy(0.6) * np.where(LATE, work, 1.0),
        "perf/probe_seconds": noisy(0.0002) * np.where(LATE, machine, 1.0),
    }

    def severity(name, **config):
        run = diagnosed(tmp_path / name, changed, **config)
        return next(one.severity for one in run.findings if one.name == "throughput-drop")

    assert severity("here") == ("info" if work < 1.5 * machine else "warning")
    assert severity("elsewhere", rollouts={"engine": "server"}) == "warning"
    del changed["perf/cpu_seconds"]
    assert severity("unknown") == "warning"


@pytest.mark.parametrize(("first", "severity"), [(10, "info"), (200, "warning")])
def test_spikes_that_have_ceased_are_information(tmp_path, first, severity):
    norms = noisy(0.5)
    norms[first : first + 80 : 10] *= 20
    (found,) = (
        one
        for one in diagnosed(tmp_path / "run", {"grad_norm": norms}).findings
        if one.name == "gradient-spikes"
    )
    assert found.severity == severity


def test_held_out_series_of_other_trackers_show_reward_hacking(tmp_path):
    rng = np.random.default_rng(1)
    rows = []
    for step in range(1, 301):
        row = {
            "step": step,
            "reward": 0.3 + 0.002 * step + 0.02 * rng.standard_normal(),
            "grad_norm": 1.0 + 0.1 * rng.random(),
        }
        if step % 20 == 0:
            row["eval/accuracy"] = (
                0.4 + 0.001 * min(step, 120) - 0.0012 * max(step - 120, 0) + 0.01 * rng.standard_normal()
            )
        rows.append(row)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = diagnose_run(path)
    assert found.causes[0].finding.name == "reward-hacking"
    assert 100 <= found.causes[0].finding.onset.step <= 160


@pytest.mark.parametrize("seed", range(4))
def test_what_training_gained_before_the_best_evaluation_is_no_reward_hacking(tmp_path, seed):
    rng = np.random.default_rng(seed)
    skill = np.minimum(T, 120) / 400
    signals = {"reward/mean": 0.3 + skill + 0.02 * rng.standard_normal(STEPS), "grad_norm": noisy(1.0)}
    rows = [{"step": i + 1, **{name: one[i] for name, one in signals.items()}} for i in range(STEPS)]
    for row in rows[19::20]:  # the reward rises between the evaluations at 100 and 120, the best one
        row["eval/accuracy"] = 0.3 + skill[row["step"] - 1] - 0.0012 * max(row["step"] - 120, 0)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = {one.name for one in diagnose_run(path).findings}
    assert "held-out-regression" in names and "reward-hacking" not in names


def rollout(task, answer, reward, tokens, status):
    return {
        "problem": task,
        "answer": answer,
        "rewards": {"policy": reward},
        "tokens": tokens,
        "status": status,
    }


def with_rollouts(folder, rows_of):
    run = write_run(folder, healthy(3, STEPS))
    (run / "rollouts").mkdir()
    for step in range(10, 301, 20):
        text = "".join(json.dumps(row) + "\n" for row in rows_of(step))
        (run / "rollouts" / f"step_{step:06d}.jsonl").write_text(text)
    return {finding.name: finding for finding in diagnose_run(run).findings}


def test_the_kept_answers_show_length_bias_copies_and_flaky_grades(tmp_path):
    rng = np.random.default_rng(2)

    def rows(step, bias=0.0, copies=False, flaky=0.0):
        found = []
        for place in range(32):
            task, passed, tokens = f"t{place // 4}", rng.random() < 0.5, float(np.exp(rng.normal(4, 0.5)))
            reward = float(passed) + bias * np.log(tokens)
            text = "return 0" if copies and step > 100 else f"return {rng.integers(1e9)}"
            found.append(rollout(task, text, reward, tokens, "passed" if passed else "failed"))
            if place % 4 == 0:
                twin = dict(found[-1])
                if rng.random() < flaky:
                    twin["status"] = "failed" if passed else "passed"
                found.append(twin)
        return found

    assert not with_rollouts(tmp_path / "sound", rows).keys() & {
        "length-bias",
        "dominant-answer",
        "flaky-grades",
    }
    assert "length-bias" in with_rollouts(tmp_path / "long", lambda step: rows(step, bias=0.5))
    copied = with_rollouts(tmp_path / "copied", lambda step: rows(step, copies=True))
    assert abs(copied["dominant-answer"].onset.step - 110) <= 40
    assert "flaky-grades" in with_rollouts(tmp_path / "flaky", lambda step: rows(step, flaky=0.5))


def finding(name, severity="warning", onset=None, brief=""):
    place = None if onset is None else Onset(onset, onset, onset)
    return Occurrence(name, severity, name, "", ("do",), "", place, brief=brief)


def test_an_undated_link_leads_to_no_cause_that_began_after_its_effect():
    rate, link = finding("learning-rate-jump", onset=301), finding("calibration-no-discrimination")
    early, late = (finding("poor-calibration", "critical", onset) for onset in (50, 320))
    found = {one.finding.name: one.consequences for one in causes_of([rate, link, early], 500, CAUSES)}
    assert found == {"learning-rate-jump": (link,), "poor-calibration": ()}
    found = {one.finding.name: one.consequences for one in causes_of([rate, link, late], 500, CAUSES)}
    assert found.keys() == {"learning-rate-jump"}


def test_consequences_stand_under_the_earliest_cause_that_explains_them():
    found = causes_of(
        [
            finding("kl-runaway", onset=190, brief="KL to the reference ×3"),
            finding("reward-drop", onset=208, brief="Reward fell"),
            finding("gradient-explosion", "critical", 183, "Gradient norm ×54"),
            finding("memory-leak", onset=1),
            finding("held-out-regression", "critical", 220),
            finding("gradient-spikes", "info", 3),
        ],
        400,
        CAUSES,
    )
    assert [cause.finding.name for cause in found] == ["gradient-explosion", "memory-leak"]
    assert (
        found[0].headline
        == "Gradient norm ×54 from step 183; KL to the reference ×3 7 steps later; reward fell 25 steps later; "
        "1 more consequence"
    )
    assert found[0].severity == "critical"


def test_a_setting_that_is_0_is_not_to_be_lowered(tmp_path):
    found = diagnosed(tmp_path / "run", FAULTS["entropy-rise"], algorithm={"entropy_coefficient": 0.0})
    (rise,) = (one for one in found.findings if one.name == "entropy-rise")
    assert not any("algorithm.entropy_coefficient" in action for action in rise.actions)


def test_what_began_much_earlier_is_no_consequence():
    found = causes_of(
        [finding("gradient-explosion", onset=300), finding("reward-drop", onset=100)], 400, CAUSES
    )
    assert {cause.finding.name for cause in found} == {"gradient-explosion", "reward-drop"}


def test_findings_explain_known_ones_and_those_that_do_have_an_order():
    assert {name for one in FINDINGS.values() for name in one.explains} <= FINDINGS.keys()
    assert len(CAUSES) == len(set(CAUSES)) and set(CAUSES) == {
        one for one in FINDINGS.values() if one.explains
    }


def test_records_name_known_kinds_and_views():
    algorithms = {name for _, name in all_recipes()}
    assert {name for one in FINDINGS.values() for name in one.not_for} <= algorithms
    assert {name for task in TASKS for name in find_task(task).silent} <= FINDINGS.keys()
    (cards,) = (one.type.choices for one in rldk.commands["card"].params if one.name == "kind")
    views = {view for one in FINDINGS.values() for view in one.views}
    assert (
        views <= {*cards, *rldk.commands} and {*cards, "length-bias", "kl-drift"} - {"determinism"} <= views
    )


def test_advice_reads_the_run(tmp_path):
    run = write_run(
        tmp_path / "run",
        with_explosion(healthy(2)),
        training={"max_grad_norm": 2.5, "learning_rate": 3e-4},
        model={"dtype": "float32"},
    )
    for step in (100, 280, 320):
        (run / "checkpoints" / f"step_{step:06d}").mkdir(parents=True)
    cause = diagnose_run(run).causes[0].finding
    text = " ".join(cause.actions)
    assert "training.max_grad_norm (now 2.5)" in text and "training.learning_rate (now 0.0003)" in text
    assert "bfloat16" not in text  # it is float32 already
    assert "training.schedule" not in text and "did not change there" in cause.measured
    assert "step_000280" in text and "learning_rate=0.0001" in text


def test_the_advice_for_another_trainer_uses_its_names(tmp_path):
    values = with_explosion(healthy(2, 400))
    rows = [
        {"step": i + 1, "reward": v, "grad_norm": g, "learning_rate": 1e-6}
        for i, (v, g) in enumerate(zip(values["reward/mean"], values["grad_norm"], strict=True))
    ]
    (tmp_path / "checkpoint-200").mkdir()
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    text = " ".join(diagnose_run(tmp_path).causes[0].finding.actions)
    assert "training.learning_rate" not in text and "learning_rate" in text
    assert 'resume_from_checkpoint="' in text and "checkpoint-200" in text


def logged(folder, rows, name="trainer_state.json"):
    """The log of another trainer."""
    folder.mkdir()
    text = json.dumps({"log_history": rows}) if name.endswith(".json") else "".join(map(dump_line, rows))
    (folder / name).write_text(text)
    return folder / name


def dump_line(row):
    return json.dumps(row) + "\n"


def trl(step, **changed):
    rng = np.random.default_rng(step)
    usual = {"reward": 0.5 + 0.1 * rng.random(), "grad_norm": 1 + rng.random(), "learning_rate": 1e-6}
    return {"step": step, **usual, **changed}


def texts(found):
    for one in found.findings:
        yield from (one.title, one.measured, one.brief, one.confirm, *one.actions)
    for gap in found.gaps:
        yield f"{gap.subject}: {gap.reason}. {gap.enable}"


def logs(folder):
    """Logs of other trainers and own runs, each with another fault."""
    nan, steps = float("nan"), range(1, 61)
    yield logged(folder / "nan", [trl(i, loss=nan) for i in steps])
    yield logged(folder / "late", [trl(i, loss=nan if i > 40 else 0.1) for i in steps])
    yield logged(folder / "no kl", [trl(i, kl=nan) for i in steps])
    yield logged(folder / "passed", [{**trl(i), "status/passed": 0.5} for i in steps], "log.jsonl")
    yield logged(folder / "failed", [{**trl(i), "status/error": 0.5} for i in steps], "log.jsonl")
    groups = ("groups/with_signal", "groups/dead_all_pass", "groups/dead_all_fail")
    yield logged(
        folder / "groups",
        [{**trl(i), **dict.fromkeys(groups[: 1 + 2 * (i > 40)], 4.0)} for i in steps],
        "a.jsonl",
    )
    yield logged(
        folder / "none", [{**trl(i), **dict.fromkeys(groups, 1.0 * (i > 50))} for i in steps], "a.jsonl"
    )
    yield logged(folder / "memory", [{**trl(i), "rss_mb": 900.0 + i} for i in steps[:32]], "a.jsonl")
    yield logged(folder / "short", [trl(i, entropy=1.0) for i in range(10, 200, 10)])
    yield logged(folder / "verl", [{"step": i, "critic/score/mean": 0.5 - 0.4 * (i > 30), "actor/grad_norm": 1.0,
                                    "actor/kl_loss": -0.1, "actor/entropy": 1.0 / i} for i in steps], "v.jsonl")  # fmt: skip
    yield logged(folder / "fell", [trl(i, **dict.fromkeys(("reward", "rewards/f/mean"),
                                       0.8 * (i < 30) + 0.01 * (i % 3))) for i in steps])  # fmt: skip
    for name, changed in FAULTS.items():
        yield write_run(folder / name, {**healthy(3, STEPS), **changed})
    shared = FIXTURES.parent
    yield from (*shared.glob("field_inputs/kl/*/*"), *shared.glob("real_logs/*/log/*"))
    for run in RUNS if FIXTURES.is_dir() else ():
        yield from (fixture(form, run)[0] for form in ("hf", "tensorboard", "wandb", "verl"))


# Names of greenward's files, settings and signals, as they stand in texts.
_FILES = re.compile(r"[\w.-]+\.(?:jsonl?|csv|log)\b|\b(?:rollouts|checkpoints)/(?!\w)")
_SETTINGS = re.compile(
    r"(?<![\w.])(?:training|algorithm|sampling|model|sandbox|warm_start|problems)\.[a-z_]+"
)
_SIGNALS = re.compile(
    r"(?<![\w./])(?:(?:reward|status|time|updates|groups|importance|rollouts|completion|clip)/[a-z_]+|grad_norm|"
    r"approx_kl|explained_variance|pass_rate)(?![\w/])(?! \(not logged\)| is not in)"
)


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_no_text_names_what_is_not_there(tmp_path, every):
    """Files, signals, settings and findings of a text are those of its log, and what is missing is said to be."""
    looked_at = 0
    for path in itertools.islice(logs(tmp_path), 0, None, every):
        try:
            found = diagnose_run(path)
        except DiagnosticsError:
            continue
        looked_at += 1
        run, names = found.run, [one.name for one in found.findings]
        known = {*map(run.logged_as, run.values)}
        assert len(names) == len(set(names)) or any(name.startswith("held-out") for name in names)
        assert {one.name for cause in found.causes for one in (cause.finding, *cause.consequences)} <= {
            *names
        }
        for one in texts(found):
            for file in _FILES.findall(one):
                assert file in (run.log, "predictions.jsonl") or run.is_own, one
                assert file != "rollouts/" or run.rollouts, one
            if not one.startswith(("reward/", "status/")) and "Log " not in one:
                assert known.issuperset(_SIGNALS.findall(one)), one
            if run.family.dialect != "greenward":
                assert not [name for name in _SETTINGS.findall(one) if not path_of_verl(name)], one
            assert "finding about" not in one, one
            for other in re.findall(r"\b[a-z]+(?:-[a-z]+)+\b", one):
                assert other not in FINDINGS or other in names, one
            if (match := re.search(r"has (\d+) values?(?: above 0)?, a test needs (\d+)", one)) is not None:
                assert int(match[1]) < int(match[2]), one
    assert looked_at >= (11 + len(FAULTS)) // every


def test_every_setting_in_a_text_has_a_name_in_other_trainers():
    named = {
        name
        for one in FINDINGS.values()
        for text in (*one.actions, one.confirm)
        for name in re.findall(_SETTING, text)
    }
    assert named and named <= SETTINGS.keys()


def path_of_verl(name):
    return name.startswith(("algorithm.adv_", "algorithm.filter_", "algorithm.kl_ctrl"))


def advice(found, name):
    return " ".join(next(one for one in found.findings if one.name == name).actions)


def test_what_is_not_finite_from_the_first_step_on_has_no_checkpoint_before_it(tmp_path):
    nan = float("nan")
    at_once = diagnose_run(logged(tmp_path / "once", [trl(i, loss=nan) for i in range(10, 400, 10)]))
    assert "Train anew" in advice(at_once, "non-finite") and "checkpoint" not in advice(at_once, "non-finite")
    rows = [trl(i, loss=nan if i > 200 else 0.1) for i in range(10, 400, 10)]
    later = diagnose_run(logged(tmp_path / "later", rows))
    assert "Go on from the last checkpoint before the onset" in advice(later, "non-finite")
    excerpt = diagnose_run(logged(tmp_path / "excerpt", [trl(i, loss=nan) for i in range(300, 340)]))
    assert "Go on from the last checkpoint" in advice(excerpt, "non-finite")  # what was before is not known
    own = {"loss": np.where(LATE, np.nan, 0.1)}
    assert "Train anew" in advice(diagnosed(tmp_path / "none", own), "non-finite")  # it saved none
    run = write_run(tmp_path / "run", {**healthy(3, STEPS), **own})
    (run / "checkpoints/step_000100").mkdir(parents=True)
    assert "step_000100" in advice(diagnose_run(run), "non-finite")


def test_gaps_say_why_and_in_which_file(tmp_path):
    def gaps(path):
        return {gap.subject: f"{gap.reason}. {gap.enable}" for gap in diagnose_run(path).gaps}

    trl_log = gaps(logged(tmp_path / "trl", [trl(i) for i in range(1, 61)]))
    assert "completion/truncated is not in trainer_state.json" in trl_log["truncated answers"]
    names = ("groups/with_signal", "groups/dead_all_pass", "groups/dead_all_fail")
    counts = [
        {**trl(i), names[0]: 4.0, **dict.fromkeys(names[1:] if i < 9 else (), 1.0)} for i in range(1, 61)
    ]
    assert "dead_all_pass has 8 values, a test needs 30. Log it at each step" in " ".join(
        gaps(logged(tmp_path / "counts", counts, "log.jsonl")).values()
    )
    none = [{**trl(i), **dict.fromkeys(names, 0.0)} for i in range(1, 61)]
    assert (
        "at 0 of the same steps"
        in gaps(logged(tmp_path / "none", none, "log.jsonl"))["groups without signal"]
    )
    passed = [{**trl(i), "status/passed": 0.5} for i in range(1, 61)]
    assert "how answers fail" not in gaps(logged(tmp_path / "passed", passed, "log.jsonl"))


def test_a_reward_of_one_term_falls_once(tmp_path):
    rng = np.random.default_rng(2)
    level = np.where(np.arange(120) < 60, 0.7, 0.3) + 0.02 * rng.standard_normal(120)
    for name, factor in (("one", 1.0), ("weighted", 2.0)):
        rows = [trl(i + 1, reward=factor * v, **{"rewards/f/mean": v}) for i, v in enumerate(level)]
        found = diagnose_run(logged(tmp_path / name, rows))
        assert [one.name for one in found.findings].count("reward-drop") == 1
        (drop,) = (one for one in found.findings if one.name == "reward-drop")
        assert drop.signals == ("reward/mean",)
    two = [trl(i + 1, reward=v + 0.1, **{"rewards/f/mean": v, "rewards/g/mean": 0.1 + 0.01 * (i % 2)})
           for i, v in enumerate(level)]  # fmt: skip
    (drop,) = (
        one for one in diagnose_run(logged(tmp_path / "two", two)).findings if one.name == "reward-drop"
    )
    assert drop.signals == ("reward/mean", "reward/f")


def test_the_command_prints_writes_and_exits(tmp_path):
    run = write_run(tmp_path / "run", with_explosion(healthy(2)))
    (run / "rollouts").mkdir()
    hostile = rollout("t", "<script>alert(1)</script>\x1b[31m", 1.0, 5, "passed")
    for step in (290, 301):
        (run / "rollouts" / f"step_{step:06d}.jsonl").write_text(json.dumps(hostile) + "\n")
    done = command(run, "--output-dir", tmp_path / "out")
    assert (
        done.exit_code == 1 and "CRITICAL: Gradient norm ×" in done.output and "from step 300" in done.output
    )
    page = (tmp_path / "out/diagnosis.html").read_text()
    assert len(page) < 300_000 and "<script>alert" not in page and "\x1b" not in page
    assert "&lt;script&gt;alert" in page  # the answers around the onset
    record = json.loads((tmp_path / "out/diagnosis.json").read_text())
    assert record["causes"][0]["name"] == "gradient-explosion" and record["causes"][0]["consequences"]
    assert command(run, program=rldk).exit_code == 1
    drop = healthy(2)
    drop["perf/tokens_per_second"] = drop["perf/tokens_per_second"] * np.where(np.arange(500) > 250, 0.5, 1)
    slow = write_run(tmp_path / "slow", drop)
    assert command(slow).exit_code == 1 and command(slow, "--fail-on", "critical").exit_code == 0


def test_names_can_be_mapped_on_the_command_line(tmp_path):
    rows = ({"step": i, "my_score": 0.5, "grad_norm": 1.0 + 0.01 * (i % 7)} for i in range(60))
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = command(tmp_path / "log.jsonl", "--map", "my_score=reward/mean")
    assert done.exit_code == 1 and "does not vary" in done.output
    assert command(tmp_path / "log.jsonl", "--map", "my_score").exit_code == 2


def test_the_report_renders_in_all_forms(tmp_path):
    report = diagnosis_report(diagnosed(tmp_path / "run", FAULTS["stale-policy"]))
    for form in ("html", "markdown", "json"):
        assert "stale-policy" in render(report, form)


def test_the_json_has_the_fields_that_the_schema_names(tmp_path):
    """Those of docs/ci.schema.json, and no others; of records in it, too."""
    text = (Path(__file__).parents[2] / "docs" / "ci.schema.json").read_text(encoding="utf-8")
    definitions = json.loads(text)["$defs"]
    documented = definitions["diagnosis"]["properties"]
    run = write_run(tmp_path / "run", with_explosion(healthy(2)))
    record = json.loads(command(run, "--json").output)
    assert record.keys() == documented.keys()
    for name in ("cost", "steps", "thresholds"):
        assert record[name].keys() <= documented[name]["properties"].keys(), name
    for name in ("causes", "not_checked"):
        assert record[name][0].keys() <= documented[name]["items"]["properties"].keys(), name
    assert record["findings"][0].keys() <= definitions["finding"]["properties"].keys()
    card = next(iter(record["cards"].values()))
    assert card.keys() <= documented["cards"]["additionalProperties"]["properties"].keys()


def shown(run, *options):
    return command(run, *options).output


@pytest.mark.parametrize("width", ["80", "120"])
def test_a_healthy_log_takes_a_dozen_lines_and_a_fault_one_sentence(tmp_path, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    sound = write_run(tmp_path / "sound", healthy(3))
    short, whole = shown(sound), shown(sound, "--verbose")
    assert "HEALTHY" in short and len(short.splitlines()) <= 12
    (missing,) = re.findall(r"^(\d+) checks? could not be made", short, re.MULTILINE)
    assert int(missing) == len(json.loads(shown(sound, "--json"))["not_checked"])
    assert "What could not be checked" in whole and "What could not be checked" not in short
    faulty = json.loads(shown(write_run(tmp_path / "faulty", with_explosion(healthy(2))), "--json"))
    first = faulty["findings"][0]["actions"][0]
    headline = faulty["headline"]
    assert headline.startswith("CRITICAL: Gradient norm ×") and "from step 300" in headline
    assert re.search(r"; first, go on from the last checkpoint|; first, train anew", headline, re.IGNORECASE)
    assert headline.count(". ") == 0 and first[1:20] in headline


def cost(run, **options):
    return diagnosis_report(diagnose_run(run), **options).data["cost"]


def test_the_head_says_what_the_run_cost(tmp_path):
    """Against sums made here: half the groups dead from step 100 on, no better reward after step 120."""
    signals = healthy(4, 200)
    steps = np.arange(1, 201)
    dead = np.where(steps > 100, 8.0, 0.0)
    signals |= {
        "reward/mean": np.minimum(steps, 120) / 200 + 0.001 * np.random.default_rng(0).standard_normal(200),
        "groups/with_signal": 16 - dead,
        "groups/dead_all_pass": dead,
        "groups/dead_all_fail": np.zeros(200),
        "time/step": np.full(200, 90.0),
    }
    run = write_run(tmp_path / "run", signals, training={"max_steps": 400})
    found = cost(run, gpus=4, gpu_hour_cost=2.5)
    assert (found["max_steps"], found["steps_without_signal"]) == (400, 0)
    assert found["without_signal"] == pytest.approx(0.25) and found["hours"] == pytest.approx(5.0)
    assert found["gpu_hours"] == pytest.approx(20) and found["price"] == pytest.approx(50)
    assert found["gpu_hours_without_signal"] == pytest.approx(5)
    assert found["best_step"] >= 115 and found["steps_since_best"] == 200 - found["best_step"]
    assert found["hours_since_best"] == pytest.approx(found["steps_since_best"] * 90 / 3600)
    facts = diagnosis_report(diagnose_run(run), gpus=4, gpu_hour_cost=2.5).facts
    text = " ".join(fact.value for fact in facts)
    assert "50% of 400" in text and "20.0 GPU-hours (price 50.00), 5.0 of them without signal" in text
    assert "25% of the groups without signal" in text
    plain = {**signals, "groups/with_signal": np.full(200, 16.0), "groups/dead_all_pass": np.zeros(200)}
    plain["time/step"] = np.full(200, 0.1)
    text = " ".join(
        fact.value for fact in diagnosis_report(diagnose_run(write_run(tmp_path / "b", plain)), gpus=1).facts
    )
    assert "GPU-hours" not in text and "without signal" not in text and " of 400" not in text


def test_the_steps_of_the_warm_start_are_not_those_of_the_plan(tmp_path):
    sections = {"warm_start": {"max_steps": 900}, "training": {"max_steps": 200}}
    assert cost(write_run(tmp_path / "run", healthy(4, 200), **sections))["max_steps"] == 200


def test_a_price_needs_the_number_of_gpus(tmp_path):
    run = write_run(tmp_path / "run", healthy(0, 40))
    assert command(run, "--gpu-hour-cost", "2").exit_code == 2
    trl_rows = [trl(i, reward_std=0.0 if i % 2 else 0.3) for i in range(1, 61)]
    assert cost(logged(tmp_path / "trl", trl_rows))["without_signal"] == pytest.approx(0.5)
