"""Whether a program printed what it should.

The field's rule (LiveCodeBench, APPS), read strictly: line by line, spaces at the end of a line and
empty lines at the end do not count. A line that consists of numbers may write them in another way
(`1.50` for `1.5`); where the expected number is written with a point or an exponent, it may differ by
the tolerance. Integers never may, and words are compared letter by letter.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from greenward.grading.compare import relative_tolerance
from greenward.problems.problem import Comparison

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)


def same_output(printed: str, expected: str, comparison: Comparison) -> bool:
    """Whether `printed` counts as `expected` within the tolerance of `comparison`."""
    ours, theirs = _lines(printed), _lines(expected)
    return len(ours) == len(theirs) and all(
        line == wanted or _same_numbers(line, wanted, comparison)
        for line, wanted in zip(ours, theirs, strict=True)
    )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same_numbers(line: str, wanted: str, comparison: Comparison) -> bool:
    ours, theirs = line.split(), wanted.split()
    return len(ours) == len(theirs) and all(
        _same_number(word, other, comparison) for word, other in zip(ours, theirs, strict=True)
    )


def _same_number(word: str, wanted: str, comparison: Comparison) -> bool:
    if not (_NUMBER.fullmatch(word) and _NUMBER.fullmatch(wanted)):
        return False
    ours, theirs = Decimal(word), Decimal(wanted)
    if ours == theirs:
        return True
    if wanted.lstrip("+-").isdigit():
        return False
    relative, absolute = relative_tolerance(comparison), comparison.tolerance
    number = float(ours)
    within_tolerance = math.isclose(number, float(theirs), rel_tol=relative, abs_tol=absolute)
    return within_tolerance and math.isfinite(number) and bool(relative or absolute)
