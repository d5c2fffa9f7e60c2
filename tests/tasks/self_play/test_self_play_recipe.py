"""The recipe of self-play: its games, what it refuses, and its examples."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from greenward.cli.main import main
from greenward.common.errors import ConfigError, GreenwardError
from greenward.config.loading import load_recipe, parse_recipe
from greenward.models.catalog import build_policy
from greenward.recipes.run import train
from greenward.rollouts.protocols import Completion, StopReason
from greenward.runs.reading import read_metrics
from greenward.tasks.self_play.environment import MovePrompts
from greenward.tasks.self_play.games import GAMES, Game, KuhnPoker, find_game
from greenward.tasks.self_play.task import SelfPlay, SelfPlayRecipe
from tiny_model import TINY_MODEL

SMALL = (
    *TINY_MODEL,
    "model.device=cpu",
    "model.dtype=float32",
    "self_play.evaluation_games=4",
    "warm_start.max_steps=2",
    "warm_start.batch_size=8",
    "training.num_generations=8",
    "training.max_steps=1",
    "training.threads=1",
    "training.rollouts_per_step=3",
    "evaluation.enabled=false",
)


class Custom(KuhnPoker):
    name = "custom"


class Unbalanced(Custom):
    def returns(self, state: Any) -> tuple[float, float]:
        return 1.0, 1.0


class Endless(Custom):
    def player(self, state: Any) -> int | None:
        return len(state[1]) % 2

    def legal_actions(self, state: Any) -> tuple[str, ...]:
        return "check", "bet"


class Raising(Custom):
    def step(self, state: Any, action: str) -> Any:
        raise RuntimeError("no such card")


class Lonely(Custom):
    roles = ("player", "player")


class NoGame:
    pass


class Stuck(Custom):
    """No game ends any more, once `check_game` has played its twenty."""

    started = 0

    def start(self, rng: random.Random) -> Any:
        Stuck.started += 1
        return super().start(rng)

    @property
    def max_moves(self) -> int:  # type: ignore[override]
        return 3 if Stuck.started <= 20 else 0


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Exit code and standard error, unwrapped, of a command."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0), " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", [*GAMES, f"{__name__}:Custom"])
def test_a_game_is_found_by_its_name_or_class(name: str) -> None:
    assert find_game(name).name == name.partition(":")[0].replace(__name__, "custom")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tictacto", "Did you mean tictactoe"),
        ("", "Shipped games: tictactoe"),
        ("no_module:Game", "No module named 'no_module'"),
        (f"{__name__}:Missing", "no attribute 'Missing'"),
        (f"{__name__}:NoGame", "no attribute 'roles'"),
        (f"{__name__}:Raising", "RuntimeError: no such card"),
        (f"{__name__}:Lonely", "two roles of different names"),
        (f"{__name__}:Endless", "at most 3 moves"),
        (f"{__name__}:Unbalanced", "sum to 0, found 1.0 and 1.0"),
    ],
)
def test_what_cannot_be_played_is_refused_with_the_reason(name: str, message: str) -> None:
    with pytest.raises(GreenwardError, match=message):
        find_game(name)


def test_a_game_of_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_game_of_test.py").write_text(
        "from greenward.tasks.self_play.games import TicTacToe\nclass Own(TicTacToe):\n    name = 'own'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert find_game("own_game_of_test:Own").name == "own"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["self_play.opponents={randm: 1}"], "'randm' is neither an opponent nor a folder"),
        (["self_play.opponents={}"], "a share above 0"),
        (["self_play.opponents={self: 0}"], "a share above 0"),
        (["self_play.opponents={self: -1, random: 2}"], "greater than or equal to 0, found -1"),
        (["self_play.games=[{name: tictactoe, weight: 0}]"], "self_play.games.0.weight"),
        (["self_play.games=[tictactoe, tictactoe]"], "names tictactoe twice"),
        (["self_play.games=[kuhn_poker]", "model.shape.vocab_size=258"], "'check' takes 6 tokens"),
        (["self_play.games=[kuhn_poker]", "model.shape.max_positions=2"], "the model's 2 positions"),
        (["task=functions", "self_play=null", "algorithm.advantage=role_baseline"], "needs task: self_play"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_training(
    overrides: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = call(
        capsys, "train", "spiral_self_play", *SMALL, *overrides, "--quiet", "--output", tmp_path / "run"
    )
    assert code == 2 and message in said and "Traceback" not in said
    assert not list(tmp_path.glob("run/**/metrics.jsonl")) + list(tmp_path.glob("run/**/model.safetensors"))


def test_errors_of_a_recipe_name_the_line() -> None:
    text = (
        "task: self_play\nself_play:\n  league: {size: 0}\n  move_format: chess\nalgorithm:\n  discount: 0\n"
    )
    with pytest.raises(ConfigError) as caught:
        parse_recipe(text, name="r.yaml")
    said = str(caught.value)
    for line, key in ((3, "self_play.league.size"), (4, "self_play.move_format"), (6, "algorithm.discount")):
        assert re.search(f"r.yaml, line {line}: {re.escape(key)}: expected", said), said


def make_tasks(*overrides: str) -> SelfPlay:
    recipe = load_recipe("spiral_self_play", (*SMALL, *overrides))
    assert isinstance(recipe, SelfPlayRecipe)
    return SelfPlay(recipe, {}, {})


@pytest.mark.parametrize("move_format", ["bare", "boxed"])
def test_examples_are_legal_moves_in_the_format_of_the_recipe(move_format: Any) -> None:
    tasks = make_tasks(
        f"self_play.move_format={move_format}", "self_play.games=[tictactoe, kuhn_poker]", "sampling.max_tokens=8",
        "model.shape.max_positions=512",
    )  # fmt: skip
    policy = build_policy(tasks.recipe, tasks.texts)
    warm_start = tasks.recipe.warm_start
    assert warm_start is not None
    examples = tasks.examples(policy, warm_start)
    assert len(examples) == warm_start.max_steps * warm_start.batch_size  # no more than are learnt from
    legal = legal_moves(policy.tokenizer, move_format)
    for example in examples:
        prompts, actions = legal[tuple(example.prompt_ids)]
        completion = Completion(np.array(example.completion_ids), np.zeros(1), StopReason.END, 0)
        move = prompts.move(completion)
        assert move.action in actions and move.well_formed


def legal_moves(tokenizer: Any, move_format: Any) -> dict[Any, Any]:
    """Every prompt that two games have, with the moves that are legal there."""
    found: dict[Any, Any] = {}

    def walk(game: Game, prompts: MovePrompts, state: Any, seen: set[Any]) -> None:
        player = game.player(state)
        if player is None or state in seen:
            return
        seen.add(state)
        found[tuple(prompts.prompt_ids(state, player))] = prompts, game.legal_actions(state)
        for action in game.legal_actions(state):
            walk(game, prompts, game.step(state, action), seen)

    for name in ("tictactoe", "kuhn_poker"):
        game: Any = GAMES[name]
        seen: set[Any] = set()
        for state, _ in game.starts():
            walk(game, MovePrompts(game, tokenizer, move_format), state, seen)
    return found


def test_a_step_all_of_whose_games_are_void_is_counted_and_teaches_nothing(tmp_path: Path) -> None:
    Stuck.started = 0
    overrides = (*SMALL, f"self_play.games=['{__name__}:Stuck']", "sampling.max_tokens=3", "warm_start=null")
    assert train(load_recipe("spiral_self_play", overrides), tmp_path / "run", quiet=True)
    (row,) = read_metrics(tmp_path / "run/metrics.jsonl").rows
    assert row["episodes/infrastructure"] == 8 and not any(name.startswith("games/") for name in row)


@pytest.mark.slow
def test_the_shipped_recipe_learns_to_beat_random_play(tmp_path: Path) -> None:
    overrides = ("training.max_steps=40", "training.num_generations=128", "self_play.evaluation_games=400",
                 "warm_start.max_steps=100", "training.threads=2", "model.device=cpu", "model.dtype=float32")  # fmt: skip
    assert train(load_recipe("spiral_self_play", overrides), tmp_path / "run", quiet=True)
    first, last = (
        json.loads((tmp_path / f"run/evaluations/step_{step:06d}.tictactoe.json").read_text())["metrics"]
        for step in (0, 40)
    )
    for role in ("first", "second"):
        assert last[f"random/{role}/not_lost"]["value"] > first[f"random/{role}/not_lost"]["value"]
    rows = read_metrics(tmp_path / "run/metrics.jsonl").rows
    assert rows[-1]["games/illegal"] < 0.1 and all(row["entropy"] > 0 for row in rows)
