"""Bugs of whole statements: what is missing, comes too early or begins wrongly."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from greenward.problems.bugs.edits import Replacement, changed, exchanged, number_node, whole_number

_JUMPS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_UPDATING_METHODS = (
    "append", "extend", "add", "insert", "update", "pop", "remove", "discard", "sort", "reverse",
)  # fmt: skip


def wrong_initial_value(node: ast.AST, names: Sequence[str]) -> Iterator[Replacement]:
    """`total = 0` becomes `total = 1`, `best = None` becomes `best = 0`, `text = ''` becomes `text = ' '`."""
    if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Constant, ast.UnaryOp)):
        number = whole_number(node.value)
        if number is not None:
            yield changed(node, value=number_node(1 if number == 0 else 0))
        elif isinstance(node.value, ast.Constant) and node.value.value is None:
            yield changed(node, value=number_node(0))
        elif isinstance(node.value, ast.Constant) and node.value.value == "":
            yield changed(node, value=ast.Constant(" "))


def missing_return(node: ast.AST, names: Sequence[str]) -> Iterator[Replacement]:
    """`return f(x)` becomes `f(x)`, `return x` is left out."""
    if isinstance(node, ast.Return) and node.value is not None:
        names_something = isinstance(node.value, (ast.Name, ast.Constant))
        yield [] if names_something else [ast.Expr(node.value)]


def early_return(node: ast.AST, names: Sequence[str]) -> Iterator[Replacement]:
    """The return that follows a loop stands at the end of its body already."""
    body = getattr(node, "body", None)
    if not isinstance(body, list):
        return
    for position in range(len(body) - 1):
        loop, following = body[position : position + 2]
        if isinstance(loop, (ast.For, ast.While)) and isinstance(following, ast.Return):
            returning = changed(loop, body=[*loop.body, following])
            yield changed(node, body=exchanged(body, position, returning))


def dropped_guard(node: ast.AST, names: Sequence[str]) -> Iterator[Replacement]:
    """`if not xs: return 0` is left out."""
    if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], _JUMPS):
        yield []


def dropped_branch(node: ast.AST, names: Sequence[str]) -> Iterator[Replacement]:
    """An `else` or all that follows an `elif` is left out, or an `if` that ends in no jump."""
    if isinstance(node, ast.If):
        if node.orelse:
            yield changed(node, orelse=[])
        elif not isinstance(node.body[-1], _JUMPS):
            yield []


def missing_update(node: ast.AST, names: Sequence[str]) -> Iterator[Replacement]:
    """`i += 1`, `xs = f(xs)` or `xs.append(x)` is left out."""
    if isinstance(node, ast.AugAssign):
        yield []
    elif isinstance(node, ast.Assign):
        targets = {
            part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)
        }
        used = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
        if targets & used:
            yield []
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        if isinstance(function, ast.Attribute) and function.attr in _UPDATING_METHODS:
            yield []


def wrong_jump(node: ast.AST, names: Sequence[str]) -> Iterator[Replacement]:
    """`break` becomes `continue`, or is left out."""
    if isinstance(node, (ast.Break, ast.Continue)):
        yield [ast.Continue() if isinstance(node, ast.Break) else ast.Break()]
        yield []
