"""Classic BPF, as far as seccomp filters need it: loads, masks, comparisons, answers.

Source: https://docs.kernel.org/networking/filter.html; linux/bpf_common.h.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

LOAD, AND, GO_TO, IF_EQUAL, IF_AT_LEAST, RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x06
INSTRUCTION = struct.Struct("<HBBI")  # struct sock_filter: code, jump if true, jump if false, constant
_FEW = 7  # intervals in which single values are picked out one after the other
LARGEST_WORD = 2**32 - 1


class Assembler:
    """Collects a program from its end: jumps go forward only, so what they lead to is there already.

    A label is an instruction's distance from the end. Equal instructions are kept once.
    """

    def __init__(self) -> None:
        self._backwards: list[bytes] = []
        self._labels: dict[tuple[int, ...], int] = {}

    def program(self) -> bytes:
        """All instructions; a run starts at the one that was added last."""
        return b"".join(reversed(self._backwards))

    def answer(self, value: int) -> int:
        """Ends the run with `value`."""
        return self._add(RETURN, value)

    def load(self, offset: int, then: int) -> int:
        """Loads the 32-bit word at `offset` of the data."""
        return self._add(LOAD, offset, then)

    def mask(self, bits: int, then: int) -> int:
        """Keeps only these bits of the loaded word."""
        return self._add(AND, bits, then)

    def at_least(self, value: int, then: int, otherwise: int) -> int:
        """Goes on at `then` if the loaded word is `value` or more."""
        return self._add(IF_AT_LEAST, value, then, otherwise)

    def choose(self, targets: Mapping[int, int], otherwise: int) -> int:
        """Goes on at the label that belongs to the loaded word: a binary search over runs of values."""
        intervals = [(0, otherwise)]
        for value, label in sorted(targets.items()):
            if intervals[-1][0] == value:
                intervals.pop()
            if not intervals or intervals[-1][1] != label:
                intervals.append((value, label))
            intervals.append((value + 1, otherwise))
        if intervals[-1][0] > LARGEST_WORD:
            intervals.pop()
        return self._search(intervals)

    def _search(self, intervals: list[tuple[int, int]]) -> int:
        """`intervals` are first values and labels, in order; the first one reaches down to 0."""
        if len(intervals) == 1:
            return intervals[0][1]
        if len(intervals) <= _FEW:
            for at in range(1, len(intervals) - 1):
                (_, before), (value, label), (end, after) = intervals[at - 1 : at + 2]
                if before == after and end == value + 1:
                    rest = self._search(intervals[:at] + intervals[at + 2 :])
                    return self._add(IF_EQUAL, value, label, rest)
        middle = len(intervals) // 2
        below, above = self._search(intervals[:middle]), self._search(intervals[middle:])
        return self.at_least(intervals[middle][0], above, below)

    def _add(self, code: int, constant: int, *targets: int) -> int:
        """One instruction that leads to `targets`: none, what comes next, or if true and if false."""
        key = (code, constant, *targets)
        if key not in self._labels:
            top = len(self._backwards)
            if len(targets) == 1 and targets[0] != top:
                self._backwards.append(INSTRUCTION.pack(GO_TO, 0, 0, top - targets[0]))
            top = len(self._backwards)
            if_true, if_false = [top - target for target in targets] if len(targets) == 2 else (0, 0)
            self._backwards.append(INSTRUCTION.pack(code, if_true, if_false, constant))
            self._labels[key] = top + 1
        return self._labels[key]
