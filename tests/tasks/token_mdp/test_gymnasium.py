"""The token MDP through gymnasium's interfaces, and its features."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import greenward.tasks.token_mdp.gym_env  # registers the ids
from absolute_value import ABSOLUTE_VALUE
from greenward.common.errors import ConfigError
from greenward.problems.catalog import load_suite
from greenward.tasks.token_mdp import features
from greenward.tasks.token_mdp.grammar import Vocabulary
from greenward.tasks.token_mdp.mdp import CodeGrading, TokenMDP, TokenSettings, by_prior, write, written_out

gymnasium = pytest.importorskip("gymnasium")
ID = greenward.tasks.token_mdp.gym_env.TOKEN_MDP


@pytest.fixture
def make(grader):
    made = []

    def make(number: int | None = None, **options):
        few = [ABSOLUTE_VALUE, load_suite("classic_training").by_id("add_numbers")]
        options = {"grader": grader, "problems": few, **options}
        one = (
            gymnasium.make(ID, disable_env_checker=True, **options)
            if number is None
            else gymnasium.make_vec(ID, num_envs=number, vectorization_mode="vector_entry_point", **options)
        )
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def play(environment, task_id: str, body: str):
    """Every result of writing these lexemes; forced ones are written by the environment."""
    environment.reset(seed=0, options={"task_id": task_id})
    (writing,) = environment.unwrapped.many.writings
    results, lexemes = [], body.split()
    while not writing.outcome and len(writing.tokens) < len(lexemes):
        action = writing.mdp.vocabulary.index[lexemes[len(writing.tokens)]]
        results.append(environment.step(action))
    return results


def test_gymnasiums_checker_finds_nothing() -> None:
    from gymnasium.utils.env_checker import check_env

    environment = gymnasium.make(ID, problems=list(load_suite("classic_training"))[:1])
    check_env(environment.unwrapped, skip_render_check=True)
    environment.close()


def test_a_correct_program_is_rewarded_at_its_end(make) -> None:
    results = play(make(), "absolute_value", "return abs ( <arg0> ) <end>")
    *_, (observation, reward, terminated, truncated, info) = results
    assert terminated and not truncated
    assert info["reason"] == "ended" and info["passed"]
    assert reward > 30
    assert not any(one[2] or one[3] for one in results[:-1])
    metadata = dict(zip(features.LAYOUT, observation[-8:], strict=True))
    assert metadata["tests were run"] == metadata["all tests passed"] == 1
    assert metadata["share of max_steps used"] == pytest.approx(6 / 50)


def test_the_mask_says_what_is_legal_and_an_illegal_action_costs_a_step(make) -> None:
    environment = make()
    observation, info = environment.reset(seed=0)
    illegal = int(np.flatnonzero(info["action_mask"] == 0)[0])
    after, _, terminated, truncated, info = environment.step(illegal)
    assert info["illegal_action"]
    assert not terminated and not truncated
    assert after[-8] == pytest.approx(observation[-8] + 1 / 50)
    assert environment.unwrapped.render().endswith("# not tested yet")


def test_an_illegal_action_is_an_error_by_a_switch(make) -> None:
    environment = make(illegal_actions="error")
    _, info = environment.reset(seed=0)
    with pytest.raises(ConfigError, match="is illegal after nothing"):
        environment.step(int(np.flatnonzero(info["action_mask"] == 0)[0]))


def test_an_episode_without_a_legal_action_ends_with_the_reason(make) -> None:
    environment = make(max_steps=10)
    _, info = environment.reset(seed=0, options={"task_id": "absolute_value"})
    illegal = int(np.flatnonzero(info["action_mask"] == 0)[0])
    over = False
    while not over:
        _, _, terminated, truncated, info = environment.step(illegal)
        over = terminated or truncated
    assert truncated and info["reason"] == "no legal action"


def test_without_the_mask_every_token_is_legal_and_nonsense_is_a_syntax_error(make) -> None:
    results = play(make(grammar_mask=False, delete=False), "add_numbers", "return return + <end>")
    assert results[0][4]["action_mask"].sum() == 63  # all but the deletion of nothing
    *_, (_, reward, terminated, _, info) = results
    assert terminated and not info["passed"]
    assert reward < 0


def test_a_deletion_takes_the_newest_decision_back(make) -> None:
    environment = make()  # on by default, as in the original
    results = play(environment, "absolute_value", "return abs")
    before = results[0][0]
    delete = environment.unwrapped.mdp.vocabulary.index["<delete>"]
    assert results[1][4]["action_mask"][delete]
    after, _, _, _, info = environment.step(delete)
    code = slice(features.PROBLEM, features.PROBLEM + features.CODE)
    assert np.array_equal(after[code], before[code])
    assert np.array_equal(info["action_mask"], results[0][4]["action_mask"])
    assert after[-8] > results[1][0][-8]  # the step stays used


def test_tests_run_whenever_the_program_is_whole_by_a_switch(make) -> None:
    results = play(make(test_when="whole"), "absolute_value", "return <arg0> if")
    shares = [observation[features.SIZE - 3] for observation, *_ in results]
    assert shares[0] == 0  # `return` alone
    assert 0 < shares[1] < 1  # `return n` passes what is not negative


@pytest.mark.parametrize("test_whole", [False, True])
def test_rounds_tell_how_a_whole_program_did_by_the_same_switch(grader, test_whole) -> None:
    problem = ABSOLUTE_VALUE
    mdp = TokenMDP([problem], Vocabulary(), TokenSettings(max_steps=32, test_whole=test_whole))
    program = [mdp.vocabulary.index[lexeme] for lexeme in mdp.references["absolute_value"]]
    (attempt,) = write(mdp, mdp.problems, written_out({mdp.problems[0]: program}), CodeGrading(grader))
    tested = np.array(attempt.observations)[:, -4:-1]  # tests were run, share passed, all passed
    assert tested.any() == test_whole
    if test_whole:
        assert any(0 < share < 1 for share in tested[:, 1])  # `return n`, on the way, passes what is positive


def test_a_sparse_reward_is_binary(make) -> None:
    environment = make(reward="sparse", gamma=0.5)
    assert [one[1] for one in play(environment, "absolute_value", "return abs ( <arg0> ) <end>")][-1] == 1.0
    results = play(environment, "absolute_value", "return <arg0> <end>")
    assert [reward for _, reward, *_ in results] == [0.0] * len(results)


def test_under_the_curriculum_partial_credit_shrinks_as_a_problem_is_solved(make) -> None:
    environment = make(reward="curriculum")
    wrong = [play(environment, "absolute_value", "return <arg0> <end>")[-1][1]]
    for _ in range(20):
        right = play(environment, "absolute_value", "return abs ( <arg0> ) <end>")[-1][1]
        assert right > 30
    assert environment.unwrapped.many.success == {
        "absolute_value": pytest.approx(1, abs=0.02),
        "add_numbers": 0,
    }
    wrong.append(play(environment, "absolute_value", "return <arg0> <end>")[-1][1])
    half = sum(case.args[0] >= 0 for case in ABSOLUTE_VALUE.cases) / len(ABSOLUTE_VALUE.cases)
    assert wrong[0] - wrong[1] == pytest.approx(10 * half, abs=0.2)


def test_environments_side_by_side_begin_anew_after_an_end(make) -> None:
    many = make(3)
    observations, info = many.reset(seed=1)
    assert many.observation_space.contains(observations)
    rng, ends = np.random.default_rng(0), 0
    for _ in range(60):
        actions = [rng.choice(np.flatnonzero(mask)) for mask in info["action_mask"]]
        observations, _, terminated, _, info = many.step(np.array(actions))
        assert observations.shape == (3, features.SIZE)
        ends += int(terminated.sum())
        if terminated.any():
            assert all(info["_passed"] == terminated)
    assert ends >= 3
    many.reset(seed=1)
    assert many.render()[0].startswith("# ")


def test_equal_seeds_give_equal_problems(make) -> None:
    def tasks(seed: int) -> list[str]:
        return list(make(8).reset(seed=seed)[1]["task_id"])

    assert tasks(5) == tasks(5)
    assert len(set(tasks(5))) > 1


def test_an_unknown_problem_or_switch_is_refused(make) -> None:
    with pytest.raises(ConfigError, match="there is no problem 'nothing'"):
        make().reset(options={"task_id": "nothing"})
    with pytest.raises(ConfigError, match="illegal_actions skip or error"):
        make(illegal_actions="maybe")


def test_importing_the_package_registers_the_id() -> None:
    code = f"import greenward.tasks.token_mdp.gym_env, gymnasium; assert {ID!r} in gymnasium.registry"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_observations_are_the_same_in_every_process(capsys) -> None:
    """Nothing depends on Python's salted hashes."""
    code = (
        "from greenward.tasks.token_mdp.mdp import *; from greenward.problems.catalog import load_suite;"
        "from greenward.tasks.token_mdp.grammar import Vocabulary;"
        "mdp = TokenMDP(list(load_suite('classic_training'))[:1], Vocabulary());"
        "one = mdp.start(mdp.problems[0]); one.act(int(one.legal_V.argmax()));"
        "import hashlib; print(hashlib.sha256(one.observation.tobytes()).hexdigest())"
    )
    exec(code, {})
    other = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": str(int(os.environ.get("PYTHONHASHSEED") == "1") + 1)},
    )
    assert capsys.readouterr().out == other.stdout != ""


def test_different_problems_and_programs_look_different(classics, grader) -> None:
    embeddings = [tuple(classics.embedding(one)) for one in classics.problems]
    assert len(set(embeddings)) == len(embeddings)
    attempts = write(
        classics, classics.problems * 8, by_prior(classics, np.random.default_rng(0)), CodeGrading(grader)
    )
    last = {tuple(one.observations[-1]) for one in attempts}
    assert len(last) >= len({(one.code, one.writing.one.task_id) for one in attempts}) * 0.8


def test_facts_about_tests_are_shares_of_tests() -> None:
    problem = ABSOLUTE_VALUE
    facts = features.test_facts(problem)
    outputs = [case.expected for case in problem.cases]
    same = np.mean([case.args[0] == case.expected for case in problem.cases])
    assert facts[:2] == pytest.approx([same, -1.0])  # the first property: the output is the input
    assert facts[2:4].tolist() == [0.0, 0.0]  # the second asks for an argument that there is not
    assert min(outputs) >= 0
    assert features.test_facts(load_suite("classic_training").by_id("sum_list"))[:2].tolist() == [0.0, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize("reads", ["tokens", "program"])
def test_a_code_model_embeds_problems_and_programs(tmp_path, reads) -> None:
    """It reads tokens once, before the first episode, or the program after each of its tokens."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    from greenward.tasks.token_mdp.features import make_embeddings

    words = {word: index for index, word in enumerate(["<pad>", "<unk>", "def", "return", "a", "b", "+"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>"
    )
    config = transformers.RobertaConfig(
        vocab_size=7, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=260, pad_token_id=0,
    )  # fmt: skip
    transformers.RobertaModel(config).save_pretrained(tmp_path)
    fast.save_pretrained(tmp_path)
    vocabulary = Vocabulary()
    embeddings = make_embeddings("model", str(tmp_path), vocabulary, reads=reads)
    mdp = TokenMDP(list(load_suite("classic_training"))[:2], vocabulary, embeddings=embeddings)
    (first, second) = (mdp.start(one) for one in mdp.problems)
    assert first.observation.shape == (features.SIZE,)
    before = first.observation
    read: list[int] = []
    model = embeddings._model
    embeddings._model = lambda **inputs: (read.append(1), model(**inputs))[1]
    first.act(vocabulary.index["return"])
    assert first.observation.any() and len(read) == (reads == "program")
    code = slice(features.PROBLEM, features.PROBLEM + features.CODE)
    assert not np.array_equal(first.observation[code], before[code])
    assert not np.array_equal(before[: features.PROBLEM], second.observation[: features.PROBLEM])
    with pytest.raises(ConfigError, match="holds no model, and none could be fetched"):
        make_embeddings("model", str(tmp_path / "none"), vocabulary)


def test_a_mask_leaves_room_for_the_shortest_end(grader) -> None:
    mdp = TokenMDP(
        list(load_suite("classic_training")), Vocabulary(), TokenSettings(max_steps=12), check=False
    )
    attempts = write(mdp, mdp.problems * 12, by_prior(mdp, np.random.default_rng(0)), CodeGrading(grader))
    assert {one.writing.outcome for one in attempts} == {"ended"}
    assert max(len(one.writing.tokens) for one in attempts) <= 12
