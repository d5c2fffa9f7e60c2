"""Exported charts and tables, parsed by the standard library and compared with the files of the run."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from synthetic_study import CONFIG, write_seed

from greenward.cli.main import cli
from greenward.common.errors import RunError
from greenward.reports.document import Chart, Charts, Marker, Report, Series, Table, section
from greenward.reports.export import BROWSERS, exported, write_export
from greenward.reports.recorded import report_of
from greenward.reports.render import render_json
from greenward.reports.training import training_report
from greenward.runs.files import dump_json
from greenward.runs.output import claim_folder

HOSTILE = 'a,"b"\r\n<script>alert(1)</script>\x00\x1b[2J\u202e\ud800\uffff../../etc/passwd & c'
SVG = "{http://www.w3.org/2000/svg}"


def parsed(file: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(file.read_bytes().decode(), newline=""), strict=True))


def exported_study(study: Path, folder: Path) -> Report:
    report = training_report(study)
    write_export(report, folder)
    return report


def lines_of(file: Path) -> dict[str, list[tuple[float, float]]]:
    """The points of each line of an exported chart, by the line's number."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in parsed(file)[1:]:
        found.setdefault(row[0], []).append((float(row[3]), float(row[4])))
    return found


@pytest.mark.parametrize(
    ("name", "key"), [("reward", "reward/mean"), ("loss", "loss"), ("gradient-norm", "grad_norm")]
)
def test_curves_are_the_metrics_of_each_seed_and_their_smoothed_mean(study, tmp_path, name, key):
    exported_study(study, tmp_path / "out")
    seeds = [
        [json.loads(line)[key] for line in (study / seed / "metrics.jsonl").read_text().splitlines()]
        for seed in ("seed_0", "seed_1")
    ]
    steps = [float(step) for step in range(1, len(seeds[0]) + 1)]
    first, second, mean = lines_of(tmp_path / f"out/training-step-by-step-{name}.csv").values()
    assert first == list(zip(steps, seeds[0], strict=True))
    assert second == list(zip(steps, seeds[1], strict=True))
    means = [fmean(values) for values in zip(*seeds, strict=True)]
    reach = len(means) // 30
    windows = (means[max(0, at - reach) : at + reach + 1] for at in range(len(means)))
    assert [y for _, y in mean] == pytest.approx([fmean(window) for window in windows], rel=1e-12)


def test_the_held_out_curve_has_the_estimates_and_bounds_of_the_evaluations(study, tmp_path):
    exported_study(study, tmp_path / "out")
    name, *rows = parsed(tmp_path / "out/learning-held-out-sampled-pass-1-by-step.csv")
    assert name == ["line", "series", "weight", "step", "value", "low", "high"]
    shown = [list(map(float, row[3:])) for row in rows if row[1] == "GRPO" and row[2] == "bold"]
    files = sorted((study / "seed_0/evaluations").glob("step_??????.json"))
    assert len(shown) == len(files) > 2
    for row, file in zip(shown, files, strict=True):
        both = [
            json.loads((study / seed / "evaluations" / file.name).read_text())
            for seed in ("seed_0", "seed_1")
        ]
        means = (fmean(one["metrics"]["pass@1"][key] for one in both) for key in ("value", "low", "high"))
        assert row == pytest.approx([both[0]["step"], *means], rel=1e-12)


def test_every_chart_and_table_of_the_report_has_its_files_and_every_file_its_block(study, tmp_path):
    report = exported_study(study, tmp_path / "out")
    blocks = [block for part in report.sections for block in part.blocks]
    charts = [chart for block in blocks if isinstance(block, Charts) for chart in block.charts]
    tables = [block for block in json.loads(render_json(report))["sections"] for block in block["blocks"]]
    tables = [block for block in tables if block["type"] == "table"]
    assert len(charts) > 10 and len(tables) > 3
    names = {path.name for path in (tmp_path / "out").iterdir()} - {".greenward.json"}
    written = [name for name, _ in exported(report)]
    assert len(written) == len(set(written)) and set(written) == names
    assert [len([name for name in names if name.endswith(suffix)]) for suffix in ("svg", "jsonl", "csv")] == [
        len(charts), len(tables), len(charts) + len(tables),
    ]  # fmt: skip
    drawings = [
        ElementTree.parse(tmp_path / "out" / name).getroot() for name in written if name.endswith("svg")
    ]
    assert [root.get("aria-label") for root in drawings] == [chart.title for chart in charts]
    for root, chart in zip(drawings, charts, strict=True):
        lines = [one for one in root.iter(f"{SVG}path") if one.get("class", "").startswith("line ")]
        assert len(lines) == len(chart.series)
    rows = [name for name in written if name.endswith("jsonl")]
    for name, table in zip(rows, tables, strict=True):
        width = len(table["columns"])
        objects = [json.loads(line) for line in (tmp_path / "out" / name).read_text("utf-8").splitlines()]
        assert [list(one.values())[:width] for one in objects] == table["rows"]
        header, *cells = parsed((tmp_path / "out" / name).with_suffix(".csv"))
        assert all(list(one) == header for one in objects)
        assert [row[:width] for row in cells] == table["rows"]
        assert [given or "column" for given in table["columns"]] == [
            shown.partition("-")[0] if shown.startswith("column") else shown for shown in header[:width]
        ]


def test_seconds_that_are_drawn_as_shares_stand_unrounded_in_the_last_column(study, tmp_path):
    exported_study(study, tmp_path / "out")
    rows = [json.loads(line) for line in (tmp_path / "out/time-and-memory.jsonl").read_text().splitlines()]
    seconds = {row["Part"]: row["drawn"] for row in rows}
    sampling = [
        sum(
            json.loads(line)["time/sampling"]
            for line in (study / seed / "metrics.jsonl").read_text().splitlines()
        )
        for seed in ("seed_0", "seed_1")
    ]
    assert seconds["Sampling"] == pytest.approx(fmean(sampling))
    assert seconds["Total"] == ""


def hostile_report(text: str) -> Report:
    line = Series(text, "main", ((0.0, 1.0), (1.0, -2.5)), band=((0.0, 0.5, 1.5), (2.0, 1.0, 3.0)))
    chart = Chart(text, text, (line,), markers=(Marker(1.0, text),))
    table = Table(
        text, (text, text, ""), ((text, "=1+1", "-5.0 [-6.1, +2]"), ("-2+3+cmd|' /C calc'!A0", "@x", "+1 %"))
    )
    return Report("kind", text, text, sections=(section(text, Charts((chart, chart)), table, table),))


def test_hostile_texts_stay_in_their_cells_and_act_nowhere(tmp_path):
    paths = write_export(hostile_report(HOSTILE), tmp_path / "out")
    assert {path.parent for path in paths} == {tmp_path / "out"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        ".greenward.json",
        *(one.name for one in paths),
    }
    assert [path for path in tmp_path.rglob("*") if path.parent != tmp_path / "out"] == [tmp_path / "out"]
    stem = paths[0].stem
    assert (
        stem.isascii() and not set(stem) - set("abcdefghijklmnopqrstuvwxyz0123456789-") and len(stem) <= 100
    )
    seen = 'a,"b"\n<script>alert(1)</script>\ufffd\ufffd[2J\ufffd\ufffd\uffff../../etc/passwd & c'
    header, *rows = parsed(paths[1])
    assert header == ["line", "series", "weight", seen, "value", "low", "high"]
    assert rows == [
        ["1", seen, "bold", "0.0", "1.0", "0.5", "1.5"],
        ["1", seen, "bold", "1.0", "-2.5", "", ""],
        ["1", seen, "bold", "2.0", "", "1.0", "3.0"],
        ["", seen, "marker", "1.0", "", "", ""],
    ]
    for path in paths:
        content = path.read_bytes().decode()
        assert "\x00" not in content and "\x1b" not in content
        if path.suffix == ".svg":
            assert all("script" not in one.tag for one in ElementTree.fromstring(content).iter())
    tables = [path for path in paths if path.with_suffix(".jsonl") in paths and path.suffix == ".csv"]
    assert parsed(tables[0]) == [
        [seen, f"{seen}-2", "column"],
        [seen, "'=1+1", "-5.0 [-6.1, +2]"],
        ["'-2+3+cmd|' /C calc'!A0", "'@x", "+1 %"],
    ]
    first, second = map(json.loads, tables[0].with_suffix(".jsonl").read_text("utf-8").splitlines())
    assert list(first.values()) == [HOSTILE, "=1+1", "-5.0 [-6.1, +2]"]
    assert list(second.values()) == ["-2+3+cmd|' /C calc'!A0", "@x", "+1 %"]


@pytest.mark.parametrize("title", ["", "\x00", "../..", "文", "x" * 5000])
def test_any_title_gives_a_name_of_its_own(tmp_path, title):
    report = hostile_report("t")
    report = replace(report, sections=tuple(replace(report.sections[0], title=title) for _ in range(2)))
    paths = write_export(report, tmp_path / "out")
    assert len(set(paths)) == len(paths) == 2 * (2 * 2 + 2 * 2)
    assert all(path.parent == tmp_path / "out" and path.stat().st_size for path in paths)


def test_a_run_without_steps_exports_what_there_is(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(dump_json(CONFIG))
    paths = write_export(report_of(run), tmp_path / "out")
    assert [path for path in paths if path.suffix == ".svg"] == []
    assert all(path.is_file() for path in paths)


def test_the_command_replaces_files_only_when_told_to(tmp_path):
    run, out = write_seed(tmp_path / "run", steps=8, problems=10), tmp_path / "out"
    asked = ["report", str(run), "--export", str(out)]
    done = CliRunner().invoke(cli, asked, catch_exceptions=False)
    assert done.exit_code == 0
    files = [Path(line) for line in done.output.splitlines()]
    assert {path.name for path in out.iterdir()} == {".greenward.json", *(path.name for path in files)}
    own, kept = out / "own.csv", files[0].read_bytes()
    own.write_text("mine")
    files[0].write_text("changed")
    with pytest.raises(RunError, match=f"{files[0].name} exists already"):
        CliRunner().invoke(cli, asked, catch_exceptions=False)
    assert files[0].read_text() == "changed"
    assert CliRunner().invoke(cli, [*asked, "--overwrite"], catch_exceptions=False).exit_code == 0
    assert (files[0].read_bytes(), own.read_text()) == (kept, "mine")


@pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="no browser of the Chromium family")
@pytest.mark.parametrize(
    ("titles", "at_least"),
    [
        pytest.param(("Learning",), 2, id="one section"),
        pytest.param((), 11, id="all", marks=pytest.mark.slow),
    ],
)
def test_pictures_are_those_of_the_drawings(study, tmp_path, titles, at_least):
    image = pytest.importorskip("PIL.Image")
    report = training_report(study)
    sections = [part for part in report.sections if part.title in (titles or (part.title,))]
    written = write_export(replace(report, sections=tuple(sections)), tmp_path / "out", png=True)
    names = {suffix: {path.stem for path in written if path.suffix == suffix} for suffix in (".svg", ".png")}
    assert names[".png"] == names[".svg"] and len(names[".png"]) >= at_least
    for path in (one for one in written if one.suffix == ".png"):
        with image.open(path) as picture:
            root = ElementTree.parse(path.with_suffix(".svg")).getroot()
            assert picture.size == (2 * int(root.get("width")), 2 * int(root.get("height")))
            colours = dict(map(reversed, picture.convert("RGB").getcolors(1 << 24)))
        assert max(colours, key=colours.get) == (255, 255, 255), path  # paper, also where the system is dark
        assert len(colours) > 10
    held_out = image.open(tmp_path / "out/learning-held-out-sampled-pass-1-by-step.png").convert("RGB")
    assert (0x12, 0x80, 0x4A) in {colour for _, colour in held_out.getcolors(1 << 24)}  # --main of the page


def test_a_drawing_for_other_programs_needs_no_variables_and_no_page(study, tmp_path):
    exported_study(study, tmp_path / "out")
    for file in (tmp_path / "out").glob("*.svg"):
        text = file.read_text("utf-8")
        assert "var(" not in text and "@media" not in text and "#12804a" in text
        x, y, width, height = map(float, ElementTree.fromstring(text).get("viewBox").split())
        assert (x, y) == (-10, -10) and (width, height) == (618, 440)


def test_without_a_browser_nothing_is_written_and_the_message_says_what_to_do(study, tmp_path, monkeypatch):
    monkeypatch.setattr("greenward.reports.export.BROWSERS", ("no such browser",))
    with pytest.raises(RunError, match=r"Chromium family(.|\n)*Install chromium"):
        write_export(training_report(study), tmp_path / "out", png=True)
    monkeypatch.setattr("greenward.reports.export.BROWSERS", ("true",))
    with pytest.raises(RunError, match=r"drew no PNG(.|\n)*Leave out --png"):
        write_export(training_report(study), tmp_path / "out", png=True)
    assert not (tmp_path / "out").exists()
    result = CliRunner().invoke(cli, ["report", str(study), "--png"])
    assert result.exit_code == 2 and "--png concerns --export" in result.output


def test_a_run_and_a_link_are_no_place_for_an_export(tmp_path):
    report = hostile_report("t")
    run = write_seed(tmp_path / "run", steps=4, problems=4)
    claim_folder(tmp_path / "marked", "run")
    (tmp_path / "link").symlink_to(tmp_path)
    for place in (run, tmp_path / "marked", tmp_path / "link"):
        before = sorted(path for path in tmp_path.rglob("*"))
        with pytest.raises(RunError):
            write_export(report, place, overwrite=True)
        assert sorted(path for path in tmp_path.rglob("*")) == before
