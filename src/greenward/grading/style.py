"""Compares how a function is written with the file around it. Nothing is run.

A rule gives a label to each of its occurrences in a text. A label is the habit of a file if the file has at
least `FEWEST` occurrences outside of the function and `CLEAR` of them have it; without a habit the rule does
not apply. An occurrence in the function that has another label deviates, and each deviation halves the score
of its rule, so that a longer function with more occurrences does not make up for one. Names that the file or
the signature has are not the answer's choice.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from greenward.grading.rewards import GradedAnswer, per_answer
from greenward.problems.problem import Problem, function_in, hole_of
from greenward.problems.python_source import (
    MAX_PARSED_CHARS,
    FunctionNode,
    parse_or_none,
    qualified_functions,
)

FEWEST = 3
CLEAR = 0.8
USUAL_LENGTH = 79
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WITH_DOCSTRING = (*_FUNCTIONS, ast.ClassDef, ast.Module)
_MARKS = re.compile(r"[A-Za-z]{0,3}('''|\"\"\"|'|\")")
_CAMEL = re.compile(r"_*[a-z][a-z0-9]*[A-Z]\w*")
_SNAKE = re.compile(r"_*[a-z][a-z0-9]*(_[a-z0-9]+)+_*")


@dataclass(frozen=True)
class Source:
    """A text with its syntax tree, its tokens, and the lines of it that count, by their numbers from 1."""

    tree: ast.Module
    tokens: tuple[tokenize.TokenInfo, ...]
    lines: Mapping[int, str]

    @property
    def functions(self) -> list[FunctionNode]:
        found = (node for node in ast.walk(self.tree) if isinstance(node, _FUNCTIONS))
        return [node for node in found if node.lineno in self.lines]

    @property
    def nodes(self) -> Iterator[ast.AST]:
        return (node for node in ast.walk(self.tree) if getattr(node, "lineno", 0) in self.lines)


def _names(source: Source) -> Iterator[tuple[str, str]]:
    for node in source.nodes:
        match node:
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case ast.Name(id=name, ctx=ast.Store()):
                pass
            case _:
                continue
        if _SNAKE.fullmatch(name) or _CAMEL.fullmatch(name):
            yield "snake_case" if _SNAKE.fullmatch(name) else "camelCase", name


def _docstrings_of(source: Source) -> set[tuple[int, int]]:
    """Where docstrings begin."""
    owners = [node for node in ast.walk(source.tree) if isinstance(node, _WITH_DOCSTRING) and node.body]
    firsts = [node.body[0] for node in owners]
    return {(one.lineno, one.col_offset) for one in firsts if isinstance(one, ast.Expr)}


def _quotes(source: Source) -> Iterator[tuple[str, str]]:
    docstrings = _docstrings_of(source)
    for token in source.tokens:
        if token.start[0] not in source.lines or tokenize.tok_name[token.type] not in (
            "STRING",
            "FSTRING_START",
        ):
            continue
        marks = _MARKS.match(token.string)
        inside = token.string[marks.end() : -1] if marks else ""
        if marks and len(marks[1]) == 1 and token.start not in docstrings and not {*"'\""} & {*inside}:
            yield marks[1], ""


def _formatting(source: Source) -> Iterator[tuple[str, str]]:
    for node in source.nodes:
        match node:
            case ast.JoinedStr(values=values) if any(isinstance(one, ast.FormattedValue) for one in values):
                yield "f-string", ""
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str()), attr="format")):
                yield "format", ""
            case ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod()):
                yield "%", ""


def _annotations(source: Source) -> Iterator[tuple[str, str]]:
    for node in source.functions:
        given = node.args
        arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        kept = [one.annotation for one in arguments if one.arg not in ("self", "cls")]
        for annotation in (*kept, node.returns):
            yield "plain" if annotation is None else "annotated", ""


def _docstrings(source: Source) -> Iterator[tuple[str, str]]:
    for node in source.functions:
        text = ast.get_docstring(node, clean=False)
        if text is None:
            yield "none", ""
        else:
            first = node.body[0]
            begun = (
                token.string for token in source.tokens if token.start == (first.lineno, first.col_offset)
            )
            marks = _MARKS.match(next(begun, ""))
            place = "first" if text.partition("\n")[0].strip() else "next"
            yield f"{marks[1] if marks else ''}, on the {place} line", ""


def _indentation(source: Source) -> Iterator[tuple[str, str]]:
    around = [""]
    for token in source.tokens:
        if token.type == tokenize.INDENT:
            if token.start[0] in source.lines:
                yield repr(token.string.removeprefix(around[-1])), ""
            around.append(token.string)
        elif token.type == tokenize.DEDENT:
            around.pop()


RULES: Mapping[str, Callable[[Source], Iterator[tuple[str, str]]]] = MappingProxyType({
    "names": _names,
    "quotes": _quotes,
    "formatting": _formatting,
    "annotations": _annotations,
    "docstrings": _docstrings,
    "indentation": _indentation,
})  # fmt: skip
"""(label, name if it has one) of each occurrence."""
LINE_LENGTH = "line_length"


@dataclass(frozen=True)
class Habits:
    """What the file around a function does: the label of each rule that applies, and its longest line."""

    labels: Mapping[str, str]
    longest: int
    known_names: frozenset[str]


@lru_cache(maxsize=1024)
def habits(text: str, entry_point: str) -> Habits | None:
    """The habits of a file without the function `entry_point` in it; None for what is not Python."""
    tree = parse_or_none(text)
    if tree is None:
        return None
    own = dict(qualified_functions(tree)).get(entry_point)
    inside = range(own.lineno, (own.end_lineno or own.lineno) + 1) if own else range(0)
    source = _source(text, tree, inside)
    if source is None:
        return None
    labels = {}
    for name, rule in RULES.items():
        counts = Counter(label for label, _ in rule(source))
        if counts.total() >= FEWEST and counts.most_common(1)[0][1] >= CLEAR * counts.total():
            labels[name] = counts.most_common(1)[0][0]
    longest = max((len(line) for line in source.lines.values()), default=0)
    if sum(map(bool, map(str.strip, source.lines.values()))) >= FEWEST:
        labels[LINE_LENGTH] = "within"
    words = frozenset(re.findall(r"\w+", text))  # those of the signature as well
    return Habits(labels, max(longest, USUAL_LENGTH), words)


def deviations(problem: Problem, code: str) -> dict[str, int] | None:
    """How often the function of an answer, whose file is `code`, deviates from each habit of the file around
    it.

    None for problems whose answers are whole programs, for a file without habits, and for code that does not
    parse or is too long to be looked at.
    """
    around, function = _around(problem), function_in(problem, code)
    if around is None or not function or len(function) > MAX_PARSED_CHARS:
        return None
    is_method = function[:1].isspace()
    text = f"class File:\n{function}" if is_method else function
    tree = parse_or_none(text)
    source = None if tree is None else _source(text, tree, range(1, 2) if is_method else range(0))
    if source is None:
        return None
    found = {
        name: sum(
            label != around.labels[name] for label, word in rule(source) if word not in around.known_names
        )
        for name, rule in RULES.items()
        if name in around.labels
    }
    if LINE_LENGTH in around.labels:
        found[LINE_LENGTH] = sum(len(line) > around.longest for line in source.lines.values())
    return found


def score_of(found: Mapping[str, int]) -> float:
    """The mean over the rules of `deviations` of 1, halved for each deviation."""
    return sum(0.5**count for count in found.values()) / len(found)


@per_answer
def contextual_style(answer: GradedAnswer) -> float | None:
    """How far a function that passes all of its tests keeps to the habits of the file around it; else 0.

    The score is the mean over the rules that apply of 1, halved for each deviation. None for problems whose
    answers are whole programs, and where the file around the function has no habit.

    | rule | occurrences | labels |
    |---|---|---|
    | `names` | functions, arguments and variables of several words | `snake_case`, `camelCase` |
    | `quotes` | texts on one line that hold no quotation mark, docstrings apart | `'`, `"` |
    | `formatting` | texts with values in them | f-string, `format`, `%` |
    | `annotations` | arguments (but `self` and `cls`) and returns of functions | annotated, plain |
    | `docstrings` | functions | none, or the marks and whether text begins on the first line |
    | `indentation` | indented blocks | the white space that is added |
    | `line_length` | lines | within the longest line around (at least 79 characters), or longer |
    """
    if _around(answer.problem) is None:
        return None
    found = deviations(answer.problem, answer.code or "") if answer.verdict.passed else None
    return 0.0 if found is None else score_of(found)


def _around(problem: Problem) -> Habits | None:
    """The habits of the file around a problem's function, None without one or without any."""
    if hole_of(problem) is None:
        return None
    found = habits((problem.files or {})[problem.path], problem.entry_point)
    return found if found and found.labels else None


def _source(text: str, tree: ast.Module, left_out: Sequence[int]) -> Source | None:
    try:
        tokens = tuple(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return None
    lines = {number: line for number, line in enumerate(text.split("\n"), 1) if number not in left_out}
    return Source(tree, tokens, lines)
