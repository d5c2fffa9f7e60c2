"""Dialogues side by side: a two-player toy game with and without a sandbox, and what training makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from greenward.common.errors import GreenwardError
from greenward.config.sections import GRPOAlgorithmConfig, ShapeConfig, TrainingConfig
from greenward.models.policy import Policy
from greenward.rollouts.driver import Request, Waiting, run_dialogues
from greenward.rollouts.protocols import (
    POLICY,
    Collection,
    Completion,
    Episode,
    SamplingParams,
    StopReason,
    Turn,
)
from greenward.runs.reading import without_timing
from greenward.training.advantages import ESTIMATORS, Advantages, group_signal, spread_over_tokens
from greenward.training.batch import Batch
from greenward.training.collector import Collector, collection_metrics
from greenward.training.protocols import rollout_row
from greenward.training.trainer import RLTrainer

ONE_TOKEN = SamplingParams(max_tokens=1)
OPPONENT = "opponent"
SHAPE = ShapeConfig(layers=1, hidden_size=16, heads=2, kv_heads=2, intermediate_size=24, max_positions=64)


class HigherToken:
    """A game of two moves: `first` and then `second` write a token, and the higher one wins.

    `players` says who plays each role; `pause`, if given, is what the second move waits for.
    """

    def __init__(self, group_id: int, players: Mapping[str, str], pause: Future[None] | None = None) -> None:
        self.group_id = group_id
        self.requests = 0
        self._players = players
        self._pause = pause
        self._moves: list[Completion] = []

    def _prompt(self, role: str) -> tuple[int, ...]:
        return (2 + self.group_id, 60 if role == "first" else 61, *(int(m.token_ids[0]) for m in self._moves))

    def request(self) -> Request | Waiting | None:
        self.requests += 1
        if len(self._moves) == 2:
            return None
        if self._moves and self._pause is not None and not self._pause.done():
            return Waiting(self._pause)
        role = ("first", "second")[len(self._moves)]
        return Request(role, self._prompt(role), ONE_TOKEN, self._players[role])

    def respond(self, completion: Completion) -> None:
        self._moves.append(completion)

    def finish(self) -> Episode:
        moves, self._moves = self._moves, []
        turns = []
        for role, move in zip(("first", "second"), moves, strict=True):
            prompt, player = self._prompt(role), self._players[role]
            self._moves.append(move)
            wrote = np.ones(1, dtype=bool)
            turns.append(
                Turn(role, prompt, move.token_ids, move.logprobs, wrote, move.stop_reason, 0, player)
            )
        first, second = (int(move.token_ids[0]) for move in moves)
        gain = float(np.sign(first - second))
        rewards = {"first": gain, "second": -gain}
        return Episode(tuple(turns), rewards, self.group_id, "higher token", "won" if gain else "drawn")


@dataclass
class Scripted:
    """A rollout engine that answers a prompt by a function of it and of the sample's number."""

    answer: Any
    batches: list[list[tuple[int, ...]]] = field(default_factory=list)
    deterministic = True
    max_positions = 1000

    def sample(self, prompts, group_sizes, params, *, seed, on_group=None):  # type: ignore[no-untyped-def]
        self.batches.append(list(prompts))
        groups = []
        for index, (prompt, size) in enumerate(zip(prompts, group_sizes, strict=True)):
            tokens = [np.array([self.answer(prompt, number)]) for number in range(size)]
            groups.append(
                [Completion(ids, np.full(1, -0.5, np.float32), StopReason.END, 3) for ids in tokens]
            )
            on_group(index, groups[-1])
        return groups

    def sync(self, policy: Policy) -> None:
        pass


SELF_PLAY = {"first": POLICY, "second": POLICY}
AS_FIRST = {"first": POLICY, "second": OPPONENT}
AS_SECOND = {"first": OPPONENT, "second": POLICY}


def play(dialogues: Sequence[HigherToken], players: Mapping[str, Any], seed: int = 0) -> list[Episode]:
    run_dialogues(dialogues, players, seed=seed)
    return [dialogue.finish() for dialogue in dialogues]


def test_all_games_of_a_group_share_one_prompt_and_all_groups_one_batch_a_move() -> None:
    engine = Scripted(lambda prompt, number: 10 + number % 2)
    games = [HigherToken(group, SELF_PLAY) for group in (0, 1) for _ in range(4)]
    episodes = play(games, {POLICY: engine})
    assert engine.batches[0] == [(2, 60), (3, 60)]
    assert engine.batches[1] == [(2, 61, 10), (2, 61, 11), (3, 61, 10), (3, 61, 11)]
    assert len(engine.batches) == 2
    assert [turn.prompt_ids for turn in episodes[1].turns] == [(2, 60), (2, 61, 11)]


@pytest.fixture
def three_games() -> tuple[list[Episode], Scripted]:
    """The policy writes 20 and its opponent 30: as first player, as second, and against itself."""
    players = {POLICY: Scripted(lambda prompt, number: 20), OPPONENT: Scripted(lambda prompt, number: 30)}
    games = [HigherToken(0, AS_FIRST), HigherToken(0, AS_SECOND), HigherToken(0, SELF_PLAY)]
    return play(games, players), players[OPPONENT]


def test_an_engine_need_not_hand_over_groups_one_by_one() -> None:
    class AtOnce(Scripted):
        def sample(self, prompts, group_sizes, params, *, seed, on_group=None):  # type: ignore[no-untyped-def]
            return super().sample(prompts, group_sizes, params, seed=seed, on_group=lambda *_: None)

    (episode,) = play([HigherToken(0, SELF_PLAY)], {POLICY: AtOnce(lambda *_: 20)})
    assert episode.outcome == "drawn"


def test_each_role_is_played_by_its_player_and_only_the_policy_is_trained(three_games: Any) -> None:
    episodes, opponent = three_games
    assert opponent.batches == [[(2, 60)], [(2, 61, 20)]]
    batch = Batch.of(episodes, ESTIMATORS["dr_grpo"](episodes))
    assert [(row.turn.role, row.turn.player) for row in batch.groups[0]] == [
        (role, POLICY) for role in ("first", "second", "first", "second")
    ]
    assert episodes[0].trained_rewards == {"first": -1.0} and episodes[0].reward == -1.0


def test_rewards_of_an_opponent_enter_no_baseline(three_games: Any) -> None:
    """As first player the policy earned -1 and 0, so its baseline is -1/2; the opponent's +1 is not in it."""
    advantages = ESTIMATORS["dr_grpo"](three_games[0]).advantages
    assert [[float(turn[0]) for turn in turns] for turns in advantages] == [[-0.5, 0], [0, -0.5], [0.5, 0.5]]


def test_metrics_are_given_for_each_role_of_the_policy(three_games: Any) -> None:
    (lost, _, drawn), _ = three_games
    metrics = collection_metrics([lost, drawn])
    assert metrics["role/first/reward"] == -0.5 and metrics["role/second/reward"] == 0.0
    assert metrics["role/first/length"] == metrics["role/second/length"] == 1.0
    assert metrics["reward/mean"] == pytest.approx((-1 + 0 + 0) / 3)
    assert metrics["status/won"] == metrics["status/drawn"] == 0.5
    assert "pass_rate" not in metrics


def test_drawn_games_are_neither_won_nor_lost_groups() -> None:
    episodes = play([HigherToken(0, SELF_PLAY) for _ in range(3)], {POLICY: Scripted(lambda *_: 20)})
    assert group_signal(episodes) == {0: "constant"}


def test_groups_have_signal_only_where_the_rewards_of_one_role_differ() -> None:
    players = {POLICY: Scripted(lambda *_: 20), OPPONENT: Scripted(lambda *_: 30)}
    lost = play([HigherToken(0, AS_FIRST), HigherToken(0, AS_SECOND)], players)
    drawn, lost_too = play([HigherToken(1, SELF_PLAY), HigherToken(1, AS_FIRST)], players)
    assert [episode.trained_rewards for episode in lost] == [{"first": -1.0}, {"second": -1.0}]
    assert group_signal([*lost, drawn, lost_too]) == {0: "constant", 1: "with_signal"}


def test_games_without_the_policy_count_in_no_metric_of_it() -> None:
    players = {POLICY: Scripted(lambda *_: 20), OPPONENT: Scripted(lambda *_: 30)}
    games = [HigherToken(0, AS_FIRST), HigherToken(0, {"first": OPPONENT, "second": OPPONENT})]
    episodes = play(games, players)
    assert collection_metrics(episodes) == collection_metrics(episodes[:1])
    with pytest.raises(GreenwardError, match=r"the role 'first', which the policy played, no reward"):
        collection_metrics([replace(episodes[0], rewards={"second": 1.0})])
    over_at_once = Episode((), {}, 0, "no move", "over")
    assert rollout_row(over_at_once)["stop"] == ""
    assert collection_metrics([*episodes, over_at_once]) == collection_metrics(episodes)


def test_a_game_that_waits_does_not_hold_up_the_others() -> None:
    """The pause of group 0 ends only when group 1 has made its last move."""
    pause: Future[None] = Future()

    def answer(prompt: tuple[int, ...], number: int) -> int:
        if prompt[:2] == (3, 61):
            pause.set_result(None)
        return 10

    engine = Scripted(answer)
    play([HigherToken(0, SELF_PLAY, pause), HigherToken(1, SELF_PLAY)], {POLICY: engine})
    assert engine.batches == [[(2, 60), (3, 60)], [(3, 61, 10)], [(2, 61, 10)]]


@pytest.fixture(scope="module")
def policy(tokenizer: Any) -> Policy:
    return Policy.random(SHAPE, tokenizer, seed=0, device="cpu")


def test_moves_do_not_depend_on_how_long_the_sandbox_took(policy: Policy) -> None:
    """Groups 0 and 2 wait for different others, or for nobody; every game is the same each time."""

    def moves(waiting: Mapping[int, int]) -> list[list[int]]:
        """Group `key` goes on when group `value` has made its second move."""
        pauses: dict[int, Future[None]] = {group: Future() for group in waiting}

        class Releasing:
            deterministic, max_positions = True, policy.max_positions

            def sample(self, prompts, sizes, params, *, seed, on_group):  # type: ignore[no-untyped-def]
                def released(index: int, completions: list[Completion]) -> None:
                    on_group(index, completions)
                    for group, other in waiting.items():
                        if prompts[index][:2] == (2 + other, 61) and not pauses[group].done():
                            pauses[group].set_result(None)

                return policy.sample(prompts, sizes, params, seed=seed, on_group=released)

        games = [HigherToken(group, SELF_PLAY, pauses.get(group)) for group in range(3) for _ in range(5)]
        episodes = play(games, {POLICY: Releasing()}, seed=4)
        return [[int(turn.completion_ids[0]) for turn in episode.turns] for episode in episodes]

    straight = moves({})
    assert len({tuple(game) for game in straight}) > 5
    assert moves({0: 1}) == moves({2: 0}) == moves({0: 1, 2: 0}) == straight


def test_two_players_with_equal_weights_answer_one_prompt_with_different_random_numbers(
    policy: Policy,
) -> None:
    games = [HigherToken(0, AS_FIRST if number % 2 else AS_SECOND) for number in range(20)]
    episodes = play(games, {POLICY: policy, OPPONENT: policy.frozen_copy()})
    moves = [(e.turns[0].player, int(e.turns[0].completion_ids[0])) for e in episodes]
    assert [move for by, move in moves if by == POLICY] != [move for by, move in moves if by == OPPONENT]


def test_groups_that_begin_alike_differ_although_one_of_them_waits_at_first(policy: Policy) -> None:
    class AlikeAndLate(HigherToken):
        def _prompt(self, role: str) -> tuple[int, ...]:
            return (2, 60)

        def request(self) -> Request | Waiting | None:
            waits = not self._moves and self._pause is not None and not self._pause.done()
            return Waiting(self._pause) if waits and self._pause else super().request()

    class Releasing:
        max_positions = policy.max_positions

        def sample(self, *arguments: Any, **settings: Any) -> None:
            policy.sample(*arguments, **settings)
            if not pause.done():
                pause.set_result(None)

    pause: Future[None] = Future()
    games = [AlikeAndLate(group, SELF_PLAY, pause if group else None) for group in (0, 1) for _ in range(10)]
    episodes = play(games, {POLICY: Releasing()})
    first = [int(episode.turns[0].completion_ids[0]) for episode in episodes]
    assert first[:10] != first[10:]


class RoleBaseline:
    """A running mean of each role's reward, as in self-play: an estimator with state."""

    def __init__(self) -> None:
        self.baseline = {"first": 0.0, "second": 0.0}

    def __call__(self, episodes: Sequence[Episode]) -> Advantages:
        values = {}
        for index, episode in enumerate(episodes):
            for role, reward in episode.trained_rewards.items():
                values[index, role] = reward - self.baseline[role]
                self.baseline[role] += 0.1 * (reward - self.baseline[role])
        return spread_over_tokens(episodes, lambda index, role: values.get((index, role), 0.0))

    def state_dict(self) -> dict[str, Any]:
        return dict(self.baseline)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.baseline = dict(state)


class Games:
    """The environment of the toy game: even groups are played as first, odd ones as second player."""

    def collect(self, players: Mapping[str, Any], groups: range, *, seed: int, step: int = 0) -> Collection:
        games = [HigherToken(g, AS_SECOND if g % 2 else AS_FIRST) for g in groups for _ in range(6)]
        sampling = run_dialogues(games, players, seed=seed)
        return Collection([game.finish() for game in games], sampling, 0.0)


def test_a_game_is_trained_on_and_resumed_with_the_state_of_its_estimator(tokenizer: Any) -> None:
    def make() -> tuple[RLTrainer, RoleBaseline]:
        policy = Policy.random(SHAPE, tokenizer, seed=0, device="cpu")
        opponent = Scripted(lambda prompt, number: 40)
        collector = Collector(Games(), {POLICY: policy, OPPONENT: opponent}, groups_per_step=4, seed=0)
        training = TrainingConfig(learning_rate=1e-2, micro_batch_sequences=16)
        algorithm = GRPOAlgorithmConfig()
        estimator = RoleBaseline()
        trainer = RLTrainer(policy, collector, estimator, algorithm, training, max_completion_tokens=1)
        return trainer, estimator

    whole, estimator = make()
    rows = [whole.train_step(step).metrics for step in range(4)]
    cut, _ = make()
    for step in range(2):
        cut.train_step(step)
    resumed, resumed_estimator = make()
    resumed.policy.load_state_dict(cut.policy.state_dict())
    resumed.load_state_dict(cut.state_dict())
    for step in (2, 3):
        assert without_timing(resumed.train_step(step).metrics) == without_timing(rows[step])
    assert resumed_estimator.baseline == estimator.baseline != {"first": 0.0, "second": 0.0}
    assert rows[0]["tokens/trained"] == 24  # one move of each of 4 * 6 games
