"""A part of a problem set that stays the same whatever the order of the set and the machine."""

from __future__ import annotations

from collections import defaultdict
from hashlib import sha256

from greenward.problems.problem import Problem, ProblemSet


def choose(problems: ProblemSet, count: int) -> ProblemSet:
    """`count` of the problems (all, if there are no more), in their order.

    Systematic sampling by a hash of the task id, stratified by tags: every problem has the same
    chance, each combination of tags has its share, and a larger choice contains a smaller one.
    """
    if count >= len(problems):
        return problems
    strata: dict[tuple[str, ...], list[Problem]] = defaultdict(list)
    for problem in problems:
        strata[problem.tags].append(problem)
    position: dict[str, float] = {}
    for tags, members in strata.items():
        offset = _uniform("\n".join(tags))
        for rank, problem in enumerate(sorted(members, key=lambda member: _uniform(member.task_id))):
            position[problem.task_id] = (rank + offset) / len(members)
    chosen = sorted(position, key=lambda task_id: (position[task_id], task_id))[:count]
    keep = frozenset(chosen)
    return problems.filter(lambda problem: problem.task_id in keep)


def _uniform(text: str) -> float:
    """A number in [0, 1) from a hash of the text."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big") / 2**64
