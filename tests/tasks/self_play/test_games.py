"""The exact figures of games against enumerations that share no code with them, and the record of an evaluation."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from greenward.config.sections import ShapeConfig
from greenward.models.policy import Policy
from greenward.models.scoring import GroupBatch
from greenward.models.tokenizer import train_tokenizer
from greenward.rollouts.protocols import SamplingParams
from greenward.runs.directory import RunDirectory
from greenward.runs.progress import evaluation_line
from greenward.runs.reading import read_recorded_run
from greenward.runs.trackers import evaluation_values
from greenward.tasks.self_play.environment import MovePrompts
from greenward.tasks.self_play.evaluation import (
    Contestant,
    best_response_value,
    evaluate_game,
    exploitability,
    greedy_lines,
    negotiations,
    play_games,
    strategy_of,
    value,
)
from greenward.tasks.self_play.games import KuhnPoker, SimpleNegotiation, TicTacToe
from text_engine import TextEngine, table_of
from tiny_model import CharacterTokenizer

ROWS = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
Board = tuple[str, ...]
KUHN = KuhnPoker()


def contestant(game: Any, answer: Callable[..., str], **options: Any) -> Contestant:
    prompts = MovePrompts(game, CharacterTokenizer(), "bare")
    return Contestant(TextEngine(answer, **options), prompts, SamplingParams(max_tokens=10))


def result(board: Board) -> str | None:
    """X, O, "-" for a draw, None while the game goes on."""
    for row in ROWS:
        marks = {board[cell] for cell in row}
        if len(marks) == 1 and marks <= {"X", "O"}:
            return marks.pop()
    return None if any(cell.isdigit() for cell in board) else "-"


def after(board: Board, cell: str) -> Board:
    mark = "O" if sum(one in "XO" for one in board) % 2 else "X"
    return tuple(mark if one == cell else one for one in board)


@cache
def worth(board: Board) -> int:
    """1 if X wins with perfect play of both, -1 if O does."""
    if (ended := result(board)) is not None:
        return {"X": 1, "O": -1, "-": 0}[ended]
    values = [worth(after(board, cell)) for cell in board if cell.isdigit()]
    return min(values) if sum(one in "XO" for one in board) % 2 else max(values)


def brute_force(play: Callable[[Board], str], mark: str) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """Every game against `play` one by one: how each ends for it, and the positions in which it errs."""
    ends: Counter[str] = Counter()
    errors: Counter[tuple[str, str]] = Counter()
    sign = 1 if mark == "X" else -1

    def visit(board: Board) -> None:
        ended = result(board)
        free = [cell for cell in board if cell.isdigit()]
        if ended is not None:
            ends["drawn" if ended == "-" else "won" if ended == mark else "lost"] += 1
        elif (len(free) % 2 == 1) == (mark == "X"):
            cell = play(board)
            if cell not in free:
                ends["lost"] += 1
                errors["".join(board), f"illegal: {cell}"] += 1
                return
            if sign * worth(after(board, cell)) < sign * worth(board):
                errors["".join(board), cell] += 1
            visit(after(board, cell))
        else:
            for cell in free:
                visit(after(board, cell))

    visit(tuple("012345678"))
    return ends, errors


def perfect(board: Board) -> str:
    free = [cell for cell in board if cell.isdigit()]
    sign = 1 if len(free) % 2 else -1
    return max(free, key=lambda cell: sign * worth(after(board, cell)))


def at_random(board: Board) -> str:
    """One of all nine cells, always the same on the same board."""
    generator = random.Random("".join(board))
    free = [cell for cell in board if cell.isdigit()]
    return generator.choice(free) if generator.random() < 0.95 else str(generator.randrange(9))


@pytest.mark.parametrize("role", [0, 1])
@pytest.mark.parametrize("play", [perfect, at_random, lambda board: min(c for c in board if c.isdigit())])
def test_greedy_lines_are_those_of_games_played_one_by_one(play: Callable[[Board], str], role: int) -> None:
    player = contestant(TicTacToe(), lambda text: play(tuple(cell[0] for cell in text.split()[1:])))
    found = greedy_lines(player, role)
    ends, errors = brute_force(play, "XO"[role])
    assert (found.played, found.drawn, found.lost) == (ends.total(), ends["drawn"], ends["lost"])
    shown = {
        (one["position"].replace(" ", "").replace("\n", ""), one["move"]): one["lines"]
        for one in found.errors
    }
    assert shown == errors
    assert [one["lines"] for one in found.errors] == sorted(errors.values(), reverse=True)
    assert all(one["after"] < one["value"] or one["move"].startswith("illegal") for one in found.errors)
    assert len(player.engine.batches) <= 5
    if play is perfect:
        assert found.lost == 0 and not found.errors


def test_moves_that_nobody_can_read_lose_the_only_line() -> None:
    found = greedy_lines(contestant(TicTacToe(), lambda text: "pass"), 0)
    assert (found.played, found.lost) == (1, 1)
    assert found.errors == [
        {"role": "first", "position": "0 1 2\n3 4 5\n6 7 8", "move": "illegal: pass", "lines": 1, "value": 0, "after": -1}
    ]  # fmt: skip


def kuhn(first: dict[str, float], second: dict[str, float]) -> dict[str, dict[str, float]]:
    """The strategy that bets or calls with these probabilities, by card and history."""
    choices = {
        "": ("check", "bet"),
        "check": ("check", "bet"),
        "bet": ("fold", "call"),
        "check bet": ("fold", "call"),
    }
    found = {}
    for role, bets in (("first", first), ("second", second)):
        for seen, chance in bets.items():
            passive, active = choices[seen.partition(" ")[2]]
            found[f"{role} {seen}"] = {passive: 1 - chance, active: chance}
    return found


def equilibrium(alpha: float) -> dict[str, dict[str, float]]:
    """Kuhn (1950): the first player's family, and the second player's only equilibrium strategy."""
    first = {
        "J": alpha,
        "Q": 0,
        "K": 3 * alpha,
        "J check bet": 0,
        "Q check bet": alpha + 1 / 3,
        "K check bet": 1,
    }
    second = {"J check": 1 / 3, "Q check": 0, "K check": 1, "J bet": 0, "Q bet": 1 / 3, "K bet": 1}
    return kuhn(first, second)


@pytest.mark.parametrize("alpha", [0, 0.1, 0.25, 1 / 3])
def test_every_equilibrium_of_kuhn_poker_has_no_exploitability_and_its_value(alpha: float) -> None:
    assert exploitability(KUHN, equilibrium(alpha)) == pytest.approx(0, abs=1e-12)
    assert value(KUHN, equilibrium(alpha)) == pytest.approx(-1 / 18)


def test_play_beside_an_equilibrium_is_exploitable() -> None:
    assert exploitability(KUHN, equilibrium(0.4)) > 0.01
    assert exploitability(KUHN, equilibrium(0.2) | {"second Q bet": {"fold": 0, "call": 1}}) > 0.01
    uniform = {observation: dict.fromkeys(actions, 0.5) for observation, actions in equilibrium(0).items()}
    assert exploitability(KUHN, uniform) == pytest.approx(0.4583333)


def hand(deal: str, first: Any, second: Any) -> float:
    """What the first player gains in the mean when these two play, written out; what lacks to 1 costs 2."""

    def mean(chances: Any, sign: int, ends: dict[str, float]) -> float:
        return sum(chances[action] * end for action, end in ends.items()) - 2 * sign * (
            1 - sum(chances.values())
        )

    one, two = deal
    high = 1 if "JQK".index(one) > "JQK".index(two) else -1
    bet = mean(second[f"second {two} bet"], -1, {"call": 2 * high, "fold": 1})
    raised = mean(first[f"first {one} check bet"], 1, {"call": 2 * high, "fold": -1})
    check = mean(second[f"second {two} check"], -1, {"check": high, "bet": raised})
    return mean(first[f"first {one}"], 1, {"check": check, "bet": bet})


def test_best_responses_and_value_equal_brute_force_over_all_pure_strategies() -> None:
    generator = np.random.default_rng(0)
    deals = ["JQ", "JK", "QJ", "QK", "KJ", "KQ"]
    roles = [("", " check bet"), (" check", " bet")]
    for legal in (1.0, 1.0, 0.7, 0.4):
        strategy = {}
        for observation, actions in equilibrium(0).items():
            chance = generator.random()
            strategy[observation] = dict(zip(actions, (legal * chance, legal * (1 - chance)), strict=True))
        mean = np.mean([hand(deal, strategy, strategy) for deal in deals])
        assert value(KUHN, strategy) == pytest.approx(mean)
        best = []
        for role, spots in enumerate(roles):
            places = [f"{KUHN.roles[role]} {card}{spot}" for card in "JQK" for spot in spots]
            gains = []
            for choice in product((0, 1), repeat=6):
                pure = {
                    place: {action: float(number == taken) for number, action in enumerate(strategy[place])}
                    for place, taken in zip(places, choice, strict=True)
                }
                pair = (pure, strategy) if role == 0 else (strategy, pure)
                gains.append((1 if role == 0 else -1) * np.mean([hand(deal, *pair) for deal in deals]))
            best.append(max(gains))
            assert best_response_value(KUHN, strategy, role) == pytest.approx(max(gains))
        assert exploitability(KUHN, strategy) == pytest.approx(sum(best) / 2)


@pytest.fixture(scope="module")
def policy() -> Policy:
    texts = [f"{card} {history}" for card in "JQK" for history in ("check bet", "bet", "check call fold")]
    shape = ShapeConfig(layers=1, hidden_size=32, heads=2, kv_heads=2, intermediate_size=64, max_positions=40)
    made = Policy.random(shape, train_tokenizer(texts * 20, 300), seed=0, device="cpu")
    prompts = [made.tokenizer.encode("first J", add_special_tokens=True)]
    spelled = [[made.tokenizer.encode(text) for text in (" check", " bet", "bet", " fold", "call", "no")]]
    optimizer = torch.optim.Adam(made.parameters(), 3e-3)
    for _ in range(40):  # until moves have a probability worth a test
        scores = made.completion_logprobs(GroupBatch.build(prompts, spelled))
        optimizer.zero_grad()
        (-scores.logprobs_BT.sum()).backward()
        optimizer.step()
    return made


@pytest.mark.parametrize("temperature", [0.5, pytest.param(1.0, marks=pytest.mark.slow)])
def test_the_exact_probabilities_are_those_with_which_the_policy_draws_moves(
    policy: Policy, temperature: float
) -> None:
    prompts = MovePrompts(KUHN, policy.tokenizer, "bare")
    player = Contestant(policy, prompts, SamplingParams(max_tokens=3, temperature=temperature))
    exact = strategy_of(KUHN, player, samples=0, seed=0)
    assert exact.keys() == equilibrium(0).keys()
    assert sum(exact["first J"].values()) > 0.05
    drawn = strategy_of(KUHN, Contestant(Others(policy), prompts, player.sampling), samples=4000, seed=0)
    for observation, chances in exact.items():
        assert sum(chances.values()) < 1
        for action, chance in chances.items():
            room = 4.5 * (chance * (1 - chance) / 4000) ** 0.5 + 5e-4
            assert abs(drawn[observation][action] - chance) < room, (observation, action)


class Others:
    """A policy as any other engine, whose probabilities nobody knows."""

    def __init__(self, policy: Policy) -> None:
        self.sample = policy.sample


def test_other_engines_are_measured_by_the_shares_of_their_moves() -> None:
    player = contestant(KUHN, lambda text, generator: generator.choice(["bet", "call", "no"]), random=True)
    found = strategy_of(KUHN, player, samples=900, seed=0)
    assert all(abs(chance - 1 / 3) < 0.08 for spot in found.values() for chance in (max(spot.values()),))
    assert found["first J"]["check"] == 0 and found["first J"]["bet"] > 0.2


def test_negotiations_are_counted_from_the_moves_and_the_values() -> None:
    def play(text: str, generator: np.random.Generator) -> str:
        offers = ["1W>2S", "2W>1S", "3S>4W", "deny"]
        return (
            "accept"
            if not text.endswith("none") and generator.random() < 0.3
            else str(generator.choice(offers))
        )

    game, games = SimpleNegotiation(), 300
    player = contestant(game, play, random=True)
    found = negotiations(player, games=games, seed=5)
    shares, rational = [], []
    for dialogue in play_games(game, player, None, games=games, seed=5):
        amounts, values, gains, offered, deals = (
            dialogue.state.amounts,
            dialogue.state.values,
            [0, 0],
            None,
            0,
        )
        for role, move in dialogue.finish().transcript:
            mover = ("first", "second").index(role)
            if move == "accept":
                gives, takes = offered.split(">")
                for text, sign in ((gives, 1), (takes, -1)):  # what is given comes to the player who accepts
                    amount, kind = int(text[:-1]), "WS".index(text[-1])
                    gains[mover] += sign * amount * values[mover][kind]
                    gains[1 - mover] -= sign * amount * values[1 - mover][kind]
                deals += 1
            offered = move if ">" in move else None
        most = sum(
            max(0, values[1 - giver][kind] - values[giver][kind]) * amounts[giver][kind]
            for giver in (0, 1)
            for kind in (0, 1)
        )
        if most:
            shares.append(sum(gains) / most)
        if deals:
            rational.append(min(gains) >= 0)
    assert found["deals"].value == len(rational) / games
    assert found["rationality"].value == pytest.approx(np.mean(rational))
    assert found["efficiency"].value == pytest.approx(np.mean(shares))
    half = 1.96 * np.std(shares, ddof=1) / len(shares) ** 0.5
    assert found["efficiency"].high - found["efficiency"].value == pytest.approx(half, rel=1e-3)
    assert negotiations(contestant(game, lambda text: "deny"), games=4, seed=0).keys() == {
        "deals",
        "efficiency",
    }


class Coin:
    """The first player says heads or tails and wins with heads; nobody is an expert of it."""

    name, roles, rules, expert = "my coin!", ("caller", "other"), "Say heads.", ""
    actions: tuple[str, ...] = ("heads", "tails")
    forfeit, max_moves = 1.0, 1

    def start(self, rng: random.Random) -> str:
        return ""

    def player(self, state: str) -> int | None:
        return None if state else 0

    def legal_actions(self, state: str) -> tuple[str, ...]:
        return self.actions

    def observation(self, state: str, player: int) -> str:
        return "?"

    def step(self, state: str, action: str) -> str:
        return action

    def returns(self, state: str) -> tuple[float, float]:
        return (1.0, -1.0) if state == "heads" else (-1.0, 1.0)


MATCH = ["won", "drawn", "lost", "illegal", "not_lost"]
EXACT = {
    "tictactoe": ["lines/first/lost", "lines/first/drawn", "lines/second/lost", "lines/second/drawn"],
    "kuhn_poker": ["exploitability", "value"],
    "negotiation": ["deals", "efficiency"],
    "my coin!": [],
}


@pytest.mark.parametrize(
    "game", [TicTacToe(), KuhnPoker(), SimpleNegotiation(), Coin()], ids=lambda game: game.name
)
def test_the_record_is_what_runs_keep_and_trackers_take(game: Any, tmp_path: Path) -> None:
    engine = TextEngine(lambda text: {"my coin!": "heads", "negotiation": "deny"}.get(game.name, text[-1]))
    record = evaluate_game(
        engine, 30, 1.5, table=table_of(game), sampling=SamplingParams(max_tokens=8), games=40, seed=3
    )
    opponents = ["random", "expert"] if game.expert else ["random"]
    matches = [f"{one}/{role}/{figure}" for one in opponents for role in game.roles for figure in MATCH]
    assert list(record["metrics"]) == [*matches, *EXACT[game.name]]
    with RunDirectory.create(tmp_path / "run", {"task": "self_play", "algorithm": {"name": "grpo"}}) as run:
        run.write_evaluation(30, record, "some_game")
    (read,) = read_recorded_run(tmp_path / "run", []).suites["some_game"]
    assert read["metrics"] == record["metrics"] and read["step"] == 30 and read["elapsed_seconds"] == 1.5
    values = evaluation_values(record)
    assert {name.partition("/")[0] for name in values} == {
        "my_coin_eval" if game.name == "my coin!" else f"{game.name}_eval"
    }
    assert evaluation_line(record, game.name) == f"step 30: {game.name} {record['headline']}"
    assert "not lost against random play" in record["headline"]
