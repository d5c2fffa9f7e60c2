"""Answers that are one function of a file."""

from __future__ import annotations

import ast
from dataclasses import replace
from difflib import SequenceMatcher

import pytest

from greenward.environments.prompts import question
from greenward.grading.answers import extract_code
from greenward.grading.judge import Grader
from greenward.grading.reward_terms import code_format, function_similarity
from greenward.grading.rewards import GradedAnswer
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Assertion, Doctest, InProcess, Problem, hole_of

FILE = '''\
"""Prices."""
import functools

RATE = 2


def fill(xs):
    """Not the method."""
    return xs


class Cart:
    """A cart."""

    def __init__(self, xs):
        self.xs = xs

    @property
    def total(self):
        """The sum, twice.

        >>> Cart([1, 2]).total
        6
        """
        raise NotImplementedError

    def fill(self):
        return RATE
'''
STARTER = FILE[FILE.index("    @property") : FILE.index("        raise")]
BODY = "        return RATE * sum(self.xs)\n"
RIGHT = FILE.replace("        raise NotImplementedError\n", BODY)
PROBLEM = Problem(
    "cart",
    "The sum, twice.",
    "Cart.total",
    tests=(Doctest(">>> Cart([1, 2]).total\n6\n"),),
    path="shop/cart.py",
    files={"shop/__init__.py": "", "shop/cart.py": FILE},
    context="RATE = 2\nclass Cart:\n",
    starter_code=STARTER,
    reference=RIGHT,
)


def code_of(text, style="completion", problem=PROBLEM):
    return extract_code(text, problem, style).code


@pytest.mark.parametrize(
    "completion",
    [
        BODY,
        BODY + "\n\nclass Other:\n    def total(self):\n        return 0\n",
        BODY + "\n    def total_of(self):\n        return 1\n",
        BODY + "\n    @property\n    def fill(self):\n        return (",
    ],
)
def test_a_completion_is_the_body_and_ends_where_the_indentation_does(completion):
    assert code_of(completion) == RIGHT


def test_a_text_that_leaves_the_indentation_does_not_end_a_function():
    body = '        text = """\nleft\n"""\n        return RATE * sum(self.xs) + len(text) * 0\n'
    assert body in code_of(body + "\n    x = 1\n")


@pytest.mark.parametrize(
    "answer",
    [
        "def total(self):\n    return RATE * sum(self.xs)",
        "    @property\n    def total(self):\n        return RATE * sum(self.xs)\n",
        "class Cart:\n    @property\n    def total(self):\n        return RATE * sum(self.xs)\n",
        "import math\n\nclass Cart:\n  def total(self):\n    return RATE * sum(self.xs)\n\n  def fill(self): return 1\n",
    ],
)
def test_the_function_of_a_fenced_block_takes_its_place_in_the_file(answer):
    code = code_of(f"Here it is:\n```python\n{answer}\n```\n", "chat")
    namespace: dict = {}
    exec(code, namespace)
    assert namespace["Cart"]([1, 2]).total == 6 and namespace["Cart"]([]).fill() == 2
    assert hole_of(PROBLEM).content(code).strip().startswith("def total(self):")


def test_strings_over_several_lines_keep_their_indentation():
    answer = 'def total(self):\n    return """a\n  b\n"""\n'
    function = hole_of(PROBLEM).content(code_of(f"```python\n{answer}```", "chat"))
    nodes = ast.walk(ast.parse(f"class A:\n{function}"))
    values = [one.value for one in nodes if isinstance(one, ast.Constant)]
    assert values == ["a\n  b\n"]


@pytest.mark.parametrize(
    "answer", ["def other(): pass", "class Cart:\n    pass", "def total(self:\n  return 1"]
)
def test_an_answer_without_the_function_is_no_code(answer):
    found = extract_code(f"```python\n{answer}\n```", PROBLEM, "chat")
    assert found.code is None and "no definition of Cart.total" in found.reason


def test_the_prompt_shows_the_context_before_the_starter_code():
    assert question(PROBLEM, "completion") == PROBLEM.context + STARTER
    asked = question(PROBLEM, "chat")
    assert f"```python\n{PROBLEM.context}{STARTER}```" in asked
    assert "Cart.total of the file shop/cart.py" in asked


def test_placed_functions_are_judged_in_their_file():
    wrong_syntax = "        return (RATE\n"
    with Grader(workers=1) as grader:
        answers = [BODY, "        return 5\n", wrong_syntax]
        verdicts = grader.grade([(PROBLEM, code_of(answer)) for answer in answers])
        again = replace(PROBLEM, tests=(InProcess("assert Cart([4]).total == 8"),))
        verdicts += grader.grade([(again, RIGHT)])
    assert [one.status for one in verdicts] == [
        Status.PASSED,
        Status.FAILED,
        Status.SYNTAX_ERROR,
        Status.PASSED,
    ]


@pytest.mark.parametrize(
    ("file", "answer"),
    [
        (
            "class A:\n\tdef f(self):\n\t\tpass\n\n\tdef g(self):\n\t\treturn 1\n",
            "def f(self):\n    return 2\n",
        ),
        ("class A:\n    def f(self):\n        pass\n", "class A:\n\tdef f(self):\n\t\treturn 2\n"),
        ("\x0cclass A:\n    def f(self):\n        pass\n", "    def f(self):\n        return 2\n"),
        ("X = 1\n\x0cdef f(self):\n    pass\n", "def f(self):\n    return 2\n"),
    ],
)
def test_tabs_and_spaces_do_not_meet(file, answer):
    entry = "A.f" if "class" in file else "f"
    problem = Problem("m", "", entry, tests=(Assertion("assert True"),), path="m.py", files={"m.py": file})
    namespace = {}
    exec(code_of(f"```python\n{answer}```", "chat", problem), namespace)
    assert (namespace["A"]().f() if "A" in namespace else namespace["f"](0)) == 2


def test_answers_of_whole_files_stay_whole_files():
    whole = replace(PROBLEM, files={"shop/__init__.py": ""})
    assert hole_of(whole) is None
    assert code_of(f"```python\n{RIGHT}```", "chat", whole) == RIGHT


def test_reward_terms_look_at_the_function_and_not_at_its_file():
    long = replace(PROBLEM, files={**PROBLEM.files, "shop/cart.py": FILE + "X = 1\n" * 5_000})
    long = replace(long, reference=hole_of(long).filled_with(hole_of(PROBLEM).content(RIGHT)))
    bodies = [BODY, "        return 2 * sum(self.xs)\n", "        return (\n"]
    answers = [
        GradedAnswer(long, "", body, code_of(body, problem=long), Verdict(Status.FAILED)) for body in bodies
    ]
    answers.append(GradedAnswer(long, "", "", None, Verdict(Status.NO_CODE)))
    assert code_format()(answers, None) == [1.0, 1.0, 0.0, 0.0]
    known = [line.strip() for line in (STARTER[STARTER.index("    def") :] + BODY).splitlines()]
    similar = [
        SequenceMatcher(None, "\n".join([*known[:-1], body.strip()]), "\n".join(known), False).ratio()
        for body in bodies
    ]
    scores = function_similarity()(answers, None)
    assert scores == [1.0, pytest.approx(similar[1]), pytest.approx(similar[2]), 0.0]
    whole = replace(PROBLEM, files=None)
    assert function_similarity()([GradedAnswer(whole, "", "", RIGHT, Verdict(Status.PASSED))], None) == [None]
