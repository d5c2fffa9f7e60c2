"""Removes dead code from an answer, so that it cannot raise a score.

Dead are bindings, functions and imports that nothing live reads, statements without effect, those that
cannot be reached, and on function problems output. Live is what the entry point needs, by name: a name
that is read anywhere in live code counts as used everywhere.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from greenward.problems.python_source import Definition, FunctionNode, dotted_name

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
    level counts as live. It takes linear time.
    """
    defined = {name for node in tree.body for name in bound_names(node)}
    everything = {node.name for node in tree.body if isinstance(node, Definition)}
    scan = _LivenessScan(tree, bool(entry_point), given)
    scan.run({entry_point} if entry_point in defined else everything)
    return scan.cut(lines)


class _LivenessScan:
    """Finds the live statements of a program. A name that becomes live wakes the statements that bind it."""

    def __init__(self, tree: ast.Module, output_is_dead: bool, given: int) -> None:
        self._tree = tree
        self._output_is_dead = output_is_dead
        self._given = given
        self._pure = _pure_functions(tree)
        self._live: set[ast.stmt] = set()
        self._names: set[str] = set()
        self._waiting: dict[str, list[ast.stmt]] = {}
        self._woken: list[ast.stmt] = []
        self._around: dict[ast.stmt, ast.stmt] = {}  # the compound statement of one that makes it live
        self._blocks: list[tuple[Sequence[ast.stmt], ast.stmt | None, bool]] = []

    def run(self, names: set[str]) -> None:
        """Finds what is live if `names` are."""
        self._names = set(names)
        self._blocks = [(self._tree.body, None, False)]
        while self._woken or self._blocks:
            if self._woken:
                self._mark(self._woken.pop())
            else:
                self._look_at(*self._blocks.pop())

    def cut(self, lines: Sequence[str]) -> LiveCode:
        """The program without what is dead. What shares a line with live code stays there."""
        removed, emptied, dead = self._dead()
        kept = set(_statements(self._tree.body, skip=set(removed)))
        shared = {line for one in kept for line in _own_lines(one)}
        gone: set[int] = set()
        for statement in removed:
            span = set(range(_first_line(statement), (statement.end_lineno or statement.lineno) + 1))
            if not span & shared:
                gone |= span
            dead += sum(isinstance(one, ast.stmt) and not _is_text(one) for one in ast.walk(statement))
        fillers = {_first_line(one): " " * one.col_offset + "pass" for one in emptied}
        text = [
            fillers.get(number, line) if number in gone else line
            for number, line in enumerate(lines, start=1)
            if number <= self._given or (_holds_code(line) and (number not in gone or number in fillers))
        ]
        return LiveCode("\n".join(text) + "\n", dead)

    def _dead(self) -> tuple[list[ast.stmt], list[ast.stmt], int]:
        """The dead statements, the first one of each block without live ones, and how many names are imported
        in vain beside others that are not.
        """
        removed, emptied, extra = list[ast.stmt](), list[ast.stmt](), 0
        blocks: list[Sequence[ast.stmt]] = [self._tree.body]
        while blocks:
            body = blocks.pop()
            dropped = [one for one in body if self._is_judged(one) and one not in self._live]
            removed += dropped
            if dropped and len(dropped) == len(body) and body is not self._tree.body:
                emptied.append(dropped[0])  # an empty program needs no `pass`
            for one in body:
                if one not in self._live:
                    continue
                if isinstance(one, (ast.Import, ast.ImportFrom)):
                    used = sum(name in self._names or name == "*" for name in bound_names(one))
                    extra += len(one.names) - used if used else 0
                elif isinstance(one, Definition):
                    blocks.append(one.body)
                elif isinstance(one, _COMPOUND):
                    blocks += (*_blocks_of(one), *(handler.body for handler in _handlers(one)))
        return removed, emptied, extra

    def _is_judged(self, node: ast.stmt) -> bool:
        return (node.end_lineno or 0) > self._given

    def _look_at(self, body: Sequence[ast.stmt], around: ast.stmt | None, is_class: bool) -> None:
        """Marks those statements of a block that are live in any case; others wait for their names."""
        has_ended = False
        for node in body:
            if has_ended and self._is_judged(node):
                continue
            has_ended = isinstance(node, _ENDS)
            if around is not None:
                self._around[node] = around
            if not self._is_judged(node):
                self._mark_around(node)
                continue
            live = self._is_live(node, is_class, len(body) > 1)
            if live is True or (live and live & self._names):
                self._mark(node)
            elif live:
                for name in live:
                    self._waiting.setdefault(name, []).append(node)

    def _is_live(self, node: ast.stmt, is_class: bool, has_neighbours: bool) -> bool | set[str]:
        """Whether a statement that is reached does anything in any case, or with which names it does."""
        if isinstance(node, ast.Pass):
            return not has_neighbours
        if isinstance(node, Definition):
            return is_class or {node.name}
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = set(bound_names(node))
            return "*" in names or (isinstance(node, ast.ImportFrom) and node.module == "__future__") or names
        if isinstance(node, _COMPOUND):
            test = None if getattr(node, "orelse", ()) else getattr(node, "test", None)
            if isinstance(test, ast.Constant) and not test.value:
                return False
            self._blocks += [(block, node, False) for block in _blocks_of(node)]
            return not all(_is_pure(one, self._pure) for one in _heads(node))
        if isinstance(node, ast.Expr):
            return not (_is_pure(node.value, self._pure) or self._is_dead_output(node.value))
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            return is_class or self._binds(node)
        return True

    def _mark(self, node: ast.stmt) -> None:
        """Notes that a statement is live, and the names that it reads."""
        if node in self._live:
            return
        self._live.add(node)
        if isinstance(node, Definition):
            self._read(*(one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.stmt)))
            self._blocks.append((node.body, None, isinstance(node, ast.ClassDef)))
        elif isinstance(node, _COMPOUND):
            handlers = _handlers(node)
            self._read(*_heads(node), *(one.type for one in handlers if one.type is not None))
            self._blocks += [(handler.body, None, False) for handler in handlers]
        else:
            self._read(node)
        self._mark_around(node)

    def _mark_around(self, node: ast.stmt) -> None:
        """Has the compound statement around become live, unless the statement is idle in it."""
        around = self._around.get(node)
        idle = (ast.Pass,) if isinstance(around, ast.If) else (ast.Pass, ast.Break, ast.Continue)
        if around is not None and not isinstance(node, idle):
            self._woken.append(around)

    def _binds(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> bool | set[str]:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is None:
            return False
        if not isinstance(node, ast.AugAssign) and any(_is_same(one, node.value) for one in targets):
            return False
        if not _is_pure(node.value, self._pure):
            return True
        return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}

    def _is_dead_output(self, node: ast.expr) -> bool:
        return self._output_is_dead and isinstance(node, ast.Call) and dotted_name(node.func) in _OUTPUT

    def _read(self, *nodes: ast.AST) -> None:
        for node in nodes:
            for one in ast.walk(node):
                if isinstance(one, ast.Name) and isinstance(one.ctx, (ast.Load, ast.Del)):
                    self._names.add(one.id)
                    self._woken += self._waiting.pop(one.id, ())


def _blocks_of(node: ast.stmt) -> list[list[ast.stmt]]:
    """The blocks of a compound statement, without those of its handlers."""
    return [block for name in ("body", "orelse", "finalbody") if (block := getattr(node, name, []))]


def _handlers(node: ast.stmt) -> list[ast.ExceptHandler]:
    return getattr(node, "handlers", [])


def _heads(node: ast.stmt) -> list[ast.AST]:
    return [one for one in ast.iter_child_nodes(node) if isinstance(one, (ast.expr, ast.withitem))]


def _is_same(one: ast.AST, other: ast.AST) -> bool:
    """Whether two expressions are equal, one as what is bound and the other as what is read."""
    pairs: list[tuple[object, object]] = [(one, other)]
    while pairs:
        first, second = pairs.pop()
        if isinstance(first, ast.expr_context):
            continue
        if type(first) is not type(second):
            return False
        if isinstance(first, ast.AST):
            pairs += [(getattr(first, name, None), getattr(second, name, None)) for name in first._fields]
        elif isinstance(first, list) and isinstance(second, list):
            if len(first) != len(second):
                return False
            pairs += zip(first, second, strict=True)
        elif first != second:
            return False
    return True


def _calls_if_pure(node: ast.AST) -> set[str] | None:
    """The functions of the program that have to be pure if evaluating it changes nothing, as far as names can
    tell; None if it changes something.
    """
    calls: set[str] = set()
    for one in ast.walk(node):
        if isinstance(one, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)):
            return None
        if isinstance(one, ast.Call):
            called = one.func
            if isinstance(called, ast.Name):
                calls |= {called.id} - _PURE
            elif not (isinstance(called, ast.Attribute) and called.attr in _PURE_METHODS):
                return None
    return calls


def _is_pure(node: ast.AST, functions: Collection[str]) -> bool:
    calls = _calls_if_pure(node)
    return calls is not None and all(name in functions for name in calls)


def _pure_functions(tree: ast.Module) -> set[str]:
    """The functions of a program that change nothing but their own names."""
    found = {node.name: node for node in ast.walk(tree) if isinstance(node, FunctionNode)}
    callers: dict[str, list[str]] = {name: [] for name in found}
    impure = []
    for name, function in found.items():
        calls = None if _changes_others(function) else _calls_if_pure(function)
        if calls is None or any(one not in found for one in calls):
            impure.append(name)
        else:
            for one in calls:
                callers[one].append(name)
    pure = set(found)
    while impure:
        name = impure.pop()
        if name in pure:
            pure.remove(name)
            impure += callers[name]
    return pure


def _changes_others(function: ast.AST) -> bool:
    return any(
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
