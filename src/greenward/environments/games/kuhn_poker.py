"""Kuhn Poker: one hand with a deck of three cards (Kuhn 1950)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import permutations

DECK = "JQK"
VALUE = -1 / 18
"""What the first player gains per hand, in chips, when both play an equilibrium."""

# What may follow the actions so far; a history that is not here is over.
_ACTIONS = {
    (): ("check", "bet"),
    ("check",): ("check", "bet"),
    ("bet",): ("call", "fold"),
    ("check", "bet"): ("call", "fold"),
}


class KuhnPoker:
    """A state is the two cards and the actions so far; returns are chips, with an ante of one.

    The observation is the role, the card of the player and the actions so far.
    """

    name = "kuhn_poker"
    roles = ("first", "second")
    rules = (
        "Kuhn Poker: each player puts one chip into the pot and gets one card of J, Q and K. A player may "
        "check, or bet one chip; a bet is answered by call or fold. Who folds loses the pot, otherwise the "
        "higher card wins it."
    )
    actions: tuple[str, ...] = ("check", "bet", "call", "fold")
    forfeit = 2.0
    max_moves = 3
    expert = "equilibrium"

    def start(self, rng: random.Random) -> tuple[str, tuple[str, ...]]:
        return "".join(rng.sample(DECK, 2)), ()

    def starts(self) -> Sequence[tuple[tuple[str, tuple[str, ...]], float]]:
        return [(("".join(cards), ()), 1 / 6) for cards in permutations(DECK, 2)]

    def player(self, state: tuple[str, tuple[str, ...]]) -> int | None:
        return len(state[1]) % 2 if state[1] in _ACTIONS else None

    def legal_actions(self, state: tuple[str, tuple[str, ...]]) -> Sequence[str]:
        return _ACTIONS[state[1]]

    def observation(self, state: tuple[str, tuple[str, ...]], player: int) -> str:
        cards, history = state
        return " ".join((self.roles[player], cards[player], *history))

    def step(self, state: tuple[str, tuple[str, ...]], action: str) -> tuple[str, tuple[str, ...]]:
        cards, history = state
        return cards, (*history, action)

    def returns(self, state: tuple[str, tuple[str, ...]]) -> tuple[float, float]:
        cards, history = state
        if history[-1] == "fold":
            gain = 1.0 if len(history) % 2 == 0 else -1.0  # the second player folds at an even length
        else:
            gain = (2.0 if "bet" in history else 1.0) * (
                1 if DECK.index(cards[0]) > DECK.index(cards[1]) else -1
            )
        return gain, -gain

    def expert_action(self, state: tuple[str, tuple[str, ...]], rng: random.Random) -> str:
        """The equilibrium in which the first player bets a king always and a jack with 1/3.

        Of Kuhn's family of equilibria it is the one with alpha = 1/3.
        """
        actions = self.legal_actions(state)
        card = state[0][len(state[1]) % 2]
        return actions[1] if rng.random() < EQUILIBRIUM[card, state[1]] else actions[0]


EQUILIBRIUM = {
    ("J", ()): 1 / 3, ("Q", ()): 0.0, ("K", ()): 1.0,
    ("J", ("check",)): 1 / 3, ("Q", ("check",)): 0.0, ("K", ("check",)): 1.0,
    ("J", ("bet",)): 1.0, ("Q", ("bet",)): 2 / 3, ("K", ("bet",)): 0.0,
    ("J", ("check", "bet")): 1.0, ("Q", ("check", "bet")): 1 / 3, ("K", ("check", "bet")): 0.0,
}  # fmt: skip
"""The probability of the second of the two legal actions (bet, or fold) at each card and history."""
