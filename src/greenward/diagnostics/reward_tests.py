"""Tests of the reward: whether it varies, which term drives it, and whether a reward model is calibrated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from greenward.diagnostics.calibration import (
    Calibration,
    Slope,
    calibration_score,
    measure_calibration,
    score_p_value,
)
from greenward.diagnostics.change_points import MIN_POINTS, exactly
from greenward.diagnostics.findings import Gap, gap_of
from greenward.diagnostics.signal_tests import LATE, Result, Thresholds, not_made
from greenward.diagnostics.signals import REWARD, Floats, RunSignals
from greenward.errors import DiagnosticsError
from greenward.reports.document import NOTHING, Chart, Fact, Series, Severity, Table
from greenward.runs.metrics import Predictions, read_predictions

NEWEST = 50_000  # predictions that are measured; the older ones of a long run are of an older model
DOMINANT = 0.5  # share of the variance over steps
DEAD = 0.75  # share of groups without signal (DAPO, arXiv 2503.14476: they only cost)
# What is said of rewards beside the terms, and terms that are combined of others.
_NO_TERMS = frozenset({"mean", "std", "min", "max", "code_score"})
_OF_TESTS = frozenset({"tests", "all_tests", "correctness", "execution_ladder"})
_PARTS = 4  # of the measured predictions, in the table over time
DIAGRAM = "reliability_diagram.svg"
_CALIBRATION = "calibration of the reward model"


def reward_terms(run: RunSignals) -> list[str]:
    """The terms of the reward that can be tested."""
    names = sorted(s for s in run.values if s.startswith("reward/") and s[7:] not in _NO_TERMS)
    return [name for name in names if not run.too_short(name)]


def tested_rewards(run: RunSignals) -> list[str]:
    """The reward, its terms and the code score."""
    code_score = ["reward/code_score"] if not run.too_short("reward/code_score") else []
    return [REWARD, *reward_terms(run), *code_score]


def constant_reward(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """One mean at all steps, or one reward for all answers of each step late in the run."""
    steps, values = run.series(signal)
    if np.ptp(values) <= 1e-9 * max(1.0, float(np.abs(values).max())):
        text = f"{signal} is {values[0]:.4g} at each of {len(values)} steps."
        return Result(True, {"text": text}, onset=exactly(steps[0]))
    spread_steps, spread = run.series("reward/std")
    late = spread[-max(MIN_POINTS, len(spread) // 4) :]
    if len(spread) < MIN_POINTS or late.any():
        return Result()
    text = "reward/std is 0 throughout the last quarter: all answers of a step get the same reward."
    since = spread_steps[np.flatnonzero(spread)[-1] + 1 :] if spread.any() else steps
    return Result(True, {"text": text}, onset=exactly(since[0]))


def dominance(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """A term other than the tests that owns most of the variance of the weighted terms."""
    shares = variance_shares(run)
    if not shares:
        reason = "the run logged fewer than two terms of the reward"
        enable = "Log each as reward/NAME; one term needs no balance."
        return not_made(Gap("balance of the reward terms", reason, enable), data={"variance_shares": {}})
    term, share = max(shares.items(), key=lambda item: item[1])
    has_tests = any(name.removeprefix("reward/") in _OF_TESTS for name in shares)
    found = has_tests and term.removeprefix("reward/") not in _OF_TESTS and share > DOMINANT
    rows = tuple((name, f"{part:.0%}") for name, part in shares.items())
    table = Table("Share of the variance of the weighted terms over steps", ("Term", "Share"), rows)
    data = {"variance_shares": shares}
    return Result(found, {"term": term, "share": share}, tables=(table,), data=data)


def variance_shares(run: RunSignals) -> dict[str, float]:
    """Term -> share of the variance over steps, each times its weight in the config (1 if unknown).

    Empty for fewer than two terms, or if none varies.
    """
    weights = _weights(run.config or {})
    variances = {
        term: float((weights.get(term.removeprefix("reward/"), 1.0) * run.series(term)[1]).var())
        for term in reward_terms(run)
    }
    total = sum(variances.values())
    if len(variances) < 2 or total <= 0:
        return {}
    return {term: variance / total for term, variance in variances.items()}


def _weights(config: Mapping[str, Any]) -> dict[str, float]:
    """Term -> its weight in the sum of rewards; a part of code_score has its share of that term's weight."""
    terms = config.get("rewards")
    weights: defaultdict[str, float] = defaultdict(float)
    for term in terms if isinstance(terms, list) else ():
        if isinstance(term, dict) and "name" in term and _is_number(weight := term.get("weight", 1.0)):
            weights[str(term["name"])] += weight
            if term["name"] == "code_score":
                for part, share in _code_score_parts(term.get("options")).items():
                    weights[part] += weight * share
    model = config.get("reward_model")
    if isinstance(model, dict) and _is_number(model.get("weight")):
        weights["reward_model"] = model["weight"]
    return dict(weights)


def _code_score_parts(options: Any) -> dict[str, float]:
    from greenward.grading.reward_terms import CodeScore  # slow to import, and few runs have the term

    given = options if isinstance(options, dict) else {}
    names = ("correctness", "readability")
    parts = {name: given[name] if _is_number(given.get(name)) else getattr(CodeScore, name) for name in names}
    total = sum(parts.values())
    return {name: part / total for name, part in parts.items()} if total > 0 else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def dead_groups(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Groups without signal late in the run, which are worse where all answers fail than where all pass."""
    names = (signal, "groups/dead_all_pass", "groups/dead_all_fail")
    missing = np.full(len(run.steps), np.nan)
    counts = np.array([run.values.get(name, missing) for name in names])
    counts = counts[:, np.isfinite(counts).all(axis=0)]
    counts = counts[:, counts.sum(axis=0) > 0]
    if counts.shape[1] < MIN_POINTS:
        return not_made(gap_of(run, signal))
    late = counts[:, int(LATE * counts.shape[1]) :].sum(axis=1)
    with_signal, passed, failed = (late / late.sum()).tolist()
    numbers = {"dead": 1 - with_signal, "passed": passed, "failed": failed}
    return Result(1 - with_signal > DEAD, numbers, "warning" if failed > passed else "info")


def poor_calibration(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Whether the newest predictions of the reward model are the rates that come true.

    Raises:
        RunError: predictions.jsonl cannot be read.
    """
    predictions = read_predictions(run.path, newest=NEWEST)
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
    if found.score < threshold:
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
        largest = max(measure_calibration(part.predicted, part.passed).ece_p_value for part in bad)
        p_value = min(1.0, _PARTS * largest)
    return Result(
        bool(text),
        {"text": text},
        severity,
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


@dataclass(frozen=True)
class _Part:
    """The predictions of a stretch of steps; `score` is None where there are too few, or of one outcome."""

    first: int
    last: int
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
    for stretch in filter(len, np.array_split(np.unique(steps), _PARTS)):
        inside = (steps >= stretch[0]) & (steps <= stretch[-1])
        score = None
        with suppress(DiagnosticsError):
            score = calibration_score(predicted[inside], passed[inside])
        parts.append(_Part(int(stretch[0]), int(stretch[-1]), predicted[inside], passed[inside], score))
    return parts


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


def _direction(slope: Slope | None) -> str:
    """What the slope says about a forecast that is not calibrated."""
    if slope is None:
        return "The outcomes are perfectly separated, so there is no slope."
    kind, detail = "off by a shift rather than in confidence", ""
    if slope.low > 1:
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
