"""Charts: right places, round axes, labels that can be read."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise
from statistics import fmean
from xml.etree import ElementTree

import pytest
from synthetic_study import write_seed

from greenward.reports.document import Chart, Series, value_text
from greenward.reports.runs import (
    Group,
    held_out_charts,
    metric_series,
    read_runs,
    step_charts,
    suite_charts,
    training_curves,
)
from greenward.reports.svg import MAX_POINTS, draw, stacked_bar, thin, ticks
from greenward.runs.reading import RecordedRun


def texts(svg: str) -> list[ElementTree.Element]:
    return [element for element in ElementTree.fromstring(svg).iter() if element.tag == "text"]


def test_the_smoothed_mean_is_that_of_the_neighbours_also_behind_a_huge_value(tmp_path):
    values = [1e17 if step == 40 else math.sin(step) for step in range(1000)]
    rows = tuple({"step": step, "grad_norm": value} for step, value in enumerate(values))
    run = RecordedRun(tmp_path, {}, rows, (), {}, {}, ())
    faint, smooth = metric_series(Group("", (run,)), "grad_norm")
    assert [y for _, y in faint.points] == values
    means = [fmean(values[max(0, at - 33) : at + 34]) for at in range(1000)]
    assert [y for _, y in smooth.points] == pytest.approx(means, rel=1e-12, abs=1e-14)


def test_thinning_keeps_the_ends_and_a_lone_spike():
    points = [(float(x), 100.0 if x == 517 else 0.0) for x in range(2000)]
    kept = thin(points, 50)
    assert len(kept) == 50
    assert kept[0] == points[0] and kept[-1] == points[-1] and (517.0, 100.0) in kept
    assert thin(points[:50], 50) == points[:50]


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        (0, 1, 5, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 80, 4, [0, 20, 40, 60, 80]),
        (1, 80, 3, [20, 40, 60, 80]),
        (-0.012, 0.012, 5, [-0.01, -0.005, 0, 0.005, 0.01]),
        (3, 3, 5, [3]),
    ],
)
def test_axes_have_round_numbers_within_the_range(low, high, count, expected):
    assert ticks(low, high, count) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.25, "share", "25 %"),
        (0.00025, "number", "2.5e-4"),
        (12345.0, "number", "12,345"),
        (0, "number", "0"),
    ],
)
def test_axis_values_are_short(value, unit, shown):
    assert value_text(value, unit) == shown


def test_points_land_where_the_axes_say():
    line = Series("a", "main", ((0.0, 0.0), (10.0, 1.0)), hints=("first", "last"))
    svg = draw(Chart("t", "step", (line,), "share"), 400, 200)
    root = ElementTree.fromstring(svg)
    dots = [(float(e.get("cx")), float(e.get("cy"))) for e in root.iter("circle")]
    zero, top = (next(t for t in texts(svg) if t.text == text) for text in ("0 %", "100 %"))
    assert dots[0][1] == pytest.approx(float(zero.get("y")) - 3.5, abs=0.1)
    assert dots[1][1] == pytest.approx(float(top.get("y")) - 3.5, abs=0.1)
    assert [title.text for title in root.iter("title")] == ["first", "last"]


def test_labels_at_the_line_ends_do_not_cover_each_other():
    series = tuple(Series(f"name {i}", "main", ((0.0, 0.0), (1.0, 0.001 * i))) for i in range(6))
    labels = [e for e in texts(draw(Chart("t", "step", series))) if "label" in e.get("class", "")]
    heights = sorted(float(label.get("y")) for label in labels)
    assert len(heights) == 6
    assert all(after - before >= 12.9 for before, after in pairwise(heights))
    assert heights[-1] <= 260


def test_long_lines_are_thinned_and_titles_escaped():
    line = Series("<b>", "main", tuple((float(x), float(x % 7)) for x in range(5000)))
    svg = draw(Chart("<script>", "<x>", (line,)))
    path = next(e for e in ElementTree.fromstring(svg).iter("path") if "line" in e.get("class").split())
    assert len(re.findall("[ML]", path.get("d"))) == MAX_POINTS


def test_a_long_name_is_cut_so_that_the_lines_keep_their_room():
    line = Series("a name " * 40, "main", ((0.0, 0.0), (1.0, 1.0)))
    svg = draw(Chart("t", "step", (line,)), 340, 190)
    xs = [float(x) for x in re.findall(r'class="line[^"]*" d="M([\d.-]+) ', svg)]
    ends = [float(x) for x in re.findall(r'class="line[^"]*" d="M[^"]*L([\d.-]+) ', svg)]
    assert xs[0] < ends[0] < 340 and "…" in svg


def test_one_point_and_a_constant_can_be_drawn():
    ElementTree.fromstring(draw(Chart("t", "step", (Series("", "main", ((3.0, 0.0),)),))))
    ElementTree.fromstring(draw(Chart("t", "step", (Series("", "main", ((1.0, 2.5), (2.0, 2.5))),))))


def test_the_parts_of_a_bar_fill_it():
    root = ElementTree.fromstring(stacked_bar([("a", 1.0), ("b", 3.0)]))
    assert [float(rect.get("x")) for rect in root.iter("rect")] == [0.0, 240.0]


def test_held_out_curves_show_each_seed_the_mean_and_the_arms_beside(study):
    over_time, over_steps = held_out_charts(read_runs(study))
    named = {series.name: series for series in over_time.series if series.name}
    assert set(named) == {"GRPO", "rejection sampling", "control"}
    assert sum(series.weight == "faint" for series in over_time.series) == 6
    start = named["GRPO"].points[0]
    assert named["rejection sampling"].points[0] == start  # they share it; it is evaluated once
    assert len(named["GRPO"].points) == len(named["GRPO"].band) == 5
    assert all(
        low <= y <= high
        for (_, y), (_, low, high) in zip(named["GRPO"].points, named["GRPO"].band, strict=True)
    )
    assert sum(series.weight == "dashed" for series in over_steps.series) == 2


def test_training_charts_leave_out_what_was_not_measured(study):
    runs = read_runs(study).main.runs
    titles = {chart.title for chart in step_charts(runs, training_curves(runs))}
    assert "Entropy (nats per token)" in titles and "Groups per step" in titles
    assert not any(title.startswith("KL") for title in titles)


def test_each_suite_that_was_measured_again_has_its_curve_with_the_interval(tmp_path):
    write_seed(tmp_path / "run", steps=8, problems=10)
    for step, passed in ((0, 1), (4, 3), (8, 6)):
        metric = {"value": passed / 8, "low": passed / 8 - 0.1, "high": passed / 8 + 0.1}
        rows = {"step": step, "problems": 8, "samples": 1, "metrics": {"pass@1": metric}, "rows": []}
        (tmp_path / f"run/evaluations/step_{step:06d}.mbpp.json").write_text(json.dumps(rows))
        (tmp_path / "run/evaluations/step_000000.humaneval.json").write_text(json.dumps(rows))
    (chart,) = suite_charts(read_runs(tmp_path / "run"))
    assert chart.title == "mbpp: pass@1, by step"
    (line,) = chart.series
    assert line.points == ((0, 0.125), (4, 0.375), (8, 0.75))
    assert [(x, round(low, 3), round(high, 3)) for x, low, high in line.band] == [
        (0, 0.025, 0.225),
        (4, 0.275, 0.475),
        (8, 0.65, 0.85),
    ]
