"""The figures of an evaluation, from what became of each answer: pass@k and rates, with intervals.

Answers come in groups, one for each problem. Array suffix _P: one entry for each problem. An answer
that the infrastructure lost counts for nothing but the rate of such answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from greenward.evaluation.intervals import Estimate, bootstrap_mean, bootstrap_ratio, wilson
from greenward.evaluation.pass_at_k import pass_at_k
from greenward.grading.verdict import Family, Status

_NOT_COMPILED = frozenset({Status.SYNTAX_ERROR, Status.NO_CODE})


class Judged(Protocol):
    """What is counted of an answer. `fraction_passed` is the share of its problem's tests."""

    @property
    def status(self) -> Status: ...

    @property
    def truncated(self) -> bool: ...

    @property
    def fraction_passed(self) -> float: ...

    @property
    def extraction_failed(self) -> bool: ...


J = TypeVar("J", bound=Judged)
Groups = Sequence[Sequence[J]]


def is_scored(answer: Judged) -> bool:
    """False when the infrastructure failed."""
    return answer.status.family is not Family.INFRASTRUCTURE


def passed(answer: Judged) -> bool:
    """Whether the answer passed all tests."""
    return answer.status is Status.PASSED


def pass_at_k_of(
    groups: Groups[J], k: int, *, seed: int, succeeds: Callable[[J], bool] = passed
) -> tuple[Estimate, int] | None:
    """Mean pass@k over the problems with at least k scored answers, and how many these are.

    None when there is no such problem: pass@k is undefined then. Wilson's interval if each problem
    has one answer, else bootstrap over problems.
    """
    values = []
    for group in groups:
        scored = [answer for answer in group if is_scored(answer)]
        value = pass_at_k(len(scored), sum(map(succeeds, scored)), k)
        if value is not None:
            values.append(value)
    if not values:
        return None
    if all(len(group) == 1 for group in groups):
        return wilson(sum(values), len(values)), len(values)
    return bootstrap_mean(np.array(values), seed=seed), len(values)


def by_tag(tagged: Iterable[tuple[Sequence[str], Sequence[J]]], *, seed: int) -> dict[str, dict[str, Any]]:
    """pass@1 of the problems with each tag, as plain data; `tagged` has (tags, answers) of each problem."""
    groups: dict[str, list[Sequence[J]]] = {}
    for tags, answers in tagged:
        for tag in tags:
            groups.setdefault(tag, []).append(answers)
    found = {tag: pass_at_k_of(groups[tag], 1, seed=seed) for tag in sorted(groups)}
    return {
        tag: {"problems": len(groups[tag]), "pass@1": one[0].to_json()}
        for tag, one in found.items()
        if one is not None
    }


def rates_of(groups: Groups[J], *, seed: int) -> dict[str, Estimate]:
    """Rates over answers, problems drawn again.

    Of the scored answers: `compile` (the program is Python), `tests_passed` (mean share of the
    tests), `timeout`, `cheating`, `extraction_failure` (no program in the text). Of all answers:
    `truncated`, `infrastructure`. Without a scored answer, only these two.
    """
    of_scored: dict[str, Callable[[J], float]] = {
        "compile": lambda answer: answer.status not in _NOT_COMPILED,
        "tests_passed": lambda answer: answer.fraction_passed,
        "timeout": lambda answer: answer.status is Status.TIMEOUT,
        "cheating": lambda answer: answer.status is Status.CHEATING,
        "extraction_failure": lambda answer: answer.extraction_failed,
    }
    of_all: dict[str, Callable[[J], float]] = {
        "truncated": lambda answer: answer.truncated,
        "infrastructure": lambda answer: not is_scored(answer),
    }
    scored = [[answer for answer in group if is_scored(answer)] for group in groups]
    scored = [group for group in scored if group]
    rates = {name: _rate(scored, value, seed) for name, value in of_scored.items()} if scored else {}
    return rates | {name: _rate(groups, value, seed) for name, value in of_all.items()}


def _rate(groups: Groups[J], value: Callable[[J], float], seed: int) -> Estimate:
    sums_P = np.array([sum(map(value, group)) for group in groups], dtype=float)
    answers_P = np.array([len(group) for group in groups], dtype=float)
    return bootstrap_ratio(sums_P, answers_P, seed=seed)
