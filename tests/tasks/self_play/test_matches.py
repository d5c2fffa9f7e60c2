"""Matches against scripted players and other engines: who plays which role, results, intervals, void games."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest

from greenward.common.errors import EngineError
from greenward.rollouts.protocols import SamplingParams
from greenward.tasks.self_play.environment import MovePrompts
from greenward.tasks.self_play.evaluation import Contestant, RoleResult, play_match
from greenward.tasks.self_play.games import ExpertPlayer, RandomPlayer, TicTacToe
from text_engine import TextEngine
from tiny_model import CharacterTokenizer

GAME = TicTacToe()
WINS = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def contestant(answer, move_format="bare", **options) -> Contestant:
    prompts = MovePrompts(GAME, CharacterTokenizer(), move_format)
    return Contestant(TextEngine(answer, **options), prompts, SamplingParams(max_tokens=10))


def random_cell(text: str, generator: np.random.Generator) -> str:
    return str(generator.choice([cell for cell in text[1:].split() if cell.isdigit()]))


def first_cell(text: str) -> str:
    return min(cell for cell in text[1:].split() if cell.isdigit())


@cache
def chances(board: tuple[str, ...] = ("",) * 9, mark: str = "X") -> dict[str, float]:
    """The probability of each result when both players choose an empty cell at random."""
    for winner in "XO":
        if any(all(board[cell] == winner for cell in line) for line in WINS):
            return {winner: 1.0}
    free = [cell for cell in range(9) if not board[cell]]
    if not free:
        return {"": 1.0}
    total: Counter[str] = Counter()
    for cell in free:
        after = chances((*board[:cell], mark, *board[cell + 1 :]), "O" if mark == "X" else "X")
        total.update({result: chance / len(free) for result, chance in after.items()})
    return total


def test_random_play_wins_draws_and_loses_as_often_as_an_enumeration_says() -> None:
    for opponent in (RandomPlayer(), contestant(random_cell, random=True)):
        results = play_match(GAME, contestant(random_cell, random=True), opponent, games=2000, seed=1)
        for result, mark, other in zip(results, "XO", "OX", strict=True):
            assert (result.games, result.illegal, result.void) == (1000, 0, 0)
            for count, name in ((result.won, mark), (result.lost, other), (result.drawn, "")):
                chance = chances()[name]
                assert abs(count - 1000 * chance) < 4 * (1000 * chance * (1 - chance)) ** 0.5


def test_the_expert_never_loses_and_all_games_share_a_forward_pass() -> None:
    player = contestant(random_cell, random=True)
    first, second = play_match(GAME, player, ExpertPlayer(), games=60, seed=0)
    assert (first.role, first.won, second.won, first.games, second.games) == ("first", 0, 0, 30, 30)
    assert first.lost + second.lost > 30
    assert len(player.engine.batches) <= 9


def test_a_game_of_two_engines_follows_both_and_each_is_asked_in_its_own_way() -> None:
    boxed = contestant(lambda text: f"<think>so</think>\\boxed{{{first_cell_of(text)}}}", "boxed")

    def first_cell_of(text: str) -> str:
        return first_cell(text.partition("What you see: ")[2].partition("\n")[0])

    # X takes 0, 2, 4, 6 and O 1, 3, 5: the line 2, 4, 6 wins for whoever is first.
    first, second = play_match(GAME, contestant(first_cell), boxed, games=6, seed=0)
    assert first == RoleResult("first", won=3, drawn=0, lost=0, illegal=0)
    assert second == RoleResult("second", won=0, drawn=0, lost=3, illegal=0)


def test_an_illegal_move_loses_and_only_ones_own_counts_as_illegal() -> None:
    first, second = play_match(GAME, contestant(lambda text: "9"), RandomPlayer(), games=4, seed=0)
    assert first == RoleResult("first", 0, 0, lost=2, illegal=2)
    assert second == RoleResult("second", 0, 0, lost=2, illegal=2)
    first, second = play_match(GAME, contestant(first_cell), contestant(lambda text: "9"), games=4, seed=0)
    assert first == RoleResult("first", won=2, drawn=0, lost=0, illegal=0)
    assert second == RoleResult("second", won=2, drawn=0, lost=0, illegal=0)


def test_games_whose_opponent_fails_are_void() -> None:
    def fail(text: str) -> str:
        raise EngineError("gone")

    first, second = play_match(GAME, contestant(first_cell), contestant(fail), games=4, seed=0)
    assert (first.void, first.games, first.estimates, second.void) == (2, 0, {}, 2)


def test_shares_have_wilsons_intervals() -> None:
    result = RoleResult("first", won=970, drawn=22, lost=8, illegal=3, void=5)
    counts = {"won": 970, "drawn": 22, "lost": 8, "illegal": 3, "not_lost": 992}
    assert result.estimates.keys() == counts.keys()
    for name, count in counts.items():
        found = result.estimates[name]
        assert found.value == count / 1000
        for bound in (found.low, found.high):  # the rates from which the one found is 1.96 deviations away
            assert abs(count / 1000 - bound) == pytest.approx(1.959964 * (bound * (1 - bound) / 1000) ** 0.5)


def test_equal_seeds_give_equal_matches() -> None:
    def play(seed: int) -> tuple[RoleResult, RoleResult]:
        player = contestant(random_cell, random=True)
        return play_match(GAME, player, RandomPlayer(), games=200, seed=seed)

    assert play(3) == play(3) != play(4)
