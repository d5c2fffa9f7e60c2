"""Mutation operators: for a node of a syntax tree, what a programmer could have written instead.

The kinds follow the operators of mutation testing (Offutt et al. 1996) and those of real one-line bugs
(Karampatsis and Sutton 2020, ManySStuBs4J; Muennighoff et al. 2023, HumanEvalPack).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

# What takes the place of a node: another node, or any number of statements.
Replacement = ast.AST | list[ast.stmt]
Node = TypeVar("Node", bound=ast.AST)

KINDS: Mapping[str, str] = {
    "early_return": "the return that follows a loop is already at the end of its body",
    "dropped_guard": "`if not xs: return 0` is left out",
    "dropped_branch": "an `else`, all after an `elif`, or an `if` that does not end in a jump is left out",
    "wrong_initial_value": "`n = 0` becomes `n = 1`, `best = None` becomes `best = 0`",
    "missing_return": "`return f(x)` becomes `f(x)`, `return x` is left out",
    "missing_update": "`i += 1`, `xs = f(xs)` or `xs.append(x)` is left out",
    "wrong_jump": "`break` becomes `continue`, or is left out",
    "off_by_one_index": "`xs[0]` becomes `xs[1]`",
    "off_by_one_slice": "`xs[1:]` becomes `xs[2:]`",
    "off_by_one_range": "`range(n)` becomes `range(n - 1)`; the step stays",
    "boundary": "`a < b` becomes `a <= b`",
    "comparison_operator": "`a == b` becomes `a != b`",
    "negated_condition": "`if a` becomes `if not a`, also in a loop, a conditional expression or a filter",
    "dropped_filter": "`[x for x in xs if x]` becomes `[x for x in xs]`",
    "dropped_case": "`a if c else b` becomes `a` or `b`; one part of `a and b` is left out",
    "swapped_connective": "`a and b` becomes `a or b`",
    "arithmetic_operator": "`a + b` becomes `a - b`",
    "swapped_operands": "`a - b` becomes `b - a`",
    "wrong_function": "`min(xs)` becomes `max(xs)`, `s.lower()` becomes `s.upper()`",
    "dropped_call": "`abs(n)` becomes `n`, `s.strip()` becomes `s`",
    "swapped_arguments": "`f(a, b)` becomes `f(b, a)`",
    "dropped_argument": "`sorted(xs, reverse=True)` becomes `sorted(xs)`",
    "dropped_sign": "`-n` becomes `n`, `[::-1]` becomes `[::1]`",
    "wrong_variable": "another variable that is bound there takes the place of a variable",
    "wrong_constant": "`2` becomes `3`, `True` becomes `False`, a text loses its last character",
}

_JUMPS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_UPDATING_METHODS = (
    "append", "extend", "add", "insert", "update", "pop", "remove", "discard", "sort", "reverse",
)  # fmt: skip
_ARITHMETIC: Mapping[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub, ast.Mult), ast.Sub: (ast.Add,), ast.Mult: (ast.Add, ast.Pow), ast.Pow: (ast.Mult,),
    ast.Div: (ast.FloorDiv, ast.Mult), ast.FloorDiv: (ast.Div, ast.Mod), ast.Mod: (ast.FloorDiv,),
    ast.BitAnd: (ast.BitOr, ast.BitXor), ast.BitOr: (ast.BitAnd, ast.BitXor),
    ast.BitXor: (ast.BitAnd, ast.BitOr), ast.LShift: (ast.RShift,), ast.RShift: (ast.LShift,),
}  # fmt: skip
_ORDER_MATTERS = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift)
_BOUNDARY: Mapping[type, type] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_OPPOSITES = (
    (ast.Eq, ast.NotEq), (ast.Lt, ast.Gt), (ast.LtE, ast.GtE), (ast.In, ast.NotIn), (ast.Is, ast.IsNot),
)  # fmt: skip
_COMPARISON: Mapping[type, type] = {a: b for pair in _OPPOSITES for a, b in (pair, pair[::-1])}
_INTERCHANGEABLE = (
    ("append", "extend"), ("lower", "upper"), ("lstrip", "rstrip"), ("find", "rfind"), ("islower", "isupper"),
    ("startswith", "endswith"), ("keys", "values"), ("values", "items"), ("isdigit", "isalpha"),
    ("isalpha", "isalnum"), ("capitalize", "title"), ("union", "intersection"), ("strip", "lstrip"),
    ("strip", "rstrip"), ("pop", "popleft"), ("append", "appendleft"), ("swapcase", "lower"),
    ("min", "max"), ("any", "all"), ("sum", "len"), ("sum", "max"), ("ceil", "floor"), ("list", "set"),
    ("int", "round"), ("sorted", "reversed"), ("ord", "int"), ("split", "splitlines"),
)  # fmt: skip
_ONE_WAY = (("sorted", "list"), ("len", "sum"), ("abs", "int"), ("set", "list"), ("count", "find"))
_DROPPABLE_FUNCTIONS = ("abs", "sorted", "set", "str", "int", "list", "round", "len", "reversed", "tuple")
_DROPPABLE_METHODS = ("strip", "lower", "upper", "lstrip", "rstrip", "copy", "casefold", "split")


def replacements(node: ast.AST, names: Sequence[str]) -> Iterator[tuple[str, Replacement]]:
    """(kind, replacement) for every bug that fits a node; `names` are bound there."""
    body: object = getattr(node, "body", None)
    statements: list[ast.stmt] = body if isinstance(body, list) else []
    for position, (loop, following) in enumerate(pairwise(statements)):
        if isinstance(loop, (ast.For, ast.While)) and isinstance(following, ast.Return):
            returning = _changed(loop, body=[*loop.body, following])
            yield "early_return", _changed(node, body=_exchanged(statements, position, returning))
    match node:
        case ast.stmt():
            yield from _in_statement(node)
        case ast.Call():
            yield from _in_call(node)
        case ast.Name(id=name, ctx=ast.Load()) if name in names:
            for other in names:
                if other != name:
                    yield "wrong_variable", _changed(node, id=other)
        case _:
            yield from _in_expression(node)


def _in_statement(node: ast.stmt) -> Iterator[tuple[str, Replacement]]:
    match node:
        case ast.If() | ast.While():
            if isinstance(node, ast.If):
                if node.orelse:
                    yield "dropped_branch", _changed(node, orelse=[])
                else:
                    yield "dropped_guard" if isinstance(node.body[-1], _JUMPS) else "dropped_branch", []
            yield "negated_condition", _changed(node, test=_negated(node.test))
        case ast.Return(value=ast.expr() as value):
            is_plain = isinstance(value, (ast.Name, ast.Constant))
            yield "missing_return", [] if is_plain else [ast.Expr(value)]
        case ast.Break() | ast.Continue():
            yield "wrong_jump", [ast.Continue() if isinstance(node, ast.Break) else ast.Break()]
            yield "wrong_jump", []
        case ast.AugAssign():
            yield "missing_update", []
            for other in _ARITHMETIC.get(type(node.op), ()):
                yield "arithmetic_operator", _changed(node, op=other())
        case ast.Assign(value=value):
            number = _integer(value)
            if number is not None:
                yield "wrong_initial_value", _changed(node, value=ast.Constant(1 if number == 0 else 0))
            elif isinstance(value, ast.Constant) and value.value in (None, ""):
                initial = 0 if value.value is None else " "
                yield "wrong_initial_value", _changed(node, value=ast.Constant(initial))
            if {name for target in node.targets for name in _names_in(target)} & set(_names_in(value)):
                yield "missing_update", []
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))) if name in _UPDATING_METHODS:
            yield "missing_update", []


def _in_call(node: ast.Call) -> Iterator[tuple[str, Replacement]]:
    function, args = node.func, node.args
    name = getattr(function, "id", getattr(function, "attr", ""))
    if isinstance(function, ast.Name) and name == "range":
        for position, bound in enumerate(args[:2]):
            for other in _shifted(bound):
                yield "off_by_one_range", _changed(node, args=_exchanged(args, position, other))
    others = [b if name == a else a for a, b in _INTERCHANGEABLE if name in (a, b)]
    for other_name in (*others, *(b for a, b in _ONE_WAY if name == a)):
        field = "id" if isinstance(function, ast.Name) else "attr"
        yield "wrong_function", _changed(node, func=_changed(function, **{field: other_name}))
    if not node.keywords:
        if isinstance(function, ast.Name) and name in _DROPPABLE_FUNCTIONS and len(args) == 1:
            yield "dropped_call", args[0]
        if isinstance(function, ast.Attribute) and name in _DROPPABLE_METHODS and not args:
            yield "dropped_call", function.value
    if not any(isinstance(argument, ast.Starred) for argument in args):
        for position, (first, second) in enumerate(pairwise(args)):
            swapped = [*args[:position], second, first, *args[position + 2 :]]
            yield "swapped_arguments", _changed(node, args=swapped)
    for position in range(len(node.keywords)):
        yield "dropped_argument", _changed(node, keywords=_exchanged(node.keywords, position))
    if len(args) > 1:
        yield "dropped_argument", _changed(node, args=args[:-1])


def _in_expression(node: ast.AST) -> Iterator[tuple[str, Replacement]]:
    match node:
        case ast.Subscript(slice=index):
            is_key = isinstance(index, ast.Constant) and _integer(index) is None
            for other in () if is_key or isinstance(index, (ast.Slice, ast.Tuple)) else _shifted(index):
                yield "off_by_one_index", _changed(node, slice=other)
        case ast.Slice():
            for field, bound in (("lower", node.lower), ("upper", node.upper)):
                for other in _shifted(bound) if bound is not None else ():
                    yield "off_by_one_slice", _changed(node, **{field: other})
        case ast.Compare(ops=ops):
            for kind, operators in (("boundary", _BOUNDARY), ("comparison_operator", _COMPARISON)):
                for position, operator in enumerate(ops):
                    if type(operator) in operators:
                        changed = _exchanged(ops, position, operators[type(operator)]())
                        yield kind, _changed(node, ops=changed)
        case ast.comprehension(ifs=ifs):
            for position, condition in enumerate(ifs):
                yield "negated_condition", _changed(node, ifs=_exchanged(ifs, position, _negated(condition)))
            for position in range(len(ifs)):
                yield "dropped_filter", _changed(node, ifs=_exchanged(ifs, position))
        case ast.IfExp():
            yield "negated_condition", _changed(node, test=_negated(node.test))
            yield "dropped_case", node.body
            yield "dropped_case", node.orelse
        case ast.BoolOp(op=connective, values=values):
            for position in range(len(values)):
                kept = _exchanged(values, position)
                yield "dropped_case", kept[0] if len(kept) == 1 else _changed(node, values=kept)
            opposite = ast.Or() if isinstance(connective, ast.And) else ast.And()
            yield "swapped_connective", _changed(node, op=opposite)
        case ast.BinOp(left=left, op=operator, right=right):
            for arithmetic in _ARITHMETIC.get(type(operator), ()):
                yield "arithmetic_operator", _changed(node, op=arithmetic())
            if isinstance(operator, _ORDER_MATTERS):
                yield "swapped_operands", _changed(node, left=right, right=left)
        case ast.UnaryOp(op=ast.USub() | ast.Invert(), operand=operand):
            yield "dropped_sign", operand
        case ast.Constant(value=bool(value)):
            yield "wrong_constant", ast.Constant(not value)
        case ast.Constant(value=int()):
            for other in _shifted(node):
                yield "wrong_constant", other
        case ast.Constant(value=str(value)):
            yield "wrong_constant", ast.Constant(value[:-1] if value else " ")


def _names_in(expression: ast.expr) -> Iterator[str]:
    return (part.id for part in ast.walk(expression) if isinstance(part, ast.Name))


def _negated(condition: ast.expr) -> ast.expr:
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        return condition.operand
    return ast.UnaryOp(ast.Not(), condition)


def _changed(node: Node, **fields: object) -> Node:
    """A copy of `node` with other values in some fields; the rest is shared."""
    twin = copy.copy(node)
    for name, value in fields.items():
        setattr(twin, name, value)
    return twin


def _exchanged(items: Sequence[Node], position: int, *others: Node) -> list[Node]:
    """The items with others, or none, in the place of the one at `position`."""
    return [*items[:position], *others, *items[position + 1 :]]


def _shifted(expression: ast.expr) -> Iterator[ast.expr]:
    """The expression plus one and minus one; literals are computed."""
    number = _integer(expression)
    for step, operator in ((1, ast.Add()), (-1, ast.Sub())):
        if number is None:
            yield ast.BinOp(expression, operator, ast.Constant(1))
        else:
            value = ast.Constant(abs(number + step))
            yield ast.UnaryOp(ast.USub(), value) if number + step < 0 else value


def _integer(expression: ast.expr) -> int | None:
    """The value of a literal such as `3` or `-1`; None for anything else, True and False included."""
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.USub):
        value = _integer(expression.operand)
        return None if value is None else -value
    if isinstance(expression, ast.Constant) and type(expression.value) is int:
        return expression.value
    return None
