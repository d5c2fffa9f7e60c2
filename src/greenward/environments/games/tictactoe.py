"""TicTacToe: three in a row on nine cells."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

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
    player = game.player(state)
    if player is None:
        return _result(state)
    values = [minimax_value(game.step(state, action)) for action in game.legal_actions(state)]
    return max(values) if player == 0 else min(values)


@lru_cache(maxsize=8192)
def _situation(state: str) -> tuple[int | None, tuple[str, ...]]:
    """Whose move it is, and the empty cells."""
    empty = tuple(cell for cell in state if cell not in MARKS)
    over = not empty or _result(state) != 0
    return None if over else (len(empty) + 1) % 2, empty


def _result(state: str) -> float:
    """1 if the first player has won, -1 if the second has, else 0."""
    won = {state[a] for a, b, c in LINES if state[a] == state[b] == state[c]}
    return float(MARKS[0] in won) - float(MARKS[1] in won)
