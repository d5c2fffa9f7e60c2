"""Problems from compositions of operations, and their split into seen and held-out.

The same config gives the same problems everywhere: nothing depends on the process, the platform
or `PYTHONHASHSEED`.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from greenward.config.schema import FamiliesConfig
from greenward.errors import ProblemError
from greenward.problems.families.composition import ENTRY_POINT, Composition, compositions
from greenward.problems.families.inputs import EDGE_INPUTS, RANDOM_INPUTS, input_pool
from greenward.problems.families.operation import Kind, compiled
from greenward.problems.problem import Case, Comparison, Problem, ProblemSet

MAX_INTEGER = 100_000
MAX_LENGTH = 64
MAX_SHARE_OF_ONE_OUTPUT = 0.6
MIN_DISTINCT_OUTPUTS = 3


def generate(config: FamiliesConfig) -> ProblemSet:
    """Every worthwhile composition of 1 to `config.max_depth` operations as a problem.

    A composition is left out when its outputs are nearly constant or large on its test inputs, or
    when it equals a shorter one on all of them (the leftover operation would go untested). Each problem
    has the edge cases of its input kind, a random draw, and further inputs for misconceptions that
    would pass otherwise. With `config.limit` only so many problems are made, by a stable hash of the
    composition and the seed.
    """
    chains = [chain for depth in range(1, config.max_depth + 1) for chain in compositions(depth)]
    if config.limit is not None:
        chains.sort(key=lambda chain: stable_hash(f"limit/{config.seed}/{chain.task_id}"))
    problems: list[Problem] = []
    for problem in _worthwhile_problems(chains, config.seed):
        if len(problems) == config.limit:
            break
        problems.append(problem)
    return ProblemSet(problems, name="families")


def split(problems: ProblemSet, held_out: float, seed: int) -> tuple[ProblemSet, ProblemSet]:
    """(train, held-out): a stable hash of the whole composition decides the side of each problem.

    About a share `held_out` of the problems is held out. A held-out problem one of whose operations
    never occurs in training would ask for the unknown, so it goes to training instead. Raises
    `ProblemError` when a side stays empty.
    """
    operations_of = {p.task_id: Composition.of(p.task_id).operations for p in problems}
    hidden = {
        task_id for task_id in operations_of if stable_hash(f"split/{seed}/{task_id}") < held_out * 2**64
    }
    shown = {op.name for task_id, ops in operations_of.items() if task_id not in hidden for op in ops}
    for task_id, operations in operations_of.items():
        names = {operation.name for operation in operations}
        if task_id in hidden and not names <= shown:
            hidden.remove(task_id)
            shown |= names
    if not hidden or len(hidden) == len(problems):
        raise ProblemError(
            f"expected problems on both sides of the split, found {len(problems) - len(hidden)} for training "
            f"and {len(hidden)} held out (held_out {held_out}, seed {seed}).",
            remedy="Raise problems.families.limit or change problems.families.held_out.",
        )
    return (
        ProblemSet((p for p in problems if p.task_id not in hidden), name=f"{problems.name}/train"),
        ProblemSet((p for p in problems if p.task_id in hidden), name=f"{problems.name}/held_out"),
    )


def stable_hash(text: str) -> int:
    """64 uniform bits that depend on nothing but `text`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _worthwhile_problems(chains: Sequence[Composition], seed: int) -> Iterator[Problem]:
    pools = {kind: input_pool(kind, seed) for kind in Kind}
    for chain in chains:
        rng = random.Random(stable_hash(f"cases/{seed}/{chain.task_id}"))
        pool = pools[chain.takes]
        drawn = [*EDGE_INPUTS[chain.takes], *rng.sample(pool, RANDOM_INPUTS)]
        outputs = _small_outputs(chain, drawn)
        if outputs is None or not _is_varied(outputs) or _is_redundant(chain, drawn, outputs):
            continue
        tried = list(zip(drawn, outputs, strict=True))
        yield _problem(chain, [*tried, *_revealing(chain, tried, pool)])


def _revealing(
    chain: Composition, tried: Sequence[tuple[Any, Any]], pool: Sequence[Any]
) -> list[tuple[Any, Any]]:
    """Further (input, output) pairs for the misconceptions that the tried ones would let pass."""
    revealing: list[tuple[Any, Any]] = []
    for _, expressions in chain.misconceived():
        if any(chain.gives_otherwise(expressions, *pair) for pair in (*tried, *revealing)):
            continue
        for value in pool:
            outputs = _small_outputs(chain, [value])
            if outputs is not None and chain.gives_otherwise(expressions, value, outputs[0]):
                revealing.append((value, outputs[0]))
                break
    return revealing


def _problem(chain: Composition, pairs: Sequence[tuple[Any, Any]]) -> Problem:
    return Problem(
        task_id=chain.task_id,
        prompt=chain.specification,
        entry_point=ENTRY_POINT,
        cases=tuple(Case((value,), expected) for value, expected in pairs),
        starter_code=chain.starter_code,
        reference=chain.starter_code + chain.body(chain.expressions),
        comparison=Comparison(tolerance=0.0),
        tags=("families", f"depth_{len(chain.operations)}"),
    )


def _small_outputs(chain: Composition, inputs: Sequence[Any]) -> list[Any] | None:
    """The output for each input, or None as soon as a value on the way grows too large."""
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
    if isinstance(value, str):
        return len(value) <= MAX_LENGTH
    return len(value) <= MAX_LENGTH and all(map(_is_small, value))


def _is_varied(outputs: Sequence[Any]) -> bool:
    counts = Counter(map(repr, outputs))
    most_common = counts.most_common(1)[0][1]
    return len(counts) >= MIN_DISTINCT_OUTPUTS and most_common <= MAX_SHARE_OF_ONE_OUTPUT * len(outputs)


def _is_redundant(chain: Composition, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    return list(inputs) == list(outputs) or any(
        all(
            part.evaluate(part.expressions, value) == output
            for value, output in zip(inputs, outputs, strict=True)
        )
        for part in chain.shorter()
    )
