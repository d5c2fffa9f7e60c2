"""Removes dead code from an answer, so that it cannot raise a score.

Dead are bindings, functions and imports that nothing live reads, statements without effect, those that
cannot be reached, and on function problems output. Live is what the entry point needs, by name: a name
that is read anywhere in live code counts as used everywhere.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from greenward.problems.python_source import Definition, FunctionNode

_PURE = frozenset({
    "abs", "all", "any", "ascii", "bin", "bool", "bytes", "callable", "chr", "complex", "dict",
    "divmod", "enumerate", "filter", "float", "format", "frozenset", "hash", "hex", "id", "int",
    "isinstance", "issubclass", "len", "list", "map", "max", "min", "oct", "ord", "pow", "range",
    "repr", "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple", "type", "zip",
})  # fmt: skip
_PURE_METHODS = frozenset({
    "capitalize", "casefold", "copy", "count", "endswith", "find", "format", "get", "index",
    "isalnum", "isalpha", "isdigit", "islower", "isspace", "isupper", "items", "join", "keys",
    "lower", "lstrip", "replace", "rfind", "rstrip", "split", "splitlines", "startswith", "strip",
    "swapcase", "title", "upper", "values", "zfill",
})  # fmt: skip
_OUTPUT = frozenset({"print", "sys.stdout.write", "sys.stderr.write"})
_ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_COMPOUND = (ast.If, ast.While, ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.Try)


@dataclass(frozen=True)
class LiveCode:
    """A program without its dead statements, comment lines and blank lines.

    `dead` counts the dead statements, docstrings aside, whether or not they could be cut out.
    """

    code: str
    dead: int


def remove_dead_code(
    tree: ast.Module, lines: Sequence[str], entry_point: str = "", given: int = 0
) -> LiveCode:
    """The live part of a parsed program. The first `given` lines stay as they are and are not judged.

    Without an entry point, or where the program does not define it, every function and class of the top
    level counts as live. Raises `RecursionError` for code that is nested too deeply.
    """
    defined = {name for node in tree.body for name in bound_names(node)}
    everything = {node.name for node in tree.body if isinstance(node, Definition)}
    scan = _LivenessScan(
        {entry_point} if entry_point in defined else everything, bool(entry_point), given, tree
    )
    while True:
        known = len(scan.live)
        scan.run()
        if len(scan.live) == known:
            return scan.cut(lines)


class _LivenessScan:
    """Scans a program again and again, with more and more names known to be live."""

    def __init__(self, live: set[str], output_is_dead: bool, given: int, tree: ast.Module) -> None:
        self.live = live
        self._output_is_dead = output_is_dead
        self._given = given
        self._tree = tree
        self._pure = _pure_functions(tree)
        self._removed: list[ast.stmt] = []
        self._emptied: list[ast.stmt] = []
        self._extra = 0

    def run(self) -> None:
        """Finds the dead statements by the names that are live, and adds the names that the rest reads."""
        self._removed, self._emptied, self._extra = [], [], 0
        if not self._block(self._tree.body):
            self._emptied = []  # an empty program needs no `pass`

    def cut(self, lines: Sequence[str]) -> LiveCode:
        """The program without what the last run found. What shares a line with live code stays there."""
        kept = set(_statements(self._tree.body, skip=set(self._removed)))
        shared = {line for one in kept for line in _own_lines(one)}
        gone: set[int] = set()
        dead = self._extra
        for statement in self._removed:
            span = set(range(_first_line(statement), (statement.end_lineno or statement.lineno) + 1))
            if not span & shared:
                gone |= span
            dead += sum(isinstance(one, ast.stmt) and not _is_text(one) for one in ast.walk(statement))
        fillers = {_first_line(one): " " * one.col_offset + "pass" for one in self._emptied}
        text = [
            fillers.get(number, line) if number in gone else line
            for number, line in enumerate(lines, start=1)
            if number <= self._given or (_holds_code(line) and (number not in gone or number in fillers))
        ]
        return LiveCode("\n".join(text) + "\n", dead)

    def _block(self, body: Sequence[ast.stmt], *, is_class: bool = False) -> list[ast.stmt]:
        """The live statements of a block; the others are noted."""
        kept: list[ast.stmt] = []
        dropped: list[ast.stmt] = []
        for statement in body:
            judged = (statement.end_lineno or 0) > self._given
            reached = not (kept and isinstance(kept[-1], _ENDS))
            if judged and not (reached and self._is_live(statement, is_class, len(body) > 1)):
                dropped.append(statement)
            else:
                kept.append(statement)
        self._removed += dropped
        if dropped and not kept:
            self._emptied.append(dropped[0])
        return kept

    def _is_live(self, node: ast.stmt, is_class: bool, has_neighbours: bool) -> bool:
        """Whether a statement that is reached does anything; what lies inside of it is looked at as well."""
        live = True
        if isinstance(node, ast.Pass):
            return not has_neighbours
        if isinstance(node, Definition):
            if not (is_class or node.name in self.live):
                return False
            outer = copy.copy(node)
            outer.body = []
            self._read(outer)
            self._block(node.body, is_class=isinstance(node, ast.ClassDef))
            return True
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            used = sum(name in self.live or name == "*" for name in bound_names(node))
            if used:
                self._extra += len(node.names) - used
            return used > 0 or (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        if isinstance(node, _COMPOUND):
            test = None if getattr(node, "orelse", ()) else getattr(node, "test", None)
            return not (isinstance(test, ast.Constant) and not test.value) and self._compound(node)
        if isinstance(node, ast.Expr):
            live = not (_is_pure(node.value, self._pure) or self._is_dead_output(node.value))
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            live = is_class or self._binds(node)
        if live:
            self._read(node)
        return live

    def _compound(self, node: ast.stmt) -> bool:
        """Whether one of its blocks does anything; handlers do so only together with them."""
        noted = len(self._removed), len(self._emptied), self._extra, set(self.live)
        heads = [one for one in ast.iter_child_nodes(node) if isinstance(one, (ast.expr, ast.withitem))]
        handlers: list[ast.ExceptHandler] = getattr(node, "handlers", [])
        blocks = (getattr(node, name, ()) for name in ("body", "orelse", "finalbody"))
        found = [one for block in blocks for one in self._block(block)]
        for handler in handlers:
            self._block(handler.body)
        idle = (ast.Pass,) if isinstance(node, ast.If) else (ast.Pass, ast.Break, ast.Continue)
        if all(isinstance(one, idle) for one in found) and all(_is_pure(one, self._pure) for one in heads):
            del self._removed[noted[0] :], self._emptied[noted[1] :]
            self._extra, self.live = noted[2:]
            return False
        self._read(*heads, *(handler.type for handler in handlers if handler.type is not None))
        return True

    def _binds(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> bool:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is None:
            return False
        value = ast.unparse(node.value)
        if not isinstance(node, ast.AugAssign) and any(ast.unparse(one) == value for one in targets):
            return False
        names = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
        return bool(names & self.live) or not _is_pure(node.value, self._pure)

    def _is_dead_output(self, node: ast.expr) -> bool:
        return self._output_is_dead and isinstance(node, ast.Call) and ast.unparse(node.func) in _OUTPUT

    def _read(self, *nodes: ast.AST) -> None:
        self.live |= {
            one.id
            for node in nodes
            for one in ast.walk(node)
            if isinstance(one, ast.Name) and isinstance(one.ctx, (ast.Load, ast.Del))
        }


def _is_pure(node: ast.AST, functions: frozenset[str]) -> bool:
    """Whether evaluating it changes nothing, as far as names can tell."""
    for one in ast.walk(node):
        if isinstance(one, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)):
            return False
        if isinstance(one, ast.Call):
            called = one.func
            known = isinstance(called, ast.Name) and (called.id in _PURE or called.id in functions)
            method = isinstance(called, ast.Attribute) and called.attr in _PURE_METHODS
            if not (known or method):
                return False
    return True


def _pure_functions(tree: ast.Module) -> frozenset[str]:
    """The functions of a program that change nothing but their own names."""
    found = {node.name: node for node in ast.walk(tree) if isinstance(node, FunctionNode)}
    pure = frozenset(found)
    while True:
        rest = frozenset(name for name in pure if _changes_nothing(found[name], pure))
        if rest == pure:
            return pure
        pure = rest


def _changes_nothing(function: ast.AST, pure: frozenset[str]) -> bool:
    return _is_pure(function, pure) and not any(
        isinstance(
            one, (ast.Global, ast.Nonlocal, ast.Raise, ast.Assert, ast.Delete, ast.Import, ast.ImportFrom)
        )
        or (isinstance(one, (ast.Attribute, ast.Subscript)) and not isinstance(one.ctx, ast.Load))
        for one in ast.walk(function)
    )


def bound_names(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of the top level binds."""
    if isinstance(node, Definition):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))


def _is_text(node: ast.AST) -> bool:
    """A docstring, or a text that stands where a comment might."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _statements(body: Sequence[ast.AST], skip: set[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements of a block but those of `skip`, inner ones included."""
    pending = list(body)
    while pending:
        node = pending.pop()
        if node not in skip:
            if isinstance(node, ast.stmt):
                yield node
            pending += ast.iter_child_nodes(node)


def _own_lines(node: ast.stmt) -> range:
    """The lines of a statement without those of its blocks."""
    inner: list[ast.stmt] = getattr(node, "body", [])
    last = max(node.lineno, inner[0].lineno - 1) if inner else node.end_lineno or node.lineno
    return range(_first_line(node), last + 1)


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", ())
    return min([node.lineno, *(one.lineno for one in decorators)])


def _holds_code(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")
