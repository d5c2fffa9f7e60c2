"""Bugs inside expressions: wrong operators, operands, bounds, names, arguments and functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from greenward.problems.bugs.edits import changed, exchanged, shifted, whole_number

_ARITHMETIC: Mapping[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.Pow),
    ast.Div: (ast.FloorDiv, ast.Mult),
    ast.FloorDiv: (ast.Div, ast.Mod),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr, ast.BitXor),
    ast.BitOr: (ast.BitAnd, ast.BitXor),
    ast.BitXor: (ast.BitAnd, ast.BitOr),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
}
_ORDER_MATTERS = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift)
_BOUNDARY: Mapping[type, type] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_COMPARISON: Mapping[type, type] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_ALIKE = (
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


def arithmetic_operator(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """`a + b` becomes `a - b`."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        for other in _ARITHMETIC.get(type(node.op), ()):
            yield changed(node, op=other())


def boundary(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """`a < b` becomes `a <= b`."""
    return _compared_by(node, _BOUNDARY)


def comparison_operator(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """`a == b` becomes `a != b`."""
    return _compared_by(node, _COMPARISON)


def _compared_by(node: ast.AST, others: Mapping[type, type]) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for position, operator in enumerate(node.ops):
            if type(operator) in others:
                yield changed(node, ops=exchanged(node.ops, position, others[type(operator)]()))


def swapped_connective(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """`a and b` becomes `a or b`."""
    if isinstance(node, ast.BoolOp):
        yield changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())


def swapped_operands(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """`a - b` becomes `b - a`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, _ORDER_MATTERS):
        yield changed(node, left=node.right, right=node.left)


def off_by_one_index(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """`xs[0]` becomes `xs[1]`."""
    if (
        isinstance(node, ast.Subscript)
        and not isinstance(node.slice, (ast.Slice, ast.Tuple))
        and not (isinstance(node.slice, ast.Constant) and whole_number(node.slice) is None)
    ):
        for index in shifted(node.slice):
            yield changed(node, slice=index)


def off_by_one_slice(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """`xs[1:]` becomes `xs[2:]`."""
    if isinstance(node, ast.Slice):
        for field in ("lower", "upper"):
            bound = getattr(node, field)
            if bound is not None:
                for other in shifted(bound):
                    yield changed(node, **{field: other})


def off_by_one_range(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """`range(n)` becomes `range(n - 1)`; the step stays."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        for position, bound in enumerate(node.args[:2]):
            for other in shifted(bound):
                yield changed(node, args=exchanged(node.args, position, other))


def wrong_constant(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """`2` becomes `3`, `True` becomes `False`, a text loses its last character."""
    if not isinstance(node, ast.Constant):
        return
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield from shifted(node)
    elif isinstance(node.value, str):
        yield ast.Constant(node.value[:-1] if node.value else " ")


def wrong_variable(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """A variable is taken for another one that is known there."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
        for other in names:
            if other != node.id:
                yield changed(node, id=other)


def swapped_arguments(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """`f(a, b)` becomes `f(b, a)`."""
    if isinstance(node, ast.Call) and not any(isinstance(argument, ast.Starred) for argument in node.args):
        for position in range(len(node.args) - 1):
            first, second = node.args[position : position + 2]
            yield changed(node, args=[*node.args[:position], second, first, *node.args[position + 2 :]])


def dropped_argument(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """`sorted(xs, reverse=True)` becomes `sorted(xs)`."""
    if isinstance(node, ast.Call):
        for position in range(len(node.keywords)):
            yield changed(node, keywords=[*node.keywords[:position], *node.keywords[position + 1 :]])
        if len(node.args) > 1:
            yield changed(node, args=node.args[:-1])


def wrong_function(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """`min(xs)` becomes `max(xs)`, `s.lower()` becomes `s.upper()`."""
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name):
            for other in _mistaken_for(function.id):
                yield changed(node, func=changed(function, id=other))
        elif isinstance(function, ast.Attribute):
            for other in _mistaken_for(function.attr):
                yield changed(node, func=changed(function, attr=other))


def _mistaken_for(name: str) -> Iterator[str]:
    for one, other in _ALIKE:
        if name in (one, other):
            yield other if name == one else one
    yield from (other for one, other in _ONE_WAY if name == one)


def dropped_call(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """`abs(n)` becomes `n`, `s.strip()` becomes `s`."""
    if isinstance(node, ast.Call) and not node.keywords:
        function = node.func
        if isinstance(function, ast.Name) and function.id in _DROPPABLE_FUNCTIONS and len(node.args) == 1:
            yield node.args[0]
        if isinstance(function, ast.Attribute) and function.attr in _DROPPABLE_METHODS and not node.args:
            yield function.value


def dropped_sign(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """`-n` becomes `n`, `[::-1]` becomes `[::1]`."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Invert)):
        yield node.operand


def negated_condition(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """`if a` becomes `if not a`, also in a loop, a conditional expression or a filter."""
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield changed(node, test=_negated(node.test))
    elif isinstance(node, ast.comprehension):
        for position, condition in enumerate(node.ifs):
            yield changed(node, ifs=exchanged(node.ifs, position, _negated(condition)))


def _negated(condition: ast.expr) -> ast.expr:
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        return condition.operand
    return ast.UnaryOp(ast.Not(), condition)


def dropped_filter(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """`[x for x in xs if x]` becomes `[x for x in xs]`."""
    if isinstance(node, ast.comprehension):
        for position in range(len(node.ifs)):
            yield changed(node, ifs=[*node.ifs[:position], *node.ifs[position + 1 :]])


def dropped_case(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """`a if c else b` becomes `a` or `b`; of `a and b` one part is left out."""
    if isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.BoolOp):
        for position in range(len(node.values)):
            kept = [*node.values[:position], *node.values[position + 1 :]]
            yield kept[0] if len(kept) == 1 else changed(node, values=kept)
