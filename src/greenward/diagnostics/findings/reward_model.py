"""Findings of a reward model: do its probabilities come true, and does it rank good answers first?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist

import numpy as np

from greenward.common.errors import DiagnosticsError
from greenward.common.statistics import Z_95, distinct, wilson
from greenward.diagnostics.calibration import (
    Calibration,
    Slope,
    calibration_score,
    measure_calibration,
    ranks,
    score_p_value,
)
from greenward.diagnostics.change_points import MIN_POINTS, Steps, find_change_point, onset_at
from greenward.diagnostics.finding import Finding, Gap, Result, Thresholds, Topic, not_made
from greenward.diagnostics.signals import Floats, RunSignals
from greenward.reports.document import NOTHING, Chart, Fact, Onset, Series, Severity, Table
from greenward.runs.reading import PREDICTIONS, Predictions, read_predictions

NEWEST = 50_000  # predictions that are measured; the older ones of a long run are of an older model
_PARTS = 4  # of the measured predictions, in the table over time
DIAGRAM = "reliability_diagram.svg"
_CALIBRATION = "calibration of the reward model"
SLOPES = (0.7, 1.5)  # of a recalibration; beyond them by its 95 % interval
LOCAL_GAP = 0.1  # of a bin, beyond the intervals of all bins together
NO_DISCRIMINATION = 0.6  # of pairs that are ranked rightly


def _predictions(run: Path) -> Predictions:
    """The newest predictions of a run, read once for all checks as long as the file stays as it is."""
    file = run / PREDICTIONS
    state = file.stat() if file.is_file() else None
    return _read(run, (state.st_mtime_ns, state.st_size) if state else None)


@lru_cache(maxsize=1)
def _read(run: Path, state: tuple[int, int] | None) -> Predictions:
    return read_predictions(run, newest=NEWEST)


def poor_calibration(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Whether the newest predictions of the reward model are the rates that come true.

    Raises:
        RunError: predictions.jsonl cannot be read.
    """
    predictions = _predictions(run.path)
    if not predictions.steps:
        reason = "there is no predictions.jsonl: the run has no reward model, or did not log its predictions"
        enable = (
            "Train with a reward_model section; or write predictions.jsonl, one row a step: "
            '{"step": 3, "predicted": [0.8, 0.1], "passed": [1, 0]}.'
        )
        return not_made(Gap(_CALIBRATION, reason, enable))
    try:
        found = measure_calibration(predictions.predicted, predictions.passed)
    except DiagnosticsError as error:
        enable = "Train on until there are enough predictions with outcomes of both kinds."
        return not_made(Gap(_CALIBRATION, error.message, enable))
    threshold = limits.calibration_score
    first, last = min(predictions.steps), max(predictions.steps)
    parts = _parts(predictions)
    text, p_value = "", found.ece_p_value
    severity: Severity = "critical"
    onset: Onset | None = None
    if found.score < threshold:
        onset = _onset(parts, [part for part in parts if (part.score or 1) < threshold])
        text = (
            f"The calibration score is {found.score:.2f}, below {threshold:g}, over steps {first} to {last}; "
            f"ECE {found.ece:.3f} where a calibrated model would have {found.ece_null_median:.3f}. "
            f"{_direction(found.slope)}"
        )
    elif bad := [part for part in parts if part.is_below(threshold, limits.alpha / _PARTS)]:
        # What is easy to predict, as in a run that fails throughout, would hide what was wrong before.
        # A part is a fraction of the predictions, so chance alone takes its score below the threshold.
        shown = " and ".join(f"{part.score:.2f} over steps {part.first} to {part.last}" for part in bad)
        text = f"The calibration score of the whole run is {found.score:.2f}, but {shown}."
        severity = "critical" if len(bad) > 1 else "warning"
        onset = _onset(parts, bad)
        largest = max(measure_calibration(part.predicted, part.passed).ece_p_value for part in bad)
        p_value = min(1.0, _PARTS * largest)
    elif text := _slope_or_region(found, limits.alpha):
        severity = "warning"
    short = f"score {found.score:.2f}" + (f", slope {found.slope.slope:.2f}" if found.slope else "")
    return Result(
        bool(text),
        {"text": text, "short": short},
        severity,
        onset,
        p_value=p_value,
        facts=(
            Fact("calibration score", f"{found.score:.2f}"),
            Fact("threshold", f"{threshold:g}"),
            Fact("predictions", f"{found.pairs:,}"),
            Fact("steps", f"{first} to {last}"),
        ),
        tables=(_measures(found), _over_training(parts)),
        charts=(_reliability_diagram(found),),
        data={**asdict(found), "threshold": threshold, "first_step": first, "last_step": last},
    )


def _slope_or_region(found: Calibration, alpha: float) -> str:
    """What is wrong with a calibration whose score is good: its confidence, or a region of predictions."""
    low, high = SLOPES
    slope = found.slope
    if slope is not None and not _may_be_0(slope) and (slope.high < low or slope.low > high):
        return f"The calibration score is {found.score:.2f}, but {_direction(slope)[3:]}"
    predicted, rates, sizes = np.array([(one.predicted, one.observed, one.count) for one in found.bins]).T
    lows, highs = wilson(rates, sizes, NormalDist().inv_cdf(1 - alpha / (2 * len(rates))))
    gaps = np.maximum(lows - predicted, predicted - highs)  # at least
    if gaps.max() <= LOCAL_GAP:
        return ""
    worst = found.bins[int(gaps.argmax())]
    return (
        f"The calibration score of the whole is {found.score:.2f}, but predictions around "
        f"{worst.predicted:.2f} come true in {worst.observed:.0%} [{worst.low:.0%}, {worst.high:.0%}] of "
        f"{worst.count} cases."
    )


@dataclass(frozen=True)
class _Part:
    """The predictions of a stretch of steps; `score` is None where there are too few, or of one outcome."""

    first: int
    last: int
    steps: Steps
    predicted: Floats
    passed: Floats
    score: float | None

    def is_below(self, threshold: float, alpha: float) -> bool:
        """Whether the score is below the threshold and chance does not explain it."""
        if self.score is None or self.score >= threshold:
            return False
        return score_p_value(self.predicted, self.passed, threshold) <= alpha


def _parts(predictions: Predictions) -> list[_Part]:
    """The predictions in parts of about as many steps each, in order."""
    steps, parts = np.array(predictions.steps), []
    predicted, passed = np.array(predictions.predicted, float), np.array(predictions.passed, float)
    for stretch in filter(len, np.array_split(distinct(steps), _PARTS)):
        inside = (steps >= stretch[0]) & (steps <= stretch[-1])
        score = None
        with suppress(DiagnosticsError):
            score = calibration_score(predicted[inside], passed[inside])
        pairs = steps[inside], predicted[inside], passed[inside]
        parts.append(_Part(int(stretch[0]), int(stretch[-1]), *pairs, score))
    return parts


def _onset(parts: Sequence[_Part], bad: Sequence[_Part]) -> Onset:
    """From when on predictions are wrong: within the first of the parts that are `bad`, or from the first on.

    Where the part before is sound, the onset is where the excess of the squared errors over what calibrated
    predictions would have changes in the two. Without one, or where the first part is bad already, all that
    is known is the part.
    """
    first = (bad or parts)[0]
    if place := next(place for place, part in enumerate(parts) if part is first):
        before = parts[place - 1]
        steps = np.concatenate((before.steps, first.steps))
        predicted = np.concatenate((before.predicted, first.predicted))
        passed = np.concatenate((before.passed, first.passed))
        excess = (predicted - passed) ** 2 - predicted * (1 - predicted)
        stretch, places = np.unique(steps, return_inverse=True)
        means = np.bincount(places, excess) / np.bincount(places)
        if (change := find_change_point(means)) is not None:
            return onset_at(stretch, change.onset)
    return Onset(first.first, first.first, first.last)


def _over_training(parts: list[_Part]) -> Table:
    rows = (
        (
            f"{part.first} to {part.last}",
            f"{part.passed.size:,}",
            NOTHING if part.score is None else f"{part.score:.2f}",
            f"{part.predicted.mean():.1%}",
            f"{part.passed.mean():.1%}",
        )
        for part in parts
    )
    columns = ("Steps", "Predictions", "Score", "Mean prediction", "Passed")
    return Table("Over training", columns, tuple(rows), "A score needs 50 predictions and both outcomes.")


def _interval(slope: Slope) -> str:
    return f"{slope.slope:.2f} [{slope.low:.2f}, {slope.high:.2f}]"


def _may_be_0(slope: Slope) -> bool:
    """Whether the predictions may be unrelated to the outcomes; then the slope says nothing of confidence."""
    return slope.low <= 0 <= slope.high


def _direction(slope: Slope | None) -> str:
    """What the slope says about a forecast that is not calibrated."""
    if slope is None:
        return "The outcomes are perfectly separated, so there is no slope."
    kind, detail = "off by a shift rather than in confidence", ""
    if _may_be_0(slope):
        kind = "not known to tell outcomes apart"
    elif slope.low > 1:
        kind = "underconfident"
    elif slope.high < 1 and slope.slope > 0:
        kind, detail = "overconfident", f", its logits are {1 / slope.slope:.1f} times too large"
    elif slope.high < 1:
        kind = "worse than its opposite"
    return f"It is {kind}: slope {_interval(slope)}{detail}."


def _measures(found: Calibration) -> Table:
    null = f"calibrated: {found.ece_null_median:.3f}, at most {found.ece_null_95:.3f} in 95 %"
    slope = "none: perfectly separated" if found.slope is None else _interval(found.slope)
    murphy = found.murphy
    rows = (
        ("Calibration score", f"{found.score:.3f}", "1 is calibrated"),
        ("ECE", f"{found.ece:.3f}", f"{null}; p {found.ece_p_value:.2g}"),
        ("Overconfidence slope", slope, "1 is right, below 1 is overconfident"),
        ("Brier score", f"{murphy.brier:.3f}", "reliability − resolution + uncertainty + within bins"),
        ("  reliability", f"{murphy.reliability:.3f}", "0 is calibrated"),
        ("  resolution", f"{murphy.resolution:.3f}", "how far apart the bins are; larger is better"),
        ("  uncertainty", f"{murphy.uncertainty:.3f}", "of the outcomes themselves"),
        ("  within bins", f"{murphy.within_bin:.3f}", "what the spread inside bins adds"),
    )
    return Table("Measures", ("Measure", "Value", "Meaning"), rows)


def _reliability_diagram(found: Calibration) -> Chart:
    """Observed over predicted rate of each bin with its 95 % interval, and where they would be equal."""
    observed = Series(
        "observed",
        "main",
        tuple((b.predicted, b.observed) for b in found.bins),
        band=tuple((b.predicted, b.low, b.high) for b in found.bins),
        hints=tuple(
            f"{b.count} predictions of {b.predicted:.2f} on average: {b.observed:.1%} pass "
            f"[{b.low:.1%}, {b.high:.1%}]"
            for b in found.bins
        ),
    )
    return Chart(
        "Reliability diagram",
        "predicted probability of passing",
        (Series("calibrated", "second", ((0.0, 0.0), (1.0, 1.0)), "dashed"), observed),
        "share",
        "Share of answers that passed, in bins of equally many predictions, with 95 % intervals.",
        file=DIAGRAM,
    )


POOR_CALIBRATION = Finding(
    "poor-calibration",
    "The reward model's probabilities are not the rates that come true",
    poor_calibration,
    critical=True,
    measured="{text}",
    brief="Calibration of the reward model: {short}",
    actions=(
        "Do not use the size of its output as a reward (weight 0) until it is corrected; its ranking may "
        "still be right.",
        "Divide its logits by 1/slope (temperature scaling) fitted on held-out predictions.",
        "Train it on newer answers, with a lower learning rate or more weight decay.",
    ),
    confirm="The score of predictions on fresh problems, with the same model frozen, is as low.",
    limit=(
        "score < 0.7 over all predictions and ECE beyond its null; or score < 0.7 over a quarter of the run"
        " by more than chance explains (parametric bootstrap at the threshold, level 0.05 / 4); or slope "
        "outside 0.7 to 1.5 by its interval, unless that contains 0; or a bin off by more than 0.1 beyond "
        "the intervals of all bins together (Wilson, level 0.05 / bins)"
    ),
    weight="critical, warning if in one quarter of the predictions, in confidence or in a region alone",
    source="[calibration](#calibration)",
    views=("reward",),
)


def no_discrimination(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Whether right answers are ranked above wrong ones more often than chance does (AUC).

    The interval is that of Hanley & McNeil (1982, Radiology 143).
    """
    predictions = _predictions(run.path)
    predicted, passed = np.array(predictions.predicted, float), np.array(predictions.passed, float)
    good, bad = int(passed.sum()), int(len(passed) - passed.sum())
    if min(good, bad) < MIN_POINTS:
        return Result(made=False)
    # By ranks (Mann-Whitney).
    auc = float((ranks(predicted)[passed == 1].sum() - good * (good + 1) / 2) / (good * bad))
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = (auc * (1 - auc) + (good - 1) * (q1 - auc**2) + (bad - 1) * (q2 - auc**2)) / (good * bad)
    high = auc + Z_95 * math.sqrt(max(variance, 0.0))
    return Result(high < NO_DISCRIMINATION, {"auc": auc, "high": min(high, 1.0)}, data={"auc": auc})


CALIBRATION_NO_DISCRIMINATION = Finding(
    "calibration-no-discrimination",
    "The reward model does not tell good answers from bad ones",
    no_discrimination,
    optional=True,
    measured=(
        "A passing answer is ranked above a failing one in {auc:.0%} of the pairs, at most {high:.0%} (95 "
        "%); chance is 50 %."
    ),
    actions=(
        "Give it weight 0 until it does: as a reward it is noise.",
        "See what it reads: an answer that is cut off or masked, a head that was never trained, one class "
        "only in its training data.",
    ),
    confirm="On its own training answers it is as bad.",
    limit="AUC below 0.6 by its 95 % interval",
    source="Hanley & McNeil 1982",
    explains=("poor-calibration",),
    views=("reward",),
)


CALIBRATION = Topic(
    "calibration_report", "Calibration of the reward model", (POOR_CALIBRATION, CALIBRATION_NO_DISCRIMINATION)
)
