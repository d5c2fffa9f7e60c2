"""Problems and a sandbox for the tests of the token MDP."""

from __future__ import annotations

import pytest

from absolute_value import ABSOLUTE_VALUE
from greenward.grading.judge import Grader
from greenward.problems.catalog import load_suite
from greenward.sandbox.protocol import Limits
from greenward.tasks.token_mdp.grammar import Vocabulary
from greenward.tasks.token_mdp.mdp import TokenMDP, TokenSettings


@pytest.fixture(scope="session")
def grader():
    with Grader(Limits(cpu_seconds=0.3, wall_seconds=3.0)) as grader:
        yield grader


@pytest.fixture(scope="session")
def classics() -> TokenMDP:
    return TokenMDP([*load_suite("classic_training"), ABSOLUTE_VALUE], Vocabulary(), TokenSettings())


@pytest.fixture
def written(classics):
    """`written(task_id, body)`: the episode in which these lexemes were written."""

    def write(task_id: str, body: str):
        writing = classics.start(next(one for one in classics.problems if one.task_id == task_id))
        lexemes = body.split("|") if "|" in body else body.split()
        while not writing.outcome:
            writing.act(classics.vocabulary.index[lexemes[len(writing.tokens)]])
        return writing

    return write
