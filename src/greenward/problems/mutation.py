"""Puts plausible bugs into programs, and makes repair problems of them.

The kinds follow the operators of mutation testing (Offutt et al. 1996) and those of real one-line bugs
(Karampatsis and Sutton 2020, ManySStuBs4J; Muennighoff et al. 2023, HumanEvalPack). A program with a bug is
a candidate: only its tests tell whether it computes anything else than the original.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TypeVar

from greenward.problems.names import KIND_TAG, MUTANT_TAG
from greenward.problems.problem import Problem, ProblemSet, stable_hash
from greenward.problems.python_source import function_named, parse, parse_or_none

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
            yield "missing_return", [] if isinstance(value, (ast.Name, ast.Constant)) else [ast.Expr(value)]
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
                        yield kind, _changed(node, ops=_exchanged(ops, position, operators[type(operator)]()))
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


MAX_MUTANT_CHARS = 64 << 20

# Fields of nodes that declare a program's interface and do not compute anything.
_DECLARING = ("args", "annotation", "returns", "decorator_list", "type_params", "bases")
_DECLARING_OWNERS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.AnnAssign)
_EVALUATED_FIRST = ("value", "iter")  # before the names that they are bound to
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def repair_candidates(problems: ProblemSet, *, per_problem: int, seed: int) -> ProblemSet:
    """Up to `per_problem` repair problems for each problem, in the order of the problems.

    Each has a `buggy_code` with one bug, the tag `bug:<kind>`, the tests of its original, and as task id that
    of the original, `#` and a number. The kinds alternate in an order that follows from the seed and the
    problem. Which bugs change what a program computes is not known yet (`grading.verification` finds out).
    Problems whose reference is missing, is not Python or has no mutant are left out.
    """
    candidates = (_candidates(problem, per_problem, seed) for problem in problems)
    return problems.with_problems(chain.from_iterable(candidates), name=f"{problems.name}/bugs")


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
    """A program with one bug and the kind of the bug, a key of `KINDS`."""

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
            changed: Replacement = replacement
            if index is not None:  # in a list
                inserted = replacement if isinstance(replacement, list) else [replacement]
                changed = _exchanged(before, index, *inserted) or [ast.Pass()]
            setattr(owner, field, changed)
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


def _places_below(
    owner: ast.AST, names: dict[str, None]
) -> Iterator[tuple[ast.AST, ast.AST, str, int | None, tuple[str, ...]]]:
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
    names = (part for part in ast.walk(target) if isinstance(part, ast.Name))
    return (part.id for part in names if isinstance(part.ctx, ast.Store))


def _is_excluded(node: ast.AST) -> bool:
    """Docstrings, imports, and formatted strings, whose parts cannot be parsed on their own."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr, ast.expr_context))
