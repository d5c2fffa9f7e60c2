from __future__ import annotations

from itertools import combinations

import pytest

from greenward.intervals import pass_at_k


@pytest.mark.parametrize("samples", range(1, 9))
def test_equals_the_share_of_k_subsets_that_hold_a_passing_answer(samples: int) -> None:
    for passed in range(samples + 1):
        answers = [True] * passed + [False] * (samples - passed)
        for k in range(1, samples + 1):
            subsets = list(combinations(answers, k))
            share = sum(map(any, subsets)) / len(subsets)
            assert pass_at_k(samples, passed, k) == pytest.approx(share, abs=1e-12)


def test_is_undefined_with_fewer_answers_than_k() -> None:
    assert pass_at_k(4, 4, 5) is None
    assert pass_at_k(0, 0, 1) is None


def test_does_not_overflow_for_many_answers() -> None:
    assert pass_at_k(100_000, 50_000, 100) == pytest.approx(1.0)
    assert pass_at_k(100_000, 1, 100) == pytest.approx(0.001)


@pytest.mark.parametrize("arguments", [(3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_refuses_counts_that_mean_nothing(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="means nothing"):
        pass_at_k(*arguments)
