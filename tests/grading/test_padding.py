"""Padding never pays: whatever is added to an answer without use, its style scores no higher than before."""

from __future__ import annotations

import ast
from dataclasses import replace
from time import process_time

import pytest

from greenward.config.sections import RewardTermConfig
from greenward.evaluation.audit_programs import OUTPUT, PADDING, SLOPPY, padded
from greenward.grading.quality import quality_of, readability, remove_dead_code
from greenward.grading.reward_terms import make_reward
from greenward.grading.rewards import GradedAnswer
from greenward.grading.verdict import Status, Verdict
from greenward.problems.python_source import MAX_PARSED_CHARS

PASSED = Verdict(Status.PASSED, (True,) * 4)


def parses(code):
    try:
        return bool(ast.parse(code))
    except SyntaxError:
        return False


TERMS = ("readability", "code_score", "code_quality")


@pytest.mark.parametrize(
    ("name", "base"),
    [
        pytest.param(name, base, marks=[] if place % len(SLOPPY) == at else [pytest.mark.slow])
        for at, name in enumerate(TERMS)
        for place, base in enumerate(sorted(SLOPPY))
    ],
)
def test_no_padding_scores_above_the_same_answer_without(name, base):
    term = make_reward(RewardTermConfig(name=name))
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
    "code",
    [
        "".join(f"def f{n}():\n  f{n + 1}()\n" for n in range(900)),
        "".join(f"def f{n}():\n  f{n - 1}()\n" for n in range(900)),
        "".join(f"a{n} = a{n + 1}\n" for n in range(1500)) + "def f(x):\n  return a0\n",
        "".join(f"def f{n}(x):\n  g = f{n * 7 % 400}(x)\n  return g.pop()\n" for n in range(400)),
        "def f(x):\n if x: y = 1\n" + " elif x: y = 1\n" * 1200,
        "def f(x): return x" + ".a" * 2000,
        "=".join(f"a{n}" for n in range(1500)) + " = " + "1 + " * 900 + "b\n",
    ],
)
def test_style_is_judged_in_linear_time(code):
    assert 10_000 < len(code) < MAX_PARSED_CHARS or ".a.a" in code
    answer = GradedAnswer(replace(SLOPPY[min(SLOPPY)][0], starter_code=""), "", code, code, PASSED)
    begin = process_time()
    quality_of(code)
    readability()([answer], None)
    assert process_time() - begin < 5.0  # 0.1 s on an idle core; rounds over a chain took up to a minute


def test_numbers_of_any_length_and_texts_in_texts_are_read():
    for value in ("0x" + "f" * 4000, "f'''{\"\"\"\n\"\"\".join(x)}'''"):
        code = f"def f(x):\n    y = {value}\n    y = {value}\n    return y\n"
        assert remove_dead_code(ast.parse(code), code.splitlines(), "f").dead == 0
        assert quality_of(code, "f") > 0.5


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
