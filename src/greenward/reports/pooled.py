"""Pools the results of the evaluations of several seeds, and compares them.

An estimate is the mean of the seeds' estimates and its interval the mean of their bounds: the seeds answer
the same problems, so this interval speaks of problems. A difference is paired: per problem, the share of
passing answers of one evaluation minus that of the other, averaged over seeds; its interval is
`statistics.paired_difference`, over problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from greenward.common import statistics
from greenward.common.statistics import Estimate
from greenward.reports.document import GREEDY, PRIMARY

Evaluation = Mapping[str, Any]
Evaluations = Sequence[Evaluation | None]  # one entry for each seed; None where there is no evaluation


def pooled(evaluations: Evaluations, name: str, of: str = "metrics") -> Estimate | None:
    """The mean over seeds of one metric (or rate: `of`) and of its bounds."""
    found = [e[of][name] for e in evaluations if e and name in e[of]]
    if not found:
        return None
    return Estimate(*(fmean(estimate[key] for estimate in found) for key in ("value", "low", "high")))


def seed_values(evaluations: Evaluations, name: str) -> tuple[float, ...]:
    """A metric of each seed that has it."""
    return tuple(e["metrics"][name]["value"] for e in evaluations if e and name in e["metrics"])


def paired_difference(
    first: Evaluations, second: Evaluations, name: str = PRIMARY, later_name: str | None = None
) -> Estimate | None:
    """A metric in `second` (`later_name` if it is another one) minus `first` over the problems that both
    answered, with interval.
    """
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    names = (name, later_name or name)
    earlier, later = (_shares([pair[side] for pair in pairs], of) for side, of in enumerate(names))
    differences = [later[task] - earlier[task] for task in earlier if task in later]
    return statistics.paired_difference(np.array(differences)) if differences else None


def _shares(evaluations: Sequence[Evaluation], name: str) -> dict[str, float]:
    """Task id -> the metric on this problem alone, averaged over the evaluations that have it."""
    shares: dict[str, list[float]] = {}
    for evaluation in evaluations:
        for row in evaluation.get("rows", ()):
            if (share := _share(row, name)) is not None:
                shares.setdefault(str(row.get("task_id")), []).append(share)
    return {task: fmean(values) for task, values in shares.items()}


def _share(row: Evaluation, name: str) -> float | None:
    """A metric on one problem, None where it was not measured."""
    if name == GREEDY:
        passed = row.get("greedy_passed")
        return None if passed is None else float(passed)
    k, samples = name.removeprefix("pass@"), row["samples"]
    return statistics.pass_at_k(samples, row["passed"], int(k)) if samples and k.isdecimal() else None
