"""An incremental parser of small Python functions: which lexemes may come next.

The grammar (`productions`) is LL(1): a parser is a stack of symbols, and each lexeme replaces the first
symbol that has a production for it; symbols above it must be able to vanish. Expressions carry the type that
is wanted and the type that has been read so far, so that every prefix can become a program without an error
of types, within the lexemes that are left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from greenward.environments.token_mdp.productions import C, Productions, Signature, Symbol, Table, X
from greenward.environments.token_mdp.vocabulary import RESULT, Vocabulary

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

    `cost` is the least number of lexemes that finish the program, and `extra_V` how many more it takes with
    each lexeme next (`NEVER` where one is not allowed); states that look alike share the array.
    """

    stack: tuple[Any, ...] | None  # (symbol, rest of the stack)
    scope: Scope
    cost: int
    extra_V: np.ndarray
    following: dict[int, Node] = field(default_factory=dict)


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
        if found is None and node.extra_V[action] < NEVER:
            found = node.following[action] = self._advance(node, self._vocabulary.lexemes[action])
        return found

    def _advance(self, node: Node, lexeme: str) -> Node:
        stack = node.stack
        while stack is not None:
            symbol, stack = stack
            production = self._tables[symbol].get(lexeme)
            if production is not None and node.scope.allows(lexeme, production.rule):
                for one in reversed(production.symbols):
                    stack = (one, stack)
                return self._node(stack, node.scope.after(production.action, lexeme))
        raise AssertionError(f"{lexeme} was said to be allowed")

    def _node(self, stack: tuple[Any, ...] | None, scope: Scope) -> Node:
        found = self._nodes.get((stack, scope))
        if found is not None:
            return found
        if len(self._nodes) > MOST_NODES:  # of random programs there is no end
            self._nodes.clear()
            self.start.following.clear()
        node = Node(stack, scope, self._cost(stack), self._row(stack, scope))
        self._nodes[(stack, scope)] = node
        return node

    def _row(self, stack: tuple[Any, ...] | None, scope: Scope) -> np.ndarray:
        """`Node.extra_V`, which depends on the symbols down to the first that may not vanish."""
        symbols: list[Symbol] = []
        while stack is not None and (not symbols or self._nullable[symbols[-1]]):
            symbol, stack = stack
            symbols.append(symbol)
        key = (*symbols, scope)
        found = self._rows.get(key)
        if found is not None:
            return found
        found = np.full(len(self._vocabulary), NEVER, np.int32)
        passed = 0
        for symbol in symbols:
            passed += self._costs[symbol]  # of what the lexeme replaces
            for lexeme, production in self._tables[symbol].items():
                action = self._vocabulary.index[lexeme]
                if found[action] == NEVER and scope.allows(lexeme, production.rule):
                    found[action] = 1 + sum(self._costs[one] for one in production.symbols) - passed
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
        known = set(self._vocabulary.index)
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
