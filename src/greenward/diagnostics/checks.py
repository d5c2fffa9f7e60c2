"""Checks: what a row of the tables of checks says, and how a run is examined by them.

A row names the signals, the test with its thresholds, and the finding: its severity, the sentence that the
measured numbers fill, the advice, and what would confirm it. The tables are `training_checks`,
`reward_checks` and `learning_checks`; a check for something new is one row there. The name of a finding is
its anchor in docs/diagnostics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from greenward.diagnostics.findings import Card, CheckOutcome, Gap, gap_of
from greenward.diagnostics.signal_tests import Result, SignalChange, Test, Thresholds, median_of_part
from greenward.diagnostics.signals import Floats, RunSignals, Steps, depends_on_recipe, short_name
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
_RAW_BLOCKS = 120  # two points each
_SMOOTH_BLOCKS = 60
_SMOOTH_FROM = 120  # values; shorter series are shown as they are


Signals: TypeAlias = tuple[str, ...] | Callable[[RunSignals], Sequence[str]]


@dataclass(frozen=True)
class Check:
    """A row of a table of checks: `test` is made of each of `signals`, and each that fails is a finding.

    Where a signal in `needs`, or the one that is tested, has too few values, the check is left out, which is
    said. A check of the run as a whole has the signal "". `critical` tests are corrected for their number
    apart from the others.
    """

    finding: str
    signals: Signals
    test: Test
    title: str
    sentence: str
    actions: tuple[str, ...]
    confirm: str
    severity: Severity = "warning"
    critical: bool = False
    needs: tuple[str, ...] = ()

    def outcome(self, signal: str, result: Result) -> CheckOutcome:
        """The outcome that `result` means."""
        finding = None
        if result.found:
            finding = Finding(
                self.finding,
                result.severity or self.severity,
                self.title,
                self.sentence.format(**result.numbers),
                self.actions,
                self.confirm,
                result.onset,
            )
        subject = self.finding.replace("-", " ") + (f" ({signal})" if signal else "")
        return CheckOutcome(subject, finding, result.p_value, self.critical)


@dataclass(frozen=True)
class SignalChart:
    """Signals as lines over the steps; the onset of the finding named by `marks` is marked."""

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


def examine(topic: Topic, run: RunSignals, limits: Thresholds) -> Card:
    """Make every check of the topic; p-values are not corrected yet (`findings.corrected`)."""
    outcomes: list[CheckOutcome] = []
    results: list[Result] = []
    gaps: dict[str, Gap] = {}
    tested: dict[str, SignalChange | None] = {}
    for check in topic.checks:
        for signal in _selected(check.signals, run):
            short = [name for name in (*check.needs, signal) if name and run.too_short(name)]
            if short:
                if not depends_on_recipe(short[0]):
                    gaps[short[0]] = gap_of(run, short[0])
                continue
            result = check.test(run, signal, limits)
            results.append(result)
            gaps |= {gap.subject: gap for gap in result.gaps}
            if result.made:
                outcomes.append(check.outcome(signal, result))
            if signal and result.made:
                tested[signal] = result.change or tested.get(signal)
    changes = [asdict(change) for change in tested.values() if change is not None]
    found = {outcome.finding.name: outcome.finding.onset for outcome in outcomes if outcome.finding}
    charts = [chart for plan in topic.charts if (chart := _chart(plan, run, found.get(plan.marks)))]
    data = {key: value for result in results for key, value in result.data.items()}
    return Card(
        topic.name,
        topic.title,
        tuple(outcomes),
        tuple(gaps.values()),
        (*(topic.facts(run) if topic.facts else ()), *(fact for result in results for fact in result.facts)),
        (*(table for result in results for table in result.tables), *_signals_table(run, tested, limits)),
        (*(chart for result in results for chart in result.charts), *charts),
        {**({"trends": changes} if changes else {}), **data},
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
    run: RunSignals, tested: Mapping[str, SignalChange | None], limits: Thresholds
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
