"""Whether a program printed what it should, by the rule of LiveCodeBench's judge (arXiv:2403.07974).

Spaces at both ends of the output and of each line do not count. There must be as many lines as expected,
and each must be the expected one or consist of the same numbers, compared as exact decimals: `1.50` is
`1.5`, and `2.0000000001` is not `2.00000000`.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation


def same_output(printed: str, expected: str) -> bool:
    """Whether `printed` counts as `expected`."""
    ours, theirs = _lines(printed), _lines(expected)
    return len(ours) == len(theirs) and all(
        line == wanted or _same_numbers(line, wanted) for line, wanted in zip(ours, theirs, strict=True)
    )


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_numbers(line: str, wanted: str) -> bool:
    ours, theirs = line.split(), wanted.split()
    try:
        return len(ours) == len(theirs) and all(
            Decimal(word) == Decimal(other) for word, other in zip(ours, theirs, strict=True)
        )
    except InvalidOperation:  # a word that is no number, or a signalling NaN
        return False
