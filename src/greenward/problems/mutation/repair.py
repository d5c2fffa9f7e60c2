"""Repair problems, made by putting one plausible bug into the reference of each problem.

A program with a bug is a candidate: only the tests of the program tell whether it computes anything else than
the original.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from greenward.problems.mutation.operators import Replacement, replacements
from greenward.problems.problem import Problem, ProblemSet, stable_hash
from greenward.problems.python_source import function_named, parse, parse_or_none

MAX_MUTANT_CHARS = 64 << 20
MUTANT_TAG = "mutant"
KIND_TAG = "bug:"

# Fields of nodes that declare a program's interface and do not compute anything.
_DECLARING = ("args", "annotation", "returns", "decorator_list", "type_params", "bases")
_DECLARING_OWNERS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.AnnAssign)
_EVALUATED_FIRST = ("value", "iter")  # before the names that they are bound to
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def repair_candidates(problems: ProblemSet, *, per_problem: int, seed: int) -> ProblemSet:
    """Up to `per_problem` repair problems for each problem, in the order of the problems.

    Each has a `buggy_code` with one bug, the tag `bug:<kind>`, the tests of its original, and as task id that
    of the original, `#` and a number. The kinds alternate in an order that follows from the seed and the
    problem. Which bugs change what a program computes is not known yet (`grading.bugs` finds out). Problems
    whose reference is missing, is not Python or has no mutant are left out.
    """
    candidates = (_candidates(problem, per_problem, seed) for problem in problems)
    return problems.with_problems(chain.from_iterable(candidates), name=f"{problems.name}/bugs")


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
        yield from (queue.pop() for queue in queues)
        queues = [queue for queue in queues if queue]


def _starter(code: str, entry_point: str) -> str:
    """The program up to the first statement of the entry point after its docstring; empty without one."""
    function = function_named(parse(code), entry_point)
    if function is None:
        return ""
    statements = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return "".join(code.splitlines(keepends=True)[: statements[0].lineno - 1]) if statements else ""


@dataclass(frozen=True)
class Mutant:
    """A program with one bug and the kind of the bug, a key of `operators.KINDS`."""

    kind: str
    code: str


def normalised(source: str) -> str:
    """The program in the layout of its mutants, without comments.

    Raises `SyntaxError` or `ValueError` for what is not Python.
    """
    return f"{ast.unparse(parse(source))}\n"


def mutants(source: str) -> list[Mutant]:
    """All single-bug programs, each once, in the order of the places where they differ.

    Their text is `normalised`; none is the normalised original, and all are valid Python. Signatures,
    docstrings, annotations and imports stay. Of a long program with many places these are the first ones,
    with `MAX_MUTANT_CHARS` in all. Raises `SyntaxError` or `ValueError` for what is not Python.
    """
    tree = parse(normalised(source))
    seen = {f"{ast.unparse(tree)}\n"}
    found, left = list[Mutant](), MAX_MUTANT_CHARS
    for node, owner, field, index, names in _places_below(tree, {}):
        before = getattr(owner, field)
        for kind, replacement in replacements(node, names):
            setattr(owner, field, _replaced(before, index, replacement))
            code = f"{ast.unparse(tree)}\n"
            setattr(owner, field, before)
            left -= len(code)
            if left < 0:
                return found
            # A pattern of `match`, for example, cannot hold every expression.
            if code not in seen and parse_or_none(code) is not None:
                seen.add(code)
                found.append(Mutant(kind, code))
    return found


def _replaced(before: Any, index: int | None, replacement: Replacement) -> Any:
    """The value of a field with a replacement for its node, or for the node at `index` of its list."""
    if index is None:
        return replacement
    inserted = replacement if isinstance(replacement, list) else [replacement]
    return [*before[:index], *inserted, *before[index + 1 :]] or [ast.Pass()]


_Place = tuple[ast.AST, ast.AST, str, int | None, tuple[str, ...]]


def _places_below(owner: ast.AST, names: dict[str, None]) -> Iterator[_Place]:
    """(node, owner, field, index, names bound there) below a node, each node before those inside it.

    Adds to `names` what is bound on the way.
    """
    if isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef)):
        names = dict.fromkeys(part.arg for part in ast.walk(owner.args) if isinstance(part, ast.arg))
    elif isinstance(owner, _COMPREHENSIONS):
        names = dict(names)
        for generator in owner.generators:
            names.update(dict.fromkeys(_bound_by(generator.target)))
    for field, value in sorted(ast.iter_fields(owner), key=lambda item: item[0] not in _EVALUATED_FIRST):
        if field in _DECLARING and isinstance(owner, _DECLARING_OWNERS):
            continue
        bound = names
        if isinstance(owner, ast.comprehension) and field == "iter":
            own = set(_bound_by(owner.target))
            bound = {name: None for name in names if name not in own}
        for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(node, ast.AST) and not _is_excluded(node):
                yield node, owner, field, index, tuple(bound)
                yield from _places_below(node, bound)
                names.update(dict.fromkeys(_bound_by(node)) if isinstance(node, ast.Name) else ())


def _bound_by(target: ast.AST) -> Iterator[str]:
    return (
        part.id for part in ast.walk(target) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    )


def _is_excluded(node: ast.AST) -> bool:
    """Docstrings, imports, and formatted strings, whose parts cannot be parsed on their own."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr, ast.expr_context))
