"""The report of a sweep: what its folders say, whoever ran them."""

from __future__ import annotations

import json
import shutil
from statistics import fmean

import pytest
from synthetic_study import write_seed
from test_report_document import terminal

from greenward.common.errors import RunError
from greenward.reports.recorded import report_of
from greenward.reports.render import render_markdown
from greenward.runs.reading import FAILURE, read_evaluations

RATES = ("1e-4", "3e-4", "2e-3")


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rates")
    for number, rate in enumerate(RATES):
        for seed in (0, 1):
            write_seed(
                folder / f"learning_rate={rate}/seed_{seed}", seed=2 * number + seed, steps=4, problems=20
            )
    return folder


def results(report):
    return next(one.blocks[0] for one in report.sections if one.title == "Results")


def test_each_combination_is_a_row_with_the_mean_and_the_spread_of_its_seeds(swept):
    report = report_of(swept)
    table = results(report)
    assert report.kind == "sweep" and table.columns[3] == "Over seeds"
    assert [row[0] for row in table.rows] == [f"learning_rate={rate}" for rate in RATES]
    for row in table.rows:
        runs = [swept / row[0] / f"seed_{seed}" for seed in (0, 1)]
        values = [100 * read_evaluations(run)[-1]["metrics"]["pass@1"]["value"] for run in runs]
        assert row[2].startswith(f"{fmean(values):.1f} % [")
        assert row[3] == f"{min(values):.1f} to {max(values):.1f} %"
    assert {fact.label: fact.value for fact in report.facts} == {
        "combinations": "3",
        "runs begun": "6",
        "finished": "6",
        "failed": "0",
    }
    assert "learning_rate=3e-4" in terminal(report)


def test_failed_and_missing_runs_are_said_and_a_remark_on_all_is_said_once(swept, tmp_path):
    shutil.copytree(swept, tmp_path / "sweep")
    for rate in RATES:
        for seed in (0, 1):
            shutil.rmtree(tmp_path / f"sweep/learning_rate={rate}/seed_{seed}/control")
    lost = tmp_path / "sweep/learning_rate=1e-4/seed_1"
    shutil.rmtree(lost)
    for folder in (lost, tmp_path / "sweep/learning_rate=9"):
        folder.mkdir()
        (folder / FAILURE).write_text("It stopped with exit code 2: Error: <b>no</b>\x1b[31m\nmemory")
    report = report_of(tmp_path / "sweep")
    assert {fact.label: fact.value for fact in report.facts}["failed"] == "2"
    text = render_markdown(report)
    assert "seed_1 failed: It stopped with exit code 2" in text.replace("\\", "") and "\x1b" not in text
    assert any(note.startswith("learning_rate=9: failed") for note in report.notes)
    assert not any("no control arm" in note for note in report.notes)
    assert [row[0] for row in results(report).rows] == [f"learning_rate={rate}" for rate in RATES]


def test_a_sweep_without_evaluations_is_ranked_by_the_reward_at_the_end_of_training(swept, tmp_path):
    shutil.copytree(swept, tmp_path / "sweep")
    ends = {}
    for number, rate in enumerate(RATES):
        for seed in (0, 1):
            run = tmp_path / f"sweep/learning_rate={rate}/seed_{seed}"
            for part in ("evaluations", "control", "warm_start", "rejection"):
                shutil.rmtree(run / part, ignore_errors=True)
            height = (2, 9, 5)[number] + seed
            values = [0.0] * 30 + [float(height)] * 60  # of 90 steps, the last nine count
            rows = [{"step": step, "reward/mean": value} for step, value in enumerate(values, start=1)]
            (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            ends.setdefault(f"learning_rate={rate}", []).append(height)
    report = report_of(tmp_path / "sweep")
    section = next(one for one in report.sections if one.title == "Training reward")
    (table,) = section.blocks
    assert (
        section.level == "main" and not next(one for one in report.sections if one.title == "Results").blocks
    )
    order = [f"learning_rate={rate}" for rate in ("3e-4", "2e-3", "1e-4")]
    assert [row[0] for row in table.rows] == order
    for name, mean, spread, steps in table.rows:
        low, high = ends[name]
        assert (float(mean), spread, steps) == ((low + high) / 2, f"{low} to {high}", "90")
    assert report.headline.startswith("Highest training reward of 3: learning_rate=3e-4 9.5. None of these")
    assert not any("no control arm" in note for note in report.notes)
    assert "Training reward" in terminal(report)


def test_a_sweep_that_has_not_begun_and_a_folder_of_something_else_have_no_report(tmp_path):
    (tmp_path / "sweep/learning_rate=1").mkdir(parents=True)
    with pytest.raises(RunError, match="has begun"):
        report_of(tmp_path / "sweep")
    with pytest.raises(RunError, match="neither a run"):
        report_of(tmp_path)


def test_a_sweep_over_seeds_alone_is_a_study(swept):
    assert report_of(swept / "learning_rate=1e-4").kind == "run report"
