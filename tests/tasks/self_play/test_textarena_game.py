"""Games of TextArena by our protocol, beside the same games played by TextArena alone."""

from __future__ import annotations

import random
import sys

import pytest

from greenward.common.errors import ConfigError, GreenwardError
from greenward.rollouts.protocols import SamplingParams
from greenward.tasks.self_play.environment import GameDialogue
from greenward.tasks.self_play.games import RandomPlayer, TextArenaGame, find_game
from greenward.tasks.self_play.task import find_opponent
from text_engine import TextEngine, table_of

textarena = pytest.importorskip("textarena", reason="the extra `games` is not installed")
GAMES = ["TicTacToe-v0", "KuhnPoker-v0", "SimpleNegotiation-v0", "TicTacToe-v0-train"]


def play_randomly(game, seed):
    """The positions of a game and the actions between them."""
    rng = random.Random(seed)
    states, actions = [game.start(rng)], []
    while game.player(states[-1]) is not None:
        actions.append(RandomPlayer().act(game, states[-1], rng))
        states.append(game.step(states[-1], actions[-1]))
    return states, actions


@pytest.mark.parametrize("game_id", GAMES)
def test_a_game_runs_as_in_textarena_itself(game_id) -> None:
    game = find_game(f"textarena:{game_id}")
    for seed in range(5):
        states, actions = play_randomly(game, seed)
        env = textarena.make(game_id)
        env.reset(num_players=2, seed=random.Random(seed).getrandbits(31))
        for state, action in zip(states, actions, strict=False):
            player, text = env.get_observation()
            assert (game.player(state), game.observation(state, player)) == (player, text.strip())
            over, _ = env.step(action)
        rewards, _ = env.close()
        assert over
        assert game.returns(states[-1]) == (rewards[0], rewards[1])
        assert rewards[0] + rewards[1] == 0


@pytest.mark.parametrize("game_id", GAMES)
def test_states_are_values_and_the_random_numbers_of_python_are_left_alone(game_id) -> None:
    game = TextArenaGame(game_id)
    random.seed(1)
    before = random.getstate()
    states, actions = play_randomly(game, 3)
    texts = [game.observation(state, 0) for state in states]
    other = game.start(random.Random(3))
    for number, action in enumerate(actions):
        assert game.observation(states[number], 0) == texts[number] == game.observation(other, 0)
        other = game.step(other, action)
    assert game.returns(other) == game.returns(states[-1])
    assert random.getstate() == before


def test_a_move_is_legal_if_the_game_accepts_it() -> None:
    game = TextArenaGame("TicTacToe-v0")
    state = game.step(game.start(random.Random(0)), "[4]")
    assert sorted(game.legal_actions(state)) == [f"[{cell}]" for cell in (0, 1, 2, 3, 5, 6, 7, 8)]
    for action, legal in (("0", True), ("[4]", False), ("9", False), ("", False), ("I take [8]", True)):
        assert (action in game.legal_actions(state)) is legal
    with pytest.raises(GreenwardError, match="no legal action"):
        game.step(state, "[4]")


def test_an_offer_in_words_of_ones_own_can_be_accepted() -> None:
    game = TextArenaGame("SimpleNegotiation-v0")
    state = game.start(random.Random(0))
    offer = "[Offer: 1 Wheat -> 1 Ore]"
    assert offer in game.legal_actions(state)
    state = game.step(state, offer)
    assert "1 Wheat -> Requested items: 1 Ore" in game.observation(state, 1)
    state = game.step(state, "[Accept]")
    while game.player(state) is not None:
        state = game.step(state, "[Deny]")
    assert game.returns(state) == (1, -1)  # an ore is worth more than wheat to both


@pytest.mark.parametrize("move, outcome", [("[0]", "drawn|player_0_won|player_1_won"), ("[9]", "illegal")])
def test_a_policy_plays_it_as_any_other_game(move, outcome) -> None:
    def answer(text: str) -> str:
        free = text.rpartition("Available Moves: ")[2].split("'")
        return f"<think>so</think>\\boxed{{{free[1] if move == '[0]' else move}}}"

    table = table_of(TextArenaGame("TicTacToe-v0"), "boxed")
    dialogue = GameDialogue(
        0, table, "self", ("policy", "policy"), asked=table.asked(SamplingParams()), rng=random.Random(0)
    )
    engine = TextEngine(answer)
    while request := dialogue.request():
        dialogue.respond(engine.sample([request.prompt_ids], 1, request.params, seed=0)[0][0])
    episode = dialogue.finish()
    assert episode.outcome in outcome.split("|")
    assert sum(episode.rewards.values()) == 0


@pytest.mark.parametrize(
    "game_id, expected",
    [
        ("TicTacToe-v9", "Did you mean TicTacToe-v0"),
        ("Nonsense", "no game 'Nonsense'"),
        ("ThreePlayerTicTacToe-v0", "exactly three players"),
        ("Sudoku-v0", "cannot be played"),
        ("Briscola-v0", "names its actions in brackets"),
    ],
)
def test_a_game_that_cannot_be_played_is_refused_and_the_reason_given(game_id, expected) -> None:
    with pytest.raises(ConfigError, match=expected):
        find_game(f"textarena:{game_id}")


def test_there_is_no_expert() -> None:
    game = TextArenaGame("TicTacToe-v0")
    with pytest.raises(ConfigError, match="It has random, and any run"):
        find_opponent(game, "expert")
    with pytest.raises(ConfigError, match="no expert"):
        game.expert_action(game.start(random.Random(0)), random.Random(0))


def test_a_missing_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "textarena.envs.registration", None)
    with pytest.raises(ConfigError, match=r"pip install 'greenward\[games\]'"):
        find_game("textarena:TicTacToe-v0")
