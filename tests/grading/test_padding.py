"""Padding never pays: whatever is added to an answer without use, its style scores no higher than before."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from greenward.evaluation.audit.cheats import OUTPUT, PADDING, SLOPPY, padded
from greenward.grading.code_quality import CodeQuality
from greenward.grading.dead_code import remove_dead_code
from greenward.grading.readability import Readability
from greenward.grading.reward_terms import CodeScore
from greenward.grading.rewards import GradedAnswer
from greenward.grading.verdict import Status, Verdict

PASSED = Verdict(Status.PASSED, (True,) * 4)


def parses(code):
    try:
        return bool(ast.parse(code))
    except SyntaxError:
        return False


@pytest.mark.parametrize("term", [Readability(), CodeScore(), CodeQuality()], ids=lambda term: term.name)
@pytest.mark.parametrize("base", sorted(SLOPPY))
def test_no_padding_scores_above_the_same_answer_without(term, base):
    problem, code = SLOPPY[base]
    problem = replace(problem, starter_code="")
    ways = PADDING | OUTPUT
    codes = [code, *(padded(code, padding) for padding in ways.values())]
    codes += [
        padded(padded(code, other), one) for one in ways.values() for other in list(ways.values())[::13]
    ]
    assert all(map(parses, codes[: 1 + len(ways)]))
    codes = list(filter(parses, codes))
    plain, *scores = term.score([GradedAnswer(problem, "", c, c, PASSED) for c in codes], None)
    assert plain > 0.1
    above = [(codes[1 + i], score) for i, score in enumerate(scores) if score > plain + 1e-12]
    assert not above


@pytest.mark.parametrize(
    ("code", "kept", "dead"),
    [
        ("def f(x):\n    return x\n", "def f(x):\n    return x\n", 0),
        ("a = 1\nb = a\n\ndef f(x):\n    # one\n    return x\n", "def f(x):\n    return x\n", 2),
        ("def f(x):\n    y = 1; return x\n", "def f(x):\n    y = 1; return x\n", 1),
        ("def f(x):\n    return x\n    x = 2\n", "def f(x):\n    return x\n", 1),
        ("def g(x):\n    return x\n\ndef f(x):\n    return g(x)\n", "def g(x):\n    return x\ndef f(x):\n    return g(x)\n", 0),
        ("def f(x):\n    if x:\n        print(x)\n    else:\n        x = 2\n    return x\n",
         "def f(x):\n    if x:\n        pass\n    else:\n        x = 2\n    return x\n", 1),
        ("def f(x):\n    x.append(1)\n    return x\n", "def f(x):\n    x.append(1)\n    return x\n", 0),
    ],
)  # fmt: skip
def test_dead_code_is_cut_out_and_counted(code, kept, dead):
    found = remove_dead_code(ast.parse(code), code.splitlines(), "f")
    assert (found.code, found.dead) == (kept, dead)
