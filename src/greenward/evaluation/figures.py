"""Computes the figures of an evaluation from its rows.

Figures group rows by problem; arrays have the suffix _P: an entry for each problem. An answer lost by the
infrastructure has not passed: it counts in every denominator, and in no numerator but those of the rates
`infrastructure` and `truncated`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from greenward.common.statistics import Estimate, pass_at_k, rate
from greenward.evaluation.samples import EvaluationRow, Sample
from greenward.grading.extracted import explained
from greenward.grading.style import deviations, score_of
from greenward.grading.verdict import EDIT_ERRORS, Status
from greenward.sandbox.isolation import Layer, level_of

_NOT_COMPILED = frozenset({Status.SYNTAX_ERROR, Status.NO_CODE, *EDIT_ERRORS})
_NEVER_RAN = frozenset({Status.NO_CODE, Status.INFRASTRUCTURE, *EDIT_ERRORS})
_RATES: dict[str, Callable[[EvaluationRow], float]] = {
    "compile": lambda row: row.success is not None and row.status not in _NOT_COMPILED,
    "tests_passed": lambda row: row.fraction_passed,
    "timeout": lambda row: row.status is Status.TIMEOUT,
    "cheating": lambda row: row.status is Status.CHEATING,
    "extraction_failure": lambda row: row.code_sha256 is None and row.success is not None,
    "truncated": lambda row: row.truncated,
    "infrastructure": lambda row: row.success is None,
}

Groups = Sequence[Sequence[EvaluationRow]]


def summarise(rows: Iterable[EvaluationRow], ks: Sequence[int], *, problems: int) -> dict[str, Any]:
    """Metrics, rates and counts of an evaluation of a suite of so many `problems`.

    A pass@k that no problem has enough answers for is missing; `problems` beside each says over how
    many it is. `base_pass@k` counts the original tests of a suite with added ones.
    """
    rows = list(rows)
    by_problem: dict[str, list[EvaluationRow]] = {}
    for row in rows:
        by_problem.setdefault(row.task_id, []).append(row)
    groups = list(by_problem.values())
    metrics = _metrics(groups, ks, "", _passed)
    if any(row.base_passed is not None for row in rows):
        metrics |= _metrics(groups, ks, "base_", lambda row: row.base_passed is True)
    return {
        "problems": problems,
        "answered": len(groups),
        "answers": len(rows),
        "most_answers": max(map(len, groups), default=0),
        "problems_passed": sum(any(row.success for row in group) for group in groups),
        "metrics": metrics,
        "rates": {name: estimate.to_json() for name, estimate in rates_of(groups).items()},
        "statuses": _counts(row.status.value for row in rows),
        "errors": _counts(row.error_class for row in rows if not row.success),
        "extraction_failures": _counts(row.extraction_failure for row in rows),
        "extraction": _counts(explained(row.extraction) for row in rows),
        "tags": _by_tag(groups),
        "isolation": _isolation_of(rows),
    }


def _passed(row: EvaluationRow) -> bool:
    return row.success is True


def mean_pass_at_k(
    groups: Groups, k: int, succeeds: Callable[[EvaluationRow], bool] = _passed
) -> tuple[Estimate, int] | None:
    """Mean pass@k over the problems with at least k answers, and how many these are.

    None when there is no such problem: pass@k is undefined then.
    """
    estimates = (pass_at_k(len(group), sum(map(succeeds, group)), k) for group in groups)
    values = [value for value in estimates if value is not None]
    return (rate(np.array(values)), len(values)) if values else None


def rates_of(groups: Groups) -> dict[str, Estimate]:
    """Rates over all answers; none where there is no answer.

    `compile` (the program is Python), `tests_passed` (mean share of the tests), `timeout`, `cheating`,
    `extraction_failure` (no program in the text), `truncated`, `infrastructure` (lost by us).
    """
    if not groups:
        return {}
    answers_P = np.array([len(group) for group in groups], dtype=float)
    return {
        name: rate(np.array([sum(map(value, group)) for group in groups], dtype=float), answers_P)
        for name, value in _RATES.items()
    }


def _metrics(
    groups: Groups, ks: Sequence[int], prefix: str, succeeds: Callable[[EvaluationRow], bool]
) -> dict[str, dict[str, float]]:
    found = {f"{prefix}pass@{k}": mean_pass_at_k(groups, k, succeeds) for k in ks}
    return {name: {**one[0].to_json(), "problems": one[1]} for name, one in found.items() if one}


def _by_tag(groups: Groups) -> dict[str, dict[str, Any]]:
    """pass@1 of the problems with each tag."""
    tagged: dict[str, list[Sequence[EvaluationRow]]] = {}
    for group in groups:
        for tag in group[0].tags:
            tagged.setdefault(tag, []).append(group)
    estimates = ((tag, mean_pass_at_k(tagged[tag], 1)) for tag in sorted(tagged))
    return {tag: {"problems": one[1], "pass@1": one[0].to_json()} for tag, one in estimates if one}


def _counts(values: Iterable[str | None]) -> dict[str, int]:
    return dict(Counter(value for value in values if value).most_common())


def _isolation_of(rows: Collection[EvaluationRow]) -> dict[str, Any] | None:
    """The layers under which every answer ran, and their level; None when none ran."""
    ran = {row.layers for row in rows if row.status not in _NEVER_RAN}
    if not ran:
        return None
    shared = [layer for layer in Layer if all(layer.value in layers for layers in ran)]
    return {"level": level_of(shared).value, "layers": [layer.value for layer in shared]}


def with_labels(figures: dict[str, Any], samples: Iterable[Sample]) -> dict[str, Any]:
    """The figures of an evaluation with those that labels add, if its problems have labels."""
    labelled = [one for one in samples if one.problem.label is not None and not one.lost]
    if not labelled:
        return figures
    label: Any = labelled[0].problem.label
    added = label.figures([(one.problem, one.code or "") for one in labelled])
    rates = {name: one for name, one in figures["rates"].items() if name in ("truncated", "infrastructure")}
    nothing_ran = {"isolation": None, "rates": rates}
    return figures | nothing_ran | added | {"metrics": figures["metrics"] | added["metrics"]}


def with_style(
    figures: dict[str, Any], rows: Sequence[EvaluationRow], samples: Sequence[Sample]
) -> dict[str, Any]:
    """The figures with the style of right answers that are functions of a file (`grading.style`).

    Among the `metrics`, `contextual_style` is the mean of `style.score_of` over them; `style` counts them,
    and of them those that keep to each rule of those that apply.
    """
    scores: dict[str, list[float]] = {}
    kept: dict[str, list[bool]] = {}
    for row, sample in zip(rows, samples, strict=True):
        found = deviations(sample.problem, sample.code or "") if row.success else None
        if found is not None:
            scores.setdefault(row.task_id, []).append(score_of(found))
            for rule, count in found.items():
                kept.setdefault(rule, []).append(count == 0)
    if not scores:
        return figures
    sums, counts = np.array([[sum(one), len(one)] for one in scores.values()]).T
    metric = {"contextual_style": {**rate(sums, counts).to_json(), "problems": len(scores)}}
    rules = {rule: {"answers": len(one), "kept": sum(one)} for rule, one in sorted(kept.items())}
    style = {"answers": int(counts.sum()), "rules": rules}
    return figures | {"style": style, "metrics": figures["metrics"] | metric}
