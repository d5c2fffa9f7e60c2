"""Assert statements split into the call of the answer's function and what is expected of its value.

`assert f(2) == 4` becomes the call `f(2)`, which the answer's process makes, and the expression `4`,
which is evaluated elsewhere; the grader compares the two values. Only a bare call of the entry point
is split off: any operation on its value (`len(f(2))`, `f(2)[0]`, `f(2) == f(3)`) would be evaluated
by objects and built-in functions that the answer controls. A test of another shape runs as a check
program, in a process that runs no code of the answer.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from enum import Enum

from greenward.errors import ProblemError
from greenward.problems.python_source import UNREADABLE


class Relation(str, Enum):
    """What must hold between what came back and what was expected."""

    EQUAL = "=="
    NOT_EQUAL = "!="
    IDENTICAL = "is"
    NOT_IDENTICAL = "is not"
    MEMBER = "in"
    NOT_MEMBER = "not in"
    CLOSE = "close"
    TRUE = "true"
    FALSE = "false"
    RAISES = "raises"
    PRINTS = "prints"
    EXAMPLE = "example"  # of a doctest
    COMPLETES = "completes"


@dataclass(frozen=True)
class Assertion:
    """One test: a `call` of the entry point, and what is `expected` (if anything), without the answer."""

    call: str
    relation: Relation
    expected: str | None = None
    tolerances: tuple[float, float] = (0.0, 0.0)  # of CLOSE: relative and absolute


_RELATIONS: dict[type[ast.cmpop], Relation] = {
    ast.Eq: Relation.EQUAL,
    ast.NotEq: Relation.NOT_EQUAL,
    ast.Is: Relation.IDENTICAL,
    ast.IsNot: Relation.NOT_IDENTICAL,
    ast.In: Relation.MEMBER,
    ast.NotIn: Relation.NOT_MEMBER,
}
_SYMMETRIC = (Relation.EQUAL, Relation.NOT_EQUAL, Relation.CLOSE)


def parse_assertion(source: str, entry_point: str) -> Assertion | None:
    """The parts of one test; None if it is to run as a check program.

    Raises `ProblemError` if it is not Python.
    """
    try:
        body = ast.parse(clean_test(source)).body
    except UNREADABLE as error:
        raise ProblemError(f"the test {source!r} is not Python: {error}.") from None
    if not body:
        raise ProblemError(f"the test {source!r} is empty.")
    match body:
        case [ast.Assert(ast.UnaryOp(ast.Not(), operand))]:
            return _assertion(entry_point, Relation.FALSE, operand)
        case [ast.Assert(ast.Compare(left, [ast.Lt() | ast.LtE()], [right]))]:
            return _near(left, right, entry_point)
        case [ast.Assert(ast.Compare(left, [operator], [right]))] if type(operator) in _RELATIONS:
            return _assertion(entry_point, _RELATIONS[type(operator)], left, right)
        case [ast.Assert(ast.Call() as test)]:
            return _assertion(entry_point, Relation.TRUE, test) or _is_close(test, entry_point)
    return None


def clean_test(source: str) -> str:
    """A test as Python reads it: some suites have carriage returns, or spaces in front."""
    return source.replace("\r\n", "\n").strip()


def _assertion(
    entry_point: str,
    relation: Relation,
    actual: ast.expr,
    expected: ast.expr | None = None,
    *,
    tolerances: tuple[float, float] = (0.0, 0.0),
) -> Assertion | None:
    """The assertion, if one side is a bare call of the entry point and the other does not use it."""
    if expected is not None and relation in _SYMMETRIC and _is_bare_call(expected, entry_point):
        actual, expected = expected, actual
    if not _is_bare_call(actual, entry_point):
        return None
    if expected is None:
        return Assertion(ast.unparse(actual), relation)
    if any(_is_name(inner, entry_point) for inner in ast.walk(expected)):
        return None
    is_singleton = isinstance(expected, ast.Constant) and isinstance(expected.value, (bool, type(None)))
    if relation in (Relation.IDENTICAL, Relation.NOT_IDENTICAL) and not is_singleton:
        return None
    return Assertion(ast.unparse(actual), relation, ast.unparse(expected), tolerances)


def _near(left: ast.expr, right: ast.expr, entry_point: str) -> Assertion | None:
    """`abs(f(x) - y) < eps`."""
    bound = _number(right)
    match left:
        case ast.Call(ast.Name("abs"), [ast.BinOp(one, ast.Sub(), other)]) if bound is not None:
            return _assertion(entry_point, Relation.CLOSE, one, other, tolerances=(0.0, bound))
    return None


def _is_close(test: ast.Call, entry_point: str) -> Assertion | None:
    """`math.isclose(f(x), y, rel_tol=…, abs_tol=…)`."""
    if ast.unparse(test.func) not in ("math.isclose", "isclose") or len(test.args) != 2:
        return None
    tolerances = {"rel_tol": 1e-9, "abs_tol": 0.0}
    for keyword in test.keywords:
        value = _number(keyword.value)
        if keyword.arg not in tolerances or value is None:
            return None
        tolerances[keyword.arg] = value
    both = tolerances["rel_tol"], tolerances["abs_tol"]
    return _assertion(entry_point, Relation.CLOSE, *test.args, tolerances=both)


def _is_bare_call(node: ast.expr, entry_point: str) -> bool:
    """Whether this is a call of the entry point by its name, with arguments that do not use it."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == entry_point):
        return False
    inner = [one for part in (*node.args, *node.keywords) for one in ast.walk(part)]
    return not any(_is_name(one, entry_point) or isinstance(one, ast.NamedExpr) for one in inner)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _number(node: ast.expr) -> float | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return float(value) if isinstance(value, (int, float)) else None
