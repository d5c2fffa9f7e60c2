"""The environment of games: a policy plays itself, earlier versions of itself, and scripted players."""

from __future__ import annotations

import random
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from greenward.environments.dialogue import Dialogue, Request, run_dialogues, turn_of
from greenward.environments.episode import POLICY, Collection, Episode, Turn
from greenward.environments.games.game import Game, RandomPlayer, ScriptedPlayer, checked_returns
from greenward.environments.games.league import LEAGUE, League
from greenward.environments.games.prompts import MovePrompts
from greenward.policies.engine import Completion, RolloutEngine, SamplingParams
from greenward.seeding import step_seed

SELF = "self"
"""The opponent that is the trained policy itself: it plays both roles."""
LATEST = "latest"
"""The opponent that is the policy as it is now, without being trained on its moves."""

IllegalMoves = Literal["lose", "retry"]
Seat = str | ScriptedPlayer
"""Who plays a role: a rollout engine by name, or a scripted player."""


@dataclass(frozen=True)
class Table:
    """A game with the prompts that its positions have, and its share of the games that are played.

    `others` has the prompts and the sampling of engines that are asked in another way than the policy.
    """

    game: Game
    prompts: MovePrompts
    weight: float = 1.0
    others: Mapping[str, tuple[MovePrompts, SamplingParams]] = field(default_factory=dict)

    def asked(self, sampling: SamplingParams) -> dict[str, tuple[MovePrompts, SamplingParams]]:
        """How each player is asked, the policy with `sampling`; a bare move ends the answer."""
        return {
            player: (prompts, replace(params, stop_strings=params.stop_strings + prompts.stop_strings))
            for player, (prompts, params) in {POLICY: (self.prompts, sampling), **self.others}.items()
        }


@dataclass(eq=False)
class Opponents:
    """Chooses who plays against the policy: `shares` of the games by the opponent's name.

    `scripted` are the opponents that need no tokens, and `LEAGUE` stands for the members of `league`; all
    other names but `SELF` are engines.
    """

    shares: Mapping[str, float]
    scripted: Mapping[str, ScriptedPlayer]
    league: League | None = None

    def __post_init__(self) -> None:
        total = sum(self.shares.values())
        self._names = [name for name, share in self.shares.items() if share > 0]
        self._bounds = np.cumsum([self.shares[name] / total for name in self._names])

    def of_group(self, group_id: int, games: int) -> list[tuple[str, Seat]]:
        """The name and the seat of the opponent in each game of a group."""
        found = np.searchsorted(self._bounds, (np.arange(games) + 0.5) / games)
        names = [self._names[min(index, len(self._names) - 1)] for index in found.tolist()]
        seats: dict[str, Seat] = {SELF: POLICY, **self.scripted}
        if LEAGUE in self._names:
            assert self.league is not None
            seats[LEAGUE] = self.league.member(group_id)
        return [(name, seats.get(name, name)) for name in names]


@dataclass(eq=False)
class GameEnvironment:
    """Plays `games_per_group` games of one table in each group, the policy on both sides in turn.

    The table of group i is drawn by weight from i and the seed. The task of an episode is the game and the
    opponent, as in `tictactoe/random`. Both roles of a game against `self` are trained. `opponent_noise` is
    the share of random legal moves of other opponents that are models: it leads to positions that they would
    not reach. An illegal move loses the game; with `illegal_moves` "retry" the player may answer once more,
    and the rejected answer becomes an episode of its own that earned the loss, so that it gets no credit for
    what followed. A move that keeps the format adds `format_weight` over the number of the player's moves to
    its reward.
    """

    tables: Sequence[Table]
    opponents: Opponents
    _: KW_ONLY
    sampling: SamplingParams
    games_per_group: int
    seed: int
    illegal_moves: IllegalMoves = "lose"
    opponent_noise: float = 0.0
    format_weight: float = 0.0

    def __post_init__(self) -> None:
        self._asked = {table.game.name: table.asked(self.sampling) for table in self.tables}
        self._retries = 1 if self.illegal_moves == "retry" else 0

    def collect(
        self, players: Mapping[str, RolloutEngine], groups: Sequence[int], *, seed: int, step: int = 0
    ) -> Collection:
        dialogues = [dialogue for group_id in groups for dialogue in self._group(group_id, seed)]
        sampling_seconds = run_dialogues(dialogues, players, seed=seed)
        episodes: list[Episode] = []
        metrics: dict[str, list[float]] = defaultdict(list)
        for dialogue in dialogues:
            episodes += [*dialogue.rejected_moves(), dialogue.finish()]
            dialogue.add_metrics(metrics)
        return Collection(episodes, sampling_seconds, 0.0, metrics)

    def task(self, group: int) -> str:
        return self._table(group).game.name

    def _table(self, group_id: int) -> Table:
        weights = [table.weight for table in self.tables]
        (table,) = random.Random(step_seed(self.seed, group_id, "game")).choices(self.tables, weights)
        return table

    def _group(self, group_id: int, seed: int) -> list[GameDialogue]:
        table = self._table(group_id)
        rng = random.Random(step_seed(seed, group_id, "chance"))
        dialogues = []
        for number, (opponent, seat) in enumerate(self.opponents.of_group(group_id, self.games_per_group)):
            seats: tuple[Seat, Seat] = (POLICY, seat) if number % 2 == 0 else (seat, POLICY)
            dialogues.append(
                GameDialogue(
                    group_id,
                    table,
                    opponent,
                    seats,
                    asked=self._asked[table.game.name],
                    rng=random.Random(rng.getrandbits(64)),
                    retries=self._retries,
                    opponent_noise=self.opponent_noise,
                    format_weight=self.format_weight,
                )
            )
        return dialogues


@dataclass(eq=False)
class GameDialogue(Dialogue):
    """One game. Every move of an engine is a turn of its own, since each move has a prompt of its own.

    `asked` is that of the table: engines that are not in it are asked as the policy is.
    """

    group_id: int
    table: Table
    opponent: str
    seats: tuple[Seat, Seat]
    _: KW_ONLY
    asked: Mapping[str, tuple[MovePrompts, SamplingParams]]
    rng: random.Random
    retries: int = 0
    opponent_noise: float = 0.0
    format_weight: float = 0.0

    def __post_init__(self) -> None:
        self._game = self.table.game
        self._task_id = f"{self.table.game.name}/{self.opponent}"
        self.state: Any = self._game.start(self.rng)
        self._turns: list[Turn] = []
        self._rejected: list[Turn] = []
        self._moves: list[tuple[str, str]] = []  # role and text of every move, for people
        self._well_formed: tuple[list[bool], list[bool]] = [], []  # of each player's answers
        self._request: Request | None = None
        self._attempts = 0
        self._forfeited: int | None = None
        self._void = ""
        self._returns = (0.0, 0.0)

    def request(self) -> Request | None:
        if self._request is None and not self._void:
            with self._void_by_errors():
                self._go_on()
        return self._request

    def _go_on(self) -> None:
        """Let scripted players move until an engine has to, or the game is over."""
        game = self._game
        while self._forfeited is None and (player := game.player(self.state)) is not None:
            if len(self._moves) >= game.max_moves:
                self._void = f"the game has not ended after {game.max_moves} moves"
                return
            seat = self.seats[player]
            if isinstance(seat, str) and seat != POLICY and self.rng.random() < self.opponent_noise:
                seat = RandomPlayer()
            if isinstance(seat, str):
                prompts, params = self.asked.get(seat, self.asked[POLICY])
                prompt_ids = prompts.prompt_ids(self.state, player)
                self._request = Request(game.roles[player], prompt_ids, params, seat)
                return
            action = seat.act(game, self.state, self.rng)
            self._moves.append((game.roles[player], action))
            self.state = game.step(self.state, action)

    def respond(self, completion: Completion) -> None:
        request, self._request = self._request, None
        assert request is not None
        turn = turn_of(request, completion)
        player = self._game.roles.index(request.role)
        prompts, _ = self.asked.get(request.player, self.asked[POLICY])
        move = prompts.move(completion)
        self._well_formed[player].append(move.well_formed)
        action = after = None
        with self._void_by_errors():
            action = move.action if move.action in self._game.legal_actions(self.state) else None
            after = None if action is None else self._game.step(self.state, action)
        if self._void:
            return
        if action is not None:
            self._turns.append(turn)
            self._moves.append((request.role, action))
            self.state = after
            self._attempts = 0
        elif self._attempts < self.retries:
            self._attempts += 1
            self._rejected.append(turn)
        else:
            self._turns.append(turn)
            self._moves.append((request.role, f"illegal: {move.text[:200]}"))
            self._forfeited = player

    def abandon(self, reason: str) -> None:
        self._request = None
        self._void = reason

    @contextmanager
    def _void_by_errors(self) -> Iterator[None]:
        """The rules may be a user's, and raise anything."""
        try:
            yield
        except Exception as error:
            reason = f"{self._game.name} raised {type(error).__name__}: {error}"
            warnings.warn(f"A game is void: {reason}", stacklevel=3)
            self.abandon(reason)

    def finish(self) -> Episode:
        game = self._game
        rewards, outcome = (0.0, 0.0), "void"
        if self._forfeited is not None:
            rewards = self._returns_of_forfeit(self._forfeited)
            outcome = "illegal"
        elif not self._void:
            with self._void_by_errors():
                rewards = checked_returns(game, self.state)
                outcome = "drawn" if not rewards[0] else f"{game.roles[0 if rewards[0] > 0 else 1]}_won"
        self._returns = rewards
        extra = {}
        if engines := [seat for seat in self.seats if isinstance(seat, str) and seat != POLICY]:
            extra["opponent"] = engines[0]
        if self._void:
            extra["void"] = self._void
        kept = [sum(answers) / len(answers) if answers else 0.0 for answers in self._well_formed]
        return Episode(
            turns=tuple(self._turns),
            rewards={
                role: rewards[player] + self.format_weight * kept[player]
                for player, role in enumerate(game.roles)
            },
            group_id=self.group_id,
            task_id=self._task_id,
            outcome=outcome,
            scored=not self._void,
            answer=" ".join(action for _, action in self._moves),
            extra=extra,
            transcript=tuple(self._moves),
        )

    def rejected_moves(self) -> list[Episode]:
        """The answers that had to be repeated, each as an episode that lost."""
        roles = self._game.roles
        return [
            Episode(
                (turn,),
                dict(zip(roles, self._returns_of_forfeit(roles.index(turn.role)), strict=True)),
                self.group_id,
                self._task_id,
                "illegal",
                answer="illegal",
            )
            for turn in self._rejected
        ]

    def _returns_of_forfeit(self, loser: int) -> tuple[float, float]:
        loss = self._game.forfeit
        return (-loss, loss) if loser == 0 else (loss, -loss)

    def add_metrics(self, metrics: dict[str, list[float]]) -> None:
        """Results, illegal moves, length and entropy of each role that the policy played, by name.

        `illegal` is a share of moves, `length` is tokens per move, and `entropy` is the mean of -log p of the
        sampled tokens, which estimates it in nats. `games/illegal` and `games/length` are over all of them.
        """
        if self._void:
            return
        for player, role in enumerate(self._game.roles):
            if self.seats[player] != POLICY:
                continue
            name = f"games/{self._task_id}/{role}"
            result = self._returns[player]
            metrics[f"{name}/win"].append(float(result > 0))
            metrics[f"{name}/draw"].append(float(result == 0))
            metrics[f"{name}/loss"].append(float(result < 0))
            turns = [turn for turn in self._turns if turn.role == role]
            rejected = [turn for turn in self._rejected if turn.role == role]
            legal = len(turns) - (self._forfeited == player)
            illegal = [0.0] * legal + [1.0] * (len(turns) - legal + len(rejected))
            lengths = [float(len(turn.completion_ids)) for turn in (*turns, *rejected)]
            for prefix in (name, "games"):
                metrics[f"{prefix}/illegal"] += illegal
                metrics[f"{prefix}/length"] += lengths
            metrics[f"{name}/entropy"] += [
                -sum(turn.logprobs_T.tolist()) / len(turn.logprobs_T) for turn in (*turns, *rejected)
            ]
