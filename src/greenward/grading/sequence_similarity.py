"""The similarity of sequences by Ratcliff and Obershelp, as `difflib` computes it, in bounded time.

`difflib` needs cubic time for repetitive texts. Faster libraries compute another number, the Indel ratio,
which follows from the longest common subsequence: for `aba` and `bca` it is 4 / 6 (`ba`), but 2 / 6 here,
because the first of the longest blocks (`a`) leaves nothing to the right of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import accumulate
from typing import Any

MAX_WORK = 4_000_000  # comparisons: some tenths of a second


class _TooMuchWork(Exception):
    pass


class _BoundedMatcher(SequenceMatcher[Any]):
    """Counts what the search for blocks compares, and gives up over `MAX_WORK`."""

    def __init__(self, first: Sequence[Any], second: Sequence[Any]) -> None:
        super().__init__(None, first, second, autojunk=False)
        index: dict[Any, list[int]] = vars(self)["b2j"]
        self._work_before = [0, *accumulate(1 + len(index.get(one, ())) for one in first)]
        self._work = 0

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> Any:
        before = self._work_before
        self._work += before[len(before) - 1 if ahi is None else ahi] - before[alo]
        if self._work > MAX_WORK:
            raise _TooMuchWork
        return super().find_longest_match(alo, ahi, blo, bhi)


def similarity(first: Sequence[Any], second: Sequence[Any]) -> float | None:
    """2 M / T for M elements in matching blocks of T in all; 1 for two empty sequences.

    Equal to `difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()`; None where that takes
    more than `MAX_WORK` comparisons, or both together are longer.
    """
    if first == second:
        return 1.0
    if len(first) + len(second) > MAX_WORK:
        return None
    try:
        return _BoundedMatcher(first, second).ratio()
    except _TooMuchWork:
        return None
