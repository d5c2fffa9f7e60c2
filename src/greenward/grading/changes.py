"""Measures what a repair changes of a program, and leaves out of it what the repair does not need.

A model that writes a program anew loses comments, blank lines and docstrings, and rewrites what nobody asked
it to touch; or it writes a part of it alone. `completed` puts that part into the file, `without_idle_changes`
puts back what does not change the program, and `needed_change` puts back statements as long as tests pass.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO

from greenward.grading.matching import BoundedMatcher
from greenward.problems.python_source import bound_names, first_line, loaded_names, parse_or_none, same_trees

_HEADING = re.compile(r"\s*(?:async\s+)?(?:def|class)\s+(\w+)")
_MAX_CHARS = 1 << 18  # of a program that is looked at
_NO_CODE = (tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_REPLACED = (*_DEFINITIONS, ast.Assign, ast.AnnAssign)


def changed_lines(before: str | None, after: str | None) -> int:
    """How many lines a diff deletes and adds; None is a file that is not there."""
    old, new = ([] if text is None else text.split("\n") for text in (before, after))
    return sum(i2 - i1 + j2 - j1 for _, i1, i2, j1, j2 in _changes(old, new))


def without_idle_changes(before: str, after: str) -> str:
    """`after` with the comments, blank lines, docstrings and white space at line ends that `before` has.

    Lines of code are those of `after`; what belongs to new ones stays as `after` has it. The result is the
    same program as `after`, docstrings aside. `after` itself where it does not parse
    or is too long.
    """
    program = _parsed(after)
    if program is None or len(before) > _MAX_CHARS:
        return after
    old, new = _read(before), _read(after)
    written = list(old.head)
    ours, theirs = ([line.code for line in one.lines] for one in (old, new))
    for tag, i1, i2, j1, j2 in BoundedMatcher(ours, theirs).get_opcodes():
        replaced = old.lines[i1:i2]
        paired = (_paired(at, line, replaced) for at, line in enumerate(new.lines[j1:j2]))
        kept = replaced if tag == "equal" else paired
        written += (text for line in kept for text in (*line.above, line.text, *line.below))
    found = "\n".join((*written, *old.tail))
    merged = _parsed(found)
    if merged is None or not same_trees(_without_docstrings(merged), _without_docstrings(program)):
        return after
    return found


def needed_change(before: str, after: str, passes: Callable[[str], bool]) -> str:
    """`after` with each statement of the top level as `before` has it, where the program still `passes`.

    A statement stays changed, too, if without its change a name of either text would be used and not defined.
    Nothing is put back where a function takes other parameters than before, or one of both does not parse.
    """
    trees = _parsed(before), _parsed(after)
    if trees[0] is None or trees[1] is None or _parameters_differ(trees[0], trees[1]):
        return after
    old, new = before.split("\n"), after.split("\n")
    groups = _grouped(trees[0], old, new)
    kept, names = list(groups), bound_names(trees[0]) | bound_names(trees[1])
    if len(groups) < 2:
        return after
    for group in reversed(groups):  # what is used comes before what uses it
        fewer = [one for one in kept if one is not group]
        text = _applied(old, new, [change for one in fewer for change in one.changes])
        tree = _parsed(text)
        if tree is not None and not (names & loaded_names(tree)) - bound_names(tree) and passes(text):
            kept = fewer
    return _applied(old, new, [change for one in kept for change in one.changes])


def completed(before: str, after: str) -> str:
    """`before` with the definitions, assignments and imports of `after` in place of its own or beside them.

    Of a class, too, the methods that `after` has take the place of others. New imports stand at the top;
    what else is new stands before what follows it in `after`. The result is `after` itself where one of both
    does not parse.
    """
    trees = _parsed(before), _parsed(after)
    if trees[0] is None or trees[1] is None:
        return after
    old, new = before.split("\n"), after.split("\n")
    ours, theirs = (_statements(tree.body) for tree in trees if tree)
    ends = ours[-1].lines.stop if ours else 0
    return "\n".join((*_with_statements(old, ours, 0, new, theirs, 0), *old[ends:]))


@dataclass
class _Statements:
    """A statement or several that share a line, with the names that they bind; lines count from 0."""

    lines: range
    nodes: list[ast.stmt]
    names: set[str]

    @property
    def are_imports(self) -> bool:
        return all(isinstance(node, ast.Import | ast.ImportFrom) for node in self.nodes)

    @property
    def come_first(self) -> bool:
        """Whether no import may stand before them: docstrings and imports from `__future__`."""
        return all(
            _is_text(node) or (isinstance(node, ast.ImportFrom) and node.module == "__future__")
            for node in self.nodes
        )

    @property
    def is_definition(self) -> bool:
        return isinstance(self.nodes[0], _DEFINITIONS)

    def is_decorated_as(self, other: _Statements) -> bool:
        return same_trees(*(getattr(one.nodes[0], "decorator_list", []) for one in (self, other)))

    def opened(self, lines: Sequence[str]) -> ast.ClassDef | None:
        """The class that this is, if its body begins on a line of its own."""
        node = self.nodes[0]
        if not isinstance(node, ast.ClassDef):
            return None
        within = lines[_span(node.body[0]).start][: node.body[0].col_offset]
        return None if within.strip() else node


def _statements(body: Sequence[ast.stmt]) -> list[_Statements]:
    found: list[_Statements] = []
    for node in body:
        lines = _span(node)
        if found and lines.start < (last := found[-1]).lines.stop:
            last.lines = range(last.lines.start, lines.stop)
            last.nodes.append(node)
            last.names |= bound_names(node)
        else:
            found.append(_Statements(lines, [node], bound_names(node)))
    return found


def _with_statements(
    old: Sequence[str], ours: Sequence[_Statements], read: int,
    new: Sequence[str], theirs: Sequence[_Statements], begun: int,
) -> Iterator[str]:  # fmt: skip
    """The lines of `old` from `read` to the end of `ours`, with `theirs` in them.

    The lines of `theirs`, with what stands above them, begin at `begun` in `new`.
    """
    replaced = _replaced(ours, theirs)
    known = set[str]().union(*(one.names for one in ours))
    place = {number: at for at in reversed(replaced) for number in replaced[at]}  # each once
    written: dict[int, list[int]] = {at: [] for at in replaced}
    imports, waiting = list[str](), list[int]()
    for number, other in enumerate(theirs):
        if number in place:
            written[place[number]] += (*waiting, number)
            waiting = []
        elif not other.names <= known and other.are_imports:
            imports += new[other.lines.start : other.lines.stop]
        elif other.names and not other.names & known:
            waiting.append(number)

    def added(number: int) -> Sequence[str]:
        """A statement of `theirs` with what stands above it."""
        return new[theirs[number - 1].lines.stop if number else begun : theirs[number].lines.stop]

    for at, one in enumerate(ours):
        above = old[read : one.lines.start]
        read = one.lines.stop
        if imports and not one.come_first:
            is_below = one.are_imports or not at  # the first comments are those of the file
            above = [*above, *imports] if is_below else [*imports, *above]
            imports = []
        yield from above
        if at not in replaced:
            yield from old[one.lines.start : one.lines.stop]
        for number in written.get(at, ()):
            other = theirs[number]
            if number not in place:
                yield from added(number)
            elif (kept := one.opened(old)) and (found := other.opened(new)):
                bodies = _statements(kept.body), _statements(found.body)
                starts = bodies[0][0].lines.start, bodies[1][0].lines.start
                yield from new[other.lines.start : starts[1]]
                yield from _with_statements(old, bodies[0], starts[0], new, bodies[1], starts[1])
            else:
                yield from new[other.lines.start : other.lines.stop]
    yield from imports
    for number in waiting:
        yield from added(number)


def _replaced(ours: Sequence[_Statements], theirs: Sequence[_Statements]) -> dict[int, set[int]]:
    """The numbers of `ours` that are replaced, in order, and of those of `theirs` that bind their names.

    Where a name is bound more often in one of both, a definition takes the place of the one with the same
    decorators (a property has its setter's name), and the last assignment that of the last.
    """
    found: dict[int, set[int]] = {
        at: set() for at, one in enumerate(ours) if all(isinstance(node, _REPLACED) for node in one.nodes)
    }
    for name in set[str]().union(*(ours[at].names for at in found)):
        places = [at for at in found if name in ours[at].names]
        numbers = [number for number, other in enumerate(theirs) if name in other.names]
        skipped = max(0, len(places) - len(numbers))
        for count, number in enumerate(numbers):
            at = places[min(skipped + count, len(places) - 1)]
            if len(places) != len(numbers) and theirs[number].is_definition:
                same = (one for one in reversed(places) if ours[one].is_decorated_as(theirs[number]))
                at = next(same, places[-1])
            found[at].add(number)
    return {
        at: numbers
        for at, numbers in found.items()
        if numbers and ours[at].names <= set[str]().union(*(theirs[number].names for number in numbers))
    }


def _span(node: ast.stmt) -> range:
    """The lines of a statement with its decorators, counted from 0."""
    return range(first_line(node) - 1, node.end_lineno or node.lineno)


@dataclass
class _Line:
    """A line of code with what stands above it, and a docstring that stands below it."""

    text: str
    code: str  # without a comment behind it
    above: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)


@dataclass
class _Program:
    """Lines of code; what stands above the first, and below the last."""

    head: list[str]
    lines: list[_Line]
    tail: list[str]


def _paired(at: int, line: _Line, ours: Sequence[_Line]) -> _Line:
    """A line in place of others, with what stands around the one that it takes the place of."""
    above = ours[at].above if at < len(ours) else line.above
    heading = _HEADING.match(line.code)
    same = (one for one in ours if heading and (found := _HEADING.match(one.code)) and found[1] == heading[1])
    return _Line(line.text, line.code, above, next((one.below for one in same), line.below))


def _read(text: str) -> _Program:
    lines = text.split("\n")
    code, docstrings, inside = set[int](), set[int](), set[int]()  # the last end within a text
    ends = list(map(len, lines))
    statement: list[tokenize.TokenInfo] = []
    read = 0
    try:
        for token in tokenize.generate_tokens(StringIO(text).readline):
            first, last = token.start[0] - 1, token.end[0] - 1
            if token.type == tokenize.COMMENT:
                ends[first] = token.start[1]
            elif token.type == tokenize.NEWLINE:
                is_text = bool(statement) and all(one.type == tokenize.STRING for one in statement)
                for one in statement:
                    (docstrings if is_text else code).update(range(one.start[0] - 1, one.end[0]))
                statement, read = [], first + 1
            elif token.type not in _NO_CODE:
                statement.append(token)
                inside.update(range(first, last))
    except (tokenize.TokenError, SyntaxError):  # what follows is read line by line
        rest = enumerate(lines[read:], start=read)
        code.update(at for at, line in rest if line.strip() and not line.lstrip().startswith("#"))
    program = _Program([], [], [])
    waiting: list[str] = []
    for at, line in enumerate(lines):
        if at in code:
            shown = line if at in inside else line[: ends[at]].rstrip()
            if program.lines:
                program.lines.append(_Line(line, shown, waiting))
            else:
                program.head = waiting
                program.lines.append(_Line(line, shown))
            waiting = []
            continue
        waiting.append(line)
        if at in docstrings and at + 1 not in docstrings and program.lines:
            program.lines[-1].below += waiting
            waiting = []
    if not program.lines:  # the end of the last line stays the last; all else stands above code to come
        program.head, waiting = waiting[:-1], waiting[-1:]
    program.tail = waiting
    return program


def _parsed(text: str) -> ast.Module | None:
    """The tree of a program; None for what is no Python, or too long."""
    return parse_or_none(text) if len(text) <= _MAX_CHARS else None


def _without_docstrings(tree: ast.Module) -> ast.Module:
    """The tree, which is changed, without statements that are texts."""
    for node in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if isinstance(statements, list):
                kept = [one for one in statements if not _is_text(one)]
                setattr(node, block, kept or [ast.Pass()] * bool(statements))
    return tree


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


_Change = tuple[int, int, int, int]
"""Lines i1 to i2 of the one text that are lines j1 to j2 of the other."""


@dataclass
class _Group:
    """Changes of the same statements of the top level, which are named by their numbers."""

    statements: set[int]
    changes: list[_Change]


def _changes(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[str, int, int, int, int]]:
    codes = BoundedMatcher(old, new).get_opcodes()
    return (code for code in codes if code[0] != "equal")


def _grouped(tree: ast.Module, old: Sequence[str], new: Sequence[str]) -> list[_Group]:
    spans = list(map(_span, tree.body))
    groups: list[_Group] = []
    for _, i1, i2, j1, j2 in _changes(old, new):
        touched = {
            number
            for number, span in enumerate(spans)
            if (span.start < i2 and i1 < span.stop) or (i1 == i2 and span.start < i1 < span.stop)
        }
        if groups and touched & groups[-1].statements:
            groups[-1].statements |= touched
            groups[-1].changes.append((i1, i2, j1, j2))
        else:
            groups.append(_Group(touched, [(i1, i2, j1, j2)]))
    return groups


def _applied(old: Sequence[str], new: Sequence[str], changes: Sequence[_Change]) -> str:
    lines, read = list[str](), 0
    for i1, i2, j1, j2 in changes:
        lines += (*old[read:i1], *new[j1:j2])
        read = i2
    return "\n".join((*lines, *old[read:]))


def _parameters_differ(before: ast.Module, after: ast.Module) -> bool:
    ours, theirs = dict(_parameters(before.body)), dict(_parameters(after.body))
    return any(not same_trees(theirs.get(name, ours[name]), ours[name]) for name in ours)


def _parameters(body: Sequence[ast.stmt], within: str = "") -> Iterator[tuple[str, ast.arguments]]:
    """The qualified names of functions and methods with what they take."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _parameters(node.body, f"{within}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{within}{node.name}", node.args
