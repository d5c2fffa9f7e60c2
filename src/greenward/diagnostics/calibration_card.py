"""calibration_report: whether the reward model's probabilities are the rates that come true."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from greenward.diagnostics.advice import make_finding
from greenward.diagnostics.calibration import (
    Calibration,
    Slope,
    calibration_score,
    measure_calibration,
    score_p_value,
)
from greenward.diagnostics.finding import Card, Check, Gap
from greenward.diagnostics.plots import reliability_diagram
from greenward.diagnostics.run_data import RunData
from greenward.errors import DiagnosticsError
from greenward.reports.document import NOTHING, Fact, Table
from greenward.runs.predictions import Predictions, read_predictions

NEWEST = 50_000  # predictions that are measured; the older ones of a long run are of an older model
_NAME, _TITLE = "calibration_report", "Calibration of the reward model"
_PARTS = 4  # of the measured predictions, in the table over time


def calibration_report(run: RunData, threshold: float) -> Card:
    """Measure the newest predictions of the run.

    Raises:
        RunError: predictions.jsonl cannot be read.
    """
    predictions = read_predictions(run.path, newest=NEWEST)
    if not predictions.steps:
        gap = Gap(
            "calibration of the reward model",
            "there is no predictions.jsonl: the run has no reward model, or did not log what it predicted",
            "Train with a reward_model section; or write predictions.jsonl, one row a step: "
            '{"step": 3, "predicted": [0.8, 0.1], "passed": [1, 0]}.',
        )
        return Card(_NAME, _TITLE, gaps=(gap,))
    try:
        found = measure_calibration(predictions.predicted, predictions.passed)
    except DiagnosticsError as error:
        enable = "Train on until there are enough predictions with outcomes of both kinds."
        return Card(_NAME, _TITLE, gaps=(Gap("calibration of the reward model", error.message, enable),))
    first, last = min(predictions.steps), max(predictions.steps)
    parts = _parts(predictions)
    finding, p_value = None, found.ece_p_value
    if found.score < threshold:
        measured = (
            f"The calibration score is {found.score:.2f}, below {threshold:g}, over steps {first} to {last}; "
            f"ECE {found.ece:.3f} where a calibrated model would have {found.ece_null_median:.3f}. "
            f"{_direction(found.slope)}"
        )
        finding = make_finding("poor-calibration", "critical", measured)
    elif bad := [part for part in parts if part.is_below(threshold, run.alpha / _PARTS)]:
        # What is easy to predict, as in a run that fails throughout, would hide what was wrong before.
        # A part is a fraction of the predictions, so chance alone takes its score below the threshold.
        shown = " and ".join(f"{part.score:.2f} over steps {part.first} to {part.last}" for part in bad)
        measured = f"The calibration score of the whole run is {found.score:.2f}, but {shown}."
        finding = make_finding("poor-calibration", "critical" if len(bad) > 1 else "warning", measured)
        p_value = min(1.0, _PARTS * max(part.ece_p_value() for part in bad))
    return Card(
        _NAME,
        _TITLE,
        (Check("calibration of the reward model", finding, p_value, critical=True),),
        facts=(
            Fact("calibration score", f"{found.score:.2f}"),
            Fact("threshold", f"{threshold:g}"),
            Fact("predictions", f"{found.pairs:,}"),
            Fact("steps", f"{first} to {last}"),
        ),
        tables=(_measures(found), _over_time(parts)),
        charts=(reliability_diagram(found),),
        data={**asdict(found), "threshold": threshold, "first_step": first, "last_step": last},
    )


def _direction(slope: Slope | None) -> str:
    if slope is None:
        return "The outcomes are perfectly separated, so there is no slope."
    interval = f"slope {slope.slope:.2f} [{slope.low:.2f}, {slope.high:.2f}]"
    if slope.high < 1:
        return (
            f"It is overconfident: {interval}, its logits are {1 / slope.slope:.1f} times too large."
            if (slope.slope > 0)
            else f"It is worse than its opposite: {interval}."
        )
    if slope.low > 1:
        return f"It is underconfident: {interval}."
    return f"It is off by a shift rather than in confidence: {interval}."


def _measures(found: Calibration) -> Table:
    slope = found.slope
    shown = (
        "none: perfectly separated"
        if slope is None
        else f"{slope.slope:.2f} [{slope.low:.2f}, {slope.high:.2f}]"
    )
    parts = found.murphy
    rows = (
        ("Calibration score", f"{found.score:.3f}", "1 is calibrated"),
        (
            "ECE",
            f"{found.ece:.3f}",
            f"calibrated: {found.ece_null_median:.3f}, at most {found.ece_null_95:.3f} in 95 %; "
            f"p {found.ece_p_value:.2g}",
        ),
        ("Overconfidence slope", shown, "1 is right, below 1 is overconfident"),
        ("Brier score", f"{parts.brier:.3f}", "reliability − resolution + uncertainty + within bins"),
        ("  reliability", f"{parts.reliability:.3f}", "0 is calibrated"),
        ("  resolution", f"{parts.resolution:.3f}", "how far apart the bins are; larger is better"),
        ("  uncertainty", f"{parts.uncertainty:.3f}", "of the outcomes themselves"),
        ("  within bins", f"{parts.within_bin:.3f}", "what the spread inside bins adds"),
    )
    return Table("Measures", ("Measure", "Value", "Meaning"), rows)


@dataclass(frozen=True)
class _Part:
    """The predictions of a stretch of steps; `score` is None where there are too few, or of one outcome."""

    first: int
    last: int
    predicted: np.ndarray
    passed: np.ndarray
    score: float | None

    def is_below(self, threshold: float, alpha: float) -> bool:
        """Whether the score is below the threshold and chance does not explain it."""
        if self.score is None or self.score >= threshold:
            return False
        return score_p_value(self.predicted, self.passed, threshold) <= alpha

    def ece_p_value(self) -> float:
        return measure_calibration(self.predicted, self.passed).ece_p_value


def _parts(predictions: Predictions) -> list[_Part]:
    """The predictions in parts of about as many steps each, in order."""
    steps = np.array(predictions.steps)
    predicted, passed = np.array(predictions.predicted, float), np.array(predictions.passed, float)
    parts = []
    for stretch in np.array_split(np.unique(steps), _PARTS):
        if len(stretch):
            inside = (steps >= stretch[0]) & (steps <= stretch[-1])
            of_part = predicted[inside], passed[inside]
            parts.append(_Part(int(stretch[0]), int(stretch[-1]), *of_part, _score(*of_part)))
    return parts


def _over_time(parts: list[_Part]) -> Table:
    rows = tuple(
        (
            f"{part.first} to {part.last}",
            f"{len(part.passed):,}",
            NOTHING if part.score is None else f"{part.score:.2f}",
            f"{part.predicted.mean():.1%}",
            f"{part.passed.mean():.1%}",
        )
        for part in parts
    )
    columns = ("Steps", "Predictions", "Score", "Mean prediction", "Passed")
    return Table("Over training", columns, rows, "A score needs 50 predictions and both outcomes.")


def _score(predicted: np.ndarray, passed: np.ndarray) -> float | None:
    try:
        return calibration_score(predicted, passed)
    except DiagnosticsError:
        return None
