"""The actions of the token MDP: Python lexemes and operations; programs as sequences of them."""

from __future__ import annotations

import ast
import io
import itertools
import string
import textwrap
import tokenize
from collections.abc import Sequence
from functools import cached_property

from greenward.errors import ConfigError, ProblemError
from greenward.problems.problem import Problem
from greenward.problems.python_source import parse_or_none

NEWLINE, INDENT, DEDENT, DELETE, END = "<newline>", "<indent>", "<dedent>", "<delete>", "<end>"
OPERATIONS = (NEWLINE, INDENT, DEDENT, DELETE, END)
SELF = "<self>"
"""Stands for the name of the function itself."""
ARGUMENTS = tuple(f"<arg{index}>" for index in range(4))
"""Stand for the parameters, whatever the signature calls them."""
RESULT, NUMBER_VARIABLE, TEXT_VARIABLE = "result", "x", "c"
VARIABLES = (RESULT, NUMBER_VARIABLE, TEXT_VARIABLE)
MOST_TOKENS = 5000
# Weights of lexemes in the token prior; 1 for all others.
_WEIGHTS = {
    **dict.fromkeys((END, NEWLINE, ")", "]"), 10), **dict.fromkeys(("return", *ARGUMENTS), 8),
    **dict.fromkeys((NUMBER_VARIABLE, TEXT_VARIABLE), 8), **dict.fromkeys((RESULT, ":", ",", DEDENT), 2),
    **dict.fromkeys(("not", "(", "[", ".", "sorted", "str", DELETE), 0.5),
}  # fmt: skip
_LITERALS = 12.0
"""The weight of all literals together."""
_CORE = (
    *OPERATIONS, *ARGUMENTS, SELF, *VARIABLES,
    "return", "if", "else", "for", "in", "and", "or", "not", "True", "False",
    "(", ")", "[", "]", ":", ",", ".", "=", "+=", "*=",
    "+", "-", "*", "//", "%", "==", "!=", "<", ">", "<=", ">=",
    "len", "sum", "min", "max", "abs", "range", "sorted", "all", "any", "str",
    "lower", "upper", "count", "0", "1", "2", "10", "''", "' '", "'aeiou'",
)  # fmt: skip
_FURTHER = (
    "-=", "//=", "**", "int", "strip", "isdigit", "isalpha", "split", "replace", "3", "4", "5", "6", "7", "8",
    "9", "100", "'a'", "'e'", "','", "'-'",
)  # fmt: skip


class Vocabulary:
    """The first `size` lexemes of a fixed order, the shortest useful vocabulary first; then `extra` ones.

    `index` maps a lexeme to its action. Raises `ConfigError` for a size out of range and for extra lexemes
    that are no literals.
    """

    def __init__(self, size: int = len(_CORE), extra: Sequence[str] = ()) -> None:
        if not len(_CORE) <= size <= MOST_TOKENS:
            raise ConfigError(
                f"environment.vocab_size: expected {len(_CORE)} to {MOST_TOKENS:,}, found {size}.",
                remedy=f"The {len(_CORE)} lexemes of the core are needed by the grammar.",
            )
        lexemes = dict.fromkeys((*_CORE, *_FURTHER))
        # For a vocabulary of any size there are literals without end.
        more = itertools.chain(map(repr, string.ascii_lowercase), map(str, itertools.count(11)))
        while len(lexemes) < size:
            lexemes[next(more)] = None
        for literal in extra:
            if not _is_literal(literal):
                raise ConfigError(
                    f"environment.extra_tokens: {literal!r} is no literal of a number or a text."
                )
        self.lexemes = tuple(dict.fromkeys((*list(lexemes)[:size], *extra)))
        self.index = {lexeme: action for action, lexeme in enumerate(self.lexemes)}

    def __len__(self) -> int:
        return len(self.lexemes)

    @cached_property
    def weights(self) -> list[float]:
        """The weight of each token in a random draw, whatever came before; literals share `_LITERALS`."""
        literals = sum(map(_is_literal, self.lexemes))
        return [
            float(_WEIGHTS.get(lexeme, _LITERALS / literals if _is_literal(lexeme) else 1.0))
            for lexeme in self.lexemes
        ]


def _is_literal(lexeme: str) -> bool:
    try:
        return type(ast.literal_eval(lexeme)) in (int, str) and "\n" not in lexeme
    except (ValueError, SyntaxError):
        return False


def parameters(problem: Problem) -> list[str]:
    """The names of the parameters in the problem's signature. Raises `ProblemError` without one."""
    tree = parse_or_none(problem.starter_code.rstrip() + "\n    pass\n")
    for node in tree.body if tree else ():
        if isinstance(node, ast.FunctionDef) and node.name == problem.entry_point:
            return [argument.arg for argument in node.args.args]
    raise ProblemError(f"{problem.task_id}: the starter code does not define {problem.entry_point!r}.")


def program(problem: Problem, lexemes: Sequence[str]) -> str:
    """The function that the lexemes are the body of, as they were written: it need not be valid Python."""
    names = {SELF: problem.entry_point, **dict(zip(ARGUMENTS, parameters(problem), strict=False))}
    lines: list[str] = []
    line: list[str] = []
    depth = 1
    for lexeme in lexemes:
        if lexeme in (NEWLINE, END):
            lines.append("    " * depth + " ".join(line))
            line = []
        elif lexeme in (INDENT, DEDENT):
            depth = max(0, depth + (1 if lexeme == INDENT else -1))
        elif lexeme != DELETE:
            line.append(names.get(lexeme, lexeme))
    lines += ["    " * depth + " ".join(line)] if line else []
    head = f"def {problem.entry_point}({', '.join(parameters(problem))}):"
    return "\n".join([head, *lines]) + "\n"


def tidied(code: str) -> str:
    """The program in the usual layout, or as it is where it does not parse."""
    try:
        return ast.unparse(ast.parse(code)) + "\n"
    except (SyntaxError, ValueError):
        return code


def reference_lexemes(problem: Problem) -> list[str]:
    """The body of the problem's reference as lexemes; its own variables keep their names.

    Raises `ProblemError` where there is no reference that could be read.
    """
    name = problem.entry_point
    tree = parse_or_none(problem.reference)
    functions = (node for node in (tree.body if tree else ()) if isinstance(node, ast.FunctionDef))
    found = next((node for node in functions if node.name == name), None)
    if found is None:
        raise ProblemError(
            f"{problem.task_id}: there is no reference that defines {name!r}, so nothing proves that the "
            "problem can be solved.",
            remedy="Give a reference, or set environment.check_reachability=false.",
        )
    body = found.body[1:] if ast.get_docstring(found) else found.body
    slots = {argument.arg: slot for argument, slot in zip(found.args.args, ARGUMENTS, strict=False)}
    slots[name] = SELF
    lines = problem.reference.splitlines()[body[0].lineno - 1 : body[-1].end_lineno]
    text = textwrap.dedent("\n".join(lines)) + "\n"
    kinds = {tokenize.INDENT: INDENT, tokenize.DEDENT: DEDENT, tokenize.NEWLINE: NEWLINE}
    lexemes: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            lexemes.append(kinds[token.type])
        elif token.type not in (tokenize.NL, tokenize.COMMENT, tokenize.ENDMARKER):
            lexeme = repr(ast.literal_eval(token.string)) if token.type == tokenize.STRING else token.string
            lexemes.append(slots.get(lexeme, lexeme))
    while lexemes and lexemes[-1] in (NEWLINE, DEDENT):
        lexemes.pop()
    return [*lexemes, END]
