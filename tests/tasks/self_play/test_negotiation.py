"""Simple Negotiation against a ledger of goods kept by the test, and its expert against brute force."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from fractions import Fraction
from itertools import product
from statistics import mean

import pytest

from greenward.tasks.self_play.games import SimpleNegotiation, Trading

GAME = SimpleNegotiation()
OFFER = re.compile(r"([1-5])([WS])>([1-5])([WS])")


def goods_of(offer: str) -> tuple[dict[str, int], dict[str, int]]:
    """What is given and what is taken."""
    found = OFFER.fullmatch(offer)
    assert found and found[2] != found[4]
    return {found[2]: int(found[1])}, {found[4]: int(found[3])}


class Ledger:
    """The goods of both players, from the rules of TextArena's game: gains are changes of inventory value."""

    def __init__(self, state: Trading) -> None:
        self.goods = [dict(zip("WS", amounts, strict=True)) for amounts in state.amounts]
        self.values = [dict(zip("WS", values, strict=True)) for values in state.values]
        self.began_with = [self.worth(0), self.worth(1)]
        self.offer: str | None = None
        self.mover = 0

    def worth(self, player: int) -> int:
        return sum(self.values[player][good] * held for good, held in self.goods[player].items())

    def gains(self) -> list[int]:
        return [self.worth(player) - self.began_with[player] for player in (0, 1)]

    def has(self, player: int, goods: dict[str, int]) -> bool:
        return all(self.goods[player][good] >= count for good, count in goods.items())

    def legal(self) -> set[str]:
        offers = {
            f"{give}{first}>{take}{second}"
            for give, take in product(range(1, 6), repeat=2)
            for first, second in ("WS", "SW")
            if self.has(self.mover, {first: give})
        }
        accept = {"accept"} if self.offer and self.has(self.mover, goods_of(self.offer)[1]) else set()
        return {"deny"} | offers | accept

    def move(self, action: str) -> None:
        if action == "accept":
            assert self.offer
            given, taken = goods_of(self.offer)
            for goods, sign in ((given, 1), (taken, -1)):
                for good, count in goods.items():
                    self.goods[self.mover][good] += sign * count
                    self.goods[1 - self.mover][good] -= sign * count
        self.offer = action if OFFER.fullmatch(action) else None
        self.mover = 1 - self.mover


def random_action(state: Trading, rng: random.Random) -> str:
    """Accepts whenever it can, half of the time, so that many deals come about."""
    actions = GAME.legal_actions(state)
    return "accept" if "accept" in actions and rng.random() < 0.5 else rng.choice(actions)


@pytest.mark.parametrize("seed", range(30))
def test_games_follow_the_ledger(seed: int) -> None:
    rng = random.Random(seed)
    state = GAME.start(rng)
    ledger = Ledger(state)
    for moves in range(10):
        assert GAME.player(state) == ledger.mover == moves % 2
        assert set(GAME.legal_actions(state)) == ledger.legal()
        action = random_action(state, rng)
        state = GAME.step(state, action)
        ledger.move(action)
        assert [state.held(p) for p in (0, 1)] == [tuple(goods.values()) for goods in ledger.goods]
        assert [state.gain(p) for p in (0, 1)] == ledger.gains()
    first, second = ledger.gains()
    result = 1 if first > second else -1 if second > first else 0
    assert GAME.player(state) is None and GAME.returns(state) == (result, -result)


def test_an_offer_that_the_other_player_cannot_pay_cannot_be_accepted() -> None:
    state = Trading(((5, 5), (5, 1)), ((10, 15), (10, 15)))
    assert "accept" not in GAME.legal_actions(GAME.step(state, "1W>2S"))
    assert "accept" in GAME.legal_actions(GAME.step(state, "1W>1S"))


def test_a_player_sees_what_it_has_and_not_what_the_other_values() -> None:
    state = GAME.step(Trading(((5, 6), (7, 8)), ((9, 14), (11, 16))), "1W>2S")
    assert GAME.observation(state, 1) == "have 7 W 8 S values 11 16 gain 0 left 9 offer 1W>2S"
    other = Trading(((9, 9), (7, 8)), ((8, 12), (11, 16)))
    assert GAME.observation(GAME.step(other, "1W>2S"), 1) == GAME.observation(state, 1)


@pytest.mark.parametrize("seed", range(10))
def test_the_possible_surplus_is_that_of_the_best_exchange(seed: int) -> None:
    state = GAME.start(random.Random(seed))
    (wheat, sheep), (their_wheat, their_sheep) = state.amounts
    own, theirs = state.values
    assert state.possible_surplus == max(
        (own[0] - theirs[0]) * more_wheat + (own[1] - theirs[1]) * more_sheep
        for more_wheat in range(-wheat, their_wheat + 1)
        for more_sheep in range(-sheep, their_sheep + 1)
    )


def worth_to_the_mover(state: Trading, action: str) -> Fraction:
    """The mean result if the game ended after this move, over all values that the other may have."""
    player = state.moves % 2
    results = []
    for values in product(range(8, 13), range(12, 19)):
        known = list(state.values)
        known[1 - player] = values
        ledger = Ledger(Trading(state.amounts, (known[0], known[1])))
        for goods, held in zip(ledger.goods, (state.held(0), state.held(1)), strict=True):
            goods.update(zip("WS", held, strict=True))
        ledger.mover, ledger.offer = player, state.offer
        before = ledger.gains()[1 - player]
        kept = ledger.gains()
        ledger.move(action)
        if OFFER.fullmatch(action):
            ledger.move("accept")
            if ledger.gains()[1 - player] <= before:
                results.append((kept[player] > kept[1 - player]) - (kept[player] < kept[1 - player]))
                continue
        ours, others = ledger.gains()[player], ledger.gains()[1 - player]
        results.append((ours > others) - (ours < others))
    return mean(map(Fraction, results))


@pytest.mark.parametrize("seed", range(8))
def test_the_expert_plays_the_best_response_of_a_search(seed: int) -> None:
    rng = random.Random(seed)
    state = GAME.start(rng)
    for _ in range(rng.randrange(10)):
        state = GAME.step(state, random_action(state, rng))
    other = 1 - state.moves % 2
    deny = worth_to_the_mover(state, "deny")

    def worth(action: str) -> Fraction:
        """Where the other one lacks what is asked for, by amounts that all count alike, nothing is traded."""
        if not OFFER.fullmatch(action):
            return worth_to_the_mover(state, action)
        ((good, count),) = goods_of(action)[1].items()
        place = "WS".index(good)
        traded = state.held(other)[place] - state.amounts[other][place]
        likely = mean(Fraction(amount + traded >= count) for amount in range(5, 16))
        return likely * worth_to_the_mover(state, action) + (1 - likely) * deny

    best = max(map(worth, GAME.legal_actions(state)))
    chosen = {GAME.expert_action(state, rng) for _ in range(5)}
    assert all(best - worth(action) < 1e-12 for action in chosen)


@pytest.mark.parametrize("seed", range(20))
def test_the_expert_knows_nothing_but_its_observation(seed: int) -> None:
    rng = random.Random(seed)
    state = GAME.start(rng)
    while (player := GAME.player(state)) is not None:
        amounts, values = list(state.amounts), list(state.values)
        hidden = GAME.start(rng)
        amounts[1 - player], values[1 - player] = hidden.amounts[0], hidden.values[0]
        other = replace(state, amounts=tuple(amounts), values=tuple(values))
        assert GAME.observation(state, player) == GAME.observation(other, player)
        chosen = (GAME.expert_action(one, random.Random(seed)) for one in (state, other))
        assert next(chosen) == next(chosen)
        state = GAME.step(state, random_action(state, rng))
