"""Games of TextArena (Guertler et al. 2025, arXiv 2504.11442) by the protocol of `game.py`."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from greenward.environments.games.game import check_game
from greenward.errors import ConfigError, GreenwardError

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
        after = state.after(action)
        if after is None:
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
