"""Games between a policy and its opponents: who sits where, illegal moves, void games, rewards and metrics."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from greenward.common.errors import EngineError, GreenwardError
from greenward.rollouts.protocols import POLICY, Collection, Completion, Episode, SamplingParams
from greenward.tasks.self_play.environment import GameEnvironment, Opponents
from greenward.tasks.self_play.games import (
    ExpertPlayer,
    KuhnPoker,
    RandomPlayer,
    SimpleNegotiation,
    TicTacToe,
    check_game,
    checked_returns,
)
from text_engine import TextEngine, table_of

GAMES = [TicTacToe(), KuhnPoker(), SimpleNegotiation()]
SCRIPTED = {"random": RandomPlayer(), "expert": ExpertPlayer()}


class Claim:
    """Both say yes or no; who alone says yes wins. The returns sum to `surplus`."""

    name, roles, rules, expert = "claim", ("left", "right"), "Say yes.", "yes"
    actions: tuple[str, ...] = ("yes", "no")
    forfeit, max_moves = 3.0, 2

    def __init__(self, surplus: float = 0.0) -> None:
        self._surplus = surplus

    def start(self, rng: random.Random) -> str:
        return ""

    def player(self, state: str) -> int | None:
        return len(state) if len(state) < 2 else None

    def legal_actions(self, state: str) -> Sequence[str]:
        return self.actions

    def observation(self, state: str, player: int) -> str:
        return f"{self.roles[player]}?"

    def step(self, state: str, action: str) -> str:
        return state + action[0]

    def returns(self, state: str) -> tuple[float, float]:
        first, second = (float(answer == "y") for answer in state)
        return first - second, second - first + self._surplus

    def expert_action(self, state: str, rng: random.Random) -> str:
        return "yes"


def play(
    policy: Callable[..., str],
    *,
    game: Any = None,
    shares: dict[str, float] | None = None,
    games: int = 2,
    engines: dict[str, Any] | None = None,
    groups: range = range(1),
    seed: int = 0,
    move_format: Any = "bare",
    **settings: Any,
) -> Collection:
    environment = GameEnvironment(
        [table_of(game or Claim(), move_format)],
        Opponents(shares or {"expert": 1.0}, SCRIPTED),
        sampling=SamplingParams(max_tokens=10),
        games_per_group=games,
        seed=0,
        **settings,
    )
    players = {POLICY: TextEngine(policy), **(engines or {})}
    return environment.collect(players, groups, seed=seed)


def first_legal(game: Any) -> Callable[[str], str]:
    """A player who reads a bare prompt of TicTacToe and takes the first empty cell."""
    return lambda text: next(cell for cell in text[1:].split() if cell.isdigit())


@pytest.mark.parametrize("game", [*GAMES, Claim()], ids=lambda game: game.name)
def test_every_game_follows_the_protocol(game: Any) -> None:
    check_game(game)


@dataclass
class Broken(Claim):
    """A game that breaks the protocol in one way."""

    actions: tuple[str, ...] = ("yes", "no")
    result: Any = (1.0, -1.0)
    moves: int = 2
    forfeit: float = 1.0
    legal: tuple[str, ...] | None = None

    def legal_actions(self, state: str) -> Sequence[str]:
        return super().legal_actions(state) if self.legal is None else self.legal

    def returns(self, state: str) -> tuple[float, float]:
        return self.result

    def player(self, state: str) -> int | None:
        return len(state) % 2 if len(state) < self.moves else None


@pytest.mark.parametrize(
    ("game", "message"),
    [
        (Broken(actions=()), "a legal action"),
        (Broken(actions=("a", "ab")), "begins another"),
        (Broken(result=(1.0, 1.0)), "sum to 0"),
        (Broken(result=(float("nan"), 0.0)), "finite"),
        (Broken(result=(float("inf"), float("-inf"))), "finite"),
        (Broken(moves=3), "at most 2 moves"),
        (Broken(forfeit=float("nan")), "must be above 0, found nan"),
        (Broken(forfeit=-1.0), "must be above 0, found -1"),
        (Broken(legal=("yes", "maybe")), "'maybe' is legal, but not among"),
    ],
)
def test_a_game_that_breaks_the_protocol_is_refused(game: Any, message: str) -> None:
    with pytest.raises(GreenwardError, match=message):
        check_game(game)


def test_the_policy_plays_both_sides_against_each_opponent_by_its_share() -> None:
    collection = play(lambda text: "no", games=20, shares={"self": 0.5, "expert": 0.3, "other": 0.2},
                      engines={"other": TextEngine(lambda text: "no")})  # fmt: skip
    seats = Counter((episode.task_id, episode.rewards["left"]) for episode in collection.episodes)
    assert seats == {
        ("claim/self", 0): 10,
        ("claim/expert", -1): 3,
        ("claim/expert", 1): 3,
        ("claim/other", 0): 4,
    }
    players = [tuple(turn.player for turn in episode.turns) for episode in collection.episodes]
    assert Counter(players) == {
        (POLICY, POLICY): 10,
        (POLICY,): 6,
        (POLICY, "other"): 2,
        ("other", POLICY): 2,
    }


def test_rewards_sum_to_zero_and_follow_from_the_moves() -> None:
    for game in GAMES:
        expert_self_play = {"random": 1.0}
        collection = play(lambda text: "?", game=game, shares=expert_self_play, games=6)
        assert all(sum(episode.rewards.values()) == 0 for episode in collection.episodes)
    won = play(lambda text: "yes", shares={"self": 1.0}).episodes[0]
    assert won.outcome == "drawn" and won.transcript == (("left", "yes"), ("right", "yes"))


def test_all_games_of_a_batch_share_one_call_per_move() -> None:
    engine = TextEngine(first_legal(TicTacToe()))
    environment = GameEnvironment(
        [table_of(TicTacToe())], Opponents({"self": 1.0}, {}), sampling=SamplingParams(max_tokens=2),
        games_per_group=6, seed=0,
    )  # fmt: skip
    episodes = environment.collect({POLICY: engine}, range(4), seed=0).episodes
    assert {episode.answer for episode in episodes} == {"0 1 2 3 4 5 6"}
    assert [len(batch) for batch in engine.batches] == [4] * 7
    assert all(len(episode.turns) == 7 and episode.outcome == "first_won" for episode in episodes)


def test_an_illegal_move_loses_the_forfeit_and_gets_no_credit_for_another() -> None:
    left, right = play(lambda text: "maybe").episodes
    assert left.outcome == right.outcome == "illegal"
    assert left.rewards == {"left": -3.0, "right": 3.0} and right.rewards == {"left": 3.0, "right": -3.0}
    assert left.transcript == (("left", "illegal: maybe"),)
    assert right.transcript == (("left", "yes"), ("right", "illegal: maybe"))


def test_an_answer_that_had_to_be_repeated_is_an_episode_that_lost() -> None:
    answers = iter(["maybe", "yes", "maybe", "perhaps"])
    rejected, accepted = play(lambda text: next(answers), games=1, illegal_moves="retry").episodes
    assert (
        rejected.rewards == {"left": -3.0, "right": 3.0} and rejected.outcome == "illegal" and rejected.scored
    )
    assert accepted.rewards == {"left": 0.0, "right": 0.0} and len(accepted.turns) == 1
    rejected, lost = play(lambda text: next(answers), games=1, illegal_moves="retry").episodes
    assert (rejected.rewards["left"], lost.rewards["left"], lost.outcome) == (-3.0, -3.0, "illegal")
    assert [turn.completion_ids.size for turn in (*rejected.turns, *lost.turns)] == [6, 8]


def test_the_format_is_rewarded_apart_from_the_result() -> None:
    answers = iter(["<think>Hm.</think> \\boxed{no}", "\\boxed{ no }"])
    collection = play(lambda text: next(answers), move_format="boxed", format_weight=0.5)
    as_left, as_right = collection.episodes
    assert as_left.rewards == {"left": -0.5, "right": 1.0} and as_right.rewards == {
        "left": 1.0,
        "right": -1.0,
    }
    assert {episode.outcome for episode in collection.episodes} == {"right_won", "left_won"}
    wins = {name: values for name, values in collection.metrics.items() if name.endswith(("/win", "/loss"))}
    assert wins == {f"games/claim/expert/{role}/{result}": [float(result == "loss")]
                    for role in ("left", "right") for result in ("win", "loss")}  # fmt: skip


class DeadServer:
    """Answers as often as it is told to, then fails."""

    deterministic, max_positions = True, 1000

    def __init__(self, calls: int) -> None:
        self._calls = calls

    def sample(self, *arguments: Any, **settings: Any) -> list[list[Completion]]:
        self._calls -= 1
        if self._calls < 0:
            raise EngineError("the server of the opponent has died")
        return TextEngine(lambda text: "yes").sample(*arguments, **settings)

    def sync(self, policy: Any) -> None:
        pass


def test_a_game_whose_opponent_dies_is_void_and_the_others_go_on() -> None:
    def collect(calls: int, answer: str = "no") -> Collection:
        return play(
            lambda text: answer,
            games=4,
            shares={"remote": 0.5, "self": 0.5},
            engines={"remote": DeadServer(calls)},
        )

    died = collect(0).episodes
    assert [episode.scored for episode in died] == [False, False, True, True]
    assert all(not any(episode.rewards.values()) for episode in died[:2])
    assert died[0].extra == {"opponent": "remote", "void": "the server of the opponent has died"}
    assert [len(episode.turns) for episode in died] == [1, 0, 2, 2]
    metrics = collect(0).metrics
    assert {name.split("/")[2] for name in metrics if name.count("/") > 1} == {"self"}
    assert all(episode.scored for episode in collect(2).episodes)


def test_the_failure_of_the_policy_itself_is_not_hidden() -> None:
    def fail(text: str) -> str:
        raise EngineError("no answer")

    with pytest.raises(EngineError, match="no answer"):
        play(fail)


def test_a_game_whose_returns_do_not_sum_to_zero_is_void() -> None:
    collection = play(lambda text: "no", game=Claim(surplus=0.5))
    assert not any(episode.scored for episode in collection.episodes) and not collection.metrics
    assert "sum to 0" in collection.episodes[0].extra["void"]


def test_a_game_that_does_not_end_is_void() -> None:
    collection = play(lambda text: "no", game=Broken(moves=5))
    assert [episode.extra for episode in collection.episodes] == [
        {"void": "the game has not ended after 2 moves"}
    ] * 2


@pytest.mark.parametrize("method", ["observation", "legal_actions", "step", "returns"])
def test_a_game_that_raises_is_void_and_says_why(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LookupError("no such card")

    game = Claim()
    monkeypatch.setattr(game, method, fail, raising=True)
    collection = play(lambda text: "no", game=game)
    assert not any(episode.scored for episode in collection.episodes) and not collection.metrics
    assert {e.extra["void"] for e in collection.episodes} == {f"{game.name} raised LookupError: no such card"}


@pytest.mark.parametrize("move_format", ["bare", "boxed"])
@pytest.mark.parametrize(
    "move",
    ["x" * 1_000_000, "\\boxed{" * 10_000, "\\boxed{" + " " * 60_000, "</think>" * 9_000,
     "\x1b[2J\x00\r\n", "yes\x00no", "\ud800", ""],
    ids=["long", "boxes", "blanks", "tags", "escapes", "null", "surrogate", "nothing"],
)  # fmt: skip
def test_hostile_moves_lose_and_are_kept_short(move: str, move_format: str) -> None:
    for episode in play(lambda text: move, move_format=move_format).episodes:
        assert episode.outcome == "illegal" and len(episode.answer) < 300


def test_equal_seeds_give_equal_games_and_others_do_not() -> None:
    def transcripts(seed: int) -> list[Any]:
        environment = GameEnvironment(
            [table_of(game) for game in GAMES], Opponents({"random": 1.0}, SCRIPTED),
            sampling=SamplingParams(max_tokens=2), games_per_group=4, seed=5,
        )  # fmt: skip
        engine = TextEngine(lambda text, rng: str(rng.choice(text.split())), random=True)
        return [e.transcript for e in environment.collect({POLICY: engine}, range(8), seed=seed).episodes]

    assert transcripts(1) == transcripts(1) != transcripts(2)


def test_games_are_drawn_by_their_weight() -> None:
    tables = [table_of(TicTacToe()), table_of(KuhnPoker())]
    environment = GameEnvironment(
        [type(tables[0])(table.game, table.prompts, weight) for table, weight in zip(tables, (3, 1), strict=True)],
        Opponents({"random": 1.0}, SCRIPTED), sampling=SamplingParams(max_tokens=2), games_per_group=1, seed=0,
    )  # fmt: skip
    episodes: list[Episode] = environment.collect(
        {POLICY: TextEngine(lambda text: "?")}, range(400), seed=0
    ).episodes
    counts = Counter(episode.task_id for episode in episodes)
    assert abs(counts["tictactoe/random"] - 300) < 35 and len(counts) == 2


def test_checked_returns_are_floats() -> None:
    class Whole(Claim):
        def returns(self, state: str) -> tuple[float, float]:
            return 1, -1

    returns = checked_returns(Whole(), "yn")
    assert returns == (1.0, -1.0) and all(isinstance(value, float) for value in returns)


@pytest.mark.parametrize("noise", [0.0, 0.25, 1.0])
def test_opponents_that_are_models_play_their_share_of_random_moves_and_the_policy_none(noise: float) -> None:
    collection = play(
        lambda text: "no", games=400, shares={"latest": 1.0}, opponent_noise=noise,
        engines={"latest": TextEngine(lambda text: "no")},
    )  # fmt: skip
    roles = ["right" if number % 2 == 0 else "left" for number in range(400)]  # of the opponent
    moves = [dict(episode.transcript) for episode in collection.episodes]
    yes = sum(move[role] == "yes" for move, role in zip(moves, roles, strict=True))
    assert abs(yes - 400 * noise / 2) <= 40 * noise  # a random move says yes half of the time
    for episode, move, role in zip(collection.episodes, moves, roles, strict=True):
        (own,) = move.keys() - {role}
        assert move[own] == "no" and {turn.role for turn in episode.trained_turns} == {own}
    assert {episode.task_id for episode in collection.episodes} == {"claim/latest"}
