"""`greenward play` as a user sees it: games by lines on standard input, matches, and wrong options."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from greenward import api
from greenward.cli.main import cli
from greenward.cli.tasks import final_view, meant, view
from greenward.common.errors import CheckpointError, ConfigError
from greenward.rollouts.protocols import SamplingParams
from greenward.tasks.self_play import task
from greenward.tasks.self_play.environment import MovePrompts
from greenward.tasks.self_play.evaluation import Contestant
from greenward.tasks.self_play.games import GAMES, SimpleNegotiation, TicTacToe, Trading
from text_engine import TextEngine
from tiny_model import TINY_MODEL, CharacterTokenizer

WINS = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
ALL_CELLS = "0\n1\n2\n3\n4\n5\n6\n7\n8\n"


def play(*arguments: str, lines: str | bytes = "") -> str:
    done = CliRunner().invoke(cli, ["play", *arguments], input=lines, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def engine(monkeypatch):
    """`engine(answer, move_format)`: every model that is named answers so."""

    def use(answer, move_format="bare"):
        def find(game, model, **_):
            prompts = MovePrompts(game, CharacterTokenizer(), move_format)
            return Contestant(TextEngine(answer), prompts, SamplingParams())

        monkeypatch.setattr(task, "find_contestant", find)

    return use


def boards(output: str) -> list[list[str]]:
    rows = re.findall(r"^ (\S) \| (\S) \| (\S)$", output, re.MULTILINE)
    return [[cell for row in rows[start : start + 3] for cell in row] for start in range(0, len(rows), 3)]


@pytest.mark.parametrize("role, mark", [("first", "X"), ("second", "O")])
@pytest.mark.parametrize("opponent", [(), ("--model", "random")])
@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_a_game_of_tictactoe_ends_as_its_last_board_says(role, mark, opponent, seed) -> None:
    output = play("tictactoe", "--role", role, "--seed", seed, *opponent, lines=ALL_CELLS * 2 + "n\n")
    game = output.partition("Score")[0]
    board = boards(game)[-1]
    lines = {board[a] for a, b, c in WINS if board[a] == board[b] == board[c]}
    result = "You win (+1)." if mark in lines else "You lose (-1)." if lines else "A draw."
    assert game.rstrip().endswith(result)
    if not opponent:
        assert mark not in lines  # minimax
    assert board.count("X") - board.count("O") in (0, 1)


def test_the_roles_alternate_and_the_score_adds_up() -> None:
    output = play("kuhn_poker", "--seed", "4", lines="1\n1\n\n" * 12)
    gains = [int(gain) for gain in re.findall(r"^You (?:win|lose) \((.\d)\)", output, re.MULTILINE)]
    score = f"won {sum(gain > 0 for gain in gains)}, drawn 0, lost {sum(gain < 0 for gain in gains)}; total {sum(gains):+d}."
    assert re.findall(r"Score: (.*)", output)[-1] == score
    roles = re.findall(r"^You are (\w+)\.", output, re.MULTILINE)
    assert len(roles) > 3
    assert roles == (["first", "second"] * len(roles))[: len(roles)]


def test_the_pot_is_drawn_and_the_cards_are_shown_at_the_end_only() -> None:
    output = play("kuhn_poker", "--role", "first", "--seed", "1", lines="bet\nn\n")
    card = re.search(r"Your card: (\w)   Pot: 2 chips\.\nYour move \(1 check, 2 bet\): bet\n", output)[1]
    if "plays call" in output:
        other = re.search(rf"You have the {card}\. Your opponent has the (\w)\.", output)[1]
        assert ("win (+2)" if "JQK".index(card) > "JQK".index(other) else "lose (-2)") in output
    else:
        assert "You win (+1)." in output
        assert "Your opponent has" not in output


@pytest.mark.parametrize("wrong", ["9", "foo", "", "\x00\x1b[31m", "７", "9" * 5000, "a" * 1_000_000, "4 4"])
def test_what_is_no_move_is_asked_for_again(wrong) -> None:
    output = play("tictactoe", "--seed", "0", lines=f"{wrong}\n4\n")
    assert "is no move. ? explains." in output
    assert output.count("minimax plays") == 1
    assert "\x1b" not in output and "\x00" not in output
    assert len(output) < 3000


@pytest.mark.parametrize("game", ["tictactoe", "kuhn_poker", "negotiation"])
def test_a_move_of_another_moment_is_told_from_what_is_no_move(game) -> None:
    made = GAMES[game]
    for action in made.actions:
        output = play(game, "--seed", "0", "--role", "first", lines=f"{action}\n{action}\nq\n")
        refused = re.findall(r"^(\S+) is not possible now\. Possible: (.*)\.$", output, re.MULTILINE)
        for text, possible in refused:
            assert text == action
            names = [one.split()[-1] for one in possible.split(", ")]
            assert action not in names
            assert {name for name in names if name != "more"} <= set(made.actions)
        if game == "tictactoe":
            assert len(refused) == 1  # the cell is taken when it is named again


def test_bytes_that_are_no_text_are_no_move() -> None:
    assert "is no move" in play("tictactoe", lines=b"\xff\xfe\x80\n4\n")


def test_a_move_may_be_written_by_its_first_letters_or_its_number() -> None:
    offers = ("accept", "deny", "1W>1S", "1W>2S")
    assert (
        meant("c", ("check", "bet"))
        == meant("1", ("check", "bet"))
        == meant("CHE", ("check", "bet"))
        == ["check"]
    )
    assert meant("3", ("check", "bet")) == meant("0", ("check", "bet")) == meant("x", ("check", "bet")) == []
    assert meant("a", offers) == ["accept"]
    assert meant("1w", offers) == ["1W>1S", "1W>2S"]
    assert meant("1W>1s", offers) == ["1W>1S"]
    assert meant("1", ("[1]", "[11]", "[2]")) == ["[1]", "[11]"]


def test_help_explains_the_game_and_every_move() -> None:
    output = play("negotiation", "--seed", "0", lines="?\nq\n")
    assert "Two players trade wheat (W) and sheep (S)." in output
    assert "5S>5W. q ends the game." in output


@pytest.mark.parametrize("lines", ["", "q\n", "Q\n", "4", "4\nq"])
def test_the_end_of_the_input_and_q_end_the_game(lines) -> None:
    output = play("tictactoe", "--role", "second", "--seed", "0", lines=lines)
    assert "minimax plays" in output
    assert "Score" not in output


def test_what_an_offer_would_bring_is_shown() -> None:
    game = SimpleNegotiation()
    state = Trading(((5, 5), (6, 7)), ((9, 17), (11, 13)))
    after = game.step(state, "2W>3S")
    assert "accept it makes your gain -17" in view(game, after, 1)  # 2 * 11 - 3 * 13
    assert "wheat (W)          6             11" in view(game, after, 1)
    assert "is impossible" in view(game, Trading(((5, 5), (6, 2)), state.values, offer="2W>3S", moves=1), 1)
    done = Trading(state.amounts, state.values, traded=(-2, 3), moves=10, deals=1)
    assert final_view(game, done, 1) == "Deals: 1. Gains: you -17, your opponent +33."


def test_reasoning_is_shown_on_request_and_without_escapes(engine) -> None:
    engine(lambda text: "<think>\x1b[31mthe middle</think>\\boxed{4}", "boxed")
    arguments = ("tictactoe", "--model", "m", "--role", "second")
    assert "m plays 4." in play(*arguments)
    assert "the middle" not in play(*arguments)
    assert "<think>�[31mthe middle</think>" in play(*arguments, "--show-reasoning")


@pytest.mark.parametrize("answer", ["I do not know", "<think>hm</think>\\boxed{\x1b[2J9}", ""])
def test_an_illegal_move_of_the_model_is_shown_and_loses(engine, answer) -> None:
    engine(lambda text: answer, "boxed")
    output = play("tictactoe", "--model", "m", "--role", "second", lines="n\n")
    assert "m wrote '" in output and "which is no legal move.\nYou win (+1)." in output
    assert answer.replace("\x1b", "�").replace("\\", "\\\\") in output


def test_a_match_has_a_column_for_each_role_with_wilsons_intervals(engine) -> None:
    engine(lambda text: min(cell for cell in text[1:].split() if cell.isdigit()))
    output = play("tictactoe", "--model", "m", "--opponent", "other", "--games", "6", "--seed", "0")
    # X takes 0, 2, 4, 6 and wins. Of 3 games all won, the interval begins at 1 / (1 + 1.96² / 3).
    low = f"{1 / (1 + 1.959964**2 / 3):.1%}"
    rows = {line.split("  ")[0].strip(): line for line in output.splitlines()}
    assert f"100.0% [{low}, 100.0%]" in rows["won"].partition("]")[0] + "]"
    assert "0.0% [0.0%, 56.1%]" in rows["won"].partition("]")[2]
    assert rows["lost"].rstrip().endswith(f"100.0% [{low}, 100.0%]")
    assert "as first (3 games)" in output and "as second (3 games)" in output


def test_a_match_against_minimax_loses_by_illegal_moves_only_where_they_were_made(engine) -> None:
    engine(lambda text: "9")
    output = play("tictactoe", "--model", "m", "--opponent", "minimax", "--games", "4")
    assert output.count("100.0% [34.2%, 100.0%]") == 4  # lost, and by an illegal move, in both roles


def test_a_type_of_arithmetic_without_a_model_is_refused() -> None:
    for others in ((), ("--model", "random"), ("--model", "minimax")):
        done = CliRunner().invoke(cli, ["play", "tictactoe", "--dtype", "int8", *others], input="q\n")
        assert done.exit_code == 2 and "concerns models that are loaded" in done.output


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of self-play on TicTacToe after one step."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    small = ("training.max_steps=1", "training.num_generations=4", "training.micro_batch_sequences=64")
    off = ("warm_start=null", "evaluation.enabled=false", "training.threads=1", "sampling.max_tokens=3")
    api.train("spiral_self_play", [*TINY_MODEL, *small, *off], output=folder)
    return folder


def test_the_type_of_the_arithmetic_is_chosen_and_named(run) -> None:
    output = play("tictactoe", "--model", str(run), "--opponent", "random", "--games", "2", "--dtype", "int8")
    assert f"{run} (int8) against random," in output.replace("\n", "")
    game = play("tictactoe", "--model", str(run), "--role", "first", "--dtype", "int8", lines="q\n")
    assert f"{run} is computed in int8." in game


def test_a_run_plays_as_it_was_trained(run) -> None:
    contestant = task.find_contestant(GAMES["tictactoe"], str(run))
    assert (contestant.sampling.max_tokens, contestant.sampling.temperature) == (3, 1.0)
    state = GAMES["tictactoe"].start(None)
    assert (
        contestant.engine.tokenizer.decode(contestant.prompts.prompt_ids(state, 0)) == "X 0 1 2 3 4 5 6 7 8"
    )
    assert task.find_contestant(GAMES["tictactoe"], str(run), temperature=0).sampling.temperature == 0
    output = play("tictactoe", "--model", str(run), "--opponent", str(run), "--games", "4", "--seed", "3")
    assert output == play(
        "tictactoe", "--model", str(run), "--opponent", str(run), "--games", "4", "--seed", "3"
    )
    assert f"{run}(float32)against{run}(float32)" in "".join(output.split())  # lines end by their width
    assert "You win" in play(
        "kuhn_poker", "--model", str(run), "--role", "second", "--temperature", "0", lines="n\n"
    )


def test_a_model_with_a_chat_template_is_asked_for_a_boxed_move(run, tmp_path, published) -> None:
    folder = published("qwen2", max_position_embeddings=2048)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    contestant = task.find_contestant(TicTacToe(), str(folder))
    prompt = contestant.engine.tokenizer.decode(contestant.prompts.prompt_ids(TicTacToe().start(None), 1))
    assert "You play second in a game." in prompt and "\\boxed{move}" in prompt
    assert contestant.sampling.max_tokens == 512
    # The two have different tokenizers; each is asked in its own way.
    output = play("tictactoe", "--model", str(run), "--opponent", str(folder), "--games", "2", "--seed", "0")
    assert "(1 games)" in output


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (("tictacto",), "Did you mean tictactoe? Shipped games: tictactoe, kuhn_poker, negotiation"),
        (("os:Nothing",), "os:Nothing cannot be played"),
        (("kuhn_poker", "--model", "minimax"), "It has random, equilibrium (or expert)"),
        (("tictactoe", "--model", "no/such/run"), "no such folder"),
    ],
)
def test_what_there_is_not_is_named_with_what_there_is(arguments, expected) -> None:
    done = CliRunner().invoke(cli, ["play", *arguments])
    assert isinstance(done.exception, ConfigError | CheckpointError)
    assert expected in str(done.exception)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (("--role", "third"), "has the roles first and second"),
        (("--games", "3"), "name its --opponent"),
        (("--opponent", "random"), "needs --model"),
        (("--opponent", "random", "--model", "m", "--role", "first"), "takes neither --role"),
        (("--games", "0"), "0"),
        (("--temperature", "-1"), "-1"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(arguments, expected) -> None:
    done = CliRunner().invoke(cli, ["play", "tictactoe", *arguments])
    assert done.exit_code == 2
    assert expected in done.output
