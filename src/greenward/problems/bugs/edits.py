"""What the kinds of bugs are made of: replacements for one node of a syntax tree."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

# What stands in the place of a node: another one, or any number of statements.
Replacement = ast.AST | list[ast.stmt]
# (node, names that are bound there) -> what a person could have written instead.
Operator = Callable[[ast.AST, Sequence[str]], Iterator[Replacement]]

Node = TypeVar("Node", bound=ast.AST)


def changed(node: Node, **fields: object) -> Node:
    """A copy of `node` with other values in some fields; the rest is shared."""
    twin = copy.copy(node)
    for name, value in fields.items():
        setattr(twin, name, value)
    return twin


def exchanged(items: Sequence[Node], position: int, item: Node) -> list[Node]:
    """The items with another one at `position`."""
    return [*items[:position], item, *items[position + 1 :]]


def shifted(expression: ast.expr) -> Iterator[ast.expr]:
    """The expression one higher and one lower; whole numbers are computed."""
    number = whole_number(expression)
    for step in (1, -1):
        if number is not None:
            yield number_node(number + step)
        else:
            operator = ast.Add() if step > 0 else ast.Sub()
            yield ast.BinOp(expression, operator, ast.Constant(1))


def whole_number(expression: ast.expr | None) -> int | None:
    """The value of a literal such as `3` or `-1`; None for anything else, True and False included."""
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.USub):
        value = whole_number(expression.operand)
        return None if value is None else -value
    if isinstance(expression, ast.Constant) and type(expression.value) is int:
        return expression.value
    return None


def number_node(value: int) -> ast.expr:
    """The literal of a whole number."""
    return ast.UnaryOp(ast.USub(), ast.Constant(-value)) if value < 0 else ast.Constant(value)
