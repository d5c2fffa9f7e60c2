"""Checks: what a row of the tables of checks says, and how a run is examined by them.

A row names the finding, the test with its thresholds, and the signals. The tables are in `reward_health`,
`evals` and `diagnose`; a check for something new is one row there, and its text in
findings.yaml. The name of a finding is its anchor in docs/diagnostics.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from greenward.diagnostics.change_points import ChangePoint, holm
from greenward.diagnostics.findings import Card, by_severity, finding_texts, gap_of
from greenward.diagnostics.signal_tests import Result, Test, Thresholds, median_of_part, not_made
from greenward.diagnostics.signals import (
    Floats,
    RunSignals,
    Steps,
    depends_on_recipe,
    meaningless_findings,
    short_name,
)
from greenward.reports.document import (
    NOTHING,
    Chart,
    Fact,
    Finding,
    Marker,
    Onset,
    Role,
    Series,
    Severity,
    Table,
    Unit,
)

ROLES: tuple[Role, ...] = ("main", "second", "third", "control")
_TREND = ("before", "after", "effect_sd", "p_value")  # of a change, in JSON
_RAW_BLOCKS = 120  # two points each
_SMOOTH_BLOCKS = 60
_SMOOTH_FROM = 120  # values; shorter series are shown as they are

Signals: TypeAlias = tuple[str, ...] | Callable[[RunSignals], Sequence[str]]


@dataclass(frozen=True)
class Check:
    """A row of a table of checks: `test` is made of each of `signals`, and each that fails is a finding.

    `finding` is its name; what it says is in findings.yaml. An `optional` check is not missed where its
    signal was not logged. Where a signal in `needs`, or the one that is tested, has too few values, the check
    is left out, which is said. A check of the run as a whole has the signal "". `critical` tests are
    corrected for their number apart from the others.
    """

    finding: str
    test: Test
    signals: Signals = ("",)
    severity: Severity = "warning"
    critical: bool = False
    needs: tuple[str, ...] = ()
    optional: bool = False

    def finding_of(self, result: Result) -> Finding:
        """The finding that `result` means."""
        text = finding_texts()[self.finding]
        return Finding(
            self.finding,
            result.severity or self.severity,
            text["title"],
            text["measured"].format(**result.numbers),
            tuple(text["actions"]),
            text["confirm"],
            result.onset,
            result.p_value,
            text.get("brief", text["title"]).format(**result.numbers),
        )


@dataclass(frozen=True)
class SignalChart:
    """Signals as lines over the steps; the onset that the check `marks` measured is marked."""

    title: str
    signals: Signals
    unit: Unit = "number"
    log: bool = False
    marks: str = ""


@dataclass(frozen=True)
class Topic:
    """A subject of a run (its gradients, its memory): the checks and charts that make up one card."""

    name: str
    title: str
    checks: tuple[Check, ...]
    charts: tuple[SignalChart, ...] = ()
    facts: Callable[[RunSignals], tuple[Fact, ...]] | None = None


@dataclass(eq=False)
class _Outcome:
    """A check of a signal, and what came out."""

    check: Check
    signal: str
    result: Result


def examine(topics: Sequence[Topic], run: RunSignals, limits: Thresholds) -> tuple[Card, ...]:
    """Make every check of the topics: a card for each, without the findings that chance explains.

    p-values are adjusted by Holm's method. The critical tests of a run are one family and the others
    another, so that a run has a critical finding by chance in a share `alpha` of all healthy runs at most,
    whatever else is tested.
    """
    cards = [list(_outcomes(topic, run, limits)) for topic in topics]
    for critical in (True, False):
        family = {
            outcome: outcome.result.p_value
            for outcome in itertools.chain(*cards)
            if outcome.check.critical is critical and outcome.result.p_value is not None
        }
        for outcome, p_value in zip(family, holm(list(family.values())), strict=True):
            found = outcome.result.found and p_value <= limits.alpha
            outcome.result = replace(outcome.result, found=found, p_value=p_value)
    return tuple(_card(topic, run, limits, one) for topic, one in zip(topics, cards, strict=True))


def _outcomes(topic: Topic, run: RunSignals, limits: Thresholds) -> Iterator[_Outcome]:
    meaningless = meaningless_findings(run.kind)
    for check in topic.checks:
        for signal in _selected(check.signals, run) if check.finding not in meaningless else ():
            short = [name for name in (*check.needs, signal) if name and run.too_short(name)]
            if not short:
                yield _Outcome(check, signal, check.test(run, signal, limits))
            elif run.kind == "sft" and short[0] not in run.values:
                continue  # supervised training has no answers and no rewards
            elif not depends_on_recipe(short[0]) and not check.optional:
                yield _Outcome(check, signal, not_made(gap_of(run, short[0])))


def _card(topic: Topic, run: RunSignals, limits: Thresholds, outcomes: Sequence[_Outcome]) -> Card:
    results = [one.result for one in outcomes]
    made = [one for one in outcomes if one.result.made]
    findings = [one.check.finding_of(one.result) for one in made if one.result.found]
    onsets = {one.check.finding: one.result.onset for one in made}
    tested: dict[str, ChangePoint | None] = {}
    for one in made:
        if one.signal:
            tested[one.signal] = one.result.change or tested.get(one.signal)
    changes = [
        {"signal": signal, **{key: getattr(change, key) for key in _TREND}, "onset": asdict(change.onset)}
        for signal, change in tested.items()
        if change is not None
    ]
    data: dict[str, Any] = {"trends": changes} if changes else {}
    for result in results:
        data |= result.data
    return Card(
        topic.name,
        topic.title,
        tuple(one.check.finding.replace("-", " ") + f" ({one.signal})" * bool(one.signal) for one in made),
        by_severity(findings),
        tuple(dict.fromkeys(gap for result in results for gap in result.gaps)),
        (*(topic.facts(run) if topic.facts else ()), *(fact for result in results for fact in result.facts)),
        (*(table for result in results for table in result.tables), *_signals_table(run, tested, limits)),
        (
            *(chart for result in results for chart in result.charts),
            *(chart for plan in topic.charts if (chart := _chart(plan, run, onsets.get(plan.marks)))),
        ),
        data,
    )


def lines_of(name: str, role: Role, steps: Steps, values: Floats) -> list[Series]:
    """A signal as a line; of many values the extremes as a faint line and the means over it."""
    if not len(values):
        return []
    if len(values) < _SMOOTH_FROM:
        return [Series(name, role, _points(steps, values))]
    blocks = np.array_split(np.arange(len(values)), min(_RAW_BLOCKS, len(values) // 2))
    ends = np.unique([(block[values[block].argmin()], block[values[block].argmax()]) for block in blocks])
    smooth = np.array_split(np.arange(len(values)), _SMOOTH_BLOCKS)
    means = [(steps[block].mean(), values[block].mean()) for block in smooth]
    return [
        Series("", role, _points(steps[ends], values[ends]), "faint"),
        Series(name, role, _points(*zip(*means, strict=True))),
    ]


def _selected(signals: Signals, run: RunSignals) -> Sequence[str]:
    return signals(run) if callable(signals) else signals


def _chart(plan: SignalChart, run: RunSignals, onset: Onset | None) -> Chart | None:
    signals = _selected(plan.signals, run)
    series: list[Series] = []
    for signal, role in zip(signals, ROLES, strict=False):
        steps, values = run.series(signal)
        if plan.log:
            steps, values = steps[values > 0], values[values > 0]
        series += lines_of(short_name(signal) if len(signals) > 1 else "", role, steps, values)
    markers = () if onset is None else (Marker(float(onset.step), f"from {onset.step}"),)
    return Chart(plan.title, "step", tuple(series), plan.unit, "", plan.log, markers) if series else None


def _signals_table(
    run: RunSignals, tested: Mapping[str, ChangePoint | None], limits: Thresholds
) -> tuple[Table, ...]:
    """The signals of a card at its beginning and end, and their change where one was tested."""
    rows = []
    for signal, change in tested.items():
        values = run.series(signal)[1]
        first, last = median_of_part(values, 0, 0.1), median_of_part(values, 0.9, 1)
        cells = (f"{number:.4g}" for number in (first, float(np.median(values)), last, float(values.std())))
        moved = effect = p_value = NOTHING
        if change is not None:
            p_value = f"{change.p_value:.2g}"
            if change.p_value <= limits.alpha and change.is_large:
                moved = f"{change.before:.3g} → {change.after:.3g} from step {change.onset}"
                effect = f"{change.effect_sd:+.1f} sd"
        rows.append((signal, *cells, moved, effect, p_value))
    columns = ("Signal", "First tenth", "Median", "Last tenth", "Sd", "Change", "Effect", "p")
    caption = "First and last tenth: medians. p: of a change, AR(1) bootstrap, of this test alone."
    return (Table("Signals", columns, tuple(rows), caption),) if rows else ()


def _points(steps: npt.ArrayLike, values: npt.ArrayLike) -> tuple[tuple[float, float], ...]:
    return tuple(zip(np.asarray(steps, float).tolist(), np.asarray(values, float).tolist(), strict=True))
