"""Repair problems, made by putting one bug into the reference of each problem."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from greenward.problems.mutation.mutants import Mutant, mutants, normalised
from greenward.problems.problem import Problem, ProblemSet, stable_hash
from greenward.problems.python_source import function_named, parse

MUTANT_TAG = "mutant"
KIND_TAG = "bug:"


def repair_candidates(problems: ProblemSet, *, per_problem: int, seed: int) -> ProblemSet:
    """Up to `per_problem` repair problems for each problem, in the order of the problems.

    Each has a `buggy_code` with one bug, the tag `bug:<kind>`, the tests of its original, and as task id that
    of the original, `#` and a number. The kinds alternate in an order that follows from the seed and the
    problem. Which bugs change what a program computes is not known yet (`grading.bugs` finds out). Problems
    whose reference is missing, is not Python or has no mutant are left out.
    """
    candidates = (_candidates(problem, per_problem, seed) for problem in problems)
    return ProblemSet((one for of_problem in candidates for one in of_problem), name=f"{problems.name}/bugs")


def original_id(problem: Problem) -> str:
    """The id of the problem whose program was mutated; a problem's own id if it is no mutant."""
    return problem.task_id.rpartition("#")[0] if MUTANT_TAG in problem.tags else problem.task_id


def bug_kind(problem: Problem) -> str:
    """The kind of the bug, a key of `operators.KINDS`, or the suite's name for it; empty when unknown."""
    return next((tag[len(KIND_TAG) :] for tag in problem.tags if tag.startswith(KIND_TAG)), "")


def _candidates(problem: Problem, count: int, seed: int) -> Iterator[Problem]:
    try:
        reference = normalised(problem.reference)
        found = mutants(reference)
    except (SyntaxError, ValueError, RecursionError):
        return
    rng = random.Random(stable_hash(f"bugs/{seed}/{problem.task_id}"))
    starter = _starter(reference, problem.entry_point)
    for number, mutant in zip(range(1, count + 1), _alternating_kinds(found, rng), strict=False):
        yield replace(
            problem,
            task_id=f"{problem.task_id}#{number}",
            reference=reference,
            # If the bug is above the function that is asked for, the whole program is to be written.
            starter_code=starter if mutant.code.startswith(starter) else "",
            buggy_code=mutant.code,
            tags=(*problem.tags, MUTANT_TAG, f"{KIND_TAG}{mutant.kind}"),
        )


def _alternating_kinds(found: Iterable[Mutant], rng: random.Random) -> Iterator[Mutant]:
    by_kind: dict[str, list[Mutant]] = {}
    for mutant in found:
        by_kind.setdefault(mutant.kind, []).append(mutant)
    queues = list(by_kind.values())
    rng.shuffle(queues)
    for queue in queues:
        rng.shuffle(queue)
    while queues:
        for queue in queues:
            yield queue.pop()
        queues = [queue for queue in queues if queue]


def _starter(code: str, entry_point: str) -> str:
    """The program up to the first statement of the entry point after its docstring; empty without one."""
    function = function_named(parse(code), entry_point)
    if function is None:
        return ""
    statements = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return "".join(code.splitlines(keepends=True)[: statements[0].lineno - 1]) if statements else ""
