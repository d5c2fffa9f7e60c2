"""The figures of an evaluation as plain data: what `summary.json` holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from greenward.evaluation.measures import by_tag, pass_at_k_of, rates_of
from greenward.evaluation.results import Result
from greenward.grading.verdict import Family, Status
from greenward.sandbox.isolation import Layer, level_of

DEFAULT_KS = (1, 5, 10, 100)
_NEVER_RAN = frozenset({Status.NO_CODE, Status.INFRASTRUCTURE})
Groups = Sequence[Sequence[Result]]


def summarise(results: Iterable[Result], ks: Sequence[int], *, problems: int) -> dict[str, Any]:
    """Metrics, rates and tables of an evaluation of a suite of so many `problems`.

    A pass@k that no problem has enough answers for is missing; `problems` beside each says over how
    many it is. `base_pass@k` counts the original tests of a suite with added ones.
    """
    rows = list(results)
    groups = list(_by_problem(rows).values())
    statuses = Counter(row.status.value for row in rows)
    reasons = Counter(row.extraction_failure for row in rows if row.extraction_failure)
    errors = Counter(row.error_class for row in rows if row.error_class and not row.passed)
    return {
        "problems": problems,
        "answered": len(groups),
        "answers": len(rows),
        "most_answers": max(map(len, groups), default=0),
        "problems_passed": sum(any(row.passed for row in group) for group in groups),
        "metrics": _metrics(groups, ks),
        "rates": {name: rate.to_json() for name, rate in rates_of(groups).items()} if rows else {},
        "statuses": dict(statuses.most_common()),
        "errors": dict(errors.most_common()),
        "extraction_failures": dict(reasons.most_common()),
        "tags": by_tag([(group[0].tags, group) for group in groups]),
        "isolation": isolation_of(rows),
    }


def usual_ks(most_samples: int) -> tuple[int, ...]:
    """The k of 1, 5, 10 and 100 for which there are enough samples."""
    return tuple(k for k in DEFAULT_KS if k <= most_samples)


def isolation_of(rows: Collection[Result]) -> dict[str, Any] | None:
    """The layers under which every answer ran, and their level; None when none ran."""
    ran = [row.layers for row in rows if row.status not in _NEVER_RAN]
    if not ran:
        return None
    shared = [layer for layer in Layer if all(layer.value in layers for layers in set(ran))]
    return {"level": level_of(shared).value, "layers": [layer.value for layer in shared]}


def _metrics(groups: Groups, ks: Sequence[int]) -> dict[str, dict[str, float]]:
    metrics = {}
    for k in ks:
        found = pass_at_k_of(groups, k)
        if found is not None:
            metrics[f"pass@{k}"] = {**found[0].to_json(), "problems": found[1]}
    if any(row.base_passed is not None for group in groups for row in group):
        for k in ks:
            found = pass_at_k_of(groups, k, succeeds=lambda row: row.base_passed is True)
            if found is not None:
                metrics[f"base_pass@{k}"] = {**found[0].to_json(), "problems": found[1]}
    return metrics


def _by_problem(rows: Iterable[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = defaultdict(list)
    for row in rows:
        groups[row.task_id].append(row)
    return groups


def all_lost(rows: Collection[Result]) -> bool:
    """Whether there are answers and the infrastructure lost every one."""
    return bool(rows) and all(row.status.family is Family.INFRASTRUCTURE for row in rows)
