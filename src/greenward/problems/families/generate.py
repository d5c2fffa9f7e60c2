"""Generates problems from compositions of operations.

The same config gives the same problems everywhere: nothing depends on the process, the platform
or `PYTHONHASHSEED`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from greenward.config.sections import FamiliesConfig
from greenward.problems.families.composition import ENTRY_POINT, Composition, compositions
from greenward.problems.families.operations import Kind, compiled
from greenward.problems.problem import Case, Comparison, Problem, ProblemSet, stable_hash

MAX_INTEGER = 100_000
MAX_LENGTH = 64
MAX_SHARE_OF_ONE_OUTPUT = 0.6
MIN_DISTINCT_OUTPUTS = 3
RANDOM_INPUTS = 7  # drawn for each problem from the pool of its kind

# Every problem that takes a kind is tested on these.
EDGE_INPUTS: dict[Kind, tuple[Any, ...]] = {
    Kind.NUMBERS: ([], [0], [4], [-3], [2, 2, 2], [5, 3, 0, -1, 3]),
    Kind.NUMBER: (0, 1, -1, 7, -10),
    Kind.TEXT: ("", " ", "a", "Hi 5", "  two  words "),
    Kind.WORDS: ([], [""], ["ox"], ["fig", "fig"], ["Owl", "ant", "a"]),
}
POOL_SIZE = 60
_VOCABULARY = (
    "Apple", "Bee", "cat", "DoG", "Echo", "Fox", "go", "HAT", "ink", "Jam", "kiwi", "level", "mad2",
    "No", "otter", "pi", "Quiz", "r2d2", "sea", "to", "UP", "vine", "we", "x-ray", "yes", "zoo", "a", "I",
)  # fmt: skip
_CHARACTERS = "aeioubcxzABXEIZ0129 -,.!?  "


def generate(config: FamiliesConfig) -> ProblemSet:
    """Every useful composition of 1 to `config.max_depth` operations as a problem.

    A composition is left out when its outputs are nearly constant or large on its test inputs, or
    when it equals a shorter one on all of them (one of its operations would not be tested). Each problem
    has the edge inputs of its kind, a random draw, and further inputs for wrong expressions that
    would pass otherwise. `config.limit` is the largest number of problems; which ones are generated then
    follows from a stable hash of the composition and the seed.
    """
    chains = [chain for depth in range(1, config.max_depth + 1) for chain in compositions(depth)]
    if config.limit is not None:
        chains.sort(key=lambda chain: stable_hash(f"limit/{config.seed}/{chain.task_id}"))
    return ProblemSet(islice(_useful_problems(chains, config.seed), config.limit), name="families")


def _useful_problems(chains: Sequence[Composition], seed: int) -> Iterator[Problem]:
    pools = {kind: input_pool(kind, seed) for kind in Kind}
    for chain in chains:
        rng = random.Random(stable_hash(f"cases/{seed}/{chain.task_id}"))
        pool = pools[chain.takes]
        inputs = [*EDGE_INPUTS[chain.takes], *rng.sample(pool, RANDOM_INPUTS)]
        pairs = list(zip(inputs, _small_outputs(chain, inputs) or (), strict=False))
        if not _is_useful(chain, pairs):
            continue
        pairs += _revealing_pairs(chain, pairs, pool)
        yield Problem(
            task_id=chain.task_id,
            prompt=chain.specification,
            entry_point=ENTRY_POINT,
            cases=tuple(Case((value,), expected) for value, expected in pairs),
            starter_code=chain.starter_code,
            reference=chain.starter_code + chain.body(chain.expressions),
            comparison=Comparison(tolerance=0.0),
            tags=("families", f"depth_{len(chain.operations)}"),
        )


def _revealing_pairs(
    chain: Composition, pairs: Sequence[tuple[Any, Any]], pool: Sequence[Any]
) -> list[tuple[Any, Any]]:
    """Further (input, output) pairs, on which the wrong variants fail that pass on all of `pairs`."""
    revealing: list[tuple[Any, Any]] = []
    for _, expressions in chain.wrong_variants():
        if not any(chain.fails(expressions, *pair) for pair in (*pairs, *revealing)):
            further = ((value, output) for value in pool for output in _small_outputs(chain, [value]) or ())
            revealing += islice((pair for pair in further if chain.fails(expressions, *pair)), 1)
    return revealing


def _small_outputs(chain: Composition, inputs: Sequence[Any]) -> list[Any] | None:
    """The output for each input; None if a value on the way is too large."""
    outputs = []
    for value in inputs:
        for operation in chain.operations:
            value = compiled(operation.takes, operation.expression)(value)
            if not _is_small(value):
                return None
        outputs.append(value)
    return outputs


def _is_small(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) <= MAX_INTEGER
    return len(value) <= MAX_LENGTH and (isinstance(value, str) or all(map(_is_small, value)))


def _is_useful(chain: Composition, pairs: Sequence[tuple[Any, Any]]) -> bool:
    """Whether the outputs vary, and no operation can be left out without a change of the outputs."""
    counts = Counter(repr(output) for _, output in pairs)
    if len(counts) < MIN_DISTINCT_OUTPUTS or max(counts.values()) > MAX_SHARE_OF_ONE_OUTPUT * len(pairs):
        return False
    return any(value != output for value, output in pairs) and not any(
        all(part.evaluate(part.expressions, value) == output for value, output in pairs)
        for part in chain.shorter()
    )


def input_pool(kind: Kind, seed: int, *, uneven: bool = False) -> tuple[Any, ...]:
    """`POOL_SIZE` distinct random values of `kind`, none of them an edge input.

    The values of an `uneven` pool have any length from 0 and a wider range of characters and numbers.
    """
    rng = random.Random(f"{seed}/{kind.value}{'/uneven' if uneven else ''}")
    draw = _draw_uneven if uneven else _draw
    pool: list[Any] = []
    while len(pool) < POOL_SIZE:
        value = draw(kind, rng)
        if value not in pool and value not in EDGE_INPUTS[kind]:
            pool.append(value)
    return tuple(pool)


def _draw(kind: Kind, rng: random.Random) -> Any:
    if kind is Kind.NUMBER:
        return rng.randint(-20, 47)
    if kind is Kind.NUMBERS:
        numbers = [rng.randint(-9, 12) for _ in range(rng.randint(4, 7))]
        return [*numbers, rng.choice(numbers)]
    words = rng.choices(_VOCABULARY, k=rng.randint(2, 4))
    if kind is Kind.WORDS:
        return [*words, rng.choice(words)]
    padding = " " * rng.choice((0, 0, 1, 2))
    return padding + " ".join(words) + rng.choice(("", "", "!", "  "))


def _draw_uneven(kind: Kind, rng: random.Random) -> Any:
    if kind is Kind.NUMBER:
        return rng.randint(-200, 200)
    if kind is Kind.NUMBERS:
        reach = rng.choice((5, 50))
        return [rng.randint(-reach, reach) for _ in range(rng.randint(0, 9))]
    if kind is Kind.WORDS:
        return ["".join(rng.choices(_CHARACTERS, k=rng.randint(0, 7))) for _ in range(rng.randint(0, 6))]
    return "".join(rng.choices(_CHARACTERS, k=rng.randint(0, 14)))
