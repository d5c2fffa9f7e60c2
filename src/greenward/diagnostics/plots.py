"""Signals as charts: few points that keep the extremes, and a smooth line through many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from greenward.diagnostics.calibration import Calibration
from greenward.diagnostics.run_data import RunData
from greenward.reports.document import Chart, Marker, Onset, Role, Series, Unit

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

_RAW_BLOCKS = 120  # two points each
_SMOOTH_BLOCKS = 60
_SMOOTH_FROM = 120  # values; shorter series are shown as they are


def signal_chart(
    run: RunData,
    title: str,
    lines: Sequence[tuple[str, str, Role]],
    *,
    unit: Unit = "number",
    log: bool = False,
    caption: str = "",
    onset: Onset | None = None,
    fits: Sequence[Series] = (),
) -> Chart | None:
    """(signal, name, role) of each line over steps, the onset marked; None if there is nothing to draw."""
    series = []
    for signal, name, role in lines:
        steps, values = run.series(signal)
        if log:
            steps, values = steps[values > 0], values[values > 0]
        series += signal_lines(name, role, steps, values)
    if not series:
        return None
    markers = () if onset is None else (Marker(float(onset.step), f"from {onset.step}"),)
    return Chart(title, "step", (*series, *fits), unit, caption, log=log, markers=markers)


def signal_lines(name: str, role: Role, steps: Steps, values: Floats) -> list[Series]:
    """A line; for many values their extremes faint and their means over it."""
    if not len(values):
        return []
    if len(values) < _SMOOTH_FROM:
        return [Series(name, role, _points(steps, values))]
    return [
        Series("", role, _points(*_extremes(steps, values)), "faint"),
        Series(name, role, _points(*_means(steps, values))),
    ]


def straight_line(name: str, role: Role, first: tuple[float, float], last: tuple[float, float]) -> Series:
    """A dashed line between two points."""
    return Series(name, role, (first, last), "dashed")


def reliability_diagram(found: Calibration) -> Chart:
    """Observed over predicted rate of each bin with its 95 % interval, and where they would be equal."""
    rates = tuple((b.predicted, b.observed) for b in found.bins)
    return Chart(
        "Reliability diagram",
        "predicted probability of passing",
        (
            straight_line("calibrated", "second", (0.0, 0.0), (1.0, 1.0)),
            Series(
                "observed",
                "main",
                rates,
                band=tuple((b.predicted, b.low, b.high) for b in found.bins),
                hints=tuple(
                    f"{b.count} predictions of {b.predicted:.2f} on average: {b.observed:.1%} pass "
                    f"[{b.low:.1%}, {b.high:.1%}]"
                    for b in found.bins
                ),
            ),
        ),
        "share",
        "Share of answers that passed, in bins of equally many predictions, with 95 % intervals.",
    )


def _extremes(steps: Steps, values: Floats) -> tuple[Steps, Floats]:
    """The smallest and the largest value of each block, in their order."""
    blocks = np.array_split(np.arange(len(values)), min(_RAW_BLOCKS, len(values) // 2))
    places = [(b[values[b].argmin()], b[values[b].argmax()]) for b in blocks]
    kept = np.unique(np.array(places).ravel())
    return steps[kept], values[kept]


def _means(steps: Steps, values: Floats) -> tuple[Floats, Floats]:
    blocks = np.array_split(np.arange(len(values)), _SMOOTH_BLOCKS)
    return np.array([steps[b].mean() for b in blocks]), np.array([values[b].mean() for b in blocks])


def _points(steps: npt.ArrayLike, values: npt.ArrayLike) -> tuple[tuple[float, float], ...]:
    return tuple(zip(np.asarray(steps, float).tolist(), np.asarray(values, float).tolist(), strict=True))
