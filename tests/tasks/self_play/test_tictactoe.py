"""The rules of TicTacToe and its minimax player against an enumeration that shares no code with them."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import pytest

from greenward.tasks.self_play.games import ExpertPlayer, TicTacToe, minimax_value

GAME = TicTacToe()
Board = tuple[int, ...]  # 1 for X, -1 for O, 0 for an empty cell
EMPTY: Board = (0,) * 9


def winner(board: Board) -> int:
    rows = [board[i : i + 3] for i in (0, 3, 6)]
    columns = [board[i::3] for i in range(3)]
    sums = {sum(line) for line in (*rows, *columns, board[0::4], board[2:7:2])}
    return (3 in sums) - (-3 in sums)


def moves(board: Board) -> dict[int, Board]:
    """The boards that may follow, by the cell of the move."""
    if winner(board):
        return {}
    mark = -1 if sum(board) else 1
    return {cell: (*board[:cell], mark, *board[cell + 1 :]) for cell, taken in enumerate(board) if not taken}


@cache
def best(board: Board) -> int:
    """The result, for X, of perfect play."""
    values = [best(after) for after in moves(board).values()]
    if not values:
        return winner(board)
    return min(values) if sum(board) else max(values)


@cache
def results(board: Board) -> Counter[int]:
    """How many games from here X wins (1), O wins (-1), and nobody wins."""
    following = moves(board).values()
    return sum(map(results, following), Counter()) if following else Counter([winner(board)])


def shown(board: Board) -> str:
    return "".join({1: "X", -1: "O", 0: str(cell)}[mark] for cell, mark in enumerate(board))


@pytest.fixture(scope="module")
def boards() -> set[Board]:
    found, new = {EMPTY}, [EMPTY]
    while new:
        new = list({after for board in new for after in moves(board).values()})
        found.update(new)
    return found


def test_every_position_has_the_moves_and_results_of_the_enumeration(boards: set[Board]) -> None:
    states, new = {GAME.start(random.Random())}, {GAME.start(random.Random())}
    while new:
        new = {GAME.step(s, a) for s in new if GAME.player(s) is not None for a in GAME.legal_actions(s)}
        states |= new
    assert states == set(map(shown, boards)) and len(boards) == 5478
    for board in boards:
        state, after = shown(board), moves(board)
        if not after:
            assert GAME.player(state) is None
            assert GAME.returns(state) == (winner(board), -winner(board))
            continue
        assert GAME.player(state) == (1 if sum(board) else 0)
        assert {a: GAME.step(state, a) for a in GAME.legal_actions(state)} == {
            str(cell): shown(next_board) for cell, next_board in after.items()
        }


def test_there_are_255168_games() -> None:
    def played(state: str) -> Counter[float]:
        if GAME.player(state) is None:
            return Counter([GAME.returns(state)[0]])
        if state not in known:
            known[state] = sum((played(GAME.step(state, a)) for a in GAME.legal_actions(state)), Counter())
        return known[state]

    known: dict[str, Counter[float]] = {}
    assert played(GAME.start(random.Random())) == results(EMPTY) == {1: 131184, -1: 77904, 0: 46080}
    assert results(EMPTY).total() == 255168


def test_equal_observations_are_equal_positions(boards: set[Board]) -> None:
    assert GAME.observation("X1O345678", 0) == "X X0 1 O2 3 4 5 6 7 8"
    open_boards = [board for board in boards if moves(board)]
    seen = {GAME.observation(shown(board), 1 if sum(board) else 0) for board in open_boards}
    assert len(seen) == len(open_boards) == 4520


def test_minimax_plays_every_best_move_and_no_other(boards: set[Board]) -> None:
    for board in boards:
        assert minimax_value(shown(board)) == best(board)
        if after := moves(board):
            equal = {str(cell) for cell, next_board in after.items() if best(next_board) == best(board)}
            rng = random.Random(0)
            chosen = {ExpertPlayer().act(GAME, shown(board), rng) for _ in range(4 * len(equal))}
            assert chosen <= equal and (chosen == equal or len(equal) > 2)


@pytest.mark.parametrize("role", [0, 1])
def test_minimax_never_loses_against_any_reply(role: int) -> None:
    rng = random.Random(0)
    states = {GAME.start(rng)}
    while states:
        over = {state for state in states if GAME.player(state) is None}
        assert all(GAME.returns(state)[role] >= 0 for state in over)
        states = {
            GAME.step(state, action)
            for state in states - over
            for action in (
                {GAME.expert_action(state, rng) for _ in range(20)}
                if GAME.player(state) == role
                else GAME.legal_actions(state)
            )
        }
