"""What the answers in training are like: their quality, how they fail, how long and how varied they are."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from greenward.diagnostics.advice import make_finding
from greenward.diagnostics.finding import Card, Check, Gap
from greenward.diagnostics.plots import signal_chart
from greenward.diagnostics.run_data import RunData, Trend, find_trend, median_of_part
from greenward.reports.document import Finding, Role, Table

QUALITY = ("pass_rate", "reward/code_score", "reward/correctness", "reward/readability")
LENGTH, UNIQUE, TRUNCATED = "completion/mean_length", "completion/unique", "completion/truncated"
CHEATING = "status/cheating"
_MOST_TELLING = ("pass_rate", LENGTH, UNIQUE, TRUNCATED)  # the others depend on the recipe
MORE_FAILURES = 0.05  # of the answers
CHEATS = 0.01  # of the answers late in the run
LONGER = 1.5
FEWER_DISTINCT = 0.5  # of the share at the start
_LATE = 0.75
# Ways to fail, except failing tests: that is what training is for.
_USUAL = frozenset({"status/passed", "status/failed", CHEATING})
_ROLES: tuple[Role, ...] = ("main", "second", "third", "control")


def answers_card(run: RunData) -> Card:
    """Change tests of every signal about the answers."""
    failures = sorted(s for s in run.signals.values if s.startswith("status/") and s not in _USUAL)
    wanted = (*QUALITY, *failures, LENGTH, UNIQUE, TRUNCATED)
    trends = {name: trend for name in wanted if (trend := find_trend(run, name)) is not None}
    checks = [
        Check(f"{name} holds", _judge(run, trend, trends.get("pass_rate")), trend.p_value)
        for name, trend in trends.items()
    ]
    if not run.too_short(CHEATING):
        checks.append(Check("cheating", _cheating(run)))
    gaps = [
        run.gap(name.rpartition("/")[2].replace("_", " "), name)
        for name in _MOST_TELLING
        if run.too_short(name)
    ]
    if not failures:
        gaps.append(
            Gap("how answers fail", "no status/… is in metrics.jsonl", "Log the share of each status.")
        )
    quality = [
        (name, name.rpartition("/")[2].replace("_", " "), role)
        for name, role in zip(QUALITY, _ROLES, strict=True)
    ]
    charts = (
        signal_chart(run, "Quality of the answers in training", quality, unit="share"),
        signal_chart(run, "Answer length (tokens)", ((LENGTH, "", "main"),)),
        signal_chart(run, "Distinct answers", ((UNIQUE, "", "main"),), unit="share"),
        signal_chart(
            run,
            "How answers fail",
            [
                (name, name.rpartition("/")[2].replace("_", " "), role)
                for name, role in zip(_frequent(run, failures), _ROLES, strict=False)
            ],
            unit="share",
        ),
    )
    return Card(
        "answers",
        "Answers in training",
        tuple(checks),
        tuple(gaps),
        tables=(_table(run, trends),) if trends else (),
        charts=tuple(chart for chart in charts if chart is not None),
        data={"trends": [asdict(trend) for trend in trends.values()]},
    )


def _frequent(run: RunData, failures: list[str]) -> list[str]:
    return sorted(failures, key=lambda name: -float(np.mean(run.series(name)[1])) if run.has(name) else 0.0)


def _judge(run: RunData, trend: Trend, passing: Trend | None) -> Finding | None:
    """Whether the change of a signal is one for the worse."""
    if not trend.is_large:
        return None
    better = passing is not None and passing.p_value <= run.alpha and passing.after > passing.before
    name, rise = trend.signal, trend.after - trend.before
    moved = f"{name} went from {trend.before:.3g} to {trend.after:.3g} from step {trend.onset} on."
    if name in QUALITY and rise < 0:
        return make_finding("quality-drop", "warning", moved, trend.onset)
    if (name.startswith("status/") or name == TRUNCATED) and rise > MORE_FAILURES:
        return make_finding("failing-answers-rise", "warning", moved, trend.onset)
    if name == UNIQUE and trend.after < FEWER_DISTINCT * trend.before:
        # Right answers to an easy problem are alike; copies that fail are what ends learning.
        return make_finding("diversity-loss", "info" if better else "warning", moved, trend.onset)
    if name == LENGTH and trend.after > LONGER * trend.before:
        return None if better else make_finding("length-growth", "warning", moved, trend.onset)
    return None


def _cheating(run: RunData) -> Finding | None:
    values = run.series(CHEATING)[1]
    late = float(values[int(_LATE * len(values)) :].mean())
    if late <= CHEATS:
        return None
    measured = f"In the last quarter of the run {late:.1%} of the answers try to fool the tests."
    return make_finding("cheating", "warning", measured)


def _table(run: RunData, trends: dict[str, Trend]) -> Table:
    rows = []
    for name, trend in trends.items():
        values = run.series(name)[1]
        changed = trend.p_value <= run.alpha and trend.is_large
        rows.append(
            (
                name,
                f"{median_of_part(values, 0, 0.1):.3g}",
                f"{median_of_part(values, 0.9, 1):.3g}",
                f"from step {trend.onset}" if changed else "no",
                f"{trend.effect_sd:+.1f} sd" if changed else "",
                f"{trend.p_value:.2g}",
            )
        )
    columns = ("Signal", "First tenth", "Last tenth", "Changes", "Effect", "p")
    return Table("Answers", columns, tuple(rows), "Medians. p: of a change, AR(1) bootstrap, alone.")
