"""Generated modules: files whose functions build on a helper, masked as those of mined source."""

from __future__ import annotations

import ast
import doctest
import textwrap

import pytest

from greenward.config.section import FamiliesConfig
from greenward.evaluation.contamination import contamination
from greenward.problems.catalog import load_problems
from greenward.problems.generated import HELPERS, OPERATIONS, generated_modules, split
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


def renamed(function: ast.FunctionDef) -> str:
    """The function without its name and docstring, its variables numbered as they occur."""
    (function,) = ast.parse(ast.unparse(function)).body
    function.name, names = "f", {}
    if ast.get_docstring(function) is not None:
        del function.body[0]
    nodes = list(ast.walk(function))
    own = {one.arg for one in nodes if isinstance(one, ast.arg)}
    own |= {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    for node in nodes:
        for field in ("arg", "id"):
            if getattr(node, field, None) in own:
                setattr(node, field, names.setdefault(getattr(node, field), f"v{len(names)}"))
    return ast.unparse(function)


def functions(code: str) -> dict[str, ast.FunctionDef]:
    return {one.name: one for one in ast.walk(ast.parse(code)) if isinstance(one, ast.FunctionDef)}


def shown_texts(problems) -> set[str]:
    """What training problems show: their functions and specifications, and their wrong bodies."""
    texts = {one.prompt for one in problems}
    for code in {one.reference for one in problems}:
        for function in functions(code).values():
            texts |= {ast.get_docstring(function), ast.unparse(function), renamed(function)}
    for problem in problems:
        asked = textwrap.dedent(problem.starter_code)
        for body in problem.columns["wrong_bodies"]:
            (wrong,) = functions(asked + textwrap.indent(textwrap.dedent(body), "    ")).values()
            texts.add(renamed(wrong))
    return texts


def assert_no_answer_is_shown(train, held_out):
    shown = shown_texts(train)
    for problem in held_out:
        asked = functions(problem.reference)[problem.entry_point.rpartition(".")[2]]
        answers = {problem.prompt, ast.get_docstring(asked), ast.unparse(asked), renamed(asked)}
        assert not answers & shown, problem.task_id


def asked_operations(problems) -> set[str]:
    return {one.task_id.rpartition("+")[2] for one in problems}


def helpers_of(problems) -> set[str]:
    return {one.prompt.partition(",")[0] for one in problems}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_training_problem_shows_a_held_out_answer_or_specification(problems, seed):
    split_problems = split(problems, 0.2, seed)
    train, held_out = generated_modules(*split_problems)
    two = [sum("+" in one.task_id for one in side) for side in split_problems]
    assert [len(train), len(held_out)] == two  # none is left out
    assert len(train) > 3000 and len(held_out) > 700
    assert len({one.prompt for one in held_out}) > 300
    assert_no_answer_is_shown(train, held_out)
    counts = contamination(train, held_out).counts
    assert (counts["exact"], counts["same_program"]) == (0, 0)
    assert asked_operations(held_out) <= asked_operations(train) == set(OPERATIONS)
    assert helpers_of(held_out) <= helpers_of(train) == {one.capitalize() for one in HELPERS}


@pytest.mark.parametrize(
    ("limit", "seed"),
    [(60, 0), (200, 5), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((200, 0), (700, 1)))],
)
def test_few_problems_show_no_held_out_answer_either(limit, seed):
    config = FamiliesConfig(limit=limit, seed=seed)
    train, held_out = (load_problems("modules", config, part) for part in ("train", "held_out"))
    assert train and held_out
    assert_no_answer_is_shown(train, held_out)
    assert asked_operations(held_out) <= asked_operations(train)
    assert helpers_of(held_out) <= helpers_of(train)


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
