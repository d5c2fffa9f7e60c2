"""pass@k and rates against counting by hand over all subsets."""

from __future__ import annotations

from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenward.evaluation.rows import EvaluationRow, Sample
from greenward.evaluation.summary import mean_pass_at_k, rates_of
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Problem


def row(
    status: Status, *, truncated: bool = False, tests: tuple[bool, ...] = (), code: str | None = "code"
) -> EvaluationRow:
    return EvaluationRow.of(
        Sample(Problem("p", "", "f"), 0, "text", code, truncated=truncated), Verdict(status, tests)
    )


def answers(*statuses: Status) -> list[EvaluationRow]:
    return [row(status) for status in statuses]


GROUPS = st.lists(st.lists(st.sampled_from(list(Status)), min_size=1, max_size=6), min_size=1, max_size=5)


@given(GROUPS, st.integers(1, 4))
def test_pass_at_k_is_the_share_of_subsets_with_a_passing_answer(statuses, k):
    groups = [answers(*group) for group in statuses]
    shares = []
    for group in statuses:
        subsets = list(combinations(group, k))
        if subsets:
            shares.append(fmean(Status.PASSED in subset for subset in subsets))
    found = mean_pass_at_k(groups, k)
    if not shares:
        assert found is None
        return
    estimate, problems = found
    assert problems == len(shares)
    assert estimate.value == pytest.approx(fmean(shares))
    assert estimate.low <= estimate.value + 1e-12
    assert estimate.value <= estimate.high + 1e-12


def test_rates_count_all_answers_and_a_lost_one_counts_as_lost_only():
    groups = [
        [
            row(Status.PASSED, tests=(True,)),
            row(Status.TIMEOUT, truncated=True, tests=(True, False)),
            row(Status.INFRASTRUCTURE),
        ],
        [
            row(Status.NO_CODE, code=None),
            row(Status.NO_CODE),  # code that does not define the entry point
            row(Status.SYNTAX_ERROR),
            row(Status.CHEATING),
        ],
    ]
    values = {name: rate.value for name, rate in rates_of(groups).items()}
    assert values == pytest.approx(
        {
            "compile": 3 / 7,
            "tests_passed": 1.5 / 7,
            "timeout": 1 / 7,
            "cheating": 1 / 7,
            "extraction_failure": 1 / 7,
            "truncated": 1 / 7,
            "infrastructure": 1 / 7,
        }
    )


def test_lost_answers_have_neither_compiled_nor_failed():
    rates = rates_of([answers(Status.INFRASTRUCTURE)])
    assert {name for name, rate in rates.items() if rate.value} == {"infrastructure"}
