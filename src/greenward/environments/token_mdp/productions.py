"""The productions of a typed grammar of small Python functions: what each lexeme does to each symbol.

Symbols are tuples:

    ("E", goal, level)           an expression of a type that the goal accepts
    ("P" | "R", goal, T, level)  what may follow once a T was read; "P" allows an index or a method, too
    ("T", lexeme, action)        this lexeme

Levels of an expression, from loose to tight: full (with `if … else`), condition, comparison, sum, operand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from greenward.environments.token_mdp.vocabulary import (
    ARGUMENTS,
    DEDENT,
    END,
    INDENT,
    NEWLINE,
    NUMBER_VARIABLE,
    RESULT,
    SELF,
    TEXT_VARIABLE,
    Vocabulary,
)

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
            table["if"] = Production((_expression("any", "condition"), *_block(depth + 1), with_else))
        if has_else:
            table["else"] = Production((*_block(depth + 1), after))
        return table

    def _assignment(self, depth: int) -> tuple[Table, bool]:
        """`result` has a value once the function itself, not a block, has given it one."""
        kind = self.signature.result
        end = _lexeme(NEWLINE, "" if depth else f"bind {RESULT}")
        table = {"=": Production((_expression(kind, "full"), end))}
        operators = {N: ("+=", "-=", "*=", "//="), S: ("+=",), LN: ("+=",), LS: ("+=",)}.get(kind, ())
        for operator in operators:
            table[operator] = Production((_expression(kind, "full"), _lexeme(NEWLINE)), "", "result")
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
        signature, lexemes = self.signature, self.vocabulary.lexemes
        for slot, one in zip(ARGUMENTS, signature.arguments, strict=False):
            if one == kind:
                table[slot] = Production(())
        if signature.result == kind:
            table[RESULT] = Production((), "", "bound")
            inputs = [_expression(one, "condition") for one in signature.arguments]
            table[SELF] = _call(*inputs)
        if kind == N:
            table |= {lexeme: Production(()) for lexeme in lexemes if lexeme[0].isdigit()}
            table[X] = Production((), "use", "variable")
            table["len"] = _call(_expression("sized", "condition"))
            table["abs"] = _call(_expression(N, "condition"))
            table["int"] = _call(_expression("either", "condition"))
            table["sum"] = _call(("Generated", "element", ("Numbers",)), generator=True)
            table["min"] = table["max"] = Production((_lexeme("("), ("Compared",)))
        if kind == S:
            table |= {lexeme: Production(()) for lexeme in lexemes if lexeme[0] in "'\""}
            table[C] = Production((), "use", "variable")
            table["str"] = _call(_expression(N, "condition"))
        if kind == B:
            table |= {lexeme: Production(()) for lexeme in ("True", "False")}
            table["all"] = table["any"] = _call(("Generated", "any", None), generator=True)
        if kind in (LN, LS):
            table["sorted"] = _call(_expression(kind if kind == LN else "texts to walk", "condition"))
            table["["] = Production((("Listed", _ELEMENT[kind]),))
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
            for operator in {N: "+ - * // % **", S: "+", LN: "+", LS: "+"}.get(kind, "").split():
                table[operator] = Production((_expression(kind, "operand"), follow))
            if kind == S:
                table["*"] = Production((_expression(N, "operand"), follow))
        if _at_least(level, "comparison") and kind != B:
            orders = ("==", "!=", "<", ">", "<=", ">=") if kind == N else ("==", "!=")
            for operator in orders:
                table[operator] = Production((_expression(kind, "sum"), truth))
            if kind in (N, S):
                container = LN if kind == N else "texts to walk"
                table["in"] = Production((_expression(container, "sum"), truth))
        if _at_least(level, "condition") and (kind == B or goal == "any"):
            for operator in ("and", "or"):
                right = _expression("any" if goal == "any" else B, "comparison")
                table[operator] = Production((right, truth))
        accepted = kind in _GOALS.get(goal, (goal,))
        if level == "full" and accepted:
            otherwise = _expression(goal, "full")
            table["if"] = Production((_expression("any", "condition"), _lexeme("else"), otherwise))
        return table, accepted

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
            **{name: _call(follow=text) for name in ("lower", "upper", "strip")},
            **{name: _call(follow=truth) for name in ("isdigit", "isalpha")},
            "count": _call(one, follow=number),
            "split": _call(follow=texts),
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
