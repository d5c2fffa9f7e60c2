"""`evals` on runs whose evaluations rise, fall or are missing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from synthetic_runs import healthy, write_run

from greenward.cli.main import cli
from greenward.cli.rldk import rldk
from greenward.common.errors import DiagnosticsError
from greenward.diagnostics.diagnose import diagnose_evals, diagnose_run


def evaluation(step, rate, *, problems=200, samples=4, seed=0):
    """A record as runs write it, with answers drawn at `rate`."""
    passed = np.random.default_rng((seed, step)).binomial(samples, rate, problems)
    value, half = float(passed.mean()) / samples, 0.03
    rows = [{"task_id": f"t/{i}", "passed": int(n), "samples": samples} for i, n in enumerate(passed)]
    metrics = {"pass@1": {"value": value, "low": value - half, "high": value + half}}
    return {"suite": "held_out", "step": step, "problems": problems, "metrics": metrics, "rows": rows}


def evaluated(folder, rates, signals=None, suite=""):
    run = write_run(folder, signals or healthy(1))
    (run / "evaluations").mkdir(exist_ok=True)
    for step, rate in rates.items():
        text = json.dumps(evaluation(step, rate))
        (run / "evaluations" / f"step_{step:06d}{suite}.json").write_text(text)
    return run


def command(*arguments, program=rldk):
    return CliRunner().invoke(program, ["evals", *map(str, arguments)])


def names(diagnosis):
    return {(finding.name, finding.severity) for finding in diagnosis.findings}


def test_a_run_that_learned_ends_with_0_and_says_by_how_much(tmp_path):
    run = evaluated(tmp_path / "run_1", {0: 0.3, 250: 0.5, 500: 0.7})
    done = command("--run", run, "--suite", "code", "--output-dir", tmp_path / "code_eval")
    assert done.exit_code == 0, done.output
    assert {p.name for p in (tmp_path / "code_eval").iterdir()} == {
        ".greenward.json",
        "code_eval.html",
        "code_eval.md",
        "code_eval.json",
    }
    record = json.loads((tmp_path / "code_eval/code_eval.json").read_text())
    change = record["cards"]["held_out"]["data"]["paired_change"]
    assert change["low"] < 0.4 < change["high"] and change["high"] - change["low"] < 0.15
    assert command("--run", run, "--suite", "code", program=cli).exit_code == 0


def test_a_fall_of_held_out_results_is_critical_when_sure_and_large(tmp_path):
    fell = diagnose_evals(evaluated(tmp_path / "a", {0: 0.6, 500: 0.4}))
    assert ("held-out-regression", "critical") in names(fell) and fell.exit_code("critical") == 1
    same = diagnose_evals(evaluated(tmp_path / "b", {0: 0.5, 500: 0.5}))
    assert not [f for f in same.findings if f.name == "held-out-regression"]


def test_training_that_held_out_problems_do_not_follow_is_found(tmp_path):
    flat = diagnose_evals(evaluated(tmp_path / "run", {0: 0.33, 500: 0.34}))
    assert ("train-held-out-gap", "warning") in names(flat)
    followed = diagnose_evals(evaluated(tmp_path / "other", {0: 0.33, 500: 0.68}))
    assert ("train-held-out-gap", "warning") not in names(followed)


def test_worse_answers_are_found(tmp_path):
    late = np.arange(500) > 300
    rng = np.random.default_rng(1)
    signals = healthy(2)
    signals["reward/readability"] = signals["reward/readability"] - np.where(late, 0.3, 0)
    signals["status/timeout"] = signals["status/timeout"] + np.where(late, 0.3, 0)
    signals["status/cheating"] = np.where(late, 0.05, 0.0) + 0.001 * rng.random(500)
    signals["pass_rate"] = 0.5 + 0.03 * rng.standard_normal(500)
    signals["completion/unique"] = signals["completion/unique"] * np.where(late, 0.2, 1)
    signals["completion/mean_length"] = signals["completion/mean_length"] * np.where(late, 2, 1)
    found = diagnose_evals(evaluated(tmp_path / "run", {0: 0.5, 500: 0.5}, signals))
    by_name = {finding.name: finding for finding in found.findings}
    assert {
        "quality-drop",
        "failing-answers-rise",
        "cheating",
        "diversity-loss",
        "length-growth",
    } <= by_name.keys()
    assert all(abs(by_name[n].onset.step - 302) <= 5 for n in ("quality-drop", "failing-answers-rise"))


def test_without_evaluations_nothing_is_called_good(tmp_path):
    done = command("--run", write_run(tmp_path / "none", healthy(1)))
    assert done.exit_code == 2 and "CANNOT TELL: there are 0 evaluation(s)" in done.output
    done = command("--run", evaluated(tmp_path / "one", {0: 0.5}))
    assert done.exit_code == 2 and "there are 1 evaluation(s)" in done.output


def test_a_suite_is_asked_for_by_its_name_and_unknown_ones_list_the_known(tmp_path):
    run = evaluated(tmp_path / "run", {0: 0.5, 500: 0.3}, suite=".humaneval_plus")
    alone = diagnose_evals(run, "humaneval+")
    assert [card.name for card in alone.cards] == ["suite_humaneval_plus"]
    assert ("held-out-regression", "critical") in names(alone)
    with pytest.raises(DiagnosticsError, match=r"Did you mean humaneval_plus\? Known: code, humaneval_plus"):
        diagnose_evals(run, "humaneval_plos")
    assert "suite_humaneval_plus" in [card.name for card in diagnose_evals(run).cards]


def test_a_fall_on_a_suite_is_dated_by_its_own_evaluations(tmp_path):
    held_out = {step: 0.6 if step < 200 else 0.2 for step in range(0, 501, 50)}
    run = evaluated(tmp_path / "run", held_out)
    evaluated(tmp_path / "run", {400: 0.5, 500: 0.3}, suite=".humaneval_plus")
    own, suite = (diagnose_evals(run, one).findings for one in ("code", "humaneval+"))
    onsets = [next(f.onset for f in found if f.name == "held-out-regression") for found in (own, suite)]
    assert (onsets[0].low, onsets[0].high) == (150, 200) and (onsets[1].step, onsets[1].low) == (500, 400)


def test_a_fall_after_a_rise_is_dated_where_it_begins_and_follows_from_the_fault_inside(tmp_path):
    signals = healthy(1)
    steps = np.arange(1, 501)
    signals["learning_rate"] = np.where(steps >= 331, 1e-3, 1e-4)
    rates = {
        step: 0.4 + 0.3 * (1 - np.exp(-step / 50)) - 0.3 * (1 - np.exp(-max(step - 330, 0) / 20))
        for step in range(0, 501, 25)
    }
    findings = diagnose_run(evaluated(tmp_path / "run", rates, signals)).causes[0]
    fall = next(one.onset for one in findings.consequences if one.name == "held-out-regression")
    assert findings.finding.name == "learning-rate-jump"
    assert 250 <= fall.low <= 331 <= fall.high <= 375


@pytest.mark.parametrize(
    "record",
    [
        {"step": 500},
        {"step": "x", "metrics": {}},
        {"step": 500, "metrics": {"pass@²": {"value": "NaN"}, "pass@1": 3}, "rows": [None, {"task_id": 1}]},
        {"step": 500, "metrics": {"<evil>": {"value": 1, "low": 0, "high": 1}}, "rows": {}},
    ],
)
def test_broken_evaluations_never_pass_and_never_raise(tmp_path, record):
    run = evaluated(tmp_path / "run", {0: 0.5})
    (run / "evaluations" / "step_000500.json").write_text(json.dumps(record))
    done = command("--run", run, "--output-dir", tmp_path / "out")
    assert done.exit_code == 2 and "CANNOT TELL" in done.output, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert "<evil>" not in (tmp_path / "out/code_eval.html").read_text()


@pytest.mark.parametrize(("since", "found"), [(492, False), (460, True)])
def test_a_rise_of_failures_must_last_twelve_steps(tmp_path, since, found):
    signals = healthy(1)
    rng = np.random.default_rng(0)
    signals["status/syntax_error"] = np.where(np.arange(500) >= since, 0.4, 0.1) + 0.01 * rng.random(500)
    diagnosis = diagnose_evals(evaluated(tmp_path / "run", {}, signals))
    assert bool([one for one in diagnosis.findings if one.name == "failing-answers-rise"]) is found


@pytest.mark.parametrize(("status", "found"), [("drawn", False), ("first_won", False), ("illegal", True)])
def test_results_of_games_are_no_way_to_fail_but_illegal_moves_are(tmp_path, status, found):
    signals = healthy(1)
    rng = np.random.default_rng(0)
    signals[f"status/{status}"] = np.where(np.arange(500) > 250, 0.4, 0.1) + 0.01 * rng.random(500)
    diagnosis = diagnose_evals(evaluated(tmp_path / "run", {}, signals))
    rises = [one for one in diagnosis.findings if one.name == "failing-answers-rise"]
    assert bool(rises) == found
