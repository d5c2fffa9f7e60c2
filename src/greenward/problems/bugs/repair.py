"""From problems with a reference to problems of repairing it."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from greenward.problems.bugs.mutate import Mutant, mutants, normalised
from greenward.problems.families.generate import stable_hash
from greenward.problems.problem import Problem, ProblemSet
from greenward.problems.python_source import parse

MUTANT_TAG = "mutant"
KIND_TAG = "bug:"


def repair_candidates(problems: ProblemSet, *, per_problem: int, seed: int) -> ProblemSet:
    """Up to `per_problem` problems of repair for each problem, in the order of the problems.

    Each has a `buggy_code` with one bug, tagged `bug:<kind>`, and is judged as its original is, whose
    id it carries before a `#`. The kinds take turns in an order drawn from the seed and the problem
    alone. Which bugs change what a program computes is not known yet (`grading.bugs` finds out). Problems
    whose reference is missing, is not Python or leaves no room for a bug are left out.
    """
    found = (_candidates(problem, per_problem, seed) for problem in problems)
    return ProblemSet((candidate for of_one in found for candidate in of_one), name=f"{problems.name}/bugs")


def original_id(problem: Problem) -> str:
    """The id of the problem whose program was mutated; a problem's own id if it is no mutant."""
    return problem.task_id.rpartition("#")[0] if MUTANT_TAG in problem.tags else problem.task_id


def bug_kind(problem: Problem) -> str:
    """The kind of the bug, a key of `mutate.KINDS`, or what the suite calls it; empty when unknown."""
    return next((tag[len(KIND_TAG) :] for tag in problem.tags if tag.startswith(KIND_TAG)), "")


def _candidates(problem: Problem, count: int, seed: int) -> Iterator[Problem]:
    try:
        reference = normalised(problem.reference)
        found = mutants(reference)
    except (SyntaxError, ValueError, RecursionError):
        return
    rng = random.Random(stable_hash(f"bugs/{seed}/{problem.task_id}"))
    starter = _starter(reference, problem.entry_point)
    for number, mutant in zip(range(1, count + 1), _taking_turns(found, rng), strict=False):
        yield replace(
            problem,
            task_id=f"{problem.task_id}#{number}",
            reference=reference,
            # A bug above the function that is asked for: the whole program is to be written.
            starter_code=starter if mutant.code.startswith(starter) else "",
            buggy_code=mutant.code,
            tags=(*problem.tags, MUTANT_TAG, f"{KIND_TAG}{mutant.kind}"),
        )


def _taking_turns(found: Iterable[Mutant], rng: random.Random) -> Iterator[Mutant]:
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
    for node in reversed(parse(code).body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == entry_point:
            statements = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
            if statements:
                return "".join(code.splitlines(keepends=True)[: statements[0].lineno - 1])
    return ""
