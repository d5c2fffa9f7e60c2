"""Finds what two sequences have in common, in bounded time whatever they hold."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import Match, SequenceMatcher
from itertools import accumulate
from typing import Any

MOST_WORK = 1 << 23  # comparisons: about a second


class BoundedMatcher(SequenceMatcher[Any]):
    """`difflib.SequenceMatcher(None, first, second, autojunk=False)` that finds no block after `most_work`.

    Sequences that repeat an element take cubic time otherwise. Work is counted in comparisons of elements.
    `gave_up` says, once blocks were asked for, whether some may be missing.
    """

    def __init__(self, first: Sequence[Any], second: Sequence[Any], most_work: int = MOST_WORK) -> None:
        super().__init__(None, first, second, autojunk=False)
        index: dict[Any, list[int]] = vars(self)["b2j"]
        self._work_before = [0, *accumulate(1 + len(index.get(one, ())) for one in first)]
        self._left = most_work

    @property
    def gave_up(self) -> bool:
        return self._left < 0

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> Match:
        before = self._work_before
        self._left -= before[len(before) - 1 if ahi is None else ahi] - before[alo]
        return Match(alo, blo, 0) if self.gave_up else super().find_longest_match(alo, ahi, blo, bhi)
