"""Matches: games of a policy against an opponent, and what it reached in each role."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from greenward.environments.dialogue import run_dialogues
from greenward.environments.episode import POLICY
from greenward.environments.games.environment import GameDialogue, Seat, Table
from greenward.environments.games.game import Game, ScriptedPlayer
from greenward.environments.games.prompts import MovePrompts
from greenward.intervals import Estimate, proportion
from greenward.policies.engine import RolloutEngine, SamplingParams
from greenward.seeding import step_seed

_OPPONENT = "opponent"


@dataclass(frozen=True)
class Contestant:
    """An engine in a match, how it is asked for a move of the game, and how its moves are drawn."""

    engine: RolloutEngine
    prompts: MovePrompts
    sampling: SamplingParams

    @property
    def params(self) -> SamplingParams:
        """The sampling that ends with a bare move."""
        return replace(self.sampling, stop_strings=self.sampling.stop_strings + self.prompts.stop_strings)


@dataclass(frozen=True)
class RoleResult:
    """The games that a contestant played in one role.

    `illegal` of those `lost` ended with an illegal move of the contestant. The games that are `void`, since
    the opponent's engine failed or the game broke its own rules, are in no other number.
    """

    role: str
    won: int
    drawn: int
    lost: int
    illegal: int
    void: int = 0

    @property
    def games(self) -> int:
        """The games with a result."""
        return self.won + self.drawn + self.lost

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Shares of the games with Wilson's 95 % intervals: those of the fields, and `not_lost`.

        Empty where no game had a result.
        """
        if not self.games:
            return {}
        counts = {name: getattr(self, name) for name in ("won", "drawn", "lost", "illegal")}
        counts["not_lost"] = self.won + self.drawn
        return {name: proportion(count, self.games) for name, count in counts.items()}


def play_match(
    game: Game,
    contestant: Contestant,
    opponent: Contestant | ScriptedPlayer,
    *,
    games: int,
    seed: int,
) -> tuple[RoleResult, RoleResult]:
    """`games` games, the contestant in each role in turn; its results in the first and in the second role.

    An illegal move loses. The same seed gives the same games, if the engines are deterministic.
    """
    dialogues = play_games(game, contestant, opponent, games=games, seed=seed)
    first, second = (_result(game, role, dialogues[role::2]) for role in (0, 1))
    return first, second


def play_games(
    game: Game,
    contestant: Contestant,
    opponent: Contestant | ScriptedPlayer | None,
    *,
    games: int,
    seed: int,
) -> list[GameDialogue]:
    """Finished games, the contestant in the first role of those with an even number, in all without opponent.

    Without an opponent it plays both roles. All games go on together: one forward pass of an engine for each
    move.
    """
    players, others = {POLICY: contestant.engine}, {}
    seat: Seat = POLICY
    if isinstance(opponent, Contestant):
        seat, players[_OPPONENT] = _OPPONENT, opponent.engine
        others[_OPPONENT] = opponent.prompts, opponent.sampling
    elif opponent is not None:
        seat = opponent
    table = Table(game, contestant.prompts, others=others)
    asked = table.asked(contestant.sampling)
    dialogues = [
        GameDialogue(
            0,
            table,
            _OPPONENT,
            (POLICY, seat) if number % 2 == 0 else (seat, POLICY),
            asked=asked,
            rng=random.Random(step_seed(seed, number, "match")),
        )
        for number in range(games)
    ]
    run_dialogues(dialogues, players, seed=seed)
    return dialogues


def _result(game: Game, role: int, dialogues: list[GameDialogue]) -> RoleResult:
    name = game.roles[role]
    episodes = [dialogue.finish() for dialogue in dialogues]
    rewards = [episode.rewards[name] for episode in episodes if episode.scored]
    return RoleResult(
        name,
        won=sum(reward > 0 for reward in rewards),
        drawn=sum(reward == 0 for reward in rewards),
        lost=sum(reward < 0 for reward in rewards),
        illegal=sum(one.outcome == "illegal" and one.rewards[name] < 0 for one in episodes),
        void=len(episodes) - len(rewards),
    )
