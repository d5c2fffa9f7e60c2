"""Supervised examples: wrong at exactly the stated rate, and wrong examples fail."""

from __future__ import annotations

import random

import pytest

from greenward.common.errors import ProblemError
from greenward.grading.judge import Grader
from greenward.problems.generated import Composition, split
from greenward.problems.problem import Case, Problem, ProblemSet
from greenward.sandbox.protocol import Limits
from greenward.tasks.corpus import SupervisedExample, failing_bodies, generated_examples, texts_to_tokenize


@pytest.fixture(scope="module")
def examples(problems: ProblemSet) -> list[SupervisedExample]:
    return generated_examples(problems, 0.7, seed=0, examples_per_problem=6)


def passes(problem: Problem, example: SupervisedExample) -> bool:
    """Whether the example's whole program gives the expected values."""
    namespace: dict = {}
    exec(example.prompt_text + example.completion_text, namespace)
    try:
        return all(namespace["solve"](*case.args) == case.expected for case in problem.cases)
    except Exception:
        return False


def test_right_examples_pass_and_wrong_ones_fail(
    problems: ProblemSet, examples: list[SupervisedExample]
) -> None:
    for example in examples[::3]:
        assert passes(problems.by_id(example.task_id), example) != example.is_wrong, example


def test_sandbox_agrees_with_the_labels(problems: ProblemSet, examples: list[SupervisedExample]) -> None:
    sample = random.Random(5).sample(examples, 200)
    with Grader(Limits(), workers=2) as grader:
        verdicts = grader.grade(
            [(problems.by_id(e.task_id), e.prompt_text + e.completion_text) for e in sample]
        )
    assert [verdict.passed for verdict in verdicts] == [not e.is_wrong for e in sample]


def test_every_problem_has_a_wrong_body_that_fails_a_case(problems: ProblemSet) -> None:
    assert all(failing_bodies(problem) for problem in problems)


def test_share_of_wrong_examples_is_the_rate(examples: list[SupervisedExample]) -> None:
    share = sum(example.is_wrong for example in examples) / len(examples)
    standard_error = (0.7 * 0.3 / len(examples)) ** 0.5
    assert abs(share - 0.7) < 4 * standard_error


@pytest.mark.parametrize(("rate", "is_wrong"), [(0.0, False), (1.0, True)])
def test_rates_at_the_ends_are_exact(problems: ProblemSet, rate: float, is_wrong: bool) -> None:
    assert {example.is_wrong for example in generated_examples(problems[::9], rate, 0)} == {is_wrong}


def test_one_operation_is_wrong_and_it_is_the_same_in_all_examples_of_a_problem(
    problems: ProblemSet, examples: list[SupervisedExample]
) -> None:
    wrong_at: dict[str, set[int]] = {}
    for example in examples:
        chain = Composition.of(example.task_id)
        right = chain.body(chain.expressions).splitlines()
        found = example.completion_text.splitlines()
        differing = [i for i, pair in enumerate(zip(right, found, strict=True)) if pair[0] != pair[1]]
        assert len(differing) == example.is_wrong
        wrong_at.setdefault(example.task_id, set()).update(differing)
    assert all(len(positions) <= 1 for positions in wrong_at.values())
    assert set.union(*wrong_at.values()) == {0, 1}


def test_examples_of_a_problem_do_not_depend_on_the_others(problems: ProblemSet) -> None:
    train, held_out = split(problems, 0.2, 0)
    together = generated_examples(problems, 0.7, seed=3)
    apart = generated_examples(train, 0.7, seed=3)
    hidden = {p.task_id for p in held_out}
    assert [e for e in together if e.task_id not in hidden] == apart
    assert generated_examples(train, 0.7, seed=4) != apart


def test_tokenizer_texts_hold_every_example(problems: ProblemSet, examples: list[SupervisedExample]) -> None:
    texts = set(texts_to_tokenize(problems))
    assert all(example.prompt_text + example.completion_text in texts for example in examples)


@pytest.mark.parametrize("starter", ["def inc(a):\n", '"""\nAdd one.\nassert inc(1) == 2\n"""\n'])
def test_other_problems_are_taught_by_their_references(starter: str) -> None:
    reference = "def inc(a):\n    return a + 1\n"
    problem = Problem("inc", "Add one.", "inc", (Case((1,), 2),), starter_code=starter, reference=reference)
    assert list(texts_to_tokenize([problem])) == [reference]
    found = generated_examples([problem], 0.7, 0, examples_per_problem=20)
    assert {one.prompt_text + one.completion_text for one in found} == {reference}
    assert not any(one.is_wrong for one in found)


def test_a_problem_without_a_reference_has_no_examples() -> None:
    problem = Problem("inc", "Add one.", "inc", (Case((1,), 2),))
    with pytest.raises(ProblemError, match=r"inc: expected a reference.*\n.*warm_start\.data"):
        generated_examples([problem], 0.7, 0)
