"""The protocol of two-player zero-sum games, and players that need no model."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from greenward.common.errors import GreenwardError


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
