"""Problem files in the form of the first DQN: inputs in one list, no signature, no reference."""

from __future__ import annotations

import json

import pytest

from greenward import api
from greenward.common.errors import ProblemError
from greenward.config.loading import load_recipe
from greenward.problems.formats import load_json
from greenward.tasks import find_task
from greenward.tasks.token_mdp.grammar import Vocabulary
from greenward.tasks.token_mdp.mdp import CodeGrading, TokenMDP, written_out
from originals_retyped import DQN_TRAINING, dqn_rows

PROGRAMS = {  # the body of a right program, by the problem's name
    "add_numbers": "return <arg0> + <arg1> <end>",
    "is_even": "return <arg0> % 2 == 0 <end>",
    "max_of_three": "return max ( <arg0> , <arg1> , <arg2> ) <end>",
    "count_vowels": "return sum ( c in 'aeiou' for c in <arg0> . lower ( ) ) <end>",
    "reverse_string": "return <arg0> [ : : - 1 ] <end>",
    "factorial": "return <arg0> * <self> ( <arg0> - 1 ) if <arg0> else 1 <end>",
    "is_palindrome": "return <arg0> == <arg0> [ : : - 1 ] <end>",
    "sum_list": "return sum ( <arg0> ) <end>",
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "training_problems.json"
    path.write_text(json.dumps(dqn_rows(DQN_TRAINING)))
    return path


def test_all_eight_problems_can_be_written_and_pass_their_tests(file, grader) -> None:
    """The arity of each is that of a right program, whose token sequence the MDP accepts step by step."""
    mdp = TokenMDP(list(load_json(file)), Vocabulary())
    assert mdp.unproved == list(DQN_TRAINING)
    grading, programs = CodeGrading(grader), {}
    for one in mdp.problems:
        programs[one] = [mdp.vocabulary.index[lexeme] for lexeme in PROGRAMS[one.task_id].split()]
    choose = written_out(programs)
    writings = [mdp.start(one) for one in mdp.problems]
    for writing in writings:
        while not writing.outcome:
            writing.act(int(choose([writing])[0]))
    verdicts = grading([(one.one.problem, one.code) for one in writings])
    assert [one.passed for one in verdicts] == [True] * 8


def settings_for(file) -> list[str]:
    return [
        f"problems.train={file}", "preset=none", "problems.generated=0", "problems.compositions=0",
        "exploration.prior=false", "training.practice_per_step=0", "training.num_episodes=8",
        "training.episodes_per_step=8", "evaluation.enabled=false", "evaluation.random_search=false",
    ]  # fmt: skip


def test_a_training_by_such_a_file_is_doubted(file) -> None:
    task = find_task("token_mdp")(load_recipe("dqn_code_generation", settings_for(file)))
    doubt = next(iter(task.doubts()))
    assert doubt.startswith(", ".join(DQN_TRAINING))
    assert "nothing shows that a program of 64 tokens and at most 32 steps passes" in doubt


@pytest.mark.slow
def test_a_training_by_such_a_file_warns_and_runs(file, tmp_path, capsys) -> None:
    keys = settings_for(file)
    assert api.train("dqn_code_generation", keys, output=tmp_path / "run").finished
    said = capsys.readouterr()
    assert "nothing shows that a program of 64 tokens and at most 32 steps passes" in said.out + said.err


def test_a_reference_that_is_there_is_still_checked(tmp_path) -> None:
    row = {
        "function_name": "f", "docstring": "", "test_cases": [[1, 2]], "starter_code": "def f(a):\n",
        "reference": "def f(a):\n    return divmod(a, 2)[0] + 2\n",
    }  # fmt: skip
    path = tmp_path / "mine.json"
    path.write_text(json.dumps([row]))
    with pytest.raises(ProblemError, match="needs divmod"):
        TokenMDP(list(load_json(path)), Vocabulary())
