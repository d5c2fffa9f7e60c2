"""All programs that differ from a given one by a single plausible bug.

The kinds follow the operators of mutation testing (Offutt et al. 1996) and those of real one-line bugs
(Karampatsis and Sutton 2020, ManySStuBs4J; Muennighoff et al. 2023, HumanEvalPack). What is given here is
a candidate: only its tests tell whether it computes anything else than the original.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from greenward.problems.bugs import expressions, statements
from greenward.problems.bugs.edits import Operator, Replacement
from greenward.problems.python_source import parse

# A text that two kinds give counts for the first of them.
KINDS: Mapping[str, Operator] = {
    operator.__name__: operator
    for operator in (
        statements.early_return,
        statements.dropped_guard,
        statements.dropped_branch,
        statements.wrong_initial_value,
        statements.missing_return,
        statements.missing_update,
        statements.wrong_jump,
        expressions.off_by_one_index,
        expressions.off_by_one_slice,
        expressions.off_by_one_range,
        expressions.boundary,
        expressions.comparison_operator,
        expressions.negated_condition,
        expressions.dropped_filter,
        expressions.dropped_case,
        expressions.swapped_connective,
        expressions.arithmetic_operator,
        expressions.swapped_operands,
        expressions.wrong_function,
        expressions.dropped_call,
        expressions.swapped_arguments,
        expressions.dropped_argument,
        expressions.dropped_sign,
        expressions.wrong_variable,
        expressions.wrong_constant,
    )
}

# Parts of a program that say how it is declared, not what it does.
_DECLARING = ("args", "annotation", "returns", "decorator_list", "type_params", "bases")
_DECLARING_OWNERS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.AnnAssign)
_EVALUATED_FIRST = ("value", "iter")  # before the names that they are bound to
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Mutant:
    """A program with one bug and the kind of the bug, a key of `KINDS`."""

    kind: str
    code: str


@dataclass(frozen=True)
class _Place:
    """Where a node stands in the tree, and the names that are bound there."""

    owner: ast.AST
    field: str
    index: int | None
    names: tuple[str, ...]

    @property
    def node(self) -> ast.AST:
        value = getattr(self.owner, self.field)
        node: ast.AST = value if self.index is None else value[self.index]
        return node

    def unparsed_with(self, tree: ast.Module, replacement: Replacement) -> str:
        """The program with something else here; the tree stays as it is."""
        before = getattr(self.owner, self.field)
        if self.index is None:
            after: object = replacement
        else:
            inserted = replacement if isinstance(replacement, list) else [replacement]
            after = [*before[: self.index], *inserted, *before[self.index + 1 :]] or [ast.Pass()]
        setattr(self.owner, self.field, after)
        try:
            return f"{ast.unparse(tree)}\n"
        finally:
            setattr(self.owner, self.field, before)


def normalised(source: str) -> str:
    """The program as its mutants are written: without comments, in one layout.

    Raises `SyntaxError` or `ValueError` for what is not Python.
    """
    return f"{ast.unparse(parse(source))}\n"


def mutants(source: str) -> list[Mutant]:
    """All single-bug programs, each once, in the order of the places where they differ.

    Their text is `normalised`; none is the normalised original, and all are valid Python. Signatures,
    docstrings, annotations and imports stay. Raises `SyntaxError` or `ValueError` for what is not Python.
    """
    tree = parse(normalised(source))
    seen = {f"{ast.unparse(tree)}\n"}
    found = []
    for place in _places_within(tree, {}):
        for kind, operator in KINDS.items():
            for replacement in operator(place.node, place.names):
                code = place.unparsed_with(tree, replacement)
                if code not in seen and _is_python(code):
                    seen.add(code)
                    found.append(Mutant(kind, code))
    return found


def _is_python(code: str) -> bool:
    try:
        parse(code)
    except (SyntaxError, ValueError):  # a pattern of `match` may hold fewer expressions than others
        return False
    return True


def _places_within(owner: ast.AST, names: dict[str, None]) -> Iterator[_Place]:
    """The places below a node, each before those inside it. `names` grows with what is bound on the way."""
    if isinstance(owner, _FUNCTIONS):
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
            if not isinstance(node, ast.AST) or _says_nothing(node):
                continue
            yield _Place(owner, field, index, tuple(bound))
            yield from _places_within(node, bound)
            names.update(dict.fromkeys(_bound_by(node)) if isinstance(node, ast.Name) else ())


def _bound_by(target: ast.AST) -> Iterator[str]:
    return (
        part.id for part in ast.walk(target) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    )


def _says_nothing(node: ast.AST) -> bool:
    """Docstrings, imports, and texts with expressions inside, whose parts do not stand alone."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr, ast.expr_context))
