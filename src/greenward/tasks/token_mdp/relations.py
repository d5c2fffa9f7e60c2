"""Encodes how inputs and outputs of a problem's visible tests go together: the goal of an episode.

Views of the inputs are the arguments and what one operation of the vocabulary makes of one or two of them.
Each is compared with the output over all tests, so that the encoding tells about goals that no training
problem has. They are property signatures (Odena and Sutton, arXiv 2002.09030) that the vocabulary gives.
Shape suffixes: T tests, V views, R relations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from greenward.problems.problem import Expected, Problem

_SLOTS = 3
_OF_NUMBER = ("{}", "abs({})", "{} % 2", "{} % 10", "{} // 2", "{} * {}")
_OF_PAIR = ("{} + {}", "{} - {}", "{} * {}", "max({}, {})", "min({}, {})", "{} % {}", "{} // {}")
_OF_LIST = ("len({})", "{}[0]", "{}[-1]", "min({})", "max({})", "sum({})")
_OF_TEXT = ("len({})", "{}.count(' ')", "len(set({}))", "{}.count({}[0])")
_PLACES = tuple(f"a{place}" for place in range(_SLOTS))
VIEWS = (
    *(view.format(one, one) for one in _PLACES for view in _OF_NUMBER),
    *(view.format(*pair) for pair in itertools.combinations(_PLACES, 2) for view in _OF_PAIR),
    *(f"list {view.format(one)}" for one in _PLACES[:2] for view in _OF_LIST),
    *(f"text {view.format(_PLACES[0], _PLACES[0])}" for view in _OF_TEXT),
)
"""What each view is, in Python; a0 to a2 are the arguments."""
OF_TRUTH = ("> 0", "== 0", "> 1", "% 2 == 0", "% 10 == 0", "> 10", "< 0", "== 1")
OF_NUMBER = ("equal", "above", "constant difference", "difference", "correlation", "both even or odd",
             "divided", "constant ratio")  # fmt: skip
SIZE = len(VIEWS) * len(OF_NUMBER)
_MISSING, _LARGEST = math.nan, 1e9


def relations(problem: Problem) -> np.ndarray:
    """How each view of the inputs goes with the output over the visible tests, of shape (V * R,).

    The relations are `OF_TRUTH` for an output that is a truth value: by how much this property of the view
    changes the share of true outputs. Else they are `OF_NUMBER` for the output, the length of a text or the
    sum of a list: the share of tests where it equals the view, where it is above less where it is below,
    whether their difference is constant, a tenth of that, their correlation, the share where both are even
    or both odd, where the view divides it, and whether their ratio is constant. What is undefined is 0.
    """
    cases = [one for one in problem.cases if not isinstance(one.expected, Expected)]
    if not cases:
        return np.zeros(SIZE, np.float32)
    views_VT = np.array([[_bounded(value) for value in _views(one.args)] for one in cases]).T
    truth = all(isinstance(one.expected, bool) for one in cases)
    output_T = np.array([_bounded(_number(one.expected)) for one in cases])
    known_VT = ~np.isnan(views_VT) & ~np.isnan(output_T)
    views_VT = np.where(known_VT, views_VT, 0.0)
    output_T = np.nan_to_num(output_T)
    found_VR = (_of_truth if truth else _of_number)(views_VT, output_T, known_VT)
    return np.where(known_VT.any(axis=1)[:, None], found_VR, 0.0).astype(np.float32).ravel()


def _of_truth(views_VT: np.ndarray, output_T: np.ndarray, known_VT: np.ndarray) -> np.ndarray:
    even_VT = views_VT % 2 == 0
    properties = (
        views_VT > 0,
        views_VT == 0,
        views_VT > 1,
        even_VT,
        views_VT % 10 == 0,
        views_VT > 10,
        views_VT < 0,
        views_VT == 1,
    )  # as in OF_TRUTH
    columns = []
    for held_VT in properties:
        with_VT, without_VT = held_VT & known_VT, ~held_VT & known_VT
        compared_V = with_VT.any(axis=1) & without_VT.any(axis=1)
        shares_V = (
            (part_VT * output_T).sum(axis=1) / np.maximum(part_VT.sum(axis=1), 1)
            for part_VT in (with_VT, without_VT)
        )
        columns.append(np.where(compared_V, next(shares_V) - next(shares_V), 0.0))
    return np.stack(columns, axis=1)


def _of_number(views_VT: np.ndarray, output_T: np.ndarray, known_VT: np.ndarray) -> np.ndarray:
    count_V = np.maximum(known_VT.sum(axis=1), 1)

    def share(held_VT: np.ndarray) -> np.ndarray:
        return (held_VT & known_VT).sum(axis=1) / count_V

    difference_VT = output_T - views_VT
    constant_V, least_V = _constant(difference_VT, known_VT)
    nonzero_VT = known_VT & (views_VT != 0)
    ratio_VT = output_T / np.where(views_VT == 0, 1, views_VT)
    same_ratio_V, _ = _constant(ratio_VT, nonzero_VT)
    centred_VT = (views_VT - (views_VT * known_VT).sum(axis=1, keepdims=True) / count_V[:, None]) * known_VT
    outputs_VT = (output_T - (output_T * known_VT).sum(axis=1, keepdims=True) / count_V[:, None]) * known_VT
    norm_V = np.sqrt((centred_VT**2).sum(axis=1) * (outputs_VT**2).sum(axis=1))
    correlation_V = (centred_VT * outputs_VT).sum(axis=1) / np.maximum(norm_V, 1e-9)
    divided_VT = nonzero_VT & (output_T % np.where(views_VT == 0, 1, views_VT) == 0)
    return np.stack(
        [
            share(difference_VT == 0),
            share(difference_VT > 0) - share(difference_VT < 0),
            constant_V,
            constant_V * np.clip(least_V / 10, -1, 1),
            correlation_V,
            share(output_T % 2 == views_VT % 2),
            divided_VT.sum(axis=1) / count_V,
            same_ratio_V,
        ],
        axis=1,
    )


def _constant(values_VT: np.ndarray, known_VT: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where a row has one value at all known places, of two at least, and its least value."""
    least_V = np.where(known_VT, values_VT, np.inf).min(axis=1)
    most_V = np.where(known_VT, values_VT, -np.inf).max(axis=1)
    constant_V = (known_VT.sum(axis=1) > 1) & (most_V - least_V < 1e-9)
    return constant_V, np.where(constant_V, least_V, 0.0)


def _bounded(value: float) -> float:
    """At most `_LARGEST` either way, for finite sums of squares; whole numbers may be of any size."""
    return float(max(-_LARGEST, min(_LARGEST, value))) if value == value else _MISSING


def _number(value: Any) -> float:
    """What stands for an output: a number itself, the sum of a list of numbers, the length of all else."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, list | tuple) and all(isinstance(one, int | float) for one in value):
        return sum(value)
    return len(value) if isinstance(value, str | list | tuple) else _MISSING


def _views(arguments: Sequence[Any]) -> Iterator[float]:
    """The value of each of `VIEWS`; NaN where the types give none."""
    numbers = [one if isinstance(one, int | float) else None for one in arguments[:_SLOTS]]
    numbers += [None] * (_SLOTS - len(numbers))
    for one in numbers:
        yield from (
            (one, abs(one), one % 2, one % 10, one // 2, one * one)
            if one is not None
            else _nothing(len(_OF_NUMBER))
        )
    for first, second in itertools.combinations(numbers, 2):
        if first is None or second is None:
            yield from _nothing(len(_OF_PAIR))
        else:
            yield from (first + second, first - second, first * second)
            yield from (max(first, second), min(first, second))
            yield from (first % second, first // second) if second else _nothing(2)
    for place in range(2):
        one = arguments[place] if place < len(arguments) else None
        if isinstance(one, list | tuple) and one and all(isinstance(value, int | float) for value in one):
            yield from (len(one), one[0], one[-1], min(one), max(one), sum(one))
        else:
            yield from (0 if one in ([], ()) else _MISSING, *_nothing(len(_OF_LIST) - 1))
    text = arguments[0] if arguments else None
    if isinstance(text, str):
        yield from (len(text), text.count(" "), len(set(text)), text.count(text[:1]))
    else:
        yield from _nothing(len(_OF_TEXT))


def _nothing(number: int) -> tuple[float, ...]:
    return (_MISSING,) * number
