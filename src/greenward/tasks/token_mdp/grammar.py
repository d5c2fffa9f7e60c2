"""Implements the token MDP's actions, Python lexemes, and the typed grammar that says which may follow.

It covers return, assignment, `for`, `if … else`, arithmetic, comparisons, calls, slices, generator
expressions and recursion; with `environment.vocab_size` above 64 also `while`, `elif`, `append` … (109) and
frequent literals (up to 5,000). A reference that the vocabulary cannot write is an error before training
that names the missing token.

The grammar of small functions is LL(1): a parser is a stack of symbols, and each lexeme replaces the first
symbol that has a production for it; symbols above it must be able to vanish. Expressions carry the type that
is wanted and the type that has been read so far, so that every prefix can become a program without an error
of types, within the lexemes that are left. Symbols are tuples:
    ("E", goal, level)           an expression of a type that the goal accepts
    ("P" | "R", goal, T, level)  what may follow once a T was read; "P" allows an index or a method, too
    ("T", lexeme, action)        this lexeme

Levels of an expression, from loose to tight: full (with `if … else`), condition, comparison, sum, operand.
"""

from __future__ import annotations

import ast
import io
import string
import textwrap
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from greenward.common.errors import ConfigError, ProblemError
from greenward.problems.problem import Problem
from greenward.problems.python_source import parse_or_none
from greenward.problems.rows import DATA

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
    "while", "elif", "append", "%=", "round", "bool", "list", "chr", "title", "capitalize", "swapcase",
    "lstrip", "rstrip", "isupper", "islower", "isspace", "isalnum", "startswith", "endswith", "find", "rfind",
    "join", "zfill", "splitlines",
)  # fmt: skip
NUMBER, TEXT = "0", "''"
"""Stand for all literals of their type, which the grammar does not tell apart."""


class Vocabulary:
    """The first `size` lexemes of a fixed order, the shortest useful vocabulary first; then `extra` ones.

    Beyond what the grammar knows come literals, those first that are most frequent in Python's standard
    library: a name without a type could never be legal. `index` maps a lexeme to its action. `classes` are
    the lexemes that the grammar tells apart, and `class_V` the place there of each action. Raises
    `ConfigError` for a size out of range and for extra lexemes that are no literals.
    """

    def __init__(self, size: int = len(_CORE), extra: Sequence[str] = ()) -> None:
        if not len(_CORE) <= size <= MOST_TOKENS:
            raise ConfigError(
                f"environment.vocab_size: expected {len(_CORE)} to {MOST_TOKENS:,}, found {size}.",
                remedy=f"The {len(_CORE)} lexemes of the core are needed by the grammar.",
            )
        lexemes = dict.fromkeys((*_CORE, *_FURTHER, *(frequent_literals() if size > len(_KNOWN) else ())))
        for literal in extra:
            if literal_class(literal) is None:
                raise ConfigError(
                    f"environment.extra_tokens: {literal!r} is no literal of a number or a text."
                )
        self.lexemes = tuple(dict.fromkeys((*list(lexemes)[:size], *extra)))
        self.index = {lexeme: action for action, lexeme in enumerate(self.lexemes)}
        classes = [literal_class(lexeme) or lexeme for lexeme in self.lexemes]
        self.classes = {lexeme: place for place, lexeme in enumerate(dict.fromkeys(classes))}
        self.class_V = np.array([self.classes[lexeme] for lexeme in classes])
        self._grammars: dict[Signature, Grammar] = {}

    def grammar(self, signature: Signature) -> Grammar:
        """The grammar of the functions with this signature, made once."""
        if signature not in self._grammars:
            self._grammars[signature] = Grammar(signature, self)
        return self._grammars[signature]

    def __len__(self) -> int:
        return len(self.lexemes)

    @cached_property
    def weights(self) -> list[float]:
        """The weight of each token in a random draw, whatever came before; literals share `_LITERALS`."""
        of_literals = np.isin(self.class_V, [self.classes[NUMBER], self.classes[TEXT]])
        each = _LITERALS / of_literals.sum()
        return [
            each if is_literal else float(_WEIGHTS.get(lexeme, 1.0))
            for lexeme, is_literal in zip(self.lexemes, of_literals, strict=True)
        ]


_KNOWN = (*_CORE, *_FURTHER)


@cache
def frequent_literals() -> list[str]:
    """The literals of `benchmarks/python_literals.py`, most frequent first."""
    return (DATA / "python_literals.txt").read_text(encoding="utf-8").splitlines()


def literal_class(lexeme: str) -> str | None:
    """`NUMBER` or `TEXT` for a literal of one line that is not negative; None for all else."""
    if not lexeme or lexeme[0] not in string.digits + "'\"":
        return None
    try:
        kind = type(ast.literal_eval(lexeme))
    except (ValueError, SyntaxError):
        return None
    return {int: NUMBER, float: NUMBER, str: TEXT}.get(kind) if "\n" not in lexeme else None


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

    Raises `ProblemError` where the reference cannot be read.
    """
    name = problem.entry_point
    tree = parse_or_none(problem.reference)
    functions = (node for node in (tree.body if tree else ()) if isinstance(node, ast.FunctionDef))
    found = next((node for node in functions if node.name == name), None)
    if found is None:
        raise ProblemError(
            f"{problem.task_id}: its reference does not define {name!r}, and proves nothing.",
            remedy="Correct the reference, leave it out, or set environment.check_reachability=false.",
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


Symbol = tuple[Any, ...]
N, B, S, LN, LS = "number", "truth", "text", "numbers", "texts"
TYPES = (N, B, S, LN, LS)
_ELEMENT = {S: S, LN: N, LS: S}
_LEVELS = ("operand", "sum", "comparison", "condition", "full")
# What else than a type may be wanted, and the types that it accepts.
_GOALS: Mapping[str, tuple[str, ...]] = {
    "any": TYPES, "sized": (S, LN, LS), "element": (N, B), "either": (N, S), "texts to walk": (S, LS),
}  # fmt: skip
X, C = NUMBER_VARIABLE, TEXT_VARIABLE
# What a variable of a loop or generator walks through.
_WALKED: Mapping[str, Symbol] = {X: ("Numbers",), C: ("E", "texts to walk", "sum")}


class Production(NamedTuple):
    """What a lexeme does: symbols that replace the one on the stack, an action and a rule of the scope."""

    symbols: tuple[Symbol, ...]
    action: str = ""
    rule: str = ""


Table = dict[str, Production]
_CHANGES = ("lower", "upper", "strip", "title", "capitalize", "swapcase", "lstrip", "rstrip")
_QUESTIONS = ("isdigit", "isalpha", "isupper", "islower", "isspace", "isalnum")


@dataclass(frozen=True)
class Signature:
    """The types of a function's arguments and of its result."""

    arguments: tuple[str, ...]
    result: str


class Productions:
    """The productions for functions with one signature, over one vocabulary."""

    def __init__(self, signature: Signature, vocabulary: Vocabulary) -> None:
        self.signature, self.vocabulary = signature, vocabulary
        # Where two types could begin with one lexeme, those of the signature go first.
        own = dict.fromkeys((*signature.arguments, signature.result))
        self._types = (*own, *(one for one in TYPES if one not in own))

    def of(self, symbol: Symbol) -> tuple[Table, bool]:
        """The productions of a symbol, and whether it may vanish."""
        kind, *rest = symbol
        return getattr(self, f"_{kind.lower()}")(*rest)

    def _t(self, lexeme: str, action: str) -> tuple[Table, bool]:
        return {lexeme: Production((), action)}, False

    def _body(self, has_else: bool = False) -> tuple[Table, bool]:
        """Statements of the function; the last one returns."""
        return self._statements(0, ("Body",), END, has_else), False

    def _block(self, depth: int, begun: bool, has_else: bool = False) -> tuple[Table, bool]:
        """Statements of an indented block, one at least; it ends with a return or with the indentation."""
        return self._statements(depth, ("Block", depth, True), NEWLINE, has_else), begun

    def _statements(self, depth: int, after: Symbol, end: str, has_else: bool) -> Table:
        """A statement and `after` it more of them, or a return, which `end` follows."""
        table = {
            RESULT: Production((("Assignment", depth), after), "", "bound" if depth else ""),
            "return": Production((_expression(self.signature.result, "full"), _lexeme(end))),
        }
        if depth < 2:
            with_else = (*after, True)
            table["for"] = Production((("Loop", depth), after), "", "loop")
            branch = Production((_expression("any", "condition"), *_block(depth + 1), with_else))
            table["if"] = branch
            table["while"] = Production((_expression("any", "condition"), *_block(depth + 1), after))
            if has_else:
                table["elif"] = branch
        if has_else:
            table["else"] = Production((*_block(depth + 1), after))
        return table

    def _assignment(self, depth: int) -> tuple[Table, bool]:
        """`result` has a value once the function itself, not a block, has given it one."""
        kind = self.signature.result
        end = _lexeme(NEWLINE, "" if depth else f"bind {RESULT}")
        table = {"=": Production((_expression(kind, "full"), end))}
        for operator in {N: "+= -= *= //= %=", S: "+=", LN: "+=", LS: "+="}.get(kind, "").split():
            table[operator] = Production((_expression(kind, "full"), _lexeme(NEWLINE)), "", "result")
        if kind in (LN, LS):
            element = _expression(_ELEMENT[kind], "condition")
            added = (_lexeme("append"), _lexeme("("), element, _lexeme(")"), _lexeme(NEWLINE))
            table["."] = Production(added, "", "result")
        return table, False

    def _loop(self, depth: int) -> tuple[Table, bool]:
        table = {}
        for name, source in _WALKED.items():
            block = _block(depth + 1, f"bind {name}", f"unbind {name}")
            table[name] = Production((_lexeme("in"), source, *block), "", "free")
        return table, False

    def _e(self, goal: str, level: str) -> tuple[Table, bool]:
        table: Table = {}
        accepted = _GOALS.get(goal, (goal,))
        for kind in sorted(self._types, key=lambda one: one not in accepted):
            follow: Symbol = ("P", goal, kind, level)
            for lexeme, production in self._operands(kind).items():
                table.setdefault(lexeme, production._replace(symbols=(*production.symbols, follow)))
        if _at_least(level, "comparison"):
            table["not"] = Production((_expression("any", "comparison"), ("R", goal, B, level)))
        inner = S if goal in (S, "texts to walk") else N
        table["("] = Production((_expression(inner, "condition"), _lexeme(")"), ("P", goal, inner, level)))
        table["-"] = Production((_expression(N, "operand"), ("R", goal, N, level)))
        return table, False

    def _operands(self, kind: str) -> Table:
        """The lexemes that begin a value of a type, with the rest of the value."""
        table: Table = {}
        signature = self.signature
        for slot, one in zip(ARGUMENTS, signature.arguments, strict=False):
            if one == kind:
                table[slot] = Production(())
        if signature.result == kind:
            table[RESULT] = Production((), "", "bound")
            table[SELF] = _call(*(_expression(one, "condition") for one in signature.arguments))
        if kind == N:
            table[NUMBER] = Production(())
            table[X] = Production((), "use", "variable")
            table["len"] = _call(_expression("sized", "condition"))
            table["abs"] = _call(_expression(N, "condition"))
            table["int"] = _call(_expression("either", "condition"))
            table["round"] = _call(_expression(N, "condition"))
            table["sum"] = _call(("Generated", "element", ("Numbers",)), generator=True)
            table["min"] = table["max"] = Production((_lexeme("("), ("Compared",)))
        if kind == S:
            table[TEXT] = Production(())
            table[C] = Production((), "use", "variable")
            table["str"] = _call(_expression(N, "condition"))
            table["chr"] = _call(_expression(N, "condition"))
        if kind == B:
            table |= {lexeme: Production(()) for lexeme in ("True", "False")}
            table["bool"] = _call(_expression("any", "condition"))
            table["all"] = table["any"] = _call(("Generated", "any", None), generator=True)
        if kind in (LN, LS):
            table["sorted"] = _call(_expression(kind if kind == LN else "texts to walk", "condition"))
            table["["] = Production((("Listed", _ELEMENT[kind]),))
        if kind == LS:
            table["list"] = _call(_expression("texts to walk", "condition"))
        return table

    def _p(self, goal: str, kind: str, level: str) -> tuple[Table, bool]:
        table, nullable = self._r(goal, kind, level)
        if kind in _ELEMENT:
            table["["] = Production((("Slice", goal, kind, level, 0),))
        if kind == S:
            table["."] = Production((("Method", goal, level),))
        if kind in (LN, LS):
            follow: Symbol = ("P", goal, N, level)
            counted = _call(_expression(_ELEMENT[kind], "condition"), follow=follow)
            table["."] = Production((_lexeme("count"), *counted.symbols))
        return table, nullable

    def _r(self, goal: str, kind: str, level: str) -> tuple[Table, bool]:
        table: Table = {}
        follow: Symbol = ("R", goal, kind, level)
        truth: Symbol = ("R", goal, B, level)
        if _at_least(level, "sum"):
            for operator in {N: "+ - * // %", S: "+", LN: "+", LS: "+"}.get(kind, "").split():
                table[operator] = Production((_expression(kind, "operand"), follow))
            if kind == N:
                table["**"] = Production((("Exponent",), follow))
            if kind == S:
                table["*"] = Production((_expression(N, "operand"), follow))
        if _at_least(level, "comparison") and kind != B:
            for operator in ("==", "!=", "<", ">", "<=", ">=") if kind == N else ("==", "!="):
                table[operator] = Production((_expression(kind, "sum"), truth))
            if kind in (N, S):
                table["in"] = Production((_expression(LN if kind == N else "texts to walk", "sum"), truth))
        if _at_least(level, "condition") and (kind == B or goal == "any"):
            for operator in ("and", "or"):
                right = _expression("any" if goal == "any" else B, "comparison")
                table[operator] = Production((right, truth))
        accepted = kind in _GOALS.get(goal, (goal,))
        if level == "full" and accepted:
            otherwise = _expression(goal, "full")
            table["if"] = Production((_expression("any", "condition"), _lexeme("else"), otherwise))
        return table, accepted

    def _exponent(self) -> tuple[Table, bool]:
        """A literal: a negative exponent would give a number that is no index."""
        return {NUMBER: Production(())}, False

    def _slice(self, goal: str, kind: str, level: str, colons: int, read: bool = False) -> tuple[Table, bool]:
        """After `[` or a colon: a bound, the next colon, or the end; without a colon it is an index."""
        bound = _expression(N, "condition")
        table = {} if read else self._before(bound, ("Slice", goal, kind, level, colons, True))
        if read or colons:
            table["]"] = Production((("P", goal, kind if colons else _ELEMENT[kind], level),))
        if colons < 2:
            table[":"] = Production((("Slice", goal, kind, level, colons + 1),))
        return table, False

    def _method(self, goal: str, level: str) -> tuple[Table, bool]:
        text, number, truth, texts = (("P", goal, kind, level) for kind in (S, N, B, LS))
        one = _expression(S, "condition")
        return {
            **{name: _call(follow=text) for name in _CHANGES},
            **{name: _call(follow=truth) for name in _QUESTIONS},
            **{name: _call(one, follow=truth) for name in ("startswith", "endswith")},
            **{name: _call(one, follow=number) for name in ("count", "find", "rfind")},
            **{name: _call(follow=texts) for name in ("split", "splitlines")},
            "join": _call(_expression("texts to walk", "condition"), follow=text),
            "zfill": _call(_expression(N, "condition"), follow=text),
            "replace": _call(one, one, follow=text),
        }, False

    def _numbers(self) -> tuple[Table, bool]:
        """What a loop over numbers walks through."""
        table, _ = self._e(LN, "sum")
        table["range"] = Production((_lexeme("("), _expression(N, "condition"), ("Range",)))
        return table, False

    def _range(self) -> tuple[Table, bool]:
        return {")": Production(()), ",": Production((_expression(N, "condition"), _lexeme(")")))}, False

    def _listed(self, element: str) -> tuple[Table, bool]:
        """After `[`: the end, or a comprehension."""
        found, _ = self._generated(element, None, "]")
        for lexeme, one in found.items():
            rule = one.rule if one.rule in ("bound", "generator") else "generator"
            found[lexeme] = one._replace(action=f"open {lexeme if one.action else ''}".strip(), rule=rule)
        return found | {"]": Production(())}, False

    def _generated(self, element: str, source: Symbol | None, end: str = ")") -> tuple[Table, bool]:
        """A generator expression, and what closes it; or a whole `source` that begins with a list.

        The first lexeme tells which.
        """
        lists = {*self._operands(LN), "range"} if source else set()
        generator = self._before(_expression(element, "condition"), _lexeme("for"), ("Binder", end))
        table = {lexeme: production for lexeme, production in generator.items() if lexeme not in lists}
        if source is not None:
            for lexeme, one in self._before(source, _lexeme(end)).items():
                if lexeme in lists and one.rule != "generator":
                    table[lexeme] = one._replace(action="close")
        return table, False

    def _binder(self, end: str) -> tuple[Table, bool]:
        tail: Symbol = ("Filter", end)
        return {
            name: Production((_lexeme("in"), source, tail), "source", "binder")
            for name, source in _WALKED.items()
        }, False

    def _filter(self, end: str) -> tuple[Table, bool]:
        filtered = Production((_expression("any", "condition"), _lexeme(end, "close")), "filter")
        return {"if": filtered, end: Production((), "close")}, False

    def _compared(self) -> tuple[Table, bool]:
        """What `min` and `max` take: numbers in a list, or two and more."""
        further = (_lexeme(","), _expression(N, "condition"), ("More",))
        table = {
            lexeme: one._replace(symbols=(*one.symbols, ("P", N, N, "sum"), *further))
            for lexeme, one in self._operands(N).items()
        }
        table["-"] = Production((_expression(N, "operand"), ("R", N, N, "sum"), *further))
        for lexeme, one in self._before(_expression(LN, "sum"), _lexeme(")")).items():
            if lexeme in self._operands(LN):
                table.setdefault(lexeme, one)
        return table, False

    def _more(self) -> tuple[Table, bool]:
        return {")": Production(()), ",": Production((_expression(N, "condition"), ("More",)))}, False

    def _before(self, first: Symbol, *then: Symbol) -> Table:
        """The productions of `first`, with `then` after it."""
        table, _ = self.of(first)
        return {lexeme: one._replace(symbols=(*one.symbols, *then)) for lexeme, one in table.items()}


def _expression(goal: str, level: str) -> Symbol:
    return ("E", goal, level)


def _lexeme(lexeme: str, action: str = "") -> Symbol:
    return ("T", lexeme, action)


def _block(depth: int, begins: str = "", ends: str = "") -> tuple[Symbol, ...]:
    head = (_lexeme(":", begins), _lexeme(NEWLINE), _lexeme(INDENT))
    return (*head, ("Block", depth, False), _lexeme(DEDENT, ends))


def _call(*inputs: Symbol, follow: Symbol | None = None, generator: bool = False) -> Production:
    """A name that is called; a generator closes its parenthesis itself."""
    if generator:
        return Production((_lexeme("(", "open"), *inputs), "", "generator")
    between = [one for argument in inputs for one in (_lexeme(","), argument)][1:]
    end = () if follow is None else (follow,)
    return Production((_lexeme("("), *between, _lexeme(")"), *end))


def _at_least(level: str, least: str) -> bool:
    return _LEVELS.index(level) >= _LEVELS.index(least)


MOST_NODES = 200_000
NEVER = 1 << 20
"""The number of lexemes that finish what cannot be finished."""


class Scope(NamedTuple):
    """Which variables have a value, and where in a generator expression the parser is.

    `bound` holds the names of variables. `part` is "" outside generators, "element" with the `variable` that
    it uses ("" so far), "source", or "filter".
    """

    bound: frozenset[str] = frozenset()
    part: str = ""
    variable: str = ""

    def allows(self, lexeme: str, rule: str) -> bool:
        """Whether a production with this rule may be used."""
        if rule == "generator":
            return not self.part
        if rule == "bound":
            return lexeme in self.bound
        if rule == "free":
            return lexeme not in self.bound
        if rule == "loop":
            return not {X, C} <= self.bound
        if rule == "binder":
            return self.variable in ("", lexeme)
        if rule == "variable":
            if self.part == "element" and self.variable in ("", lexeme):
                return True
            return lexeme in self.bound or (self.part == "filter" and self.variable == lexeme)
        return rule != "result" or RESULT in self.bound

    def after(self, action: str, lexeme: str) -> Scope:
        """The scope once a lexeme with this action was read."""
        kind, _, name = action.partition(" ")
        if kind == "open":
            return self._replace(part="element", variable=name)
        if kind == "close":
            return self._replace(part="", variable="")
        if kind == "use":
            return self._replace(variable=lexeme) if self.part == "element" and not self.variable else self
        if kind == "source":
            return self._replace(part="source", variable=lexeme)
        if kind == "filter":
            return self._replace(part="filter")
        if kind == "bind":
            return self._replace(bound=self.bound | {name})
        return self._replace(bound=self.bound - {name}) if kind == "unbind" else self


@dataclass(eq=False)
class Node:
    """A state of the parser: a stack as a linked list, None at the end, and the scope.

    Equal states are one object.

    `cost` is the least number of lexemes that finish the program, and `extra_C` how many more it takes with
    a lexeme of each class next (`NEVER` where none is allowed); states that look alike share the array.
    `class_V` are the classes of the vocabulary.
    """

    stack: tuple[Any, ...] | None  # (symbol, rest of the stack)
    scope: Scope
    cost: int
    extra_C: np.ndarray
    class_V: np.ndarray
    following: dict[int, Node] = field(default_factory=dict)

    @property
    def extra_V(self) -> np.ndarray:
        """As `extra_C`, for each lexeme."""
        return self.extra_C[self.class_V]


class Grammar:
    """The grammar of the functions with one signature, over one vocabulary."""

    def __init__(self, signature: Signature, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._productions = Productions(signature, vocabulary)
        self._tables: dict[Symbol, Table] = {}
        self._nullable: dict[Symbol, bool] = {}
        start: Symbol = ("Body",)
        self._explore(start)
        self._costs = self._least_costs()
        self._nodes: dict[tuple[Any, Scope], Node] = {}
        self._rows: dict[tuple[Any, ...], np.ndarray] = {}
        self.start = self._node((start, None), Scope())

    def advance(self, node: Node, action: int) -> Node | None:
        """The state after an action, None where it is not allowed."""
        found = node.following.get(action)
        if found is None and node.extra_C[self._vocabulary.class_V[action]] < NEVER:
            found = node.following[action] = self._advance(node, self._vocabulary.lexemes[action])
        return found

    def expanded(self, node: Node, lexeme: str) -> Symbol:
        """The symbol that an allowed lexeme expands: with the lexeme, the production that is used."""
        return self._expansion(node, lexeme)[0]

    def _advance(self, node: Node, lexeme: str) -> Node:
        _, production, stack = self._expansion(node, lexeme)
        for one in reversed(production.symbols):
            stack = (one, stack)
        return self._node(stack, node.scope.after(production.action, lexeme))

    def _expansion(self, node: Node, lexeme: str) -> tuple[Symbol, Production, tuple[Any, ...] | None]:
        """The symbol that the lexeme replaces, by which production, and the stack below it."""
        stack, lexeme = node.stack, literal_class(lexeme) or lexeme
        while stack is not None:
            symbol, stack = stack
            production = self._tables[symbol].get(lexeme)
            if production is not None and node.scope.allows(lexeme, production.rule):
                return symbol, production, stack
        raise AssertionError(f"{lexeme} was said to be allowed")

    def _node(self, stack: tuple[Any, ...] | None, scope: Scope) -> Node:
        if (found := self._nodes.get((stack, scope))) is not None:
            return found
        if len(self._nodes) > MOST_NODES:  # of random programs there is no end
            self._nodes.clear()
            self.start.following.clear()
        row = self._row(stack, scope)
        node = Node(stack, scope, self._cost(stack), row, self._vocabulary.class_V)
        self._nodes[(stack, scope)] = node
        return node

    def _row(self, stack: tuple[Any, ...] | None, scope: Scope) -> np.ndarray:
        """`Node.extra_C`, which depends on the symbols down to the first that may not vanish."""
        symbols: list[Symbol] = []
        while stack is not None and (not symbols or self._nullable[symbols[-1]]):
            symbol, stack = stack
            symbols.append(symbol)
        key = (*symbols, scope)
        if (found := self._rows.get(key)) is not None:
            return found
        found = np.full(len(self._vocabulary.classes), NEVER, np.int32)
        passed = 0
        for symbol in symbols:
            passed += self._costs[symbol]  # of what the lexeme replaces
            for lexeme, production in self._tables[symbol].items():
                place = self._vocabulary.classes[lexeme]
                if found[place] == NEVER and scope.allows(lexeme, production.rule):
                    found[place] = 1 + sum(self._costs[one] for one in production.symbols) - passed
        self._rows[key] = found
        return found

    def _cost(self, stack: tuple[Any, ...] | None) -> int:
        total = 0
        while stack is not None:
            symbol, stack = stack
            total += self._costs[symbol]
        return total

    def _explore(self, start: Symbol) -> None:
        """Make the tables of all symbols that can be reached."""
        waiting = [start]
        known = self._vocabulary.classes
        while waiting:
            symbol = waiting.pop()
            if symbol in self._tables:
                continue
            table, nullable = self._productions.of(symbol)
            self._tables[symbol] = {lexeme: one for lexeme, one in table.items() if lexeme in known}
            self._nullable[symbol] = nullable
            waiting += [one for production in self._tables[symbol].values() for one in production.symbols]

    def _least_costs(self) -> dict[Symbol, int]:
        """The least number of lexemes of each symbol, by fixed point; productions without end are dropped.

        Productions that depend on the scope do not count, so that the least number is right in each scope. Of
        the variables of a loop or generator one at least is allowed: the dearer one counts.
        """
        costs = {symbol: 0 if nullable else NEVER for symbol, nullable in self._nullable.items()}
        changed = True
        while changed:
            changed = False
            for symbol, table in self._tables.items():
                sums = {one.rule: [] for one in table.values()}  # type: dict[str, list[int]]
                for one in table.values():
                    sums[one.rule].append(1 + sum(costs[s] for s in one.symbols))
                dearer = [max(sums[rule]) for rule in ("binder", "free") if rule in sums]
                least = min((costs[symbol], *sums.get("", ()), *dearer))
                changed |= least < costs[symbol]
                costs[symbol] = least
        for symbol, table in self._tables.items():
            self._tables[symbol] = {
                lexeme: one for lexeme, one in table.items() if sum(costs[s] for s in one.symbols) < NEVER
            }
        return costs
