"""Rewards of a written program: `code_quality`, `sparse`, `curriculum`, or a function of the user's own.

A correct program earns at least 30 by `code_quality`, and any other one less than 14: no invalid, empty or
constant program can be worth more. Progress is shaping by a potential, which adds γ Φ(s') - Φ(s) to the
reward of each step and therefore changes no optimal policy (Ng, Harada and Russell, 1999).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from greenward.config.sections import RewardTermConfig
from greenward.environments.token_mdp.mdp import Writing
from greenward.errors import RewardError
from greenward.grading.grader import Grader
from greenward.grading.reward_terms import make_reward
from greenward.grading.rewards import GradedAnswer
from greenward.grading.verdict import Status, Verdict
from greenward.problems.python_source import parse_or_none

ALL_PASSED = 2.0
"""Added to the share of tests passed when it is 1: with a weight of 10, a bonus of 20."""
LONG, BRANCHY = 30, 3
_BRANCHES = (ast.If, ast.For, ast.IfExp, ast.BoolOp, ast.comprehension)


@dataclass(frozen=True)
class Weights:
    """Weights of the terms of `code_quality`."""

    correctness: float = 10.0
    quality: float = 2.0
    efficiency: float = 1.0
    progress: float = 0.5


Scored = tuple[float, Mapping[str, float]]


class GradedProgram(NamedTuple):
    """A program at the end of its episode. `level` is the success rate of its problem so far."""

    written: Writing
    code: str
    verdict: Verdict
    level: float = 0.0


ProgramReward = Callable[[Sequence[GradedProgram]], list[Scored]]
"""Scores programs: the sum and its terms, unweighted, for each."""


@dataclass(frozen=True)
class CodeQuality:
    """weights · (correctness, quality, efficiency).

    With `curriculum`, what a program earns for a part of the tests shrinks with the success rate of its
    problem, until only a whole solution pays.
    """

    weights: Weights = Weights()
    curriculum: bool = False

    def __call__(self, programs: Sequence[GradedProgram]) -> list[Scored]:
        return [self._score(program) for program in programs]

    def _score(self, program: GradedProgram) -> Scored:
        one, code, verdict, level = program
        share = verdict.fraction_passed * (1.0 - level if self.curriculum and not verdict.passed else 1.0)
        terms = {
            "correctness": share + ALL_PASSED * verdict.passed,
            "quality": 0.0 if verdict.status is Status.SYNTAX_ERROR else quality(code),
            "efficiency": -0.1 * (one.used - one.head_start) / one.mdp.settings.max_steps
            - 0.1 * max(0, len(one.tokens) - LONG) / LONG,
        }
        return sum(vars(self.weights)[name] * value for name, value in terms.items()), terms


def sparse(programs: Sequence[GradedProgram]) -> list[Scored]:
    """1 if all tests pass, else 0."""
    return [(float(one.verdict.passed), {"passed": float(one.verdict.passed)}) for one in programs]


def custom_reward(name: str, grader: Grader) -> ProgramReward:
    """`module:function` in the place of all terms, in a process of its own (`grading.custom_reward`).

    Raises `RewardError` for a function that cannot be imported, raises, or gives a score that is not finite.
    """
    term = make_reward(RewardTermConfig(name=name))

    def score(programs: Sequence[GradedProgram]) -> list[Scored]:
        answers = [
            GradedAnswer(one.one.problem, one.one.problem.starter_code, code, code, verdict)
            for one, code, verdict, _ in programs
        ]
        scores = term.score(answers, grader)
        if None in scores:
            raise RewardError(f"{term.name} gave no score: the token MDP needs one for each program.")
        return [(float(score or 0.0), {term.name: float(score or 0.0)}) for score in scores]

    return score


def make_program_reward(kind: str, weights: Weights, grader: Grader) -> ProgramReward:
    """The reward that a recipe's `reward.type` names."""
    if kind in ("code_quality", "curriculum"):
        return CodeQuality(weights, kind == "curriculum")
    return sparse if kind == "sparse" else custom_reward(kind, grader)


def quality(code: str) -> float:
    """0.5 for valid syntax, 0.3 for structure, 0.2 for reasonable length, 0.2 for low complexity."""
    tree = parse_or_none(code)
    if tree is None:
        return 0.0
    nodes = list(ast.walk(tree))
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    uses = any(isinstance(node, ast.Name) and node.id in arguments for node in nodes)
    returns = any(isinstance(node, ast.Return) and node.value is not None for node in nodes)
    branches = sum(isinstance(node, _BRANCHES) for node in nodes)
    return 0.5 + 0.3 * (uses and returns) + 0.2 * (len(code.split()) <= LONG) + 0.2 * (branches <= BRANCHY)


def potential(one: Writing) -> float:
    """Φ of an unfinished program: 0.3 for a whole one, 0.2 for a return, up to 0.05 for its length."""
    if one.outcome:
        return 0.0
    returns = one.mdp.vocabulary.index["return"] in one.tokens
    return 0.3 * one.complete + 0.2 * returns + 0.05 * min(1.0, len(one.tokens) / 10)
