"""Implements games as an environment: a policy plays itself, its earlier versions, and scripted players."""

from __future__ import annotations

import random
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from greenward.common.errors import ConfigError
from greenward.common.seeding import step_seed
from greenward.environments.prompts import PromptTokenizer, template_thought
from greenward.grading.answers import final_text
from greenward.rollouts.driver import Dialogue, Request, run_dialogues, turn_of
from greenward.rollouts.protocols import (
    POLICY,
    Collection,
    Completion,
    Episode,
    RolloutEngine,
    SamplingParams,
    Turn,
)
from greenward.tasks.opponents import LEAGUE, SELF, League
from greenward.tasks.self_play.games import (
    SCRIPTED,
    Game,
    RandomPlayer,
    ScriptedPlayer,
    checked_returns,
    find_game,
)

MoveFormat = Literal["bare", "boxed"]

INSTRUCTION = (
    "You play {role} in a game.\n\n{rules}\n\nWhat you see: {observation}\nYour possible moves: {actions}\n\n"
    "Reason between <think> and </think>, then give your move as \\boxed{{move}}."
)
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_REASONED = re.compile(r"\s*<think>.*?</think>\s*\\boxed\{[^{}]*\}\s*", re.DOTALL)
_SHOWN_ACTIONS = 60
_LONG_MOVE = 32  # tokens, beyond which moves hardly come again


@dataclass(frozen=True)
class Move:
    """What a completion says: the action, None where there is none, and whether the format was kept."""

    action: str | None
    well_formed: bool
    text: str


def explained(game: Game, state: Any, player: int) -> str:
    """What the player to move is asked, in words: the rules, the observation and the possible moves."""
    actions = game.legal_actions(state)
    return INSTRUCTION.format(
        role=game.roles[player],
        rules=game.rules,
        observation=game.observation(state, player),
        actions=", ".join(actions[:_SHOWN_ACTIONS]) + (" …" if len(actions) > _SHOWN_ACTIONS else ""),
    )


def boxed_move(text: str) -> str | None:
    """The move in the last box of an answer, None without one."""
    boxes = _BOXED.findall(text)
    return boxes[-1].strip() if boxes else None


def check_format(game: Game, move_format: MoveFormat) -> None:
    """Raises `ConfigError` for a game whose moves cannot be written so."""
    if move_format == "bare" and not game.actions:
        raise ConfigError(
            f"{game.name} does not list its actions, so a bare move has no end.",
            remedy="Set self_play.move_format=boxed.",
        )


class MovePrompts:
    """Renders the positions of one game for one tokenizer.

    In the format `bare` the prompt is the observation and the completion is the move; in `boxed` the prompt
    explains the game and the completion reasons and then gives \\boxed{move}. `stop_strings` end a bare
    move.
    """

    def __init__(self, game: Game, tokenizer: PromptTokenizer, move_format: MoveFormat) -> None:
        self._game = game
        self._tokenizer = tokenizer
        self._boxed = move_format == "boxed"
        check_format(game, move_format)
        self.stop_strings = () if self._boxed else game.actions
        self._ids: dict[tuple[str, int], tuple[int, ...]] = {}
        self._begun = template_thought(tokenizer)
        self._short_move = lru_cache(maxsize=100_000)(self._parsed)

    def prompt_ids(self, state: Any, player: int) -> tuple[int, ...]:
        """The tokens that the policy continues, one tuple for equal observations."""
        observation = self._game.observation(state, player)
        key = observation, player
        if key not in self._ids:
            if len(self._ids) > 100_000:
                self._ids.clear()
            self._ids[key] = tuple(self._render(state, player, observation))
        return self._ids[key]

    def move(self, completion: Completion) -> Move:
        """The move in a completion; the last box behind a thought counts."""
        ids = tuple(completion.token_ids.tolist())
        return self._parsed(ids) if len(ids) > _LONG_MOVE else self._short_move(ids)

    def _parsed(self, ids: tuple[int, ...]) -> Move:
        text = self._tokenizer.decode_answer(ids)
        if not self._boxed:
            return Move(text.strip(), True, text)
        return Move(boxed_move(final_text(text, self._begun)), _REASONED.fullmatch(text) is not None, text)

    def _render(self, state: Any, player: int, observation: str) -> list[int]:
        if not self._boxed:
            return self._tokenizer.encode(observation, add_special_tokens=True)
        text = explained(self._game, state, player)
        if self._tokenizer.chat_template:
            return self._tokenizer.render_chat([{"role": "user", "content": text}])
        return self._tokenizer.encode(f"{text}\n", add_special_tokens=True)


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
