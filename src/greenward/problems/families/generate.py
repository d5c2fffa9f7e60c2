"""Problems from compositions of operations, and their split into seen and held-out.

The same config gives the same problems everywhere: nothing depends on the process, the platform
or `PYTHONHASHSEED`.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from greenward.config.sections import FamiliesConfig
from greenward.errors import ProblemError
from greenward.problems.families.composition import ENTRY_POINT, Composition, compositions
from greenward.problems.families.inputs import EDGE_INPUTS, RANDOM_INPUTS, input_pool
from greenward.problems.families.meaning import NEW_FUNCTION, NEW_SHAPE, functions_of, shape_of
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
    """(train, held-out): a stable hash of the function that a problem asks for decides its side.

    Problems that compute the same function (`functions_of`), such as two operations in either order,
    are on the same side. About a share `held_out` of the problems is held out. A held-out problem one
    of whose operations never occurs in training would ask for the unknown, so its function goes to
    training instead. Held-out problems are tagged NEW_FUNCTION, and NEW_SHAPE where no training problem
    has the same templates in any order and with any constants. Raises `ProblemError` when a side stays
    empty.
    """
    chains = {problem.task_id: Composition.of(problem.task_id) for problem in problems}
    function_of = dict(zip(chains, functions_of(chains.values()), strict=True))
    members: dict[str, list[Composition]] = defaultdict(list)
    for task_id, function in function_of.items():
        members[function].append(chains[task_id])
    hidden = {one for one in members if stable_hash(f"split/{seed}/{one}") < held_out * 2**64}
    shown = {op for function in members.keys() - hidden for op in _operations(members[function])}
    for function in members:
        operations = _operations(members[function])
        if function in hidden and not operations <= shown:
            hidden.remove(function)
            shown |= operations
    train = [problem for problem in problems if function_of[problem.task_id] not in hidden]
    if not hidden or not train:
        raise ProblemError(
            f"expected problems on both sides of the split, found {len(train)} for training "
            f"and {len(problems) - len(train)} held out (held_out {held_out}, seed {seed}).",
            remedy="Raise problems.families.limit or .max_depth, or change problems.families.held_out.",
        )
    shapes = {shape_of(chains[problem.task_id]) for problem in train}
    unseen = (
        replace(
            problem,
            tags=(
                *problem.tags,
                NEW_FUNCTION,
                *([] if shape_of(chains[problem.task_id]) in shapes else [NEW_SHAPE]),
            ),
        )
        for problem in problems
        if function_of[problem.task_id] in hidden
    )
    return (
        ProblemSet(train, name=f"{problems.name}/train"),
        ProblemSet(unseen, name=f"{problems.name}/held_out"),
    )


def _operations(chains: Iterable[Composition]) -> set[str]:
    return {operation.name for chain in chains for operation in chain.operations}


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
