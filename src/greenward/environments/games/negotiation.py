"""Simple Negotiation: two players trade two resources whose values are private.

The rules follow TextArena's SimpleNegotiation with two of its resources and with offers of at most five of
each, so that the legal actions can be listed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

RESOURCES = "WS"  # wheat and sheep
MOST_OFFERED = 5
AMOUNTS = range(5, 16)
"""How much of each resource a player may begin with."""

VALUES = (range(8, 13), range(12, 19))
"""What one unit of each resource may be worth to a player: 10 and 15, up to a fifth more or less."""

# Every offer: what the player who makes it gains of each resource if it is accepted.
_OFFERS = {
    f"{give}{RESOURCES[out]}>{take}{RESOURCES[1 - out]}": (take, -give) if out else (-give, take)
    for out in (0, 1)
    for give, take in product(range(1, MOST_OFFERED + 1), repeat=2)
}


@dataclass(frozen=True)
class Trading:
    """A state: what each player began with and values, what player 0 has gained, and the open offer."""

    amounts: tuple[tuple[int, int], tuple[int, int]]
    values: tuple[tuple[int, int], tuple[int, int]]
    traded: tuple[int, int] = (0, 0)
    offer: str | None = None
    moves: int = 0
    deals: int = 0

    def held(self, player: int) -> tuple[int, int]:
        sign = 1 if player == 0 else -1
        (wheat, sheep), (more_wheat, more_sheep) = self.amounts[player], self.traded
        return wheat + sign * more_wheat, sheep + sign * more_sheep

    def gain(self, player: int) -> int:
        """By how much the player's possessions have grown in value, in the player's own values."""
        sign = 1 if player == 0 else -1
        return sign * sum(value * more for value, more in zip(self.values[player], self.traded, strict=True))

    @property
    def possible_surplus(self) -> int:
        """The largest sum of both gains: each resource goes to the player who values it more."""
        return sum(
            abs(first - second) * self.amounts[0 if first < second else 1][resource]
            for resource, (first, second) in enumerate(zip(*self.values, strict=True))
        )


class SimpleNegotiation:
    """The larger gain in value wins after ten moves.

    A move is `accept`, `deny` or an offer: `2W>3S` gives two wheat for three sheep. Any move but `accept`
    rejects the open offer. The observation holds what the player has, its values, its gain so far, the
    moves that are left, and the open offer.
    """

    name = "negotiation"
    roles = ("first", "second")
    rules = (
        "Two players trade wheat (W) and sheep (S). Each knows only its own values. A move is an offer, such "
        "as 2W>3S (give two wheat, take three sheep; at most five of each), accept, or deny. After ten moves "
        "the player whose possessions gained more, in its own values, wins."
    )
    actions: tuple[str, ...] = ("accept", "deny", *_OFFERS)
    forfeit = 1.0
    max_moves = 10
    expert = "best_response"

    def start(self, rng: random.Random) -> Trading:
        def pair(first: Sequence[int], second: Sequence[int]) -> tuple[int, int]:
            return rng.choice(first), rng.choice(second)

        amounts = pair(AMOUNTS, AMOUNTS), pair(AMOUNTS, AMOUNTS)
        return Trading(amounts, (pair(*VALUES), pair(*VALUES)))

    def player(self, state: Trading) -> int | None:
        return state.moves % 2 if state.moves < self.max_moves else None

    def legal_actions(self, state: Trading) -> Sequence[str]:
        held = state.held(state.moves % 2)
        accept = ("accept",) if state.offer and _affordable(held, _taken(state.offer)) else ()
        return (*accept, "deny", *(offer for offer, gained in _OFFERS.items() if _affordable(held, gained)))

    def observation(self, state: Trading, player: int) -> str:
        (wheat, sheep), (wheat_value, sheep_value) = state.held(player), state.values[player]
        left = self.max_moves - state.moves
        return (
            f"have {wheat} W {sheep} S values {wheat_value} {sheep_value} gain {state.gain(player)} "
            f"left {left} offer {state.offer or 'none'}"
        )

    def step(self, state: Trading, action: str) -> Trading:
        moved = replace(state, moves=state.moves + 1, offer=action if action in _OFFERS else None)
        if action != "accept":
            return moved
        assert state.offer is not None
        sign = 1 if state.moves % 2 == 0 else -1
        wheat, sheep = _taken(state.offer)
        traded = state.traded[0] + sign * wheat, state.traded[1] + sign * sheep
        return replace(moved, traded=traded, deals=state.deals + 1)

    def returns(self, state: Trading) -> tuple[float, float]:
        first, second = state.gain(0), state.gain(1)
        result = float((first > second) - (first < second))
        return result, -result

    def expert_action(self, state: Trading, rng: random.Random) -> str:
        """The best move against a player who accepts whatever raises the value of its possessions.

        All values that the other player may have count alike; a move is worth the mean of +1, 0 and -1
        that the game would bring if it ended after it. Offers count as if they were the last. Whether the
        other player has what an offer takes is as likely as `AMOUNTS` make it.
        """
        player = state.moves % 2
        sign = 1 if player == 0 else -1
        own = state.values[player]
        traded = sign * state.traded[0], sign * state.traded[1]
        worth = {"deny": _expected_result(own, traded, (0, 0), forced=True)}
        for action in self.legal_actions(state):
            if action == "accept":
                assert state.offer is not None
                worth[action] = _expected_result(own, traded, _taken(state.offer), forced=True)
            elif action in _OFFERS:
                gained = _OFFERS[action]
                taken = 0 if gained[0] > 0 else 1
                likely = sum(amount >= traded[taken] + gained[taken] for amount in AMOUNTS) / len(AMOUNTS)
                traded_on = _expected_result(own, traded, gained, forced=False)
                worth[action] = likely * traded_on + (1 - likely) * worth["deny"]
        best = max(worth.values())
        return "accept" if worth.get("accept") == best else rng.choice([a for a in worth if worth[a] == best])


def _taken(offer: str) -> tuple[int, int]:
    """What the player who accepts an offer gains of each resource."""
    wheat, sheep = _OFFERS[offer]
    return -wheat, -sheep


def _affordable(held: tuple[int, int], gained: tuple[int, int]) -> bool:
    return held[0] + gained[0] >= 0 and held[1] + gained[1] >= 0


@lru_cache(maxsize=65536)
def _expected_result(
    own: tuple[int, int], traded: tuple[int, int], gained: tuple[int, int], *, forced: bool
) -> float:
    """The mean result of a trade over the values that the other player may have.

    Unless it is `forced`, the trade comes about only where it raises the value of what the other one has.
    """
    wheat, sheep = np.array(list(product(*VALUES))).T
    their_gain = -(gained[0] * wheat + gained[1] * sheep)
    happens = np.ones(len(wheat), dtype=bool) if forced else their_gain > 0
    our_total = own[0] * traded[0] + own[1] * traded[1] + happens * (own[0] * gained[0] + own[1] * gained[1])
    their_total = -(traded[0] * wheat + traded[1] * sheep) + happens * their_gain
    return float(np.sign(our_total - their_total).mean())
