"""`greenward diff` and `rldk diff` on runs whose difference is known."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from greenward.cli.diagnose import diff as command
from greenward.cli.rldk import rldk
from greenward.common.errors import DiagnosticsError
from greenward.diagnostics.change_points import simulate_autoregression
from greenward.diagnostics.diff import diff_runs, likely_cause, plain_difference
from greenward.runs.files import dump_json

STEPS = 120


def healthy(seed):
    rng = np.random.default_rng(seed)
    return {
        "grad_norm": np.exp(0.2 * rng.standard_normal(STEPS)),
        "reward/tests": np.linspace(0.3, 0.8, STEPS) + 0.05 * rng.standard_normal(STEPS),
        "entropy": 0.2 + 0.02 * rng.standard_normal(STEPS),
        "time/step": 1 + 0.1 * rng.random(STEPS),
    }


@pytest.fixture
def run(tmp_path):
    def write(name, series, *, first=1, **settings):
        folder = tmp_path / name
        folder.mkdir()
        steps = len(next(iter(series.values())))
        rows = ({"step": first + i, **{k: float(v[i]) for k, v in series.items()}} for i in range(steps))
        (folder / "metrics.jsonl").write_text("".join(dump_json(row) + "\n" for row in rows))
        (folder / "config.yaml").write_text(json.dumps({"name": name, **settings}))
        return folder

    return write


def exploded(series, onset):
    """Norms 20 times as large from `onset` on (a step), rewards lower from 10 steps later on."""
    after = np.arange(1, STEPS + 1)
    return {
        **series,
        "grad_norm": series["grad_norm"] * np.where(after >= onset, 20.0, 1.0),
        "reward/tests": series["reward/tests"] - np.where(after >= onset + 10, 0.4, 0.0),
    }


@pytest.mark.parametrize("program", [command, rldk.commands["diff"]])
def test_runs_are_given_by_place_or_by_option(run, program):
    a, b = str(run("a", healthy(0))), str(run("b", exploded(healthy(0), 60)))
    said = {
        CliRunner().invoke(program, arguments).stdout
        for arguments in ([a, b], ["--a", a, "--b", b], [a, "--b", b], [b, "--a", a], ["--b", b, a])
    }
    assert len(said) == 1 and "60" in said.pop()
    for wrong in ([], [a], ["--b", b], [a, b, a], [a, b, "--b", b], ["--a", a, "--b", b, a]):
        result = CliRunner().invoke(program, wrong)
        assert result.exit_code == 2
        assert "greenward diff A B" in result.output


def test_a_run_is_the_same_as_itself(run):
    found = diff_runs(run("a", healthy(0)), run("b", healthy(0)))
    assert (found.verdict, found.replay, found.headline) == ("same", True, "SAME at 120 common steps")
    assert found.settings == ()  # the name is no setting


def test_float_noise_is_said_and_does_not_part_them(run):
    noisy = {name: values * (1 + 1e-8) for name, values in healthy(0).items()}
    found = diff_runs(run("a", healthy(0)), run("b", noisy))
    assert found.verdict == "same"
    assert "float noise (largest relative difference 1e-08)" in found.headline


def test_rounding_of_a_value_that_is_0_is_no_relative_difference(run):
    kl = {"kl": np.full(STEPS, 1e-17)}
    found = diff_runs(run("a", healthy(0) | kl), run("b", healthy(0) | {"kl": 3 * kl["kl"]}))
    assert (found.verdict, found.headline) == ("same", f"SAME at {STEPS} common steps")


def test_learning_rate_parts_a_replay_and_not_other_runs(run):
    """The settings name other rates; in a replay the rate can be the first value that differs."""

    def with_rate(seed, rate):
        return healthy(seed) | {"learning_rate": np.full(STEPS, rate)}

    a = run("a", with_rate(0, 1e-3))
    found = diff_runs(a, run("b", with_rate(0, 1.5e-3)))
    assert (found.verdict, found.differences[0].signal) == ("diverged", "learning_rate")
    assert found.differences[0].onset.step == 1
    other = diff_runs(a, run("c", with_rate(1, 1.5e-3)))
    assert "learning_rate" not in [difference.signal for difference in other.differences]


def test_a_replay_parts_at_the_first_value_that_differs(run):
    found = diff_runs(run("a", healthy(0)), run("b", exploded(healthy(0), 70)))
    assert [(d.signal, d.onset.step) for d in found.differences[:2]] == [
        ("grad_norm", 70),
        ("reward/tests", 80),
    ]
    assert found.headline.startswith("DIVERGED at step 70 [70, 70] in grad_norm")
    assert found.cause.stage == "update"


def test_times_are_no_float_noise_of_a_replay(run):
    slower = {**healthy(0), "time/step": 2 * healthy(0)["time/step"]}
    short = {name: values[:20] for name, values in healthy(0).items()}
    found = diff_runs(run("a", short), run("b", {**short, "time/step": 2 * short["time/step"]}))
    assert (found.verdict, found.headline) == ("same", "SAME at 20 common steps")
    found = diff_runs(run("c", healthy(0)), run("d", slower))
    assert [d.signal for d in found.differences if d.onset] == ["time/step"]


@pytest.mark.parametrize("steps", [20, STEPS])
@pytest.mark.parametrize(
    "growth",
    [
        pytest.param(lambda t: 1 + 1.15 * t, id="a line"),
        pytest.param(lambda t: np.where(t > 0.7, 2.15, 1.0), id="one step"),
        pytest.param(lambda t: 1 + 1.15 * np.floor(4 * t) / 4, id="a staircase"),
    ],
)
def test_memory_that_doubles_in_a_replay_is_a_difference(run, steps, growth):
    usual = {"entropy": healthy(0)["entropy"][:steps]}
    memory, t = np.full(steps, 900.0), np.linspace(0, 1, steps)
    a = run("a", {**usual, "perf/rss_mb": memory})
    found = diff_runs(a, run("b", {**usual, "perf/rss_mb": memory * growth(t)}))
    assert found.verdict == "diverged"
    assert [d.signal for d in found.differences if d.onset] == ["perf/rss_mb"]
    assert found.cause.stage == "machine"
    equal = diff_runs(a, run("c", {**usual, "perf/rss_mb": memory * (1 + 0.1 * np.sin(20 * t) ** 2)}))
    assert equal.verdict == "same"


@pytest.mark.parametrize("left", [2, 6, 14])
@pytest.mark.parametrize("seed", range(3))
def test_an_explosion_into_nan_is_dated_by_its_first_norm_out_of_scale(run, left, seed):
    broken = healthy(seed + 10)
    broken["grad_norm"][79 + left :] = np.nan
    broken["grad_norm"][79 : 79 + left] *= 20.0 * 2.0 ** np.arange(left)
    found = diff_runs(run("a", healthy(seed)), run("b", broken), ["grad_norm"]).differences[0]
    assert abs(found.onset.step - 80) <= 2
    assert found.onset.low <= 80 <= found.onset.high


def test_one_seed_with_other_numbers_from_the_first_step_is_not_reproducible(run):
    a, b = run("a", healthy(0), seed=7, kind="grpo"), run("b", healthy(1), seed=7, kind="grpo")
    found = diff_runs(a, b)
    assert found.verdict == "not reproducible"
    assert found.headline.startswith(
        "NOT REPRODUCIBLE: the seed and the settings are the same, but reward/tests"
    )
    assert found.headline.endswith("at step 1")
    assert found.cause.stage == "reproducibility"
    assert CliRunner().invoke(command, ["--a", str(a), "--b", str(b)]).exit_code == 1
    other = diff_runs(a, run("c", healthy(1), seed=7, kind="ppo"))
    assert other.verdict == "no systematic difference"
    faulty = diff_runs(a, run("d", exploded(healthy(1), 70), seed=7, kind="grpo"))
    assert faulty.verdict == "not reproducible"
    assert "DIVERGED at step" in faulty.headline


def test_runs_of_other_seeds_part_where_the_fault_was_planted(run):
    found = diff_runs(run("a", healthy(0), seed=0), run("b", exploded(healthy(1), 70), seed=1))
    assert not found.replay
    assert [d.signal for d in found.differences if d.onset] == ["grad_norm", "reward/tests"]
    norm, reward = found.differences[:2]
    assert abs(norm.onset.step - 70) <= 2
    assert norm.onset.low <= 70 <= norm.onset.high
    assert abs(reward.onset.step - 80) <= 2
    assert norm.b / norm.a == pytest.approx(20, rel=0.2)
    assert [(s.key, s.a, s.b) for s in found.settings] == [("seed", 0, 1)]
    assert "different settings" in found.cause.explanation


def test_healthy_runs_of_other_seeds_do_not_part(run):
    found = [diff_runs(run(f"a{s}", healthy(s)), run(f"b{s}", healthy(100 + s))).verdict for s in range(10)]
    assert found.count("diverged") <= 1


def test_counts_whose_noise_ends_seldom_part(run):
    """Groups that fail become rare as a run learns: what differs while they are frequent is chance. Without
    Welch's test 26 of these 30 pairs part.
    """
    means = 3 * np.exp(-np.arange(STEPS) / 15)
    parted = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        counts = [{f"groups/{i}": rng.poisson(means).astype(float) for i in range(6)} for _ in "ab"]
        found = diff_runs(run(f"a{seed}", counts[0]), run(f"b{seed}", counts[1]))
        parted += found.verdict == "diverged"
    assert parted <= 12


@pytest.mark.parametrize("seed", range(4))
def test_counts_that_stay_in_one_run_alone_part(run, seed):
    rng = np.random.default_rng(seed)
    usual = 3 * np.exp(-np.arange(STEPS) / 15)
    stays = np.where(np.arange(STEPS) < 60, usual, 4.0)
    a, b = ({"groups/dead_all_fail": rng.poisson(means).astype(float)} for means in (usual, stays))
    (found,) = diff_runs(run("a", a), run("b", b)).differences
    assert abs(found.onset.step - 61) <= 4


@pytest.mark.parametrize("seed", range(4))
def test_a_kl_that_runs_away_late_parts(run, seed):
    rng = np.random.default_rng(seed)
    steps = np.arange(STEPS)
    usual = 0.06 * (steps + 1) / STEPS
    a, b = (usual * np.exp(0.06 * rng.standard_normal(STEPS)) for _ in "ab")
    grown = 0.02 * np.expm1(np.maximum(steps - 60, 0) / 12)
    (found,) = diff_runs(run("a", {"kl": a}), run("b", {"kl": b + grown})).differences
    assert found.onset is not None and 55 <= found.onset.step <= 90


def test_an_offset_from_the_first_step_is_found_there(run):
    higher = {**healthy(1), "entropy": healthy(1)["entropy"] + 0.05}
    found = diff_runs(run("a", healthy(0)), run("b", higher), ["entropy"])
    assert (found.differences[0].found, found.differences[0].onset.step) == ("offset", 1)


@pytest.mark.parametrize("seed", range(6))
def test_levels_that_lie_plainly_apart_differ_whatever_a_test_says(run, seed):
    """A KL that wanders around 2.4 after its first 20 steps beside one around 0.05."""
    rng = np.random.default_rng(seed)
    walk = np.exp(0.25 * simulate_autoregression(rng, 2, 94, 0.97))
    rise = np.minimum(np.arange(1, 95) / 20, 1)
    a = run("a", {"kl": 0.046 * rise * walk[0]})
    found = diff_runs(a, run("b", {"kl": 2.39 * rise**3 * walk[1]}), ["kl"])
    (kl,) = found.differences
    assert found.verdict == "diverged" and kl.b / kl.a > 10
    assert kl.onset.step <= 20


@pytest.mark.parametrize("autocorrelation", [0.5, 0.9, 0.95, 1.0])
def test_levels_of_one_process_hardly_ever_lie_plainly_apart(autocorrelation):
    rng = np.random.default_rng(1)
    for points in (30, 100):
        pairs = zip(*(simulate_autoregression(rng, 600, points, autocorrelation) for _ in "ab"), strict=True)
        found = np.mean([plain_difference(a, b) is not None for a, b in pairs])
        assert found <= (0.03 if autocorrelation == 1 else 0.01)


def test_a_plain_difference_is_dated_by_where_it_begins_to_last():
    rng = np.random.default_rng(0)
    a, b = 1 + 0.05 * rng.standard_normal((2, 200))
    b[60:80] += 5.0  # it comes back
    assert plain_difference(a, b) is None
    b[90:] += 5.0
    assert abs(plain_difference(a, b) - 90) <= 2
    assert plain_difference(np.where(np.arange(200) < 50, np.nan, a), a) is None


def test_memory_of_two_processes_may_differ_a_little(run):
    memory = 900 + np.random.default_rng(0).random(STEPS)
    found = diff_runs(run("a", {"perf/rss_mb": memory}), run("b", {"perf/rss_mb": 1.05 * memory[::-1]}))
    assert found.verdict == "no systematic difference"


def test_nan_in_one_run_only_is_a_difference(run):
    broken = healthy(1)
    broken["entropy"][60] = np.nan
    found = diff_runs(run("a", healthy(0)), run("b", broken))
    assert [(d.signal, d.found, d.onset.step) for d in found.differences[:1]] == [
        ("entropy", "not finite", 61)
    ]


def test_what_is_not_finite_in_both_runs_is_said(run):
    broken = {**healthy(0), "entropy": np.full(STEPS, np.inf), "huge": np.full(STEPS, 1e308)}
    found = diff_runs(run("a", broken), run("b", broken))
    assert "A: entropy is NaN or infinite at 120 of 120 steps, from 1 on" in found.notes
    assert "B: huge is NaN or infinite at 120 of 120 steps, from 1 on" in found.notes


def test_too_few_steps_cannot_tell(run, tmp_path):
    a, b = run("a", healthy(0)), run("b", healthy(1))
    for folder in (a, b):
        file = folder / "metrics.jsonl"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:20]))
    done = CliRunner().invoke(command, ["--a", str(a), "--b", str(b)])
    assert done.exit_code == 2
    assert "CANNOT TELL: 20 common steps" in done.output


def test_runs_without_common_steps_are_refused(run):
    with pytest.raises(DiagnosticsError, match="1 to 120 in A, 500 to 619 in B"):
        diff_runs(run("a", healthy(0)), run("b", healthy(0), first=500))


def test_the_familiar_command_line_works_and_writes_its_reports(run, tmp_path):
    a, b = run("a", healthy(0)), run("b", exploded(healthy(1), 70))
    arguments = ["diff", "--a", str(a), "--b", str(b), "--signals", "gradient_norm,code_score"]
    done = CliRunner().invoke(rldk, [*arguments, "--output-dir", str(tmp_path / "out")])
    assert done.exit_code == 1
    record = json.loads((tmp_path / "out" / "diff_report.json").read_text())
    assert [d["signal"] for d in record["differences"]] == ["grad_norm", "reward/tests"]
    card = (tmp_path / "out" / "diff_report.md").read_text()
    assert card.startswith("# Run diff\n\n**DIVERGED at step")


def test_json_is_printed_and_equal_runs_exit_with_0(run):
    a, b = run("a", healthy(0)), run("b", healthy(0))
    done = CliRunner().invoke(command, ["--a", str(a), "--b", str(b), "--json"])
    assert (done.exit_code, json.loads(done.stdout)["verdict"]) == (0, "same")


def test_hostile_names_do_nothing_in_the_reports(run, tmp_path):
    evil = "<script>alert(1)</script>\x1b[31m"
    a = run("a", {evil: healthy(0)["grad_norm"]})
    b = run("b", {evil: exploded(healthy(1), 50)["grad_norm"]})
    done = CliRunner().invoke(command, ["--a", str(a), "--b", str(b), "--output-dir", str(tmp_path / "o")])
    assert "\x1b[31m" not in done.output
    assert "<script>" not in (tmp_path / "o" / "diff_report.md").read_text()


def test_of_signals_that_part_at_one_step_the_earlier_stage_is_the_cause():
    assert likely_cause([("grad_norm", 5), ("completion/mean_length", 5)], False).stage == "rollout"
    assert likely_cause([("value/explained_variance", 4), ("reward/tests", 5)], False).stage == "loss"
    assert likely_cause([("perf/rss_mb", 3)], False).stage == "machine"
    assert likely_cause([], False) is None
