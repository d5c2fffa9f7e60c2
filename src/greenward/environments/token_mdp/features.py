"""Observations: a problem embedding (256), a code embedding (256) and metadata (8), as in `LAYOUT`.

All are deterministic: hashed n-grams and facts about the tests, the same in every process.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from greenward.environments.token_mdp.productions import TYPES, Signature
from greenward.problems.problem import Expected, Problem, stable_hash

PROBLEM, CODE, METADATA = 256, 256, 8
SIZE = PROBLEM + CODE + METADATA
LAYOUT = (
    "share of max_steps used", "share still free once the program is finished in the shortest way",
    "depth of indentation / 4", "the code so far is a whole program", "tests were run",
    "share of tests passed at the last run", "all tests passed", "arguments / 4",
)  # fmt: skip
WORDS, _TYPES = 96, 5 * len(TYPES)
_FACTS = PROBLEM - WORDS - _TYPES


def hashed(features: Sequence[str], size: int) -> np.ndarray:
    """A vector of length 1: each feature adds ±1 to an entry, both by its hash (arXiv 0902.2206)."""
    vector = np.zeros(size, np.float32)
    for feature in features:
        number = stable_hash(feature)
        vector[number % size] += 1.0 if number >> 40 & 1 else -1.0
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector


def problem_embedding(problem: Problem, signature: Signature) -> np.ndarray:
    """Words and pairs of words of the docstring, the types of the signature, and facts about the tests."""
    words = re.findall(r"[a-z0-9]+", problem.prompt.lower())
    pairs = [f"{first} {second}" for first, second in itertools.pairwise(words)]
    types = np.zeros((5, len(TYPES)), np.float32)
    for place, kind in enumerate((signature.result, *signature.arguments)):
        types[place, TYPES.index(kind)] = 1.0
    return np.concatenate([hashed([*words, *pairs], WORDS), types.ravel(), test_facts(problem)])


def test_facts(problem: Problem) -> np.ndarray:
    """For each of `_PROPERTIES`: the share of tests of which it holds, and whether it is always the same.

    Property signatures (Odena and Sutton, arXiv 2002.09030): facts about inputs and output that a program
    which passes must reproduce. A property that cannot be asked of the types gives 0 and 0.
    """
    facts = np.zeros(_FACTS, np.float32)
    cases = [one for one in problem.cases if not isinstance(one.expected, Expected)]  # whose output is known
    for index, property_ in enumerate(_PROPERTIES):
        try:
            held = [bool(property_(case.args, case.expected)) for case in cases]
        except (TypeError, ValueError, IndexError, ZeroDivisionError, AttributeError, OverflowError):
            continue
        share = float(np.mean(held))
        facts[2 * index : 2 * index + 2] = share, 1.0 if share in (0.0, 1.0) else -1.0
    return facts


_Property = Callable[[tuple[Any, ...], Any], Any]
_PROPERTIES: tuple[_Property, ...] = (
    lambda a, y: y == a[0],
    lambda a, y: y == a[1],
    lambda a, y: y in a,
    lambda a, y: y > a[0],
    lambda a, y: y < a[0],
    lambda a, y: y >= max(a),
    lambda a, y: y <= min(a),
    lambda a, y: y > a[1],
    lambda a, y: y < a[1],
    lambda a, y: y - a[0] > 0,
    lambda a, y: a[0] == 0 or y % a[0] == 0,
    lambda a, y: a[1] == 0 or y % a[1] == 0,
    lambda a, y: (y - a[0]) % max(1, abs(a[1])) == 0,
    lambda a, y: y % 2 == 0,
    lambda a, y: y % 2 == a[0] % 2,
    lambda a, y: y % 2 == sum(a) % 2,
    lambda a, y: abs(y) <= sum(abs(one) for one in a),
    lambda a, y: y > 0,
    lambda a, y: y >= 0,
    lambda a, y: y == 0,
    lambda a, y: y == -a[0],
    lambda a, y: (y > 0) == (a[0] > 0),
    lambda a, y: a[-1] != 0 or y == 0,
    lambda a, y: a[0] % 2 == 0 and not isinstance(y, str | list),
    lambda a, y: y is True,
    lambda a, y: y is (a[0] > 0),
    lambda a, y: y is (a[0] % 2 == 0),
    lambda a, y: y is (a[0] > a[1]),
    lambda a, y: y is (len(a[0]) > 0),
    lambda a, y: y in a[0],
    lambda a, y: y == a[0][0],
    lambda a, y: y == a[0][-1],
    lambda a, y: all(y >= one for one in a[0]),
    lambda a, y: all(y <= one for one in a[0]),
    lambda a, y: y == len(a[0]),
    lambda a, y: y < len(a[0]),
    lambda a, y: y > len(a[0]),
    lambda a, y: len(y) == len(a[0]),
    lambda a, y: len(y) < len(a[0]),
    lambda a, y: len(y) > len(a[0]),
    lambda a, y: sorted(y) == sorted(a[0]),
    lambda a, y: y[0] == a[0][0],
    lambda a, y: y[0] == a[0][-1],
    lambda a, y: y[-1] == a[0][-1],
    lambda a, y: y[-1] == a[0][0],
    lambda a, y: set(y) <= set(a[0]),
    lambda a, y: list(y) == sorted(y),
    lambda a, y: y == y.lower(),
    lambda a, y: y == y.upper(),
    lambda a, y: y.startswith(a[0]),
    lambda a, y: y.endswith(a[0]),
    lambda a, y: y in a[0] + a[0],
    lambda a, y: y > sum(a[0]),
    lambda a, y: y < sum(a[0]),
    lambda a, y: y <= max(map(abs, a[0]), default=0) * len(a[0]),
    lambda a, y: all((one > 0) == (two > 0) for one, two in zip(a[0], y, strict=False)),
    lambda a, y: all(one in a[0] for one in y),
)
assert 2 * len(_PROPERTIES) <= _FACTS
