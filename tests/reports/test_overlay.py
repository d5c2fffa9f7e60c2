"""Several runs in one report: a colour and a name each, differences paired by problem, settings that differ."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from synthetic_study import write_seed
from test_report_document import Page, terminal

from greenward.cli.main import main
from greenward.common import statistics
from greenward.common.errors import RunError
from greenward.reports.document import Charts, Table
from greenward.reports.page import render_html
from greenward.reports.render import render_json, render_markdown
from greenward.reports.training import overlay_report, training_report


def blocks(report, title):
    return next(section.blocks for section in report.sections if section.title == title)


def rows(folder, step):
    return json.loads((folder / f"evaluations/step_{step:06d}.json").read_text())["rows"]


def test_every_run_has_a_line_of_its_own_in_every_chart(study):
    report = overlay_report([study / "seed_0", study / "seed_1"])
    for title in ("Learning", "Training, step by step"):
        (found,) = blocks(report, title)
        assert isinstance(found, Charts)
        for chart in found.charts:
            named = {line.name: line.role for line in chart.series if line.name}
            assert named == {"seed_0": "main", "seed_1": "second"}, chart.title
    for text in (
        Page(render_html(report)).text,
        terminal(report),
        render_markdown(report).replace("\\", ""),
        render_json(report),
    ):
        assert "seed_0" in text and "seed_1" in text


def test_the_difference_of_two_runs_is_paired_by_problem(study):
    (table,) = blocks(overlay_report([study / "seed_0", study / "seed_1"]), "Results")
    first, second = (
        np.array([row["passed"] / row["samples"] for row in rows(study / f"seed_{seed}", 80)])
        for seed in (0, 1)
    )
    wanted = statistics.paired_difference(second - first)
    shown = f"{100 * wanted.value:+.1f} [{100 * wanted.low:+.1f}, {100 * wanted.high:+.1f}]".replace("-", "−")
    assert [row[-1] for row in table.rows] == ["–", shown]


def test_an_arm_that_was_evaluated_at_its_end_only_has_no_change(study):
    (table,) = blocks(overlay_report([study / "seed_0", study / "seed_0/rejection"]), "Results")
    assert table.rows[1][1] == table.rows[1][2] and table.rows[1][3] == "–" != table.rows[1][4]


def test_settings_that_differ_are_shown_and_others_are_not(study):
    (table,) = blocks(overlay_report([study / "seed_0", study / "seed_1"]), "Settings that differ")
    assert isinstance(table, Table)
    assert table.rows == (("seed", "0", "1"),)


def test_runs_are_named_by_as_many_folders_as_tell_them_apart(study):
    report = overlay_report([study / "seed_0/control", study / "seed_1/control"])
    assert report.title == "seed_0/control, seed_1/control"
    with pytest.raises(RunError, match="named twice"):
        overlay_report([study / "seed_0", study / "seed_0"])


def test_of_more_runs_than_colours_the_best_are_drawn_and_the_table_has_all(tmp_path):
    for number in range(8):
        write_seed(tmp_path / f"run_{number}", seed=number, steps=4, problems=20)
    report = overlay_report([tmp_path / f"run_{number}" for number in range(8)])
    (table,) = blocks(report, "Results")
    assert [row[0] for row in table.rows] == [f"run_{number}" for number in range(8)]
    newest = {row[0]: float(row[2].split()[0]) for row in table.rows}
    (found,) = blocks(report, "Learning")
    drawn = {line.name for line in found.charts[0].series if line.name}
    left_out = newest.keys() - drawn
    assert len(drawn) == 6 and max(newest[name] for name in left_out) <= min(newest[name] for name in drawn)
    assert max(newest, key=newest.get) in report.headline and "of 8" in report.headline


def test_runs_without_control_arms_are_compared_with_each_other_and_need_no_such_note(tmp_path):
    for name in ("one", "two"):
        folder = write_seed(tmp_path / name, steps=20, problems=20)
        for arm in ("control", "rejection"):
            shutil.rmtree(folder / arm)
    assert any("no control arm" in note for note in training_report(tmp_path / "one").notes)
    assert not any(
        "no control arm" in note for note in overlay_report([tmp_path / "one", tmp_path / "two"]).notes
    )


@pytest.mark.parametrize(("options", "place"), [((), "reports/overlay"), (("--output", "mine"), "mine")])
def test_the_page_of_several_runs_has_a_usual_place_and_any_other(
    options, place, study, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["report", str(study / "seed_0"), str(study / "seed_1"), "--format", "html", *options])
    assert not ended.value.code and capsys.readouterr().out == f"{place}/report.html\n"
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {f"{place}/report.{form}" for form in ("html", "md", "json")} <= written
    assert all(path.startswith(f"{place}/") for path in written)
