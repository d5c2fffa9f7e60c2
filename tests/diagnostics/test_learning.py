"""Whether a run learned, and what follows where it did not: rates of 256 answers a step."""

from __future__ import annotations

import json

import numpy as np
import pytest
from synthetic_runs import healthy, write_run

from greenward.diagnostics.diagnose import diagnose_run


def run_with(folder, rates, *, seed=0, **others):
    """A healthy run whose pass rate and reward are drawn at `rates`."""
    rates = np.asarray(rates)
    passed = np.random.default_rng(seed).binomial(256, rates) / 256
    signals = {
        name: values for name, values in healthy(seed, len(rates)).items() if not name.startswith("reward/")
    }
    signals |= {
        "pass_rate": passed,
        "status/passed": passed,
        "reward/mean": passed,
        "reward/std": np.sqrt(passed * (1 - passed)),
    }
    return write_run(folder, {**signals, **others}, rewards=[{"name": "tests", "weight": 1.0}])


def names(folder):
    return {finding.name for finding in diagnose_run(folder).findings if finding.severity != "info"}


@pytest.mark.parametrize(
    ("steps", "start", "gain", "pace"), [(600, 0.3, 0.3, 8), (300, 0.2, 0.22, 12), (300, 0.4, 0.0, 1)]
)
def test_a_run_that_learned_within_its_first_steps_has_learned(tmp_path, steps, start, gain, pace):
    rates = start + gain * (1 - np.exp(-np.arange(steps) / pace))
    assert ("no-learning" in names(run_with(tmp_path / "run", rates))) is (gain == 0)


LEARNED_EARLY = 0.3 + 0.3 * (1 - np.exp(-np.arange(300) / 100))


@pytest.mark.parametrize(
    ("rates", "found"), [(LEARNED_EARLY, True), (0.3 + 0.4 * (np.arange(300) > 270), False)]
)
@pytest.mark.parametrize("name", ["entropy-rise", "kl-runaway"])
def test_what_was_learned_before_does_not_excuse_what_begins_later(tmp_path, name, rates, found):
    rng = np.random.default_rng(1)
    late = np.clip((np.arange(300) - 255) / 10, 0, 1)
    usual, grown = {"entropy-rise": (0.4, 2.3), "kl-runaway": (0.01, 30.0)}[name]
    values = usual * (1 + grown * late) * np.exp(0.03 * rng.standard_normal(300))
    folder = run_with(tmp_path / "run", rates, **{"entropy" if "entropy" in name else "kl": values})
    assert (name in names(folder)) is found


def run_with_term(folder, name, term, weight, *, tests="tests", rates=None, **others):
    """A run without config whose reward is that of the tests and a weighted term."""
    rng = np.random.default_rng(2)
    rates = np.linspace(0.2, 0.5, 400) if rates is None else rates
    passed = rng.binomial(256, rates) / 256
    terms = {f"reward/{tests}": passed, f"reward/{name}": term}
    rewards = {**terms, "reward/mean": passed + weight * term, "pass_rate": passed}
    run = run_with(folder, rates, **rewards, **others)
    (run / "config.yaml").unlink()
    return run


@pytest.mark.parametrize(("weight", "found"), [(0.1, False), (3.0, True)])
def test_the_weights_of_terms_follow_from_the_reward_where_no_config_has_them(tmp_path, weight, found):
    noise = 0.5 + 0.1 * np.random.default_rng(1).standard_normal(400)
    run = run_with_term(tmp_path / "run", "judge", noise, weight)
    assert ("auxiliary-reward-dominates" in names(run)) is found


def test_a_format_that_is_learned_early_does_not_dominate(tmp_path):
    learned = np.random.default_rng(1).binomial(256, 0.15 + 0.83 * (1 - np.exp(-np.arange(400) / 15))) / 256
    assert "auxiliary-reward-dominates" not in names(run_with_term(tmp_path / "run", "format", learned, 1.0))


@pytest.mark.parametrize("tests", ["tests_reward", "accuracy_reward", "code_reward", "pass_tests"])
def test_the_term_of_the_tests_is_known_by_a_word_of_its_name(tmp_path, tests):
    noise = 0.5 + 0.3 * np.random.default_rng(1).standard_normal(400)
    run = run_with_term(tmp_path / "run", "code_style", noise, 1.0, tests=tests)
    assert "auxiliary-reward-dominates" in names(run)


def test_where_no_term_is_known_as_that_of_the_tests_it_is_said(tmp_path):
    noise = 0.5 + 0.3 * np.random.default_rng(1).standard_normal(400)
    diagnosis = diagnose_run(run_with_term(tmp_path / "run", "judge", noise, 1.0, tests="first"))
    assert "none of the terms is known to be that of the tests" in [gap.reason for gap in diagnosis.gaps]


def test_a_term_beside_tests_that_all_fail_follows_from_dead_groups(tmp_path):
    rng = np.random.default_rng(1)
    rates, alive = np.full(400, 0.004), rng.binomial(32, 0.03, 400).astype(float)
    groups = {
        "groups/with_signal": alive,
        "groups/dead_all_fail": 32 - alive,
        "groups/dead_all_pass": 0 * alive,
    }
    run = run_with_term(
        tmp_path / "run", "judge", rng.binomial(256, 0.95, 400) / 256, 1.0, rates=rates, **groups
    )
    causes = diagnose_run(run).causes
    assert causes[0].finding.name == "dead-groups"
    assert "auxiliary-reward-dominates" in {one.name for one in causes[0].consequences}


def test_a_sure_rise_that_is_too_small_is_told_as_one(tmp_path):
    rates = 0.3 + 0.02 * (np.arange(2000) > 600)
    (found,) = (
        one for one in diagnose_run(run_with(tmp_path / "run", rates)).findings if one.name == "no-learning"
    )
    assert found.brief.startswith("Hardly any learning in 2000 rows")
    assert "that is surely less than" in found.measured


@pytest.mark.parametrize(("scatter", "severity"), [(0.3, "critical"), (1.2, "warning")])
def test_norms_that_differ_by_factors_anyway_leave_no_scale_by_growing_twentyfold(
    tmp_path, scatter, severity
):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        norms = np.where(np.arange(400) < 200, 1, 20) * np.exp(scatter * rng.standard_normal(400))
        folder = run_with(tmp_path / str(seed), np.linspace(0.3, 0.8, 400), seed=seed, grad_norm=norms)
        found = {one.name: one.severity for one in diagnose_run(folder).findings}
        assert found["gradient-explosion"] == severity, seed


def printed_by_trl(folder, seed, rates, *, prompts=2, answers=2, evaluated=()):
    """A log of TRL's whose rows are means of a few answers, each right or wrong."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    rows, scores = [], dict(evaluated)
    for step, rate in enumerate(rates, 1):
        rewards = (rng.random((prompts, answers)) < rate).astype(float)
        rows.append(
            {"loss": 0.01, "grad_norm": 0.3 + 0.1 * rng.random(), "learning_rate": 1e-6, "step": step}
        )
        rows[-1] |= {"reward": rewards.mean(), "reward_std": rewards.std(axis=1, ddof=1).mean()}
        if step in scores:
            rows.append({"eval_reward": scores[step], "step": step})
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    return names(folder / "trainer_state.json")


def test_no_learning_is_told_of_means_of_a_few_answers_only_where_a_gain_would_have_shown(tmp_path):
    """A row of four answers has more noise than a run of a hundred or three hundred of them gains."""
    weak = 0.4 + 0.14 * np.linspace(0, 1, 300) ** 0.5
    flat = np.full(4000, 0.45)
    alarms = sum("no-learning" in printed_by_trl(tmp_path / f"weak {seed}", seed, weak) for seed in range(20))
    assert alarms <= 3
    told = sum("no-learning" in printed_by_trl(tmp_path / f"flat {seed}", seed, flat) for seed in range(5))
    assert told == 5


def test_evaluations_that_do_not_rise_either_make_a_flat_reward_a_finding(tmp_path):
    flat, scores = np.full(160, 0.45), [(step, 0.4 + 0.01 * (step % 3)) for step in range(20, 161, 20)]
    pairs = [
        [
            "no-learning" in printed_by_trl(tmp_path / f"{seed} {len(given)}", seed, flat, evaluated=given)
            for given in ((), scores)
        ]
        for seed in range(10)
    ]
    without, with_scores = (sum(column) for column in zip(*pairs, strict=True))
    assert with_scores > without
