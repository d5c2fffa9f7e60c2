"""A game of one's own: a pile of stones, of which each player takes 1 to 3; who takes the last one wins.

    greenward play nim:Nim
    greenward train spiral_self_play 'self_play.games=[nim:Nim]' --output runs/nim
    greenward play nim:Nim --model runs/nim

The methods are those of `Game` in greenward.tasks.self_play.games; docs/self_play.md has the rest. A state is
the number of stones and the number of moves, from which it follows whose move it is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

PILE, MOST = 10, 3
State = tuple[int, int]


class Nim:
    """The rules, which are all that is needed, and an expert for matches and reports."""

    name = "nim"
    roles = ("first", "second")
    rules = f"A pile of {PILE} stones. Take 1 to {MOST} of them; who takes the last one wins."
    actions = tuple(str(count) for count in range(1, MOST + 1))
    forfeit = 1.0  # what an illegal move costs
    max_moves = PILE
    expert = "theory"

    def start(self, rng: random.Random) -> State:
        return PILE, 0

    def starts(self) -> Sequence[tuple[State, float]]:
        """Every first state with its probability: the game is small enough to be searched through."""
        return [((PILE, 0), 1.0)]

    def player(self, state: State) -> int | None:
        stones, moves = state
        return moves % 2 if stones else None

    def legal_actions(self, state: State) -> Sequence[str]:
        return self.actions[: state[0]]

    def observation(self, state: State, player: int) -> str:
        return f"{state[0]} stones"

    def step(self, state: State, action: str) -> State:
        return state[0] - int(action), state[1] + 1

    def returns(self, state: State) -> tuple[float, float]:
        first = 1.0 if state[1] % 2 else -1.0  # the last stone was taken by the move before
        return first, -first

    def expert_action(self, state: State, rng: random.Random) -> str:
        """Leave a multiple of 4, from which whatever is taken can be made up to 4."""
        left = state[0] % (MOST + 1)
        return str(left) if left else rng.choice(self.legal_actions(state))
