"""Reports of self-play and of evaluations of games, from made-up records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from greenward.common.errors import RunError
from greenward.reports.document import Charts, Code, Paragraph, Report, Table
from greenward.reports.render import render_markdown
from greenward.reports.training import overlay_report, training_report
from greenward.reports.write import render
from greenward.runs.directory import RunDirectory, write_summary
from greenward.tasks.self_play.task import SelfPlay


def estimate(value: float, width: float = 0.0) -> dict[str, float]:
    return {"value": value, "low": value - width, "high": value + width}


def record(name: str, step: int, metrics: dict[str, Any], **facts: Any) -> dict[str, Any]:
    return {
        "suite": name, "step": step, "elapsed_seconds": float(step), "roles": ["first", "second"],
        "expert": "minimax", "games": 100, "temperature": 1.0, "headline": f"{name} at {step}", "rates": {},
        "metrics": metrics, "rows": [], "seconds": {"games": 2.0}, **facts,
    }  # fmt: skip


def tictactoe(step: int, lost: float) -> dict[str, Any]:
    match = {
        f"random/{role}/{figure}": estimate(value, 0.05)
        for role in ("first", "second")
        for figure, value in {"won": 0.6, "drawn": 0.3, "lost": 0.1, "illegal": 0.02, "not_lost": 0.9}.items()
    }
    lines = {"lines/first/lost": estimate(lost), "lines/second/lost": estimate(2 * lost)}
    errors = [
        {"role": "second", "position": f"X 1 2\n3 O 5\n6 7 {n}", "move": "5", "lines": n, "value": 0.0, "after": -1.0}
        for n in range(12, 0, -1)
    ]  # fmt: skip
    return record("tictactoe", step, match | lines, errors=errors)


def kuhn(step: int, exploitability: float) -> dict[str, Any]:
    strategy = {"J": {"check": 0.7, "bet": 0.25}, "J bet": {"call": 0.1, "fold": 0.9}}
    metrics = {"exploitability": estimate(exploitability), "value": estimate(-0.06)}
    return record("kuhn_poker", step, metrics, strategy=strategy, expert="equilibrium")


def write_run(folder: Path, opponents: dict[str, float], *, lost: float = 0.1) -> Path:
    config = {
        "task": "self_play",
        "algorithm": {"name": "grpo"},
        "name": "spiral",
        "seed": 0,
        "self_play": {"opponents": opponents, "move_format": "bare"},
    }
    with RunDirectory.create(folder, config) as run:
        for step in (1, 2):
            roles = {"first": 0.5, "second": 0.2}
            run.metrics.append(
                step,
                {f"games/tictactoe/self/{role}/win": win for role, win in roles.items()}
                | {f"baseline/tictactoe/self/{role}": win for role, win in roles.items()},
            )
        for step in (0, 2):
            run.write_evaluation(step, tictactoe(step, 0.3 if step == 0 else lost), "tictactoe")
            run.write_evaluation(step, kuhn(step, 0.4 if step == 0 else 0.0123), "kuhn_poker")
            code = {"suite": "mbpp", "problems": 4, "metrics": {"pass@1": estimate(0.25, 0.1)}}
            run.write_evaluation(step, {**code, "step": step, "rates": {}, "rows": []}, "mbpp")
        write_summary(run, status="finished", steps=2, wall_seconds=5.0)
    return folder


def blocks_of(report: Report, title: str, kind: type) -> list[Any]:
    return [
        block
        for one in report.sections
        if one.title == title
        for block in one.blocks
        if isinstance(block, kind)
    ]


def test_a_training_is_shown_from_its_start_to_its_end(tmp_path: Path) -> None:
    report = training_report(write_run(tmp_path / "run", {"self": 0.4, "random": 0.6}))
    assert "tictactoe: tictactoe at 2 after 2 steps (at the start: tictactoe at 0)" in report.headline
    (opponents, errors) = blocks_of(report, "Games", Paragraph)
    assert opponents.text == (
        "Opponents: mixture, 40 % of the games against itself, 60 % of the games against random play. "
        "This is not pure self-play."
    )
    charts = {chart.title: chart for one in blocks_of(report, "Games", Charts) for chart in one.charts}
    lost = charts["tictactoe: lines lost with greedy play"]
    assert [(line.name, line.points) for line in lost.series] == [
        ("first", ((0.0, 0.3), (2.0, 0.1))),
        ("second", ((0.0, 0.6), (2.0, 0.2))),
    ]
    assert lost.series[0].hints == ("first 0: 30.0 % [30.0, 30.0]", "first 2: 10.0 % [10.0, 10.0]")
    against_random = charts["tictactoe: not lost against random play"].series[0]
    assert against_random.band == ((0.0, pytest.approx(0.85), pytest.approx(0.95)), *against_random.band[1:])
    chips = next(chart for title, chart in charts.items() if title.startswith("kuhn_poker: exploitability"))
    assert chips.unit == "number" and chips.series[0].hints[-1] == "step 2: 0.0123"
    tables = {table.title: table for table in blocks_of(report, "Games", Table)}
    assert tables["tictactoe: figures"].columns == ("Figure", "Start, step 0", "Step 2")
    assert tables["tictactoe: figures"].rows[:3] == (
        ("Lines lost with greedy play as first player", "30.0 %", "10.0 %"),
        ("Lines lost with greedy play as second player", "60.0 %", "20.0 %"),
        ("Not lost against random play as first player", "90.0 % [85.0, 95.0]", "90.0 % [85.0, 95.0]"),
    )
    assert tables["tictactoe: matches"].rows[0][:3] == ("random", "first", "60.0 % [55.0, 65.0]")
    assert tables["kuhn_poker: figures"].rows[0] == ("Exploitability", "0.4", "0.0123")
    assert tables["kuhn_poker: probabilities"].rows[0] == ("J", "check 70.0 %, bet 25.0 %", "5.00 %")
    assert "as second player, the 8 positions" in errors.text
    (boards,) = blocks_of(report, "Games", Code)
    assert boards.text.splitlines()[:6] == [
        "X 1 2               " * 3 + "X 1 2",
        "3 O 5               " * 3 + "3 O 5",
        "6 7 12              6 7 11              6 7 10              6 7 9",
        "plays 5             " * 3 + "plays 5",
        "draw to loss        " * 3 + "draw to loss",
        "in 12 lines         in 11 lines         in 10 lines         in 9 lines",
    ]
    (steps,) = blocks_of(report, "Games of the training, by opponent and role", Charts)
    assert [(chart.title, [line.name for line in chart.series]) for chart in steps.charts] == [
        ("tictactoe/self: win", ["first", "second"]),
        ("tictactoe/self: baseline", ["first", "second"]),
    ]
    (suites,) = blocks_of(report, "Before and after", Table)
    assert [row[0] for row in suites.rows] == ["mbpp"]
    for form in ("html", "markdown", "json"):
        assert "Exploitability" in render(report, form)


@pytest.mark.parametrize(
    ("opponents", "expected"),
    [
        ({"self": 1.0, "random": 0.0}, "pure self-play."),
        (
            {"self": 1.0, "league": 3.0},
            "league, 25 % of the games against itself, 75 % of the games against earlier",
        ),
        ({"league": 2.0}, "league, 100 % of the games against earlier versions"),
        ({"expert": 1.0, "self": 1.0}, "mixture, 50 % of the games against the expert"),
        ({"runs/old": 1.0}, "mixture, 100 % of the games against runs/old"),
    ],
)
def test_opponents_are_named_so_that_a_mixture_is_not_taken_for_self_play(opponents, expected) -> None:
    text = SelfPlay.described({"self_play": {"opponents": opponents, "move_format": "bare"}})
    assert text.startswith(f"Opponents: {expected}")
    assert ("not pure" in text) == (not expected.startswith("pure"))


def test_runs_are_overlaid_with_a_line_for_each(tmp_path: Path) -> None:
    one = write_run(tmp_path / "pure", {"self": 1.0})
    other = write_run(tmp_path / "mixed", {"random": 1.0}, lost=0.05)
    report = overlay_report([one, other])
    assert report.headline.startswith("pure: kuhn_poker: kuhn_poker at 2 after 2 steps")
    said = [block.text for block in blocks_of(report, "Games", Paragraph)]
    assert said[0] == "pure. Opponents: pure self-play. The policy played every game against itself."
    assert said[1].startswith("mixed. Opponents: mixture, 100 % of the games against random play")
    (charts,) = blocks_of(report, "Games", Charts)
    lost = next(
        one for one in charts.charts if one.title == "tictactoe: lines lost with greedy play as first player"
    )
    assert [(line.name, line.points[-1]) for line in lost.series] == [
        ("pure", (2.0, 0.1)),
        ("mixed", (2.0, 0.05)),
    ]


def test_seeds_are_pooled(tmp_path: Path) -> None:
    for seed, lost in enumerate((0.1, 0.2)):
        write_run(tmp_path / "study" / f"seed_{seed}", {"self": 1.0}, lost=lost)
    report = training_report(tmp_path / "study")
    tables = {table.title: table for table in blocks_of(report, "Games", Table)}
    assert tables["tictactoe: figures"].rows[0][2] == "15.0 %"


def test_a_page_of_a_run_without_games_has_no_section_of_them(study: Path) -> None:
    report = training_report(study)
    assert not blocks_of(report, "Games", object)
    assert "## Games" not in render_markdown(report)


def test_what_is_no_evaluation_of_a_game_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {"self": 1.0})
    (folder / "evaluations" / "step_000002.tictactoe.json").write_text(json.dumps({"step": 2}))
    report = training_report(folder)
    assert any("step_000002.tictactoe.json" in note for note in report.notes)
    with pytest.raises(RunError):
        training_report(tmp_path / "nothing")


def test_a_page_begins_with_what_was_reached_and_ends_with_the_curves_by_role(tmp_path: Path) -> None:
    report = training_report(write_run(tmp_path / "run", {"self": 1.0}))
    titles = [one.title for one in report.sections]
    reached, by_step, by_role = map(
        titles.index, ("Games", "Training, step by step", "Games of the training, by opponent and role")
    )
    assert reached < by_step < by_role
    charts = [block for block in report.sections[reached].blocks if isinstance(block, Charts)]
    assert charts and all(block.size == "wide" for block in charts)
    small = [
        index
        for index, one in enumerate(report.sections)
        if any(isinstance(block, Charts) and block.size == "small" for block in one.blocks)
    ]
    assert min(small) > reached
