"""Defines games of two players: TicTacToe, Kuhn Poker (Kuhn 1950), Simple Negotiation, TextArena's.

In Simple Negotiation two players trade two resources whose values are private. The rules follow TextArena's
SimpleNegotiation (Guertler et al. 2025, arXiv 2504.11442) with two of its resources and with offers of at
most five of each, so that the legal actions can be listed.
"""

from __future__ import annotations

import importlib
import math
import os
import random
import re
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, lru_cache
from itertools import permutations, product
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from greenward.common.errors import ConfigError, GreenwardError


class Game(Protocol):
    """The rules of a game of two players who move in any order; states are values that `step` replaces.

    Players are numbered 0 and 1 and have the names `roles`. An action is a short text. `observation` is all
    that a player knows: equal observations mean that the player cannot tell the states apart. `actions` are
    all that can ever be legal, of which none begins another one; empty where they cannot be listed. `forfeit`
    is what a player loses, and the other gains, by an illegal move; `max_moves` bounds the length of a game.
    `expert` names the scripted player that plays as well as theory says; empty if there is none.
    """

    name: str
    roles: tuple[str, str]
    rules: str
    actions: tuple[str, ...]
    forfeit: float
    max_moves: int
    expert: str

    def start(self, rng: random.Random) -> Any:
        """A state to begin with; `rng` deals cards and the like."""

    def player(self, state: Any) -> int | None:
        """Whose move it is; None when the game is over."""

    def legal_actions(self, state: Any) -> Sequence[str]:
        """The actions of the player to move; at least one."""

    def observation(self, state: Any, player: int) -> str: ...

    def step(self, state: Any, action: str) -> Any:
        """The state after a legal action."""

    def returns(self, state: Any) -> tuple[float, float]:
        """What each player gained, once the game is over; the two sum to 0."""

    def expert_action(self, state: Any, rng: random.Random) -> str:
        """What the expert does in this state, knowing only the observation of the player to move."""


class FiniteGame(Game, Protocol):
    """A game small enough to be searched through; its states are hashable."""

    def starts(self) -> Sequence[tuple[Hashable, float]]:
        """Every state that a game can begin with, and its probability."""


class ScriptedPlayer(Protocol):
    """Plays by the state of the game instead of by tokens."""

    def act(self, game: Game, state: Any, rng: random.Random) -> str: ...


class RandomPlayer:
    """Plays every legal action with the same probability."""

    def act(self, game: Game, state: Any, rng: random.Random) -> str:
        actions = game.legal_actions(state)
        return actions[int(rng.random() * len(actions))]


class ExpertPlayer:
    """Plays minimax, an equilibrium or a best response, as the game defines it."""

    def act(self, game: Game, state: Any, rng: random.Random) -> str:
        return game.expert_action(state, rng)


def checked_returns(game: Game, state: Any) -> tuple[float, float]:
    """The returns of a game that is over. Raises `GreenwardError` unless they are finite and sum to 0."""
    first, second = game.returns(state)
    if not math.isfinite(first) or abs(first + second) > 1e-9:
        raise GreenwardError(
            f"{game.name}: the returns of a game must be finite and sum to 0, found {first} and {second}",
            remedy="Return (x, -x) from the game's `returns`.",
        )
    return float(first), float(second)


def check_game(game: Game, *, games: int = 20) -> None:
    """Play `games` random games by the protocol. Raises `GreenwardError` for what breaks it."""
    if not len(game.roles) == len(set(game.roles)) == 2:
        raise GreenwardError(f"{game.name}: expected two roles of different names, found {game.roles}")
    if any(a != b and b.startswith(a) for a in game.actions for b in game.actions):
        raise GreenwardError(f"{game.name}: one of the actions {list(game.actions)} begins another one")
    if not (math.isfinite(game.forfeit) and game.forfeit > 0):
        raise GreenwardError(
            f"{game.name}: `forfeit`, what an illegal move loses, must be above 0, found {game.forfeit}"
        )
    for seed in range(games):
        rng = random.Random(seed)
        state = game.start(rng)
        moves = 0
        while (player := game.player(state)) is not None:
            actions = game.legal_actions(state)
            if moves == game.max_moves or not actions or not isinstance(game.observation(state, player), str):
                raise GreenwardError(
                    f"{game.name}: expected an observation and a legal action at each of at most "
                    f"{game.max_moves} moves, found {list(actions)} at move {moves + 1}"
                )
            if game.actions and (unlisted := set(actions) - set(game.actions)):
                raise GreenwardError(f"{game.name}: {min(unlisted)!r} is legal, but not among the `actions`")
            state = game.step(state, RandomPlayer().act(game, state, rng))
            moves += 1
        checked_returns(game, state)


LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
MARKS = "XO"
EMPTY = "012345678"


class TicTacToe:
    """A state is the board as nine characters; an empty cell shows its digit, which is also the action.

    The observation is the mark of the player, then the cells.
    """

    name = "tictactoe"
    roles = ("first", "second")
    rules = (
        "TicTacToe on nine cells that are numbered 0 to 8, row by row. X moves first. Three of one mark in a "
        "row, column or diagonal win; a full board without them is a draw."
    )
    actions = tuple(EMPTY)
    forfeit = 1.0
    max_moves = 9
    expert = "minimax"

    def start(self, rng: random.Random) -> str:
        return EMPTY

    def starts(self) -> Sequence[tuple[str, float]]:
        return [(EMPTY, 1.0)]

    def player(self, state: str) -> int | None:
        return _situation(state)[0]

    def legal_actions(self, state: str) -> Sequence[str]:
        return _situation(state)[1]

    def observation(self, state: str, player: int) -> str:
        cells = (f"{mark}{cell}" if mark in MARKS else cell for cell, mark in zip(EMPTY, state, strict=True))
        return f"{MARKS[player]} {' '.join(cells)}"

    def step(self, state: str, action: str) -> str:
        return state.replace(action, MARKS[state.count(MARKS[0]) - state.count(MARKS[1])])

    def returns(self, state: str) -> tuple[float, float]:
        result = _result(state)
        return result, -result

    def expert_action(self, state: str, rng: random.Random) -> str:
        """An action of the highest minimax value, drawn from all of them."""
        values = {action: minimax_value(self.step(state, action)) for action in self.legal_actions(state)}
        best = (max if self.player(state) == 0 else min)(values.values())
        return rng.choice([action for action, value in values.items() if value == best])


@lru_cache(maxsize=8192)
def minimax_value(state: str) -> float:
    """The return of the first player when both play perfectly from here."""
    game = TicTacToe()
    if (player := game.player(state)) is None:
        return _result(state)
    values = [minimax_value(game.step(state, action)) for action in game.legal_actions(state)]
    return max(values) if player == 0 else min(values)


@lru_cache(maxsize=8192)
def _situation(state: str) -> tuple[int | None, tuple[str, ...]]:
    """Whose move it is, and the empty cells."""
    empty = tuple(cell for cell in state if cell not in MARKS)
    return None if not empty or _result(state) != 0 else (len(empty) + 1) % 2, empty


def _result(state: str) -> float:
    """1 if the first player has won, -1 if the second has, else 0."""
    won = {state[a] for a, b, c in LINES if state[a] == state[b] == state[c]}
    return float(MARKS[0] in won) - float(MARKS[1] in won)


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

        return Trading((pair(AMOUNTS, AMOUNTS), pair(AMOUNTS, AMOUNTS)), (pair(*VALUES), pair(*VALUES)))

    def player(self, state: Trading) -> int | None:
        return state.moves % 2 if state.moves < self.max_moves else None

    def legal_actions(self, state: Trading) -> Sequence[str]:
        held = state.held(state.moves % 2)
        accept = ("accept",) if state.offer and _affordable(held, _taken(state.offer)) else ()
        return (*accept, "deny", *(offer for offer, gained in _OFFERS.items() if _affordable(held, gained)))

    def observation(self, state: Trading, player: int) -> str:
        (wheat, sheep), (wheat_value, sheep_value) = state.held(player), state.values[player]
        return (
            f"have {wheat} W {sheep} S values {wheat_value} {sheep_value} gain {state.gain(player)} "
            f"left {self.max_moves - state.moves} offer {state.offer or 'none'}"
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


PREFIX = "textarena:"
_NAMED_ACTION = re.compile(r"\[[^\[\]\n]{1,80}\]")


class TextArenaGame:
    """A game of TextArena for two players; its states are copies of TextArena's environment.

    The observation is TextArena's own, which explains the rules. TextArena does not list actions: those of
    `legal_actions` are the ones in brackets in the game's explanation and on its newest board that the game
    accepts, and every other text that it accepts is contained in them too. There is no expert.

    Raises `ConfigError` if the extra `games` is not installed, for an unknown game, and for one that cannot
    be played so.
    """

    roles = ("player_0", "player_1")
    rules = "It is explained in what you see."
    actions: tuple[str, ...] = ()
    forfeit = 1.0
    max_moves = 200
    expert = ""

    def __init__(self, game_id: str) -> None:
        try:
            from textarena.envs.registration import ENV_REGISTRY, make
        except ImportError as error:
            raise ConfigError(
                f"{PREFIX}{game_id} needs TextArena ({error}).", remedy="pip install 'greenward[games]'"
            ) from error
        if game_id not in ENV_REGISTRY:
            near = get_close_matches(game_id, ENV_REGISTRY, n=3)
            raise ConfigError(
                f"TextArena has no game {game_id!r}.",
                remedy=f"Did you mean {', '.join(near)}?" if near else "An ID is such as TicTacToe-v0.",
            )
        self.name = f"{PREFIX}{game_id}"
        self._game_id = game_id
        self._make = make
        try:
            check_game(self, games=5)
        except Exception as error:  # the games of TextArena refuse by any exception, assertions among them
            raise ConfigError(
                f"{self.name} cannot be played: expected a game of two players that names its actions in "
                f"brackets and whose rewards sum to 0. {type(error).__name__}: {str(error).strip():.300}",
                remedy="TicTacToe-v0, KuhnPoker-v0 and SimpleNegotiation-v0 can.",
            ) from error

    def start(self, rng: random.Random) -> Position:
        with _global_random(rng.getstate()):
            env = self._make(self._game_id)
            env.reset(num_players=2, seed=rng.getrandbits(31))
            return Position(env, random.getstate())

    def player(self, state: Position) -> int | None:
        return None if state.env.state.done else state.env.state.current_player_id

    def legal_actions(self, state: Position) -> Sequence[str]:
        return state.actions

    def observation(self, state: Position, player: int) -> str:
        return state.observation(player)

    def step(self, state: Position, action: str) -> Position:
        if (after := state.after(action)) is None:
            raise GreenwardError(f"{self.name}: {action!r:.100} is no legal action")
        return after

    def returns(self, state: Position) -> tuple[float, float]:
        rewards = state.env.state.rewards
        return float(rewards[0]), float(rewards[1])

    def expert_action(self, state: Position, rng: random.Random) -> str:
        raise ConfigError(f"{self.name} has no expert.", remedy="Play against random or a model.")


class Position:
    """An environment of TextArena and the state of Python's random numbers, which it draws from.

    Neither changes: an action is tried on a copy.
    """

    def __init__(self, env: Any, random_state: Any) -> None:
        self.env = env
        self._random_state = random_state
        self._after: dict[str, Position | None] = {}
        self._observations: dict[int, str] = {}

    def after(self, action: str) -> Position | None:
        """The position after an action, None if the game calls it invalid."""
        if action not in self._after:
            env = deepcopy(self.env)
            player = env.state.current_player_id
            with _global_random(self._random_state):
                env.step(action)
                valid = not (env.state.error_count or env.state.game_info[player]["invalid_move"])
                self._after[action] = Position(env, random.getstate()) if valid else None
        return self._after[action]

    def observation(self, player: int) -> str:
        if player not in self._observations:
            env = deepcopy(self.env)  # a message is shown once
            env.state.current_player_id = player
            self._observations[player] = str(env.get_observation()[1]).strip()
        return self._observations[player]

    @cached_property
    def actions(self) -> AcceptedActions:
        state = self.env.state
        messages = state.observations[state.current_player_id]
        explained = [text for _, text, kind in messages if kind.name == "PROMPT"]
        boards = [text for _, text, kind in messages if kind.name == "GAME_BOARD"]
        named = _NAMED_ACTION.findall("\n".join((*explained, *boards[-1:])))
        actions = AcceptedActions(action for action in dict.fromkeys(named) if self.after(action))
        actions.position = self
        return actions


class AcceptedActions(tuple[str, ...]):
    """The actions that a position names; `in` tries any other one."""

    position: Position

    def __contains__(self, action: object) -> bool:
        return isinstance(action, str) and self.position.after(action) is not None


@contextmanager
def _global_random(state: Any) -> Iterator[None]:
    """Python's own random numbers go on from `state`, and afterwards as if nothing had been drawn."""
    before = random.getstate()
    random.setstate(state)
    try:
        yield
    finally:
        random.setstate(before)


_SHIPPED: tuple[Game, ...] = (TicTacToe(), KuhnPoker(), SimpleNegotiation())
GAMES: Mapping[str, Game] = MappingProxyType({game.name: game for game in _SHIPPED})
SCRIPTED: Mapping[str, ScriptedPlayer] = MappingProxyType(
    {"random": RandomPlayer(), "expert": ExpertPlayer()}
)


def find_game(name: str) -> Game:
    """The game of that name, checked by random games. Raises `ConfigError` or `GreenwardError`."""
    if name in GAMES:
        return GAMES[name]
    if name.startswith(PREFIX):
        return TextArenaGame(name.removeprefix(PREFIX))
    module, _, attribute = name.partition(":")
    if not attribute:
        near = get_close_matches(name, GAMES, n=1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"{name!r} is no game.",
            remedy=f"{meant}Shipped games: {', '.join(GAMES)}; others are {PREFIX}ID and module:Class.",
        )
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        made: Game = getattr(importlib.import_module(module), attribute)()
        check_game(made)
    except GreenwardError:
        raise
    except Exception as error:  # the user's module may raise anything
        raise ConfigError(
            f"{name} cannot be played. {type(error).__name__}: {error}",
            remedy="Name a class with the attributes and methods of `Game` in "
            "greenward.tasks.self_play.games, which is made without arguments.",
        ) from error
    return made
