"""gradient_drift_card: whether gradients keep their scale, and what the rewards did after they left it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from greenward.diagnostics.advice import make_finding
from greenward.diagnostics.change_points import find_change_point
from greenward.diagnostics.finding import Card, Check
from greenward.diagnostics.growth import Explosion, find_explosion, find_spikes
from greenward.diagnostics.plots import signal_chart
from greenward.diagnostics.run_data import RunData, Steps
from greenward.reports.document import Fact, Finding, Onset, Severity, Table

GRADIENT = "grad_norm"
REWARDS = (
    "reward/mean",
    "reward/code_score",
    "reward/correctness",
    "reward/readability",
    "reward/tests",
    "pass_rate",
)
MANY_SPIKES = 0.01  # of the steps
WARM_UP = 0.1  # of the steps; a drift that begins in it is a warning
NO_GRADIENT = 0.4  # of the steps
NON_FINITE = 0.01  # of the steps, or the last one
_SHOWN_SPIKES = 8
_SPIKES_IN_JSON = 100


def gradient_drift_card(run: RunData) -> Card:
    """Explosion, spikes, missing and non-finite gradients."""
    checks = [_check_finite(run)]
    if run.too_short(GRADIENT):
        return Card("gradient_drift_card", "Gradient drift", tuple(checks), (run.gap("gradient", GRADIENT),))
    steps, norms = run.series(GRADIENT)
    logged_steps, logged_norms = run.logged(GRADIENT)
    explosion = find_explosion(logged_steps, logged_norms, alpha=run.alpha)
    onset = None if explosion is None else Onset(explosion.onset, explosion.onset_low, explosion.onset_high)
    divergence = [] if onset is None else _find_divergence(run, onset)
    spikes = find_spikes(steps, norms)
    checks.append(
        Check(
            "gradient explosion",
            None
            if explosion is None or onset is None
            else _exploded(explosion, onset, logged_steps, divergence),
            1.0 if explosion is None else explosion.p_value,
            critical=True,
        )
    )
    spiky = None
    if spikes:
        share = len(spikes) / len(norms)
        largest = max(spikes, key=lambda spike: spike.ratio)
        measured = (
            f"{len(spikes)} of {len(norms)} steps ({share:.1%}) are above 3 times the median around them; "
            f"the largest at step {largest.step}, {largest.ratio:.1f} times."
        )
        severity: Severity = "warning" if share > MANY_SPIKES else "info"
        first = spikes[0].step
        spiky = make_finding("gradient-spikes", severity, measured, Onset(first, first, first))
    checks.append(Check("gradient spikes", spiky))
    checks.append(_check_zero(steps, norms))
    tables = [] if not divergence else [_divergence_table(divergence)]
    if spikes:
        rows = tuple(
            (str(s.step), f"{s.value:.3g}", f"{s.ratio:.1f} ×", f"{s.sigmas:.0f}")
            for s in sorted(spikes, key=lambda s: -s.ratio)[:_SHOWN_SPIKES]
        )
        columns = ("Step", "Norm", "To the median around", "Robust sd")
        tables.append(Table(f"Largest of {len(spikes)} spikes", columns, rows))
    charts = (
        signal_chart(run, "Gradient norm, logarithmic", ((GRADIENT, "", "main"),), log=True, onset=onset),
        signal_chart(run, "Learning rate", (("learning_rate", "", "second"),), onset=onset),
    )
    return Card(
        "gradient_drift_card",
        "Gradient drift",
        tuple(checks),
        facts=(
            Fact("median norm", f"{np.median(norms):.3g}"),
            Fact("largest", f"{norms.max():.3g} at step {steps[norms.argmax()]}"),
            Fact("spikes", str(len(spikes))),
        ),
        tables=tuple(tables),
        charts=tuple(chart for chart in charts if chart is not None),
        data={
            "explosion": None if explosion is None else asdict(explosion),
            "spikes": [asdict(spike) for spike in spikes[:_SPIKES_IN_JSON]],
            "spike_count": len(spikes),
            "divergence": [asdict(row) for row in divergence],
        },
    )


def _exploded(found: Explosion, onset: Onset, steps: Steps, divergence: list[Divergence]) -> Finding:
    if np.isfinite(found.ratio):
        growing = found.log_slope * (int(steps[-1]) - onset.step) >= np.log(2)
        growth = f", growing by {np.expm1(found.log_slope):.2%} a step since" if growing else ""
        stay = "sustained" if found.sustained else "in part of the steps since"
        measured = f"The norm is {found.ratio:.3g} times what it was before step {onset}, {stay}{growth}."
    else:
        measured = f"The norm left its scale at step {onset} and is not a finite number any more."
    diverged = [row for row in divergence if row.onset is not None]
    if diverged:
        measured += f" Then {min(diverged, key=_onset_of)}."
    # Norms that grow from the start on are common where training goes well: nothing was left behind.
    had_a_scale = onset.step >= steps[int(WARM_UP * len(steps))]
    severity: Severity = "critical" if found.sustained and had_a_scale else "warning"
    return make_finding("gradient-explosion", severity, measured, onset)


def _check_zero(steps: np.ndarray, norms: np.ndarray) -> Check:
    share = float((norms == 0).mean())
    finding = None
    if share > NO_GRADIENT:
        measured = f"grad_norm is 0 at {share:.0%} of {len(norms)} steps."
        first = int(steps[norms == 0][0])
        finding = make_finding("gradient-vanished", "warning", measured, Onset(first, first, first))
    return Check("steps without a gradient", finding)


def _check_finite(run: RunData) -> Check:
    """Any signal that was logged as NaN or infinite, and updates that were skipped for it."""
    signals = run.signals
    wrong = {name: signals.non_finite(name) for name in signals.values}
    wrong = {name: places for name, places in wrong.items() if places.any()}
    skipped = signals.values.get("updates/non_finite")
    if skipped is not None and (skipped > 0).any():
        wrong["updates/non_finite"] = skipped > 0
    if not wrong:
        return Check("values that are not finite")
    anywhere = np.any(list(wrong.values()), axis=0)
    first = int(signals.steps[anywhere][0])
    shares = {name: float(places.mean()) for name, places in wrong.items()}
    severe = anywhere.mean() >= NON_FINITE or anywhere[-1]
    shown = sorted(shares, key=lambda name: (int(wrong[name].argmax()), name))
    parts = [
        f"{name} at {int(wrong[name].sum())} steps from {signals.steps[wrong[name]][0]} on"
        for name in shown[:4]
    ]
    more = f" and {len(shown) - 4} other signals" if len(shown) > 4 else ""
    measured = f"Not finite, or skipped for it: {', '.join(parts)}{more}; {len(signals.steps)} steps in all."
    finding = make_finding(
        "non-finite", "critical" if severe else "warning", measured, Onset(first, first, first)
    )
    return Check("values that are not finite", finding)


@dataclass(frozen=True)
class Divergence:
    """A reward around the onset of an explosion: medians before and after, and its own change, if lasting."""

    signal: str
    before: float
    after: float
    p_value: float
    onset: Onset | None

    def __str__(self) -> str:
        verb = "fell" if self.after < self.before else "rose"
        return f"{self.signal} {verb} from {self.before:.3g} to {self.after:.3g} at step {self.onset}"


def _onset_of(divergence: Divergence) -> int:
    return 0 if divergence.onset is None else divergence.onset.step


def _find_divergence(run: RunData, onset: Onset) -> list[Divergence]:
    """What each reward did, tested from as long before the onset as there are steps after it."""
    found = []
    for name in REWARDS:
        steps, values = run.series(name)
        place = int(np.searchsorted(steps, onset.step))
        start = max(0, 2 * place - len(values))
        change = find_change_point(values[start:])
        if change is None or place in (0, len(values)):
            continue
        low, step, high = (int(steps[start + i]) for i in (change.onset_low, change.onset, change.onset_high))
        lasting = change.is_notable(run.alpha) and high >= onset.low
        found.append(
            Divergence(
                name,
                float(np.median(values[start:place])),
                float(np.median(values[place:])),
                change.p_value,
                Onset(step, low, high) if lasting else None,
            )
        )
    return found


def _divergence_table(divergence: list[Divergence]) -> Table:
    rows = tuple(
        (
            row.signal,
            f"{row.before:.3g}",
            f"{row.after:.3g}",
            "no" if row.onset is None else f"from step {row.onset}",
            f"{row.p_value:.2g}",
        )
        for row in divergence
    )
    columns = ("Reward", "Before the onset", "After", "Diverges", "p")
    return Table("Rewards after the onset", columns, rows, "Medians. p: of a change there, alone.")
