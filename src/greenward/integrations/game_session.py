"""A game against a scripted player, played by texts: what adapters to other frameworks step through."""

from __future__ import annotations

import random

from greenward.environments.games.game import checked_returns
from greenward.environments.games.prompts import boxed_move, explained
from greenward.errors import ConfigError
from greenward.recipes.self_play import SCRIPTED, find_game


class GameSession:
    """One game. The seed decides on cards, the opponent's moves, and who begins: odd ones let the opponent.

    `game` is a name as in `self_play.games`, `opponent` is "random" or "expert". An illegal move loses.
    """

    def __init__(self, game: str, opponent: str = "random", seed: int = 0) -> None:
        self._game = find_game(game)
        if opponent not in SCRIPTED:
            raise ConfigError(f"{opponent!r} is no opponent.", remedy=f"There are {', '.join(SCRIPTED)}.")
        self._opponent = SCRIPTED[opponent]
        self._rng = random.Random(seed)
        self._seat = seed % 2
        self._state = self._game.start(self._rng)
        self._moves = 0
        self.outcome = ""
        self.reward = 0.0
        self._let_opponent_move()

    @property
    def over(self) -> bool:
        return bool(self.outcome)

    @property
    def role(self) -> str:
        return self._game.roles[self._seat]

    @property
    def prompt(self) -> str:
        """The rules, what the model sees, and how to answer; how it ended once the game is over."""
        return self.outcome if self.over else explained(self._game, self._state, self._seat)

    @property
    def legal_moves(self) -> list[str]:
        """The moves that the model may make now; none once the game is over."""
        return [] if self.over else list(self._game.legal_actions(self._state))

    def answer(self, text: str) -> None:
        """Make the move in the last box of a model's answer."""
        self.move(boxed_move(text) or "")

    def move(self, move: str) -> None:
        """Make a move, and let the opponent answer it. Does nothing once the game is over."""
        if self.over:
            return
        if move not in self._game.legal_actions(self._state):
            self.outcome, self.reward = "illegal", -self._game.forfeit
            return
        self._advance(move)
        self._let_opponent_move()

    def _let_opponent_move(self) -> None:
        while not self.over and (player := self._game.player(self._state)) != self._seat:
            if player is None:
                self.reward = checked_returns(self._game, self._state)[self._seat]
                self.outcome = "won" if self.reward > 0 else "lost" if self.reward < 0 else "drawn"
            else:
                self._advance(self._opponent.act(self._game, self._state, self._rng))

    def _advance(self, move: str) -> None:
        self._state = self._game.step(self._state, move)
        self._moves += 1
        if self._moves >= self._game.max_moves and self._game.player(self._state) is not None:
            self.outcome = "too_long"
