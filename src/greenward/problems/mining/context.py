"""What a prompt shows of a file around a masked function, cropped to a number of characters.

Definitions are shown by their signature and the first line of their docstring, and those nearest to the
function as a whole where there is room. Imports come first; the class of a method comes last, so that the
function can follow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from greenward.problems.mining.functions import MaskedFunction, first_line
from greenward.problems.mining.tree import syntax_tree
from greenward.problems.python_source import FunctionNode, source_lines

_IMPORTS = (ast.Import, ast.ImportFrom)
_ACTIONS = (ast.If, ast.For, ast.While, ast.With, ast.Expr)
_FEW_LINES = 2  # that are shown as a whole, unless they do something


@dataclass
class _Part:
    """A statement of the file: its text as a whole and in short, empty where it has no short form.

    `shown` is what the context has of it; `is_inside`, it belongs to the class that the function is in.
    """

    whole: str
    short: str
    distance: int
    is_import: bool
    is_inside: bool
    shown: str = ""


def context_of(function: MaskedFunction, most_chars: int) -> str:
    """The text before the starter code: at most `most_chars`, but for the lines that open the classes."""
    lines = source_lines(function.file.text)
    parts = list(_parts(syntax_tree(function.file), function, lines))
    left = most_chars - sum(len(part.shown) for part in parts)
    nearest_first = sorted(parts, key=lambda part: (not part.is_import, part.distance))
    for text_of in (lambda part: part.short, lambda part: part.whole):
        for part in nearest_first:
            more = len(text_of(part)) - len(part.shown)
            if 0 < more <= left:
                left -= more
                part.shown = text_of(part)
    return "".join(part.shown for part in sorted(parts, key=lambda part: part.is_inside))


def _parts(parent: ast.Module | ast.ClassDef, function: MaskedFunction, lines: list[str]) -> Iterator[_Part]:
    """The statements of a module or class but the function itself; a class that holds it is opened."""
    is_class = isinstance(parent, ast.ClassDef)
    for node in parent.body[not is_class and ast.get_docstring(parent) is not None :]:
        start, end = first_line(node), node.end_lineno or 0
        if start <= function.start < end:
            if isinstance(node, ast.ClassDef):
                opening = "".join(lines[start : node.body[0].lineno - 1]).rstrip() + "\n"
                yield _Part("", "", 0, is_import=False, is_inside=True, shown=opening)
                yield from _parts(node, function, lines)
            continue
        is_import = isinstance(node, _IMPORTS)
        is_short = end - start <= _FEW_LINES and not isinstance(node, _ACTIONS)
        whole = "".join(lines[start:end])
        short = whole if is_import or is_short else _summary(node, lines)
        distance = min(abs(start - function.start), abs(end - function.end))
        if not (is_import or is_short or is_class):
            whole, short = f"\n{whole}\n", f"\n{short}\n" if short else ""
        yield _Part(whole, short, distance, is_import, is_class)


def _summary(node: ast.stmt, lines: list[str]) -> str:
    """The signature of a function or class, and the first line of its docstring; empty for other code."""
    if not isinstance(node, (FunctionNode, ast.ClassDef)) or node.body[0].lineno == node.lineno:
        return ""
    end = node.body[0].lineno - 1 if isinstance(node, FunctionNode) else node.lineno
    indentation = " " * (node.col_offset + 4)
    said = (ast.get_docstring(node) or "").partition("\n")[0]
    docstring = f'{indentation}"""{said}"""\n' if said and not {'"', "\\"} & set(said) else ""
    return f"{''.join(lines[first_line(node) : end])}{docstring}{indentation}...\n"
