from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from greenward.common.errors import ConfigError, RewardError
from greenward.config.section import FamiliesConfig
from greenward.config.sections import RewardTermConfig
from greenward.grading import quality
from greenward.grading.quality import lint, readability
from greenward.grading.reward_terms import code_score, make_reward
from greenward.grading.rewards import GradedAnswer, combine
from greenward.grading.verdict import Status, Verdict
from greenward.problems.catalog import load_problems

CLEAN = "def add(a, b):\n    return a + b\n"


def answer(problem, code, verdict=None):
    verdict = verdict or Verdict(Status.FAILED, (True, False, False, False))
    return GradedAnswer(problem, "prompt", code or "", code, verdict)


@pytest.fixture
def whole(add):
    """A problem whose prompt gives no code, so that all of an answer is its own."""
    return replace(add, starter_code="")


def score(problem, *codes):
    return readability()([answer(problem, code) for code in codes], None)


@pytest.mark.parametrize(
    ("code", "violations", "lines", "kept"),
    [
        (CLEAN, 0, 2, 2),
        ("import os\n\n\n" + CLEAN, 1, 2, 2),  # an unused import
        ("def add(a, b):\n    l = a + b\n    return l\n", 3, 3, 3),  # E741 twice is once; RET504, E741
        ("def add(a,b):\n    return a + b\n", 0, 2, 1),
        ("def add(a, b):\n  return a+b\n", 0, 2, 1),
        ("def Add(a, b):\n    return a + b\n", 1, 2, 2),  # N802
        ("def add(a, b):\n    if a == None:\n        return b\n    return a + b\n", 1, 4, 4),  # E711
        ("def add(a, b=[]):\n    return a + b\n", 1, 2, 2),  # B006
        ("# a\n\n# b\n" + CLEAN + "# c\n", 0, 2, 2),  # comments and blank lines do not dilute anything
        ("def add(a, b):\n    return a+b\n" + "# fine\n" * 50, 0, 2, 1),
    ],
)
def test_readability_is_the_documented_formula_on_known_violations(whole, code, violations, lines, kept):
    found = lint([code])[0]
    rules = [violation.rule for violation in found.violations]
    if "l = a" in code:
        violations = len(rules)
        assert set(rules) == {"E741", "RET504"}
    assert len(rules) == violations, rules
    expected = 1 / (1 + violations) * (1 + 1 / (1 + lines - kept)) / 2
    assert score(whole, code) == [pytest.approx(expected)]


def test_what_the_prompt_wrote_is_not_judged(add):
    ugly_start = "from typing import List\ndef add( a,b ):\n"
    given = replace(add, starter_code=ugly_start)
    assert score(given, ugly_start + "    return a + b\n") == [1.0]
    assert score(given, ugly_start + "    return a + b") == [1.0]  # no newline at the end
    assert score(given, ugly_start + "    x = 1\n    return a + b\n") == [
        pytest.approx(1 / 2)
    ]  # an unused name
    assert score(given, ugly_start) == [0.0]  # nothing was added


def test_complexity_counts_although_it_stands_on_the_line_of_the_prompt(add):
    branches = [f"    if a > {n}:\n        b += {n}\n" for n in range(12)]
    (simple,) = score(add, add.starter_code + "".join(branches[:9]) + "    return b\n")
    (complicated,) = score(add, add.starter_code + "".join(branches) + "    return b\n")
    assert simple == 1.0
    assert complicated == pytest.approx(1 / 2)  # C901


def test_references_are_clearly_more_readable_than_ugly_variants():
    problems = load_problems("families", FamiliesConfig(limit=50), "train")
    references = score(problems[0], *(problem.reference for problem in problems))

    def uglier(code):
        return (
            code.replace("    ", "  ").replace(" = ", "=").replace(", ", ",").replace("return ", "return  ")
        )

    ugly = score(problems[0], *(uglier(problem.reference) for problem in problems))
    assert sum(references) / len(problems) > 0.95
    assert sum(references) / len(problems) > sum(ugly) / len(problems) + 0.25


@pytest.mark.parametrize(
    "pragma",
    ["# noqa", "# ruff: noqa", "# flake8: noqa", "# ruff: noqa: F841", "# ruff: disable[F841]", "# fmt: off",
     "#fmt:off", "# yapf: disable", "# isort: skip_file", "# pylint: disable=all", "# type: ignore"],
)  # fmt: skip
def test_comments_do_not_lift_the_score(whole, pragma):
    ugly = "def add(a, b):\n    x  =  1\n    return a+b\n"
    (plain,) = score(whole, ugly)
    tries = [pragma + "\n" + ugly, ugly.replace("\n", "  " + pragma + "\n"), f"{pragma}\n\n{ugly}{pragma}\n"]
    assert plain < 0.5
    assert all(lifted <= plain for lifted in score(whole, *tries))


def test_skipping_the_formatter_line_by_line_gives_nothing(whole):
    assert score(whole, CLEAN + "x   = 1  # fmt: skip\n", CLEAN + "x   = 1  # noqa # fmt:skip\n") == [
        0.0,
        0.0,
    ]


@pytest.mark.parametrize(
    "hidden",
    [
        "exec({!r})\n",
        "add = None\nexec({!r})\n",
        "import builtins\n\nbuiltins.exec({!r})\n",
        "run = exec\nrun({!r})\n",
        "import builtins\n\ngetattr(builtins, 'ex' + 'ec')({!r})\n",
        "vars(__import__('built' + 'ins'))['exec']({!r})\n",
        "print.__self__.exec({!r})\n",
        "import bdb\n\nbdb.Bdb().run({!r})\n",
        "from pathlib import Path\n\nPath('helper.py').write_text({!r})\nfrom helper import add\n",
    ],
)
def test_bad_code_that_is_run_from_text_does_not_read_better(whole, hidden):
    ugly = "def add(a,b):\n    l=a\n    return l+b\n"
    open_, from_text, lambda_ = score(whole, ugly, hidden.format(ugly), "add = eval('lambda a,b: a+b')\n")
    assert from_text == lambda_ == 0.0 < open_


def test_a_method_that_is_called_eval_is_no_built_in_function(whole):
    assert score(whole, "def add(a, b):\n    return a.eval(b)\n")[0] > 0.5


def test_calls_in_calls_without_end_are_not_examined(whole):
    nested = "any([x for x in "
    once = f"    a = {nested * 45}a{'])' * 45}\n"
    often = f"    a = {nested * 10}a{'])' * 10}\n" * 90
    fine = "    a = any([x for x in max(min(abs(a), abs(b)), sum(sorted(list(map(int, str(a))))))])\n" * 60
    scores = score(whole, *(f"def add(a, b):\n{body}    return a\n" for body in (once, often, fine)))
    assert scores[:2] == [0.0, 0.0] and scores[2] > 0.0


def test_hostile_answers_get_a_low_score_and_leave_their_neighbours_alone(whole):
    hostile = [
        None, "", "\0", "x = '\0'", "\ud800", "x = '\ud800'", "def f(:", "a" * 10**6, "x = " + "1 + " * 10**5 + "1",
        "a" + ".a" * 9000 + "\n", "x = " + "-" * 900 + "1\n", "not " * 900 + "1\n", "(" * 150 + ")" * 150,
        "# coding: rot13\nimport os\n", "\r\r\r", "\x0c", "# only a comment\n", "import os\r\nx=1\r\n",
    ]  # fmt: skip
    scores = score(whole, CLEAN, *hostile, CLEAN)
    assert scores[0] == scores[-1] == 1.0
    assert all(0.0 <= value < 0.6 for value in scores[1:-1])
    assert scores[1:10] == [0.0] * 9


def test_no_answer_can_speak_for_another(whole):
    """Text that looks like ruff's output, a diff or another file's name stays text."""
    forged = '"""\n--- 0.py\n+++ 0.py\n@@ -1 +1 @@\n-x\n0.py:1:1: F401 unused\n"""\n'
    assert score(whole, CLEAN, forged)[0] == 1.0


def test_a_batch_takes_one_pair_of_processes_and_known_answers_take_none(whole, monkeypatch):
    score = readability()
    commands = []

    def counted(command, **options):
        commands.append(command[1])
        return run(command, **options)

    run = subprocess.run
    monkeypatch.setattr(quality.subprocess, "run", counted)
    codes = [f"def add(a, b):\n    return a + b + {n % 10}\n" for n in range(64)]
    first = score([answer(whole, code) for code in codes], None)
    assert commands == ["check", "format"]
    assert score([answer(whole, code) for code in codes], None) == first
    assert commands == ["check", "format"]


def test_a_program_on_which_ruff_hangs_gets_nothing_and_the_others_their_due(whole, monkeypatch):
    def hangs_on_it(command, *, cwd, **options):
        if any("hang" in path.read_text() for path in cwd.glob("*.py")):
            raise subprocess.TimeoutExpired(command, 10)
        return run(command, cwd=cwd, **options)

    run = subprocess.run
    monkeypatch.setattr(quality.subprocess, "run", hangs_on_it)
    hanging = "def add(a, b):\n    hang = a + b\n    return hang * 1\n"
    assert score(whole, CLEAN, hanging, CLEAN + "\n\n# 1\n") == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "code", ["hang = 1\n", "import os\n", '"""Only a docstring."""\n', "x = 1\nprint(x)\n"]
)
def test_a_program_of_which_nothing_is_used_gets_nothing(whole, code):
    assert score(whole, code) == [0.0]


def test_a_missing_or_broken_ruff_is_told_before_training(monkeypatch):
    monkeypatch.setattr(quality, "_binary", lambda: "/bin/false")
    with pytest.raises(RewardError, match=r"ruff does not work.*\n.*pip install"):
        make_reward(RewardTermConfig(name="code_score"))
    monkeypatch.undo()
    quality._binary.cache_clear()
    monkeypatch.setitem(sys.modules, "ruff", None)
    with pytest.raises(RewardError, match=r"not installed.*\n.*pip install ruff"):
        make_reward(RewardTermConfig(name="readability"))
    quality._binary.cache_clear()


def test_code_score_is_the_weighted_mean_of_parts_that_are_reported_beside_it(grader, whole):
    passed = Verdict(Status.PASSED, (True,) * 4)
    cheat = Verdict(Status.CHEATING, (True, True, True, False))
    down = Verdict(Status.INFRASTRUCTURE)
    ugly = "import os\n\n\n" + CLEAN
    answers = [answer(whole, CLEAN, passed), answer(whole, ugly), answer(whole, CLEAN, cheat),
               answer(whole, CLEAN, down)]  # fmt: skip
    term = make_reward(
        RewardTermConfig(name="code_score", weight=2.0, options={"correctness": 3.0, "readability": 1.0})
    )
    rewards = combine([term], answers, grader)
    readable = 1 / 2
    mixed = (3 * 0.25 + readable) / 4
    assert rewards[0].terms == {"code_score": 1.0, "correctness": 1.0, "readability": 1.0}
    assert rewards[1].terms == pytest.approx(
        {"code_score": mixed, "correctness": 0.25, "readability": readable}
    )
    assert rewards[2].terms == {"code_score": 0.25, "correctness": 0.0, "readability": 1.0}
    assert [reward.total for reward in rewards] == pytest.approx([2.0, 2 * mixed, 0.5, 0.0])
    assert rewards[3].terms == {}


def test_code_score_weights_must_make_a_mean():
    assert code_score.__kwdefaults__ == {"correctness": 0.8, "readability": 0.2}
    for correct, readable in ((0.0, 0.0), (-1.0, 2.0)):
        with pytest.raises(ConfigError, match="must not be negative and must sum to more than 0"):
            code_score(correctness=correct, readability=readable)
    with pytest.raises(ConfigError, match="no option '_parts'"):
        make_reward(RewardTermConfig(name="code_score", options={"_parts": ()}))
