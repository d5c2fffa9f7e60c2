"""Supervised examples for generated problems and repair problems, some of them wrong on purpose.

A right example holds the body of the reference. A wrong one has one wrong expression, always in the same
operation of a problem: the first of its operations that is error-prone (half of all operations are), because
programmers repeat their mistakes. Its body fails at least one case of the problem, which is found by running
it. At an error rate above one half, a model that has learnt the examples can write the right body, but the
wrong ones are more probable.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from greenward.errors import ProblemError
from greenward.problems.families.composition import ID_PREFIX, Composition
from greenward.problems.problem import Problem, stable_hash


@dataclass(frozen=True)
class SupervisedExample:
    """One answer to one problem: `completion_text` continues `prompt_text` to a whole program."""

    task_id: str
    prompt_text: str
    completion_text: str
    is_wrong: bool


def generated_examples(
    problems: Iterable[Problem], error_rate: float, seed: int, *, examples_per_problem: int = 8
) -> list[SupervisedExample]:
    """`examples_per_problem` examples for each problem, in the order of the problems.

    For a repair problem the right example is the original, and the wrong one leaves the bug in. Each example
    is wrong with probability `error_rate`, independently of the others; the draw depends on the seed and the
    problem only. Raises `ProblemError` for a problem that is neither generated nor a repair problem.
    """
    examples = []
    for problem in problems:
        rng = random.Random(stable_hash(f"corpus/{seed}/{problem.task_id}"))
        right, wrong = _bodies(problem)
        for _ in range(examples_per_problem):
            is_wrong = rng.random() < error_rate and bool(wrong)
            body = rng.choice(wrong) if is_wrong else right
            examples.append(SupervisedExample(problem.task_id, problem.starter_code, body, is_wrong))
    return examples


def tokenizer_texts(problems: Iterable[Problem]) -> Iterator[str]:
    """Whole programs with every lexeme that an answer may need, for training a tokenizer.

    Generated problems give the right program and the wrong ones, others their reference.
    """
    for problem in problems:
        yield problem.reference
        if problem.buggy_code:
            yield problem.buggy_code
        elif problem.task_id.startswith(ID_PREFIX):
            for bodies in failing_bodies(problem).values():
                yield from (problem.starter_code + body for body in bodies)


def failing_bodies(problem: Problem) -> dict[int, list[str]]:
    """The bodies that fail a case, by the position of the operation that is wrong, if there are any."""
    chain = Composition.of(problem.task_id)
    by_position: dict[int, list[str]] = {}
    for position, expressions in chain.wrong_variants():
        if any(chain.fails(expressions, case.args[0], case.expected) for case in problem.cases):
            by_position.setdefault(position, []).append(chain.body(expressions))
    return by_position


def _bodies(problem: Problem) -> tuple[str, list[str]]:
    """(right, wrong): what continues the starter code."""
    if problem.buggy_code:
        starter = problem.starter_code
        if not (problem.reference.startswith(starter) and problem.buggy_code.startswith(starter)):
            raise ProblemError(
                f"{problem.task_id}: expected a reference and a buggy program that continue the starter.",
                remedy="Set warm_start.data to a file of examples, or put bugs in by bugs:<problems>.",
            )
        return problem.reference[len(starter) :], [problem.buggy_code[len(starter) :]]
    chain = Composition.of(problem.task_id)
    failing = failing_bodies(problem)
    error_prone = [i for i in failing if stable_hash(f"error-prone/{chain.operations[i].name}") % 2]
    position = min(error_prone or failing, default=None)
    return chain.body(chain.expressions), failing[position] if position is not None else []
