"""Rewards of programs: their terms by hand, and that nothing wrong is worth more than a correct program."""

from __future__ import annotations

import pytest

from greenward.common.errors import RewardError
from greenward.config.loading import load_recipe
from greenward.grading.verdict import Status, Verdict
from greenward.tasks.token_mdp.grammar import tidied
from greenward.tasks.token_mdp.mdp import (
    CodeGrading,
    CodeQuality,
    GradedProgram,
    Weights,
    make_program_reward,
    potential,
    pythonic,
    quality,
)
from greenward.tasks.token_mdp.task import TokenMDPTask

ABSOLUTE = "return abs ( <arg0> ) <end>"
BEST_WRONG = {  # by problem: constants, the identity and what is almost right
    "is_even": ["return True <end>", "return False <end>", "return <arg0> % 2 == 1 <end>"],
    "absolute_value": ["return 0 <end>", "return <arg0> <end>", "return - <arg0> <end>"],
    "max_of_three": ["return max ( <arg0> , <arg1> ) <end>", "return <arg2> <end>", "return 10 <end>"],
    "count_vowels": ["return 0 <end>", "return sum ( c in 'aeiou' for c in <arg0> ) <end>"],
    "factorial": ["return 1 <end>", "return <arg0> * <self> ( <arg0> - 1 ) <end>"],
}


def graded(written, grader, task_id: str, body: str, reward):
    writing = written(task_id, body)
    code = tidied(writing.code)
    (verdict,) = CodeGrading(grader)([(writing.one.problem, code)])
    ((total, terms),) = reward([GradedProgram(writing, code, verdict)])
    return total, terms, verdict


def test_the_terms_of_a_correct_program_equal_the_ones_computed_by_hand(written, grader) -> None:
    total, terms, verdict = graded(written, grader, "absolute_value", ABSOLUTE, CodeQuality())
    assert verdict.passed
    tokens = 6  # return abs ( n ) <end>
    assert terms["correctness"] == pytest.approx(1 + 2)
    assert terms["quality"] == pytest.approx(0.5 + 0.3 + 0.2 + 0.2)
    assert terms["efficiency"] == pytest.approx(-0.1 * tokens / 50)
    assert terms["pythonic"] == 1
    assert total == pytest.approx(10 * 3 + 2 * 1.2 - 0.1 * tokens / 50 + 0.5)


def test_correctness_is_linear_in_the_tests_passed(written, grader) -> None:
    _, terms, verdict = graded(written, grader, "absolute_value", "return <arg0> <end>", CodeQuality())
    assert 0 < verdict.fraction_passed < 1
    assert terms["correctness"] == pytest.approx(sum(verdict.tests_passed) / 20)


@pytest.mark.parametrize("kind", ["code_quality", "sparse", "curriculum"])
def test_no_invalid_empty_or_constant_program_is_worth_more_than_a_correct_one(
    kind, classics, written, grader
) -> None:
    """The worst correct program, the longest one, against the best wrong ones and every broken text."""
    reward = make_program_reward(kind, Weights(), grader)
    long = "return abs ( <arg0> ) " + "+ 0 " * 21 + "<end>"
    worst, _, verdict = graded(written, grader, "absolute_value", long, reward)
    assert verdict.passed
    wrong = []
    for task_id, bodies in BEST_WRONG.items():
        for body in bodies:
            total, _, verdict = graded(written, grader, task_id, body, reward)
            assert not verdict.passed
            wrong.append(total)
    writing = written("absolute_value", ABSOLUTE)
    for text in ("", "def absolute_value(n):\n", "def absolute_value(n): return (", "def f(:", "x" * 10_000):
        (judged,) = CodeGrading(grader)([(writing.one.problem, text)])
        ((total, _),) = reward([GradedProgram(writing, text, judged)])
        assert not judged.passed
        wrong.append(total)
    assert max(wrong) < worst
    # By hand: all tests but one and every bonus, against a correct program without any.
    if kind == "code_quality":
        assert 10 * 19 / 20 + 2 * 1.2 + 0.5 < 10 * 3 + 2 * 0.5 - 0.1 - 0.1


def test_invalid_syntax_earns_less_than_any_valid_program(written, grader) -> None:
    invalid = Verdict(Status.SYNTAX_ERROR, (False,) * 20)
    writing = written("absolute_value", ABSOLUTE)
    ((total, terms),) = CodeQuality()([GradedProgram(writing, "def f(:", invalid)])
    assert terms["correctness"] == terms["quality"] == 0
    assert total < graded(written, grader, "absolute_value", "return 10 <end>", CodeQuality())[0]


def test_under_the_curriculum_only_whole_solutions_pay_once_a_problem_is_solved(written) -> None:
    writing = written("absolute_value", ABSOLUTE)
    half = Verdict(Status.FAILED, (True, False))
    reward = CodeQuality(curriculum=True)
    scores = reward([GradedProgram(writing, "x", half, level) for level in (0.0, 0.5, 1.0)])
    assert [terms["correctness"] for _, terms in scores] == [0.5, 0.25, 0.0]
    whole = Verdict(Status.PASSED, (True, True))
    assert reward([GradedProgram(writing, "x", whole, 1.0)])[0][1]["correctness"] == 3.0


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def f(n):\n    return n\n", 1.2),
        ("def f(n):\n    return 1\n", 0.9),  # uses no argument
        ("def f(n):\n    pass\n", 0.9),
        ("def f(n):\n    return " + " + ".join(["n"] * 40), 1.0),  # long
        ("def f(n):\n    return [x for x in n if x and n] if n or n else n\n", 1.0),  # branches
        ("def f(n:", 0.0),
    ],
)
def test_quality_by_hand(code, expected) -> None:
    assert quality(code) == pytest.approx(expected)


def test_the_potential_is_0_at_the_end_and_shaping_adds_up_to_nothing(classics) -> None:
    """Σ γ^t (γ Φ(s_{t+1}) - Φ(s_t)) = -Φ(s_0) for every episode, so no policy gains by it."""
    mdp, gamma = classics, 0.9
    for body in (ABSOLUTE, "if <arg0> : <newline> <indent> return 1 <newline> <dedent> return <arg0> <end>"):
        writing = mdp.start(next(one for one in mdp.problems if one.task_id == "absolute_value"))
        start, total, steps = potential(writing), 0.0, 0
        while not writing.outcome:
            before = potential(writing)
            writing.act(mdp.vocabulary.index[body.split()[len(writing.tokens)]])
            total += gamma**steps * (gamma * potential(writing) - before)
            steps += 1
        assert potential(writing) == 0
        assert total == pytest.approx(-start)


def test_a_function_of_the_users_own_is_the_reward(written, grader, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(__import__("pathlib").Path(__file__).parent))
    reward = make_program_reward("rewards_of_users:shortest", Weights(), grader)
    total, terms, _ = graded(written, grader, "absolute_value", ABSOLUTE, reward)
    assert total == -len("def absolute_value(n):\n    return abs(n)\n")
    assert terms == {"rewards_of_users:shortest": total}


def by_class(name: str, grader, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(__import__("pathlib").Path(__file__).parent))
    return make_program_reward(f"rewards_of_users:{name}", Weights(), grader)


def test_a_reward_class_scores_code_by_its_test_results(written, grader, monkeypatch) -> None:
    reward = by_class("OldReward", grader, monkeypatch)
    assert graded(written, grader, "absolute_value", ABSOLUTE, reward)[0] == 1.0
    half, _, verdict = graded(written, grader, "absolute_value", "return <arg0> <end>", reward)
    assert half == pytest.approx(verdict.fraction_passed - 0.1 * verdict.tests_passed.count(False))
    reward = by_class("OfResultsAlone", grader, monkeypatch)
    assert graded(written, grader, "absolute_value", "return <arg0> <end>", reward)[0] == 0.0
    reward = by_class("made", grader, monkeypatch)
    assert graded(written, grader, "absolute_value", ABSOLUTE, reward)[0] == 4.0


def test_further_keywords_of_a_reward_class_get_the_number_of_the_episode(
    written, grader, monkeypatch
) -> None:
    reward = by_class("ByKeywords", grader, monkeypatch)
    totals = [graded(written, grader, "absolute_value", ABSOLUTE, reward)[0] for _ in range(2)]
    assert totals == [1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [("NeedsMore", "compute_reward needs teacher"), ("NeedsWeights", "cannot be made without arguments")],
)
def test_a_reward_class_that_cannot_be_called_says_what_it_lacks(name, message, grader, monkeypatch) -> None:
    with pytest.raises(RewardError, match=message):
        by_class(name, grader, monkeypatch)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a + b", 1.0),  # nothing to choose
        ("return sum(x for x in a)", 1.0),
        ("return [x for x in a if x in b][::-1]", 1.0),
        ("result = 0\n    for x in a:\n        result += x\n    return result", 0.0),
        ("result = 0\n    for x in a:\n        if x:\n            result += x\n    return result", 0.0),
        ("return sum(a[i] for i in range(len(a)))", 0.5),
        ("result = a + b\n    return result", 0.0),
        ("return a == True", 0.0),
        ("if a:\n        return True\n    else:\n        return False", 0.0),
        ("return a in b if a else b[1:] == True", 0.75),
        ("return (", 0.0),
    ],
)
def test_idioms_count_against_the_longer_forms(body, expected) -> None:
    assert pythonic(f"def f(a, b):\n    {body}\n") == pytest.approx(expected)


def test_a_binary_reward_and_one_of_the_users_own_are_not_shaped() -> None:
    for kind, shaped in (("code_quality", 0.5), ("curriculum", 0.5), ("sparse", 0.0), ("my:Reward", 0.0)):
        task = object.__new__(TokenMDPTask)
        task.recipe = load_recipe("dqn_code_generation", [f"reward.type={kind}"])
        assert task.weights.progress == shaped


def test_a_reward_that_is_not_finite_is_refused(written, grader, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(__import__("pathlib").Path(__file__).parent))
    reward = make_program_reward("rewards_of_users:not_finite", Weights(), grader)
    with pytest.raises(RewardError, match="gave nan for answer 0"):
        graded(written, grader, "absolute_value", ABSOLUTE, reward)


def test_verdicts_that_were_known_are_given_when_the_memory_of_verdicts_is_full(
    written, grader, monkeypatch
) -> None:
    monkeypatch.setattr("greenward.tasks.token_mdp.mdp.MOST_VERDICTS", 1)
    problem, grading = written("absolute_value", ABSOLUTE).one.problem, CodeGrading(grader)
    answers = [(problem, f"def absolute_value(n):\n    return {value}") for value in ("abs(n)", "0", "1")]
    first = grading(answers[:2])
    again = grading(answers)
    assert again[:2] == first
    assert [verdict.passed for verdict in again] == [True, False, False]
