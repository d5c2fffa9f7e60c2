"""Puts the function of an answer into its file: for problems that ask for one function of a program.

`Problem.files` holds the answer's own file, too, with the function that is asked for unwritten. An answer is
this function alone; everything else of the file stays as it is, the function's decorators included.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache

from greenward.problems.problem import Problem
from greenward.problems.python_source import (
    FunctionNode,
    parse_or_none,
    qualified_functions,
    source_lines,
)

MAX_CHARS = 1 << 17


@dataclass(frozen=True)
class Hole:
    """A file around one function: the text before `def`, the text behind its last line, its indentation."""

    head: str
    tail: str
    indentation: str

    def filled_with(self, function: str) -> str:
        return f"{self.head}{function.rstrip()}\n{self.tail}"

    def content(self, code: str) -> str:
        """The function in a file that was made by `filled_with`; empty for another file."""
        if len(code) < len(self.head) + len(self.tail) or not code.startswith(self.head):
            return ""
        return code[len(self.head) : len(code) - len(self.tail)] if code.endswith(self.tail) else ""


def hole_of(problem: Problem) -> Hole | None:
    """Where the answer's function belongs; None for a problem whose answers are whole programs."""
    text = (problem.files or {}).get(problem.path)
    return _hole(text, problem.entry_point) if text is not None and problem.entry_point else None


def place(answer: str, problem: Problem, hole: Hole, *, continues: bool) -> str | None:
    """The file with the function of an answer in its place; None if the answer does not define it.

    If the answer `continues` the starter code, its function ends where the indentation does. Otherwise the
    last definition of that name counts, on whatever level.
    """
    name = problem.entry_point.rpartition(".")[2]
    answer = answer.replace("\r\n", "\n").replace("\r", "\n")
    if continues:
        begun = begun_function(problem)
        part = begun + _indented_part(answer, len(hole.indentation))
        return hole.filled_with(_definition(part, name) or _definition(begun + answer, name) or part)
    found = _definition(answer, name, hole.indentation)
    return None if found is None else hole.filled_with(found)


def begun_function(problem: Problem) -> str:
    """The starter code from the line of its last `def` on, without decorators."""
    name = problem.entry_point.rpartition(".")[2]
    start = max(problem.starter_code.rfind(f"def {name}"), 0)
    return problem.starter_code[problem.starter_code.rfind("\n", 0, start) + 1 :]


def function_in(problem: Problem, code: str) -> str | None:
    """The function in a file that an answer has become, empty if there is none; None for whole programs."""
    hole = hole_of(problem)
    return None if hole is None else hole.content(code)


@lru_cache(maxsize=1024)
def _hole(text: str, qualified: str) -> Hole | None:
    tree = parse_or_none(text)
    node = dict(qualified_functions(tree)).get(qualified) if tree else None
    if node is None:
        return None
    lines = source_lines(text)
    first = lines[node.lineno - 1]
    return Hole(
        "".join(lines[: node.lineno - 1]),
        "".join(lines[node.end_lineno or 0 :]),
        _indentation(first),
    )


def _indented_part(text: str, indentation: int) -> str:
    """The text up to the first line that is indented no more than `indentation`."""
    kept = []
    for position, line in enumerate(source_lines(text)):
        if position and line.strip() and len(_indentation(line)) <= indentation:
            break
        kept.append(line)
    return "".join(kept)


def _definition(code: str, name: str, indentation: str | None = None) -> str | None:
    """The last definition of a function in code, without decorators, at this indentation; None without one.

    Strings over several lines keep theirs. Without `indentation` that of the code stays. Code of more than
    `MAX_CHARS` characters is not looked at, since parsing a megabyte takes seconds.
    """
    if len(code) > MAX_CHARS:
        return None
    opening = "if True:\n" if code.lstrip("\n")[:1] in (" ", "\t") else "\n"
    nodes = ast.walk(parse_or_none(opening + code) or ast.Module([], []))
    found = [one for one in nodes if isinstance(one, FunctionNode) and one.name == name]
    if not found:
        return None
    node = max(found, key=lambda one: one.lineno)
    lines = source_lines(opening + code)[node.lineno - 1 : node.end_lineno]
    if indentation is None:
        return "".join(lines)
    strings = {  # in Python 3.11, each part of an f-string has the place of the whole
        (one.lineno, one.end_lineno or 0)
        for one in ast.walk(node)
        if isinstance(one, (ast.Constant, ast.JoinedStr))
    }
    inside_strings = {line for first, last in strings for line in range(first + 1, last + 1)}
    own = _indentation(lines[0])
    return "".join(
        line if number in inside_strings else _indented_anew(line, own, indentation)
        for number, line in enumerate(lines, node.lineno)
    )


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _indented_anew(line: str, own: str, indentation: str) -> str:
    if not line.strip():
        return line
    return indentation + (line[len(own) :] if line.startswith(own) else line.lstrip(" \t"))
