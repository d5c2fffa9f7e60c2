"""Supervised examples for generated problems, honestly imperfect at a stated rate.

A right example holds the reference body. In a misconceived one exactly one operation, chosen
uniformly, carries one of its misconceptions; its body fails at least one case of the problem, which
is found by running it. So the share of right examples is the share of passing ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from greenward.problems.families.composition import ID_PREFIX, Composition
from greenward.problems.families.generate import stable_hash
from greenward.problems.problem import Problem


@dataclass(frozen=True)
class CorpusExample:
    """One answer to one problem: `completion_text` continues `prompt_text` to a whole program."""

    task_id: str
    prompt_text: str
    completion_text: str
    misconception: bool


def corpus(
    problems: Iterable[Problem], misconception_rate: float, seed: int, *, examples_per_problem: int = 8
) -> list[CorpusExample]:
    """`examples_per_problem` examples for each generated problem, in the order of the problems.

    Each example is misconceived with probability `misconception_rate`, independently; the draw
    depends only on the seed and the problem, not on the other problems. Raises `ProblemError` for a
    problem that was not generated.
    """
    examples = []
    for problem in problems:
        chain = Composition.of(problem.task_id)
        rng = random.Random(stable_hash(f"corpus/{seed}/{problem.task_id}"))
        right_body = chain.body(chain.expressions)
        wrong_bodies = failing_bodies(problem)
        for _ in range(examples_per_problem):
            misconceived = rng.random() < misconception_rate and bool(wrong_bodies)
            body = rng.choice(rng.choice(wrong_bodies)) if misconceived else right_body
            examples.append(CorpusExample(problem.task_id, problem.starter_code, body, misconceived))
    return examples


def corpus_texts(problems: Iterable[Problem]) -> Iterator[str]:
    """Whole programs with every lexeme that an answer may need, for training a tokenizer.

    Generated problems give the right program and the misconceived ones, others their reference.
    """
    for problem in problems:
        yield problem.reference
        if problem.task_id.startswith(ID_PREFIX):
            for bodies in failing_bodies(problem):
                yield from (problem.starter_code + body for body in bodies)


def failing_bodies(problem: Problem) -> list[list[str]]:
    """For each operation that has one, the bodies with one misconception there that fail a case.

    A misconception that the other operations mask on every case is left out.
    """
    chain = Composition.of(problem.task_id)
    by_position: list[list[str]] = [[] for _ in chain.operations]
    for position, expressions in chain.misconceived():
        if any(chain.gives_otherwise(expressions, case.args[0], case.expected) for case in problem.cases):
            by_position[position].append(chain.body(expressions))
    return [bodies for bodies in by_position if bodies]
