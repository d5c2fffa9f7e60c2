"""Reward functions of the user's own: both signatures, and every way to break the contract."""

from __future__ import annotations

import os

import pytest

from greenward.common.errors import RewardError
from greenward.config.sections import RewardTermConfig
from greenward.grading.reward_terms import make_reward
from greenward.grading.rewards import GradedAnswer, combine
from greenward.grading.verdict import Status, Verdict

MODULE = """
import os, sys, time
counter = 0

def length(answers, *, scale=1.0):
    print("this must not disturb the channel")
    return [scale * len(answer.completion) for answer in answers]

def reads_everything(answers):
    return [
        float(a.verdict.passed and a.problem.cases[0].args == (1, 2) and a.problem.comparison.tolerance == 1e-6
              and a.verdict.status.value == "passed" and a.code is None)
        for a in answers
    ]

def calls(answers):
    global counter
    counter += 1
    return [counter] * len(answers)

def pid(answers): return [os.getpid()] * len(answers)

def trl(completions, **kwargs): return [len(c) + 100 * len(kwargs["task_id"]) for c in completions]
def trl_columns(prompts, completions, entry_point): return [p + c + e == "prompt" + c + "add" for p, c, e in zip(prompts, completions, entry_point)]
def sometimes(completions): return [None if c == "b" else 1 for c in completions]

class Scalar:
    def __float__(self): return 0.5
def tensors(answers): return tuple(Scalar() for _ in answers)

def raises(answers): return [1 / (a.completion != "b") for a in answers]
def hangs(answers): time.sleep(60)
def short(answers): return [1.0]
def nan(answers): return [0.0, float("nan"), 0.0]
def text(answers): return [0.0, 0.0, "good"]
def nothing(answers): pass
def by_index(answers): return dict.fromkeys(range(len(answers)), 1.0)
def different(answers): return {0.0, 1.0, 2.0}
def leaves(answers): os._exit(7)
def too_many(a, b): return []
not_a_function = 3
"""


@pytest.fixture(scope="module")
def rewards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "my_rewards.py").write_text(MODULE)
    (folder / "broken_rewards.py").write_text("import no_such_module")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


@pytest.fixture
def answers(add):
    verdict = Verdict(Status.PASSED, (True,))
    return [GradedAnswer(add, "prompt", text, None, verdict) for text in ("a", "b", "cc")]


def make(function, timeout_seconds=20.0, **options):
    config = RewardTermConfig(
        name=f"my_rewards:{function}", weight=2.0, options=options, timeout_seconds=timeout_seconds
    )
    return make_reward(config)


@pytest.mark.parametrize(
    ("function", "options", "scores"),
    [
        ("length", {}, [1.0, 1.0, 2.0]),
        ("length", {"scale": 3}, [3.0, 3.0, 6.0]),
        ("reads_everything", {}, [1.0, 1.0, 1.0]),
        ("trl", {}, [301.0, 301.0, 302.0]),
        ("trl_columns", {}, [1.0, 1.0, 1.0]),
        ("sometimes", {}, [1.0, None, 1.0]),
        ("tensors", {}, [0.5, 0.5, 0.5]),
    ],
)
def test_both_signatures_give_scores(rewards, answers, function, options, scores):
    term = make(function, **options)
    assert term.score(answers, None) == scores
    term.close()


@pytest.mark.parametrize(
    ("function", "name"), [("brevity", "brevity"), ("tests", "__main__:tests"), ("mean", "__main__:mean")]
)
def test_a_function_of_the_program_itself_has_a_short_name_that_no_other_metric_has(function, name):
    def score(completions, **columns):
        return [0.0 for _ in completions]

    term = make_reward(RewardTermConfig(name=f"__main__:{function}", weight=1.0), function=score)
    assert term.name == name


def test_a_custom_term_is_weighted_and_named_by_its_path(rewards, answers):
    term = make("sometimes")
    combined = combine([term], answers, None)
    assert [reward.total for reward in combined] == [2.0, 0.0, 2.0]
    assert combined[0].terms == {"my_rewards:sometimes": 1.0}
    term.close()


def test_the_function_lives_in_one_process_of_its_own(rewards, answers):
    term = make("pid")
    first, second = term.score(answers, None), term.score(answers, None)
    assert first == second
    assert first[0] != os.getpid()
    term.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(first[0]), 0)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "raises",
            r"my_rewards:raises: it raised ZeroDivisionError: division by zero \(answer 1, problem add\)",
        ),
        ("short", "my_rewards:short gave 1 scores for 3 answers"),
        ("nan", r"my_rewards:nan gave nan for answer 1 \(problem add\)"),
        ("text", r"my_rewards:text gave 'good' for answer 2 \(problem add\)"),
        ("nothing", "my_rewards:nothing: it returned NoneType, not a list"),
        ("by_index", "my_rewards:by_index: it returned dict, not a list"),
        ("different", "my_rewards:different: it returned set, not a list"),
        ("leaves", r"my_rewards:leaves: its process ended \(status 7\)"),
        ("hangs", "my_rewards:hangs did not answer within 0.5 s"),
    ],
)
def test_a_broken_contract_names_the_function_the_answer_and_the_remedy(rewards, answers, function, message):
    term = make(function, timeout_seconds=0.5 if function == "hangs" else 20.0)
    with pytest.raises(RewardError, match=message) as caught:
        term.score(answers, None)
    assert caught.value.remedy
    term.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_rewards:missing", "has no function 'missing'"),
        ("my_rewards:not_a_function", "has no function 'not_a_function'"),
        ("my_rewards:too_many", "does not fit"),
        ("no_such_rewards:f", "could not be imported: ModuleNotFoundError"),
        ("broken_rewards:f", "No module named 'no_such_module'"),
    ],
)
def test_a_function_that_cannot_serve_is_refused_when_the_term_is_made(rewards, name, message):
    with pytest.raises(RewardError, match=message):
        make_reward(RewardTermConfig(name=name))


def test_an_unknown_option_is_refused_when_the_term_is_made(rewards):
    with pytest.raises(RewardError, match="does not fit"):
        make("length", scael=2)
