from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from greenward.common.errors import ConfigError, RewardError
from greenward.config.sections import RewardTermConfig
from greenward.grading.quality import quality_of, worst_complexity
from greenward.grading.reward_terms import SHIPPED_REWARDS, make_reward
from greenward.grading.rewards import GradedAnswer, RewardTerm, combine
from greenward.grading.verdict import Status, Verdict
from greenward.problems.python_source import parse_bounded


def answer(problem, code, verdict=None):
    verdict = verdict or Verdict(Status.FAILED, (True, False, False, False))
    return GradedAnswer(problem, "prompt", code or "", code, verdict)


def term(name, **options):
    return make_reward(RewardTermConfig(name=name, options=options))


def fixed(scores, name="fixed", weight=1.0):
    return RewardTerm(name, weight, lambda answers, grader: scores)


def test_tests_is_the_fraction_passed_plus_a_bonus_for_all(grader, add):
    verdicts = [
        Verdict(Status.PASSED, (True,) * 4),
        Verdict(Status.FAILED, (True, False, True, True)),
        Verdict(Status.TIMEOUT, (True, False, False, False)),
        Verdict(Status.NO_CODE),
        Verdict(Status.CHEATING, (True, True, True, False)),
    ]
    answers = [answer(add, "x", verdict) for verdict in verdicts]
    assert term("tests").score(answers, grader) == [2.0, 0.75, 0.25, 0.0, 0.0]
    assert term("tests", bonus=0.5).score(answers, grader)[0] == 1.5
    assert term("all_tests").score(answers, grader) == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_the_execution_ladder_has_exactly_its_four_rungs(grader, add):
    rungs = {
        "def add(a, b): return 0": 1.0,
        "add = int": 1.0,
        "def add(a, b): return 0\nprint(1)": 1.0,
        "print(1)": 0.5,
        "x = 1": 0.5,
        "print()": 0.5,
        "": 0.5,
        "def f(:": -0.5,
        "def f():\nreturn 1": -0.5,
        "1 / 0": -1.0,
        "print(1); undefined": -1.0,
        "import sys; sys.exit(1)": -1.0,
        "while True: pass": -1.0,
    }
    answers = [answer(add, code) for code in rungs]
    assert term("execution_ladder").score(answers, grader) == list(rungs.values())
    assert term("execution_ladder").score([answer(add, None)], grader) == [-0.5]
    for_output = {"print(1)": 1.0, "def add(a, b): return 0": 0.5, "": 0.5, "def f(:": -0.5, "1 / 0": -1.0}
    answers = [answer(add, code) for code in for_output]
    assert term("execution_ladder", output=True).score(answers, grader) == list(for_output.values())
    program = replace(add, entry_point="")  # a program is paid for its output
    rungs = {
        "print(1)": 1.0,
        "import sys; print(1); sys.exit(0)": 1.0,
        "import sys; sys.stderr.write('a warning'); print(1)": 1.0,
        "x = 1": 0.5,
    }
    answers = [answer(program, code) for code in rungs]
    assert term("execution_ladder").score(answers, grader) == list(rungs.values())


def test_format_asks_for_parsing_code_with_the_entry_point(grader, add):
    codes = [
        "def add(a, b): pass",
        "class add: pass",
        "def sub(): pass",
        "def add(",
        None,
        "def f():\n def add(): 0",
    ]
    answers = [answer(add, code) for code in codes]
    assert term("format").score(answers, grader) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("code", "complexity"),
    [
        ("x = 1", 1),
        ("def f(x):\n    if x and x > 1 or x: pass\n    elif x: pass", 5),
        ("def f(x):\n    for a in x:\n        while a: pass\n    try: pass\n    except ValueError: pass", 4),
        ("def f(x):\n    def g(y):\n        if y: pass\n        if y: pass\n    if x: pass", 3),
        ("f = lambda x: [a for a in x if a] if x else []", 3),
    ],
)
def test_complexity_is_one_more_than_the_decisions_of_the_worst_function(code, complexity):
    assert worst_complexity(ast.parse(code)) == complexity


@pytest.mark.parametrize(
    ("code", "score"),
    [
        ("def f(x):\n    return x + 1", 1.0),
        ("def f(x:", 0.0),
        ("", 0.0),
        ("def f(x):\n    y = 1\n    z = 2\n    return z", (1 + 1 + 0.5 + 1) / 4),
        ("import os\ndef f(x): return x", (1 + 1 + 0.5 + 1) / 4),
        ("def f(x=[]):\n    try: return x\n    except: return 0", (1 + 1 + 1 + 0.25) / 4),
        ("\n".join(f"g({i})" for i in range(60)), (0.5 + 1 + 1 + 1) / 4),
        ("def f(x):\n" + "    if x: g(x)\n" * 19, (30 / 39 + 0.5 + 1 + 1) / 4),
    ],
)
def test_code_quality_is_the_mean_of_its_documented_parts(code, score):
    assert quality_of(code) == pytest.approx(score)


def test_code_quality_weights_choose_its_parts():
    dead_name = "def f(x):\n    y = 1\n    return x"
    assert quality_of(dead_name, weights={"unused": 1.0}) == 0.5
    assert quality_of(dead_name, weights={"unused": 1.0, "hygiene": 3.0}) == 0.875
    with pytest.raises(ConfigError, match="no sub-term 'nmaes'"):
        term("code_quality", weights={"nmaes": 1.0})
    with pytest.raises(ConfigError, match="more than 0"):
        term("code_quality", weights={"unused": 0.0})


@pytest.mark.parametrize(
    "code",
    ["(" * 19_000, "-" * 19_000 + "1", "a" + ".a" * 9_000, "[" * 6000 + "]" * 6000, "1" + "+1" * 9_000, "x" * 10**7,
     "if a:\n" + "".join(" " * n + "if a:\n" for n in range(1, 150)), "\0", "\ud800", "lambda: " * 2000 + "1", "not " * 4000 + "1",
     "f(" * 4000 + ")" * 4000, "f'" + "{" * 1000],
)  # fmt: skip
def test_hostile_code_is_only_parsed_within_bounds(code):
    parse_bounded(code)
    assert 0.0 <= quality_of(code) <= 1.0


def test_the_total_is_the_weighted_sum_of_the_terms_that_apply(grader, add):
    answers = [answer(add, "x"), answer(add, "y")]
    rewards = combine([fixed([1.0, None], "a", 2.0), fixed([3.0, 4.0], "b", 0.5)], answers, grader)
    assert [reward.total for reward in rewards] == [3.5, 2.0]
    assert [dict(reward.terms) for reward in rewards] == [{"a": 1.0, "b": 3.0}, {"b": 4.0}]


def test_an_answer_that_the_infrastructure_failed_reaches_no_term(grader, add):
    lost = answer(add, "x", Verdict(Status.INFRASTRUCTURE))
    rewards = combine([fixed([1.0])], [lost, answer(add, "y"), lost], grader)
    assert [reward.total for reward in rewards] == [0.0, 1.0, 0.0]
    assert rewards[0].terms == {}
    assert [reward.total for reward in combine([fixed([])], [lost], grader)] == [0.0]


@pytest.mark.parametrize("scores", [[1.0], [1.0, float("nan")], [float("inf"), 0.0]])
def test_scores_of_wrong_number_or_not_finite_are_refused(grader, add, scores):
    with pytest.raises(RewardError, match="'fixed'"):
        combine([fixed(scores)], [answer(add, "x"), answer(add, "y")], grader)


def test_every_shipped_term_is_made_by_its_name_and_weight():
    for name in SHIPPED_REWARDS:
        made = make_reward(RewardTermConfig(name=name, weight=0.25))
        assert (made.name, made.weight) == (name, 0.25)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("tests", {"bonus": "abc"}, "option bonus of the reward term 'tests': .*number.*found 'abc'"),
        ("tests", {"bonus": None}, "option bonus .*number.*found None"),
        ("code_score", {"correctness": "x"}, "option correctness .*number"),
        ("code_quality", {"weights": {"length": "a"}}, r"option weights\.length .*number"),
        ("code_quality", {"weights": {"length": float("nan")}}, r"option weights\.length .*finite"),
        ("code_quality", {"max_statements": 2.5}, "option max_statements .*integer"),
    ],
)
def test_values_of_options_have_the_type_of_the_parameter(name, options, said):
    with pytest.raises(ConfigError, match=said):
        term(name, **options)


def test_unknown_terms_and_options_name_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'execution_ladder'"):
        term("execution_lader")
    with pytest.raises(ConfigError, match="Did you mean 'bonus'"):
        term("tests", bonsu=2)
    with pytest.raises(ConfigError, match="no option 'anything'"):
        term("all_tests", anything=1)


def test_the_ladder_does_not_score_what_the_infrastructure_failed(add):
    from greenward.sandbox.protocol import Outcome, RunResult

    class Lost:
        def run_programs(self, codes):
            return [RunResult(Outcome.INFRASTRUCTURE) for _ in codes]

    assert term("execution_ladder").score([answer(replace(add), "x")], Lost()) == [None]
