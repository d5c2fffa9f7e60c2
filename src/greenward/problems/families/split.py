"""Splits generated problems into training and held-out problems by the function that they ask for.

Every held-out problem asks for a function that no training problem computes. Those whose templates never
occur together in training are tagged as new in this second sense as well.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from greenward.errors import ProblemError
from greenward.problems.families.composition import Composition
from greenward.problems.families.generate import POOL_SIZE, input_pool
from greenward.problems.families.operations import Kind, Operation, compiled
from greenward.problems.problem import ProblemSet, stable_hash

NEW_FUNCTION = "function_never_seen"
NEW_SHAPE = "shape_never_seen"

# Which problems ask for the same function must not depend on the seed of a recipe.
_POOL_SEED = 0


def split(problems: ProblemSet, held_out: float, seed: int) -> tuple[ProblemSet, ProblemSet]:
    """(train, held-out): a stable hash of the function that a problem asks for decides its side.

    Problems that compute the same function (`functions_of`), such as two operations in either order,
    are on the same side. About a share `held_out` of the problems is held out. If an operation of a held-out
    problem occurred in no training problem, the function of that problem goes to training instead. Held-out
    problems are tagged NEW_FUNCTION, and also NEW_SHAPE where no training problem has the same templates in
    any order and with any constants. Raises `ProblemError` when a side is empty.
    """
    chains = {problem.task_id: Composition.of(problem.task_id) for problem in problems}
    function_of = dict(zip(chains, functions_of(chains.values()), strict=True))
    operations_of: dict[str, set[str]] = defaultdict(set)
    for task_id, function in function_of.items():
        operations_of[function] |= {operation.name for operation in chains[task_id].operations}
    limit = held_out * 2**64
    new = {function for function in operations_of if stable_hash(f"split/{seed}/{function}") < limit}
    trained = {name for function in operations_of.keys() - new for name in operations_of[function]}
    for function, operations in operations_of.items():
        if function in new and not operations <= trained:
            new.remove(function)
            trained |= operations
    train = [problem for problem in problems if function_of[problem.task_id] not in new]
    if not new or not train:
        raise ProblemError(
            f"expected problems on both sides of the split, found {len(train)} for training "
            f"and {len(problems) - len(train)} held out (held_out {held_out}, seed {seed}).",
            remedy="Raise problems.families.limit or .max_depth, or change problems.families.held_out.",
        )
    shapes = {shape_of(chains[problem.task_id]) for problem in train}
    test = []
    for problem in problems:
        if function_of[problem.task_id] in new:
            new_shape = () if shape_of(chains[problem.task_id]) in shapes else (NEW_SHAPE,)
            test.append(replace(problem, tags=(*problem.tags, NEW_FUNCTION, *new_shape)))
    name = problems.name
    return ProblemSet(train, name=f"{name}/train"), ProblemSet(test, name=f"{name}/held_out")


def functions_of(chains: Iterable[Composition]) -> list[str]:
    """For each composition an identifier of the function that it computes.

    Two compositions count as one function if they agree on all inputs of one of the pools, or if a
    sequence of such pairs connects them. No pool has edge inputs, and none is large, so that functions
    that differ only on rare inputs (to count the words, and to raise that count to at least 2) count as
    one: a held-out problem must be new on common inputs.
    """
    chains = list(chains)
    parent: dict[str, str] = {}

    def root(digest: str) -> str:
        while parent.setdefault(digest, digest) != digest:
            digest = parent[digest]
        return digest

    by_pool = [_digests(chains, number, pool) for number, pool in enumerate(_pools())]
    for first, *others in zip(*by_pool, strict=True):
        for other in others:
            kept, merged = sorted((root(first), root(other)))
            parent[merged] = kept
    return [root(digest) for digest in by_pool[0]]


def shape_of(chain: Composition) -> tuple[str, ...]:
    """The templates of the operations, sorted: neither their order nor their constants matter."""
    return tuple(sorted(operation.template for operation in chain.operations))


def _pools() -> Iterator[Mapping[Kind, Sequence[Any]]]:
    """Two halves of a pool of ordinary inputs, and half of an uneven one."""
    half = POOL_SIZE // 2
    ordinary = {kind: input_pool(kind, _POOL_SEED) for kind in Kind}
    yield {kind: pool[:half] for kind, pool in ordinary.items()}
    yield {kind: pool[half:] for kind, pool in ordinary.items()}
    yield {kind: input_pool(kind, _POOL_SEED, uneven=True)[:half] for kind in Kind}


def _digests(chains: Sequence[Composition], number: int, pool: Mapping[Kind, Sequence[Any]]) -> list[str]:
    """A digest of each composition's values on a pool. The values of a shared prefix are computed once."""
    known: dict[tuple[str, ...], Sequence[Any]] = {}

    def values(operations: tuple[Operation, ...]) -> Sequence[Any]:
        *before, last = operations
        prefix = tuple(operation.name for operation in before)
        if prefix and prefix not in known:
            known[prefix] = values(tuple(before))
        function = compiled(last.takes, last.expression)
        return [function(value) for value in (known[prefix] if prefix else pool[last.takes])]

    texts = (f"{number}/{chain.takes.value}: {values(chain.operations)!r}" for chain in chains)
    return [hashlib.blake2b(text.encode(), digest_size=16).hexdigest() for text in texts]
