"""Generated modules: files whose functions build on a helper, masked as those of mined source."""

from __future__ import annotations

import ast
import doctest

import pytest

from greenward.config.sections import FamiliesConfig
from greenward.problems.catalog import load_problems
from greenward.problems.problem import Doctest, hole_of, place
from greenward.tasks.corpus import generated_examples, texts_to_tokenize


@pytest.fixture(scope="module")
def sides():
    config = FamiliesConfig(limit=200)
    return [load_problems("modules", config, part) for part in ("train", "held_out")]


def failures(code: str, examples: str) -> int:
    namespace: dict = {}
    exec(code, namespace)
    runner = doctest.DocTestRunner(verbose=False)
    test = doctest.DocTestParser().get_doctest(examples, namespace, "", "", 0)
    return runner.run(test, out=lambda _: None).failed


def test_references_pass_and_wrong_bodies_fail_their_examples(sides):
    problems = [*sides[0][::5], *sides[1][::3]]
    kinds = {one.tags[0] for one in problems}
    assert kinds == {"function", "method"}
    for problem in problems:
        (examples,) = problem.sources(Doctest)
        assert failures(problem.reference, examples) == 0, problem.task_id
        for body in problem.columns["wrong_bodies"]:
            code = place(body, problem, hole_of(problem), continues=True)
            assert failures(code, examples) > 0, (problem.task_id, body)


def test_sides_share_no_module_and_no_function(sides):
    train, held_out = sides
    assert train and held_out
    assert not {one.files[one.path] for one in train} & {one.files[one.path] for one in held_out}
    assert not {one.task_id for one in train} & {one.task_id for one in held_out}
    assert all("function_never_seen" in one.tags for one in held_out)


def test_a_body_needs_the_helper_that_the_context_names(sides):
    for problem in sides[0][::7]:
        (body, *_) = (one for one in generated_examples([problem], 0.0, 0, examples_per_problem=1))
        calls = [one for one in ast.walk(ast.parse(problem.reference)) if isinstance(one, ast.Call)]
        helper = problem.prompt.partition(",")[0].lower()
        assert f"{helper}(" in body.completion_text and calls
        assert place(body.completion_text, problem, hole_of(problem), continues=True) == problem.reference


def test_supervised_examples_are_wrong_at_the_asked_rate(sides):
    problems = [one for one in sides[0] if one.columns["wrong_bodies"]]
    examples = generated_examples(problems, 0.7, 0, examples_per_problem=8)
    share = sum(one.is_wrong for one in examples) / len(examples)
    assert abs(share - 0.7) < 0.04
    texts = list(texts_to_tokenize(problems[:3]))
    for problem in problems[:3]:
        assert problem.reference in texts and problem.context + problem.starter_code in texts
