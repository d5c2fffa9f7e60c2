"""What a composition computes and what it is made of: the two senses in which a problem can be new.

Held-out problems must be new in the first sense; those that are new in the second as well are tagged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from greenward.problems.families.composition import Composition
from greenward.problems.families.inputs import POOL_SIZE, input_pool
from greenward.problems.families.library import TEMPLATE_OF
from greenward.problems.families.operation import Kind, Operation, compiled

NEW_FUNCTION = "function_never_seen"
NEW_SHAPE = "shape_never_seen"

# Which problems are the same function must not depend on the seed of a recipe.
_SEED = 0

Shape = tuple[str, ...]


def functions_of(chains: Iterable[Composition]) -> list[str]:
    """For each composition a name of the function that it computes; equal names mean one function.

    Two compositions count as one function if they agree on all inputs of one of the pools, or if a
    chain of such pairs joins them. No pool holds the edge cases, and none is large, so that functions
    which differ on rare inputs alone (to count the words, and to raise that count to at least 2) are
    one: a held-out problem must be new on the inputs that matter.
    """
    chains = list(chains)
    joined: dict[str, str] = {}

    def root(digest: str) -> str:
        while joined.setdefault(digest, digest) != digest:
            digest = joined[digest]
        return digest

    by_pool = [_digests(chains, number, pool) for number, pool in enumerate(_pools())]
    for first, *others in zip(*by_pool, strict=True):
        for other in others:
            kept, merged = sorted((root(first), root(other)))
            joined[merged] = kept
    return [root(digest) for digest in by_pool[0]]


def shape_of(chain: Composition) -> Shape:
    """The templates of the operations, sorted: neither their order nor their constants matter."""
    return tuple(sorted(TEMPLATE_OF[operation.name] for operation in chain.operations))


def _pools() -> Iterator[Mapping[Kind, Sequence[Any]]]:
    """Two halves of a pool of ordinary inputs, and half of an uneven one."""
    ordinary = {kind: input_pool(kind, _SEED) for kind in Kind}
    uneven = {kind: input_pool(kind, _SEED, uneven=True) for kind in Kind}
    half = POOL_SIZE // 2
    yield {kind: pool[:half] for kind, pool in ordinary.items()}
    yield {kind: pool[half:] for kind, pool in ordinary.items()}
    yield {kind: pool[:half] for kind, pool in uneven.items()}


def _digests(chains: Sequence[Composition], number: int, pool: Mapping[Kind, Sequence[Any]]) -> list[str]:
    """A digest of each composition's values on a pool. Those of a common beginning are computed once."""
    known: dict[tuple[str, ...], Sequence[Any]] = {}

    def values(operations: tuple[Operation, ...]) -> Sequence[Any]:
        *before, last = operations
        names = tuple(operation.name for operation in before)
        if names and names not in known:
            known[names] = values(tuple(before))
        function = compiled(last.takes, last.expression)
        return [function(value) for value in (known[names] if names else pool[last.takes])]

    return [
        hashlib.blake2b(
            f"{number}/{chain.takes.value}: {values(chain.operations)!r}".encode(), digest_size=16
        ).hexdigest()
        for chain in chains
    ]
