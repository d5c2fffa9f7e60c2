"""The numbers of a report, against numpy, and the sentences that may be said about them."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from synthetic_study import write_seed

from greenward.common import statistics
from greenward.common.errors import RunError
from greenward.reports.document import Paragraph
from greenward.reports.runs import headline, max_lost_share, read_runs
from greenward.reports.training import training_report


def evaluation(folder, step):
    return json.loads((folder / "evaluations" / f"step_{step:06d}.json").read_text())


def set_level(folder, step, *shares):
    """Rewrite one evaluation so that problem after problem takes its share of eight answers from `shares`."""
    path = folder / "evaluations" / f"step_{step:06d}.json"
    record = json.loads(path.read_text())
    for index, row in enumerate(record["rows"]):
        row["passed"] = round(8 * shares[index % len(shares)])
    mean = float(np.mean([row["passed"] / 8 for row in record["rows"]]))
    record["metrics"]["pass@1"] = {"value": mean, "low": mean - 0.03, "high": mean + 0.03}
    path.write_text(json.dumps(record))


@pytest.fixture
def run(tmp_path):
    return write_seed(tmp_path / "run", problems=60)


def said(path) -> str:
    return headline(read_runs(path))


def test_pooled_estimates_are_means_over_seeds(study):
    results = read_runs(study).results
    seeds = [evaluation(study / f"seed_{seed}", 80)["metrics"]["pass@1"] for seed in (0, 1)]
    after = results.main.after["pass@1"]
    assert after.value == pytest.approx(np.mean([s["value"] for s in seeds]))
    assert after.low == pytest.approx(np.mean([s["low"] for s in seeds]))
    assert results.main.seeds_after["pass@1"] == tuple(s["value"] for s in seeds)
    assert results.metrics == ("pass@1", "greedy_pass@1", "pass@8")


def test_the_gain_is_paired_by_problem(study):
    gain = read_runs(study).results.main.change["pass@1"]

    def shares(step):
        seeds = [evaluation(study / f"seed_{seed}", step)["rows"] for seed in (0, 1)]
        return np.mean([[row["passed"] / row["samples"] for row in rows] for rows in seeds], axis=0)

    differences = shares(80) - shares(0)
    # With a problem that gains all and one that loses all (Bonett and Price 2012).
    widened = np.append(differences, (1.0, -1.0))
    half = 1.959964 * widened.std() / np.sqrt(len(widened))
    assert (gain.value, gain.low, gain.high) == pytest.approx(
        (differences.mean(), widened.mean() - half, widened.mean() + half)
    )


def test_the_headline_says_what_happened_and_what_the_control_did(study):
    text = said(study)
    assert text.startswith("GRPO: held-out sampled pass@1 rose from ")
    assert "mean of 2 seeds" in text
    assert "Rejection sampling, trained for the same time, rose to " in text
    assert "GRPO is ahead of rejection sampling (+" in text and "GRPO is ahead of the control (+" in text


def test_a_change_within_its_interval_is_not_called_a_rise(run):
    rows = evaluation(run, 0)
    path = run / "evaluations/step_000080.json"
    path.write_text(json.dumps({**rows, "step": 80}))
    assert "did not change measurably" in said(run)


def test_a_fall_is_called_a_fall(run):
    set_level(run, 0, 0.5)
    set_level(run, 80, 0.25)
    assert "fell from 50.0 %" in said(run)


def last_step(folder) -> int:
    return max(int(path.stem[5:]) for path in (folder / "evaluations").iterdir())


def test_a_control_that_rose_as_well_takes_the_credit_away(run):
    set_level(run, 0, 0.25)
    set_level(run, 80, 0.75)
    set_level(run / "control", last_step(run / "control"), 0.625)
    text = said(run)
    assert "The control, further supervised training" in text and "rose to 62.5 %" in text
    assert "not reinforcement learning's alone" in text


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.875, "GRPO is behind rejection sampling (−12.5 "),
        (0.625, "GRPO is ahead of rejection sampling (+12.5 "),
        (0.75, "GRPO is not distinguishable from rejection sampling (+0.0 "),
    ],
)
def test_the_arms_are_compared_by_their_paired_interval_whoever_wins(run, share, words):
    set_level(run, 80, 0.75)
    set_level(run / "rejection", 80, share)
    assert words in said(run)


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([0.5, 0.375], "fell to 43.8 %"),  # all in one direction
        ([0.5, 0.625], "rose to 56.2 %"),
        ([1.0, 0.125], "did not change measurably and ended at 56.2 %"),  # by as much, but down as well as up
        ([0.5], "did not change measurably and ended at 50.0 %"),
    ],
)
def test_a_change_is_called_one_exactly_where_its_interval_excludes_zero(run, shares, words):
    set_level(run, 0, 0.5)
    set_level(run / "control", last_step(run / "control"), *shares)
    assert words in said(run)
    change = read_runs(run).results.arms[-1].change["pass@1"]
    assert ("measurably" in words) == (change.low <= 0 <= change.high)


def test_each_metric_has_a_paired_gain_of_its_own(run):
    changes = read_runs(run).results.main.change
    before, after = (evaluation(run, step)["rows"] for step in (0, 80))
    for name, share in {
        "greedy_pass@1": lambda row: float(row["greedy_passed"]),
        "pass@8": lambda row: float(row["passed"] > 0),
    }.items():
        differences = np.array([share(b) - share(a) for a, b in zip(before, after, strict=True)])
        assert changes[name] == statistics.paired_difference(differences)


def test_the_headline_names_every_metric_in_which_an_arm_is_ahead_and_the_report_says_which_to_take(run):
    set_level(run, 80, 0.75)
    set_level(run / "rejection", last_step(run / "rejection"), 0.75)
    greedy = {run: False, run / "rejection": True}
    for folder, passed in greedy.items():
        path = folder / f"evaluations/step_{last_step(folder):06d}.json"
        record = json.loads(path.read_text())
        for row in record["rows"]:
            row["greedy_passed"] = passed
        path.write_text(json.dumps(record))
    report = training_report(run)
    sentence = "GRPO is not distinguishable from rejection sampling (+0.0 "
    assert sentence in report.headline and "and behind in greedy pass@1 (−100.0 " in report.headline
    section = next(one for one in report.sections if one.title == "Before and after")
    said = next(block.text for block in section.blocks if isinstance(block, Paragraph))
    assert "either for sampled pass@1, pass@8; rejection sampling for greedy pass@1" in said


def test_a_seed_without_a_second_evaluation_enters_no_difference(study, tmp_path):
    shutil.copytree(study, tmp_path / "study")
    for path in sorted((tmp_path / "study/seed_1/evaluations").iterdir())[1:]:
        path.unlink()
    alone = read_runs(tmp_path / "study/seed_0").results
    assert read_runs(tmp_path / "study").results.main.change == alone.main.change


def test_rounds_that_kept_nothing_are_a_note(run):
    assert "Rejection sampling: 2 of 80 rounds kept no answer and taught nothing new." in read_runs(run).notes


def test_without_evaluations_the_report_says_so(run):
    shutil.rmtree(run / "evaluations")
    text = said(run)
    assert text.startswith("No held-out evaluation yet: 80 training steps done; the training pass rate")


def test_one_evaluation_is_not_compared(run):
    for path in sorted((run / "evaluations").iterdir())[1:]:
        path.unlink()
    assert "there is no second evaluation yet" in said(run)


def test_a_run_without_control_is_told_what_it_cannot_show(run):
    shutil.rmtree(run / "control")
    assert not any("no control arm" in note for note in read_runs(run).notes)  # rejection sampling is one
    shutil.rmtree(run / "rejection")
    assert any("no control arm" in note for note in read_runs(run).notes)


def test_an_unfinished_run_a_torn_line_and_broken_files_are_notes(run):
    (run / "summary.json").write_text("{")
    (run / "provenance.json").unlink()
    (run / "evaluations/step_000040.json").write_text('{"step": 40}')
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 81, "kl": "NaN", "loss": 1e308, "episodes/infrastructure": 3}\n{"step": 82, "lo')
    notes = "\n".join(read_runs(run).notes)
    for expected in (
        "summary.json cannot be read",
        "step_000040.json: not an evaluation",
        "1 line(s) cannot be read",
        "kl is not a finite number from step 81",
        "loss is not a finite number from step 81",
        "3 episodes were lost",
        "not finished: 81 steps",
    ):
        assert expected in notes


@pytest.mark.parametrize(
    "rows",
    [
        7,
        [None, {"task_id": 1}],
        [{"task_id": 1, "samples": "x", "passed": 1}],
        [{"task_id": "a", "samples": 4, "passed": 99}],
    ],
)
def test_broken_rows_of_an_evaluation_are_left_out_of_a_report(run, rows):
    file = run / "evaluations/step_000000.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "rows": rows}))
    assert training_report(run).title


def test_neither_run_nor_study_is_an_error(tmp_path):
    with pytest.raises(RunError, match="neither a run"):
        read_runs(tmp_path)
    with pytest.raises(RunError, match="neither a run"):
        read_runs(tmp_path / "absent")


def test_seeds_are_in_numeric_order(tmp_path):
    for seed in (10, 2):
        write_seed(tmp_path / f"seed_{seed}", seed=seed, steps=4, problems=3)
    assert read_runs(tmp_path).seeds == ("seed 2", "seed 10")


@pytest.mark.parametrize(("factor", "words"), [(1.0, "for the same time"), (0.5, "for 50% of the time")])
def test_the_headline_says_how_long_the_control_trained(run, factor, words):
    seconds = sum(json.loads(line)["time/step"] for line in (run / "metrics.jsonl").read_text().splitlines())
    row = {"step": 1, "loss": 0.1, "time/step": factor * seconds}
    (run / "control" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert f"further supervised training {words}, " in said(run)


def test_answers_that_an_evaluation_lost_are_told(run):
    assert max_lost_share(read_runs(run)) == 0.0
    file = sorted((run / "evaluations").glob("*.json"))[-1]
    record = json.loads(file.read_text())
    record["rates"]["infrastructure"] = {"value": 0.031, "low": 0.02, "high": 0.05}
    file.write_text(json.dumps(record))
    found = read_runs(run)
    assert max_lost_share(found) == 0.031
    assert any("3.1% of the answers" in note and "count as not passed" in note for note in found.notes)


@pytest.mark.parametrize(("steps", "is_trial"), [(1, True), (4, True), (5, False), (40, False)])
def test_a_trial_of_a_few_steps_is_called_so(tmp_path, steps, is_trial):
    run = write_seed(tmp_path / "run", steps=steps, problems=20)
    assert any("nothing can be learned" in note for note in read_runs(run).notes) is is_trial
