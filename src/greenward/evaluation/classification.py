"""The figures of a classifier of vulnerable functions, from its answers to both versions of each pair.

Of a function's n answers, those that say `vulnerable` or `safe` vote. Its score, the estimated probability
that it is vulnerable, is the mean over the answers of the stated confidence in `vulnerable`, or of 1 and 0
where none is stated; an answer without a label counts 1/2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from greenward.evaluation.rows import Sample
from greenward.grading.labels import LabelAnswer, parse_label
from greenward.intervals import proportion, rate
from greenward.problems.problem import Label

LEAST_BENIGN = 200  # of which one false alarm is 0.5 %
FALSE_ALARMS = 0.005
_BINS = 10
_RATES = ("truncated", "infrastructure")


@dataclass(frozen=True)
class Classified:
    """One version of a function with its answers."""

    label: Label
    answers: tuple[LabelAnswer, ...]

    @property
    def score(self) -> float:
        return float(np.mean([_probability(answer) for answer in self.answers])) if self.answers else 0.5

    @property
    def vote(self) -> tuple[bool | None, float]:
        """What most answers say, vulnerable or not (None for a tie), and the share of all that say it."""
        yes = sum(answer.said == "vulnerable" for answer in self.answers)
        no = sum(answer.said == "safe" for answer in self.answers)
        share = max(yes, no) / max(len(self.answers), 1)
        return (None if yes == no else yes > no), share


def classification_figures(items: Sequence[Classified]) -> dict[str, Any]:
    """The figures as plain data; None stands for what cannot be estimated.

    `accuracy` (of the first answers; a function without a label is wrong), `weakness` (the share of
    vulnerable functions whose weakness is named), `pairs`: the shares of pairs with both versions right
    (P-C), both said to be vulnerable (P-V), both safe (P-B), both wrong (P-R), PrimeVul (arXiv 2403.18624,
    §4.2); pairs with an abstention or without a label are in `undecided`. `precision`, `recall`, `f1`, `auc`;
    `vd_s`, the share of vulnerable functions missed at the threshold that flags at most 0.5 % of the benign
    ones (VD-S), where there are at least 200 of these; `calibration` of stated confidence; `majority`: with
    several answers, accuracy and paired accuracy of their vote, and `risk_coverage`, the error among
    functions whose vote is at least so clear.
    """
    firsts = [item.answers[0] if item.answers else LabelAnswer(None) for item in items]
    right = np.array([a.detects(i.label) for a, i in zip(firsts, items, strict=True)], dtype=float)
    vulnerable = np.array([item.label.vulnerable for item in items])
    flagged = np.array([answer.said == "vulnerable" for answer in firsts])
    named = [a.said == "vulnerable" and a.cwe == i.label.cwe for a, i in zip(firsts, items, strict=True)]
    figures: dict[str, Any] = {
        "functions": len(items),
        "accuracy": _by_pair(items, right),
        "abstained": sum(answer.said == "unsure" for answer in firsts),
        "no_label": sum(answer.said is None for answer in firsts),
        "pairs": _pairs(items, [answer.said for answer in firsts]),
        **_detection(vulnerable, flagged),
        **_ranking(vulnerable, np.array([item.score for item in items])),
        "calibration": _calibration(items, firsts),
    }
    if vulnerable.any():
        hits = int(np.array(named)[vulnerable].sum())
        figures["weakness"] = proportion(hits, int(vulnerable.sum())).to_json()
    if any(len(item.answers) > 1 for item in items):
        figures["majority"] = _majority(items)
    return figures


def with_classification(figures: dict[str, Any], samples: Iterable[Sample]) -> dict[str, Any]:
    """The figures of an evaluation with those of a classifier, if its problems have labels."""
    answers: dict[str, list[LabelAnswer]] = {}
    labels: dict[str, Label] = {}
    for sample in samples:
        if sample.problem.label is not None and not sample.lost:
            labels[sample.problem.task_id] = sample.problem.label
            answers.setdefault(sample.problem.task_id, []).append(parse_label(sample.code or ""))
    if not labels:
        return figures
    found = classification_figures([Classified(labels[one], tuple(answers[one])) for one in labels])
    metrics = {"accuracy": {**found["accuracy"], "problems": found["functions"]}}
    if "correct" in found["pairs"]:
        metrics["paired_accuracy"] = {**found["pairs"]["correct"], "problems": found["pairs"]["whole"]}
    rates = {name: one for name, one in figures["rates"].items() if name in _RATES}
    nothing_ran = {"isolation": None, "rates": rates}
    return figures | nothing_ran | {"classification": found, "metrics": figures["metrics"] | metrics}


def _probability(answer: LabelAnswer) -> float:
    if answer.said not in ("vulnerable", "safe"):
        return 0.5
    sure = 1.0 if answer.confidence is None else answer.confidence
    return sure if answer.said == "vulnerable" else 1 - sure


def _by_pair(items: Sequence[Classified], values: np.ndarray) -> dict[str, float]:
    """A mean over functions with its interval; the two versions of a pair are not independent."""
    sums: dict[str, list[float]] = {}
    for item, value in zip(items, values, strict=True):
        sums.setdefault(item.label.pair, []).append(float(value))
    totals, counts = np.array([[sum(one), len(one)] for one in sums.values()]).T
    return rate(totals, counts).to_json()


def _pairs(items: Sequence[Classified], said: Sequence[str | None]) -> dict[str, Any]:
    """The outcomes of whole pairs; `whole` counts them."""
    by_pair: dict[str, dict[bool, str | None]] = {}
    for item, one in zip(items, said, strict=True):
        by_pair.setdefault(item.label.pair, {})[item.label.vulnerable] = one
    names = {
        ("vulnerable", "safe"): "correct",
        ("vulnerable", "vulnerable"): "vulnerable",
        ("safe", "safe"): "benign",
        ("safe", "vulnerable"): "reversed",
    }
    outcomes = [
        names.get((str(said[True]), str(said[False])), "undecided")
        for said in by_pair.values()
        if len(said) == 2
    ]
    found = {name: outcomes.count(name) for name in (*names.values(), "undecided")}
    shares = {name: proportion(n, len(outcomes)).to_json() for name, n in found.items()} if outcomes else {}
    return {"whole": len(outcomes), **shares}


def _detection(vulnerable: np.ndarray, flagged: np.ndarray) -> dict[str, float | None]:
    hits = float((vulnerable & flagged).sum())
    precision = hits / flagged.sum() if flagged.any() else None
    recall = hits / vulnerable.sum() if vulnerable.any() else None
    both = float(flagged.sum() + vulnerable.sum())
    return {"precision": precision, "recall": recall, "f1": 2 * hits / both if both else None}


def _ranking(vulnerable: np.ndarray, scores: np.ndarray) -> dict[str, float | None]:
    """The area under the ROC curve (ties count half) and VD-S."""
    bad, good = scores[vulnerable], scores[~vulnerable]
    if not len(bad) or not len(good):
        return {"auc": None, "vd_s": None}
    ordered = np.sort(good)
    below, not_above = np.searchsorted(ordered, bad, "left"), np.searchsorted(ordered, bad, "right")
    missed = None
    if len(good) >= LEAST_BENIGN:
        allowed = int(FALSE_ALARMS * len(good))
        threshold = ordered[len(good) - 1 - allowed]  # flag what is above it: at most `allowed` benign ones
        missed = float((bad <= threshold).mean())
    return {"auc": float((below + not_above).mean() / (2 * len(good))), "vd_s": missed}


def _calibration(items: Sequence[Classified], answers: Sequence[LabelAnswer]) -> dict[str, float] | None:
    """Brier score and expected calibration error in ten bins of the confidence in the label that is given."""
    pairs = [
        (answer.confidence, answer.detects(item.label))
        for item, answer in zip(items, answers, strict=True)
        if answer.confidence is not None and answer.said in ("vulnerable", "safe")
    ]
    if not pairs:
        return None
    confidence, right = np.array(pairs, dtype=float).T
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = [abs((confidence - right)[bins == b].sum()) for b in range(_BINS)]
    return {
        "stated": float(len(pairs)),
        "brier": float(((confidence - right) ** 2).mean()),
        "ece": float(sum(gaps) / len(pairs)),
        "mean_confidence": float(confidence.mean()),
        "accuracy": float(right.mean()),
    }


def _majority(items: Sequence[Classified]) -> dict[str, Any]:
    votes = [item.vote for item in items]
    right = np.array(
        [vote is i.label.vulnerable for (vote, _), i in zip(votes, items, strict=True)], dtype=float
    )
    clear = np.array([0.0 if vote is None else share for vote, share in votes])
    names = {True: "vulnerable", False: "safe", None: None}
    curve = []
    for least in sorted(set(clear[clear > 0].tolist()), reverse=True):
        kept = clear >= least
        curve.append(
            {"least_share": least, "coverage": float(kept.mean()), "risk": float(1 - right[kept].mean())}
        )
    return {
        "answers": max(len(item.answers) for item in items),
        "accuracy": _by_pair(items, right),
        "pairs": _pairs(items, [names[vote] for vote, _ in votes]),
        "risk_coverage": curve,
    }
