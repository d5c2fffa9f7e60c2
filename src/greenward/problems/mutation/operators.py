"""Mutation operators: for a node of a syntax tree, what a programmer could have written instead.

The kinds follow the operators of mutation testing (Offutt et al. 1996) and those of real one-line bugs
(Karampatsis and Sutton 2020, ManySStuBs4J; Muennighoff et al. 2023, HumanEvalPack).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

# What takes the place of a node: another node, or any number of statements.
Replacement = ast.AST | list[ast.stmt]
# (node, names that are bound there) -> the replacements
Operator = Callable[[Any, Sequence[str]], Iterator[Replacement]]
Node = TypeVar("Node", bound=ast.AST)

# The operators by name, with the types of nodes to which they apply. If two of them give the same program, it
# counts for the first.
MUTATION_OPERATORS: dict[str, tuple[tuple[type[ast.AST], ...], Operator]] = {}

_JUMPS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_UPDATING_METHODS = (
    "append", "extend", "add", "insert", "update", "pop", "remove", "discard", "sort", "reverse",
)  # fmt: skip
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


def _applies_to(*types: type[ast.AST]) -> Callable[[Operator], Operator]:
    def register(operator: Operator) -> Operator:
        MUTATION_OPERATORS[operator.__name__] = (types, operator)
        return operator

    return register


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
        if number is not None:
            yield _literal(number + step)
        else:
            yield ast.BinOp(expression, operator, ast.Constant(1))


def _integer(expression: ast.expr) -> int | None:
    """The value of a literal such as `3` or `-1`; None for anything else, True and False included."""
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.USub):
        value = _integer(expression.operand)
        return None if value is None else -value
    if isinstance(expression, ast.Constant) and type(expression.value) is int:
        return expression.value
    return None


def _literal(value: int) -> ast.expr:
    return ast.UnaryOp(ast.USub(), ast.Constant(-value)) if value < 0 else ast.Constant(value)


@_applies_to(ast.AST)
def early_return(node: ast.AST, names: Sequence[str]) -> Iterator[Replacement]:
    """The return that follows a loop is already at the end of its body."""
    body = getattr(node, "body", None)
    if isinstance(body, list):
        for position, (loop, following) in enumerate(pairwise(body)):
            if isinstance(loop, (ast.For, ast.While)) and isinstance(following, ast.Return):
                returning = _changed(loop, body=[*loop.body, following])
                yield _changed(node, body=_exchanged(body, position, returning))


@_applies_to(ast.If)
def dropped_guard(node: ast.If, names: Sequence[str]) -> Iterator[Replacement]:
    """`if not xs: return 0` is left out."""
    if not node.orelse and isinstance(node.body[-1], _JUMPS):
        yield []


@_applies_to(ast.If)
def dropped_branch(node: ast.If, names: Sequence[str]) -> Iterator[Replacement]:
    """An `else` or all that follows an `elif` is left out, or an `if` that does not end in a jump."""
    if node.orelse:
        yield _changed(node, orelse=[])
    elif not isinstance(node.body[-1], _JUMPS):
        yield []


@_applies_to(ast.Assign)
def wrong_initial_value(node: ast.Assign, names: Sequence[str]) -> Iterator[Replacement]:
    """`total = 0` becomes `total = 1`, `best = None` becomes `best = 0`, `text = ''` becomes `text = ' '`."""
    number = _integer(node.value)
    if number is not None:
        yield _changed(node, value=_literal(1 if number == 0 else 0))
    elif isinstance(node.value, ast.Constant) and node.value.value is None:
        yield _changed(node, value=_literal(0))
    elif isinstance(node.value, ast.Constant) and node.value.value == "":
        yield _changed(node, value=ast.Constant(" "))


@_applies_to(ast.Return)
def missing_return(node: ast.Return, names: Sequence[str]) -> Iterator[Replacement]:
    """`return f(x)` becomes `f(x)`, `return x` is left out."""
    if node.value is not None:
        yield [] if isinstance(node.value, (ast.Name, ast.Constant)) else [ast.Expr(node.value)]


@_applies_to(ast.AugAssign, ast.Assign, ast.Expr)
def missing_update(node: ast.stmt, names: Sequence[str]) -> Iterator[Replacement]:
    """`i += 1`, `xs = f(xs)` or `xs.append(x)` is left out."""
    if isinstance(node, ast.Assign):
        targets = {name for target in node.targets for name in _names_in(target)}
        is_update = not targets.isdisjoint(_names_in(node.value))
    elif isinstance(node, ast.Expr):
        function = node.value.func if isinstance(node.value, ast.Call) else None
        is_update = isinstance(function, ast.Attribute) and function.attr in _UPDATING_METHODS
    else:
        is_update = True
    if is_update:
        yield []


def _names_in(expression: ast.expr) -> Iterator[str]:
    return (part.id for part in ast.walk(expression) if isinstance(part, ast.Name))


@_applies_to(ast.Break, ast.Continue)
def wrong_jump(node: ast.stmt, names: Sequence[str]) -> Iterator[Replacement]:
    """`break` becomes `continue`, or is left out."""
    yield [ast.Continue() if isinstance(node, ast.Break) else ast.Break()]
    yield []


@_applies_to(ast.Subscript)
def off_by_one_index(node: ast.Subscript, names: Sequence[str]) -> Iterator[Replacement]:
    """`xs[0]` becomes `xs[1]`."""
    is_key = isinstance(node.slice, ast.Constant) and _integer(node.slice) is None
    if not is_key and not isinstance(node.slice, (ast.Slice, ast.Tuple)):
        for index in _shifted(node.slice):
            yield _changed(node, slice=index)


@_applies_to(ast.Slice)
def off_by_one_slice(node: ast.Slice, names: Sequence[str]) -> Iterator[Replacement]:
    """`xs[1:]` becomes `xs[2:]`."""
    for field, bound in (("lower", node.lower), ("upper", node.upper)):
        for other in _shifted(bound) if bound is not None else ():
            yield _changed(node, **{field: other})


@_applies_to(ast.Call)
def off_by_one_range(node: ast.Call, names: Sequence[str]) -> Iterator[Replacement]:
    """`range(n)` becomes `range(n - 1)`; the step stays."""
    if isinstance(node.func, ast.Name) and node.func.id == "range":
        for position, bound in enumerate(node.args[:2]):
            for other in _shifted(bound):
                yield _changed(node, args=_exchanged(node.args, position, other))


@_applies_to(ast.Compare)
def boundary(node: ast.Compare, names: Sequence[str]) -> Iterator[Replacement]:
    """`a < b` becomes `a <= b`."""
    return _compared_by(node, _BOUNDARY)


@_applies_to(ast.Compare)
def comparison_operator(node: ast.Compare, names: Sequence[str]) -> Iterator[Replacement]:
    """`a == b` becomes `a != b`."""
    return _compared_by(node, _COMPARISON)


def _compared_by(node: ast.Compare, others: Mapping[type, type]) -> Iterator[Replacement]:
    for position, operator in enumerate(node.ops):
        if type(operator) in others:
            yield _changed(node, ops=_exchanged(node.ops, position, others[type(operator)]()))


@_applies_to(ast.If, ast.While, ast.IfExp, ast.comprehension)
def negated_condition(node: Any, names: Sequence[str]) -> Iterator[Replacement]:
    """`if a` becomes `if not a`, also in a loop, a conditional expression or a filter."""
    if isinstance(node, ast.comprehension):
        for position, condition in enumerate(node.ifs):
            yield _changed(node, ifs=_exchanged(node.ifs, position, _negated(condition)))
    else:
        yield _changed(node, test=_negated(node.test))


def _negated(condition: ast.expr) -> ast.expr:
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        return condition.operand
    return ast.UnaryOp(ast.Not(), condition)


@_applies_to(ast.comprehension)
def dropped_filter(node: ast.comprehension, names: Sequence[str]) -> Iterator[Replacement]:
    """`[x for x in xs if x]` becomes `[x for x in xs]`."""
    for position in range(len(node.ifs)):
        yield _changed(node, ifs=_exchanged(node.ifs, position))


@_applies_to(ast.IfExp, ast.BoolOp)
def dropped_case(node: ast.IfExp | ast.BoolOp, names: Sequence[str]) -> Iterator[Replacement]:
    """`a if c else b` becomes `a` or `b`; one part of `a and b` is left out."""
    if isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    else:
        for position in range(len(node.values)):
            kept = _exchanged(node.values, position)
            yield kept[0] if len(kept) == 1 else _changed(node, values=kept)


@_applies_to(ast.BoolOp)
def swapped_connective(node: ast.BoolOp, names: Sequence[str]) -> Iterator[Replacement]:
    """`a and b` becomes `a or b`."""
    yield _changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())


@_applies_to(ast.BinOp, ast.AugAssign)
def arithmetic_operator(node: ast.BinOp | ast.AugAssign, names: Sequence[str]) -> Iterator[Replacement]:
    """`a + b` becomes `a - b`."""
    for other in _ARITHMETIC.get(type(node.op), ()):
        yield _changed(node, op=other())


@_applies_to(ast.BinOp)
def swapped_operands(node: ast.BinOp, names: Sequence[str]) -> Iterator[Replacement]:
    """`a - b` becomes `b - a`."""
    if isinstance(node.op, _ORDER_MATTERS):
        yield _changed(node, left=node.right, right=node.left)


@_applies_to(ast.Call)
def wrong_function(node: ast.Call, names: Sequence[str]) -> Iterator[Replacement]:
    """`min(xs)` becomes `max(xs)`, `s.lower()` becomes `s.upper()`."""
    field = {ast.Name: "id", ast.Attribute: "attr"}.get(type(node.func))
    if field:
        name = getattr(node.func, field)
        others = [b if name == a else a for a, b in _INTERCHANGEABLE if name in (a, b)]
        for other in (*others, *(b for a, b in _ONE_WAY if name == a)):
            yield _changed(node, func=_changed(node.func, **{field: other}))


@_applies_to(ast.Call)
def dropped_call(node: ast.Call, names: Sequence[str]) -> Iterator[Replacement]:
    """`abs(n)` becomes `n`, `s.strip()` becomes `s`."""
    function = node.func
    if node.keywords:
        return
    if isinstance(function, ast.Name) and function.id in _DROPPABLE_FUNCTIONS and len(node.args) == 1:
        yield node.args[0]
    if isinstance(function, ast.Attribute) and function.attr in _DROPPABLE_METHODS and not node.args:
        yield function.value


@_applies_to(ast.Call)
def swapped_arguments(node: ast.Call, names: Sequence[str]) -> Iterator[Replacement]:
    """`f(a, b)` becomes `f(b, a)`."""
    if not any(isinstance(argument, ast.Starred) for argument in node.args):
        for position in range(len(node.args) - 1):
            first, second = node.args[position : position + 2]
            yield _changed(node, args=[*node.args[:position], second, first, *node.args[position + 2 :]])


@_applies_to(ast.Call)
def dropped_argument(node: ast.Call, names: Sequence[str]) -> Iterator[Replacement]:
    """`sorted(xs, reverse=True)` becomes `sorted(xs)`."""
    for position in range(len(node.keywords)):
        yield _changed(node, keywords=_exchanged(node.keywords, position))
    if len(node.args) > 1:
        yield _changed(node, args=node.args[:-1])


@_applies_to(ast.UnaryOp)
def dropped_sign(node: ast.UnaryOp, names: Sequence[str]) -> Iterator[Replacement]:
    """`-n` becomes `n`, `[::-1]` becomes `[::1]`."""
    if isinstance(node.op, (ast.USub, ast.Invert)):
        yield node.operand


@_applies_to(ast.Name)
def wrong_variable(node: ast.Name, names: Sequence[str]) -> Iterator[Replacement]:
    """Another variable that is bound there takes the place of a variable."""
    if isinstance(node.ctx, ast.Load) and node.id in names:
        for other in names:
            if other != node.id:
                yield _changed(node, id=other)


@_applies_to(ast.Constant)
def wrong_constant(node: ast.Constant, names: Sequence[str]) -> Iterator[Replacement]:
    """`2` becomes `3`, `True` becomes `False`, a text loses its last character."""
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield from _shifted(node)
    elif isinstance(node.value, str):
        yield ast.Constant(node.value[:-1] if node.value else " ")
