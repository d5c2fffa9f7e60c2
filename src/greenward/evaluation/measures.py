"""The figures of an evaluation, from what became of each answer: pass@k and rates, with intervals.

Answers come in groups, one for each problem. Array suffix _P: one entry for each problem. An answer
that the infrastructure lost has not passed: it counts in every denominator and in no numerator but that
of the rate of such answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from greenward.evaluation.pass_at_k import pass_at_k
from greenward.grading.verdict import Family, Status
from greenward.intervals import Estimate, rate

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
    groups: Groups[J], k: int, *, succeeds: Callable[[J], bool] = passed
) -> tuple[Estimate, int] | None:
    """Mean pass@k over the problems with at least k answers, and how many these are.

    None when there is no such problem: pass@k is undefined then.
    """
    estimates = (pass_at_k(len(group), sum(map(succeeds, group)), k) for group in groups)
    values = [value for value in estimates if value is not None]
    return (rate(np.array(values)), len(values)) if values else None


def by_tag(tagged: Iterable[tuple[Sequence[str], Sequence[J]]]) -> dict[str, dict[str, Any]]:
    """pass@1 of the problems with each tag, as plain data; `tagged` has (tags, answers) of each problem."""
    groups: dict[str, list[Sequence[J]]] = {}
    for tags, answers in tagged:
        for tag in tags:
            groups.setdefault(tag, []).append(answers)
    found = {tag: pass_at_k_of(groups[tag], 1) for tag in sorted(groups)}
    return {
        tag: {"problems": len(groups[tag]), "pass@1": one[0].to_json()}
        for tag, one in found.items()
        if one is not None
    }


def rates_of(groups: Groups[J]) -> dict[str, Estimate]:
    """Rates over all answers.

    `compile` (the program is Python), `tests_passed` (mean share of the tests), `timeout`, `cheating`,
    `extraction_failure` (no program in the text), `truncated`, `infrastructure` (lost by us).
    """
    rates: dict[str, Callable[[J], float]] = {
        "compile": lambda answer: is_scored(answer) and answer.status not in _NOT_COMPILED,
        "tests_passed": lambda answer: answer.fraction_passed,
        "timeout": lambda answer: answer.status is Status.TIMEOUT,
        "cheating": lambda answer: answer.status is Status.CHEATING,
        "extraction_failure": lambda answer: answer.extraction_failed,
        "truncated": lambda answer: answer.truncated,
        "infrastructure": lambda answer: not is_scored(answer),
    }
    answers_P = np.array([len(group) for group in groups], dtype=float)
    return {
        name: rate(np.array([sum(map(value, group)) for group in groups], dtype=float), answers_P)
        for name, value in rates.items()
    }
