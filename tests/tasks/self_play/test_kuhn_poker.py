"""The rules of Kuhn Poker and its equilibrium against a table of payoffs and best responses by brute force."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from greenward.tasks.self_play.games import EQUILIBRIUM, VALUE, KuhnPoker

GAME = KuhnPoker()
RANKS = {"J": 0, "Q": 1, "K": 2}
DEALS = [first + second for first, second in product(RANKS, RANKS) if first != second]

# Every hand: what the first player gains, "high" for so many chips to the higher card.
HANDS = {
    "check check": ("high", 1),
    "check bet call": ("high", 2),
    "check bet fold": ("second", 1),
    "bet call": ("high", 2),
    "bet fold": ("first", 1),
}
Strategy = Callable[[str, str], float]  # the probability of bet or fold by card and history
SPOTS = {0: ("", "check bet"), 1: ("check", "bet")}
CHOICES = {"": ("check", "bet"), "check": ("check", "bet"), "bet": ("call", "fold")} | {
    "check bet": ("call", "fold")
}


def payoff(deal: str, hand: str) -> int:
    winner, chips = HANDS[hand]
    if winner == "high":
        winner = "first" if RANKS[deal[0]] > RANKS[deal[1]] else "second"
    return chips if winner == "first" else -chips


def value(first: Strategy, second: Strategy) -> float:
    """What the first player gains per hand."""
    total = 0.0
    for deal, hand in product(DEALS, HANDS):
        weight, history = 1 / 6, ""
        for number, action in enumerate(hand.split()):
            other = (first, second)[number % 2](deal[number % 2], history)
            weight *= other if action == CHOICES[history][1] else 1 - other
            history = f"{history} {action}".strip()
        total += weight * payoff(deal, hand)
    return total


def pure_strategies(role: int) -> Iterator[Strategy]:
    places = list(product(RANKS, SPOTS[role]))
    for choices in product((0.0, 1.0), repeat=len(places)):
        table = dict(zip(places, choices, strict=True))
        yield lambda card, history, table=table: table[card, history]  # type: ignore[misc]


def equilibrium(card: str, history: str) -> float:
    return EQUILIBRIUM[card, tuple(history.split())]


def test_the_30_terminal_histories_and_their_payoffs() -> None:
    found = {}
    new: list[Any] = [state for state, _ in GAME.starts()]
    while new:
        state = new.pop()
        if GAME.player(state) is None:
            found[state[0], " ".join(state[1])] = GAME.returns(state)
            continue
        assert GAME.player(state) == len(state[1]) % 2
        assert tuple(GAME.legal_actions(state)) == CHOICES[" ".join(state[1])]
        new += [GAME.step(state, action) for action in GAME.legal_actions(state)]
    expected = {(d, h): (payoff(d, h), -payoff(d, h)) for d, h in product(DEALS, HANDS)}
    assert found == expected and len(found) == 30


def test_every_deal_is_equally_likely_and_drawn() -> None:
    assert sorted(state[0] for state, _ in GAME.starts()) == sorted(DEALS)
    assert [chance for _, chance in GAME.starts()] == [pytest.approx(1 / 6)] * 6
    rng = random.Random(0)
    dealt = [GAME.start(rng)[0] for _ in range(3000)]
    assert all(abs(dealt.count(deal) - 500) < 80 for deal in DEALS)


def test_a_player_sees_its_own_card_and_the_actions_alone() -> None:
    observations = {
        (role, GAME.observation((deal, tuple(history.split())), role))
        for deal, role in product(DEALS, (0, 1))
        for history in SPOTS[role]
    }
    assert observations == {
        (role, f"{GAME.roles[role]} {card} {history}".strip())
        for role in (0, 1)
        for card, history in product(RANKS, SPOTS[role])
    }


def test_the_equilibrium_has_the_known_value_and_cannot_be_exploited() -> None:
    assert value(equilibrium, equilibrium) == pytest.approx(VALUE) == pytest.approx(-1 / 18)
    assert max(value(one, equilibrium) for one in pure_strategies(0)) == pytest.approx(-1 / 18)
    assert min(value(equilibrium, one) for one in pure_strategies(1)) == pytest.approx(-1 / 18)


def test_the_expert_plays_the_equilibrium() -> None:
    for (card, history), chance in EQUILIBRIUM.items():
        deal = "".join(sorted((card, "QKQ"["JQK".index(card)]), reverse=len(history) % 2 == 1))
        deal = deal if deal[len(history) % 2] == card else deal[::-1]
        for number, choice in ((chance - 1e-6, 1), (chance + 1e-6, 0)):
            rng: Any = SimpleNamespace(random=lambda number=number: number)
            if 0 <= number < 1:
                assert GAME.expert_action((deal, history), rng) == CHOICES[" ".join(history)][choice]
