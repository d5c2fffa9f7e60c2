"""Supervised examples for generated problems, honestly imperfect at a stated rate.

A right example holds the reference body. In a misconceived one exactly one operation carries one of
its misconceptions: the first of that specification that is error-prone (half of all operations are),
as people trip over the same thing again and again. Its body fails at least one case of the problem,
which is found by running it. So the share of right examples is the share of passing ones, and above a
rate of one half the right body is within reach but not what a reader of the corpus would write first.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from greenward.errors import ProblemError
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

    For a problem of repair the right example is the original, the misconceived one leaves the bug in.

    Each example is misconceived with probability `misconception_rate`, independently; the draw
    depends only on the seed and the problem, not on the other problems. Raises `ProblemError` for a
    problem that was not generated.
    """
    examples = []
    for problem in problems:
        rng = random.Random(stable_hash(f"corpus/{seed}/{problem.task_id}"))
        right_body, wrong_bodies = _bodies(problem)
        for _ in range(examples_per_problem):
            misconceived = rng.random() < misconception_rate and bool(wrong_bodies)
            body = rng.choice(wrong_bodies) if misconceived else right_body
            examples.append(CorpusExample(problem.task_id, problem.starter_code, body, misconceived))
    return examples


def corpus_texts(problems: Iterable[Problem]) -> Iterator[str]:
    """Whole programs with every lexeme that an answer may need, for training a tokenizer.

    Generated problems give the right program and the misconceived ones, others their reference.
    """
    for problem in problems:
        yield problem.reference
        if problem.buggy_code:
            yield problem.buggy_code
        elif problem.task_id.startswith(ID_PREFIX):
            for bodies in failing_bodies(problem):
                yield from (problem.starter_code + body for body in bodies)


def failing_bodies(problem: Problem) -> list[list[str]]:
    """For each operation that has one, the bodies with one misconception there that fail a case.

    A misconception that the other operations mask on every case is left out.
    """
    return list(_failing_by_position(problem, Composition.of(problem.task_id)).values())


def _bodies(problem: Problem) -> tuple[str, list[str]]:
    """What continues the starter code rightly, and what people write instead."""
    if problem.buggy_code:
        starter = problem.starter_code
        if not (problem.reference.startswith(starter) and problem.buggy_code.startswith(starter)):
            raise ProblemError(
                f"{problem.task_id}: expected a reference and a buggy program that continue the starter.",
                remedy="Set warm_start.data to a file of examples, or put bugs in by bugs:<problems>.",
            )
        return problem.reference[len(starter) :], [problem.buggy_code[len(starter) :]]
    chain = Composition.of(problem.task_id)
    right_body = chain.body(chain.expressions)
    return right_body, _bodies_of_the_error_prone(chain, _failing_by_position(problem, chain))


def _failing_by_position(problem: Problem, chain: Composition) -> dict[int, list[str]]:
    """The failing misconceived bodies by the position of the operation that is wrong."""
    by_position: dict[int, list[str]] = {}
    for position, expressions in chain.misconceived():
        if any(chain.gives_otherwise(expressions, case.args[0], case.expected) for case in problem.cases):
            by_position.setdefault(position, []).append(chain.body(expressions))
    return by_position


def _bodies_of_the_error_prone(chain: Composition, failing: dict[int, list[str]]) -> list[str]:
    """The wrong bodies of the first operation that people trip over, else of the first one."""
    prone = [i for i in sorted(failing) if stable_hash(f"error-prone/{chain.operations[i].name}") % 2]
    return failing[(prone or sorted(failing))[0]] if failing else []
