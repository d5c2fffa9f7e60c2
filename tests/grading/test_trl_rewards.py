"""TRL's reward functions run unchanged: forms, columns, token ids, logging, async, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trl_functions

from greenward.common.errors import RewardError
from greenward.config.sections import RewardTermConfig
from greenward.grading.reward_terms import make_reward
from greenward.grading.rewards import GradedAnswer, combine
from greenward.grading.user_rewards import CustomReward, Logged, TrainerState, TrlReward, made_up_answers
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Case, Problem

PROBLEM = Problem(
    "four",
    "Add two numbers.",
    "add",
    tests=(Case((1, 2), 3), Case((2, 2), 4)),
    starter_code="def add(a, b):\n",
    reference="def add(a, b):\n    return a + b\n",
)
RIGHT = f"```python\n{PROBLEM.reference}```\n"
WRONG = "```python\ndef add(a, b):\n    return 3\n```\n"
PROSE = "I cannot say. I cannot say."


@pytest.fixture(autouse=True)
def functions_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def answers(*, chat=False, texts=(RIGHT, WRONG, PROSE)):
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Add."})
    return [
        GradedAnswer(
            PROBLEM,
            "Add.",
            text,
            None,
            Verdict(Status.FAILED, (False, False)),
            messages=messages if chat else (),
            prompt_ids=(5, 6, 7, 8),
            completion_ids=tuple(range(index + 2)),
        )
        for index, text in enumerate(texts)
    ]


def scores_of(function, given, *, row_columns=(), max_steps=0, **config):
    term = make_reward(
        RewardTermConfig(name=f"trl_functions:{function}", **config),
        row_columns=row_columns,
        max_steps=max_steps,
    )
    try:
        return term.score(given, None)
    finally:
        term.close()


CASES = {
    "accuracy": [1.0, 0.0, 0.0],
    "reasoning_steps": [0.0, 0.0, 0.0],
    "code_format": [1.0, 1.0, 0.0],
    "run_code": [1.0, 0.5, 0.0],
    "only_ids": [1.0, 3.0, 6.0],
    "lengths_agree": [4.0, 4.0, 4.0],
    "text_length": [-abs(20 - len(text)) for text in (RIGHT, WRONG, PROSE)],
    "letters": [float(len(set(text))) for text in (RIGHT, WRONG, PROSE)],
    "either_form": [1.0, 1.0, 0.0],
    "slowly": [4.0, 4.0, 4.0],
    "partly": [4.0, 4.0, 4.0],
    "judge": [0.25, 0.25, 0.25],
    "environments_welcome": [1.0, 1.0, 1.0],
    "some_do_not_apply": [1.0, None, 1.0],
    "keywords_only": [3.0, 3.0, 3.0],
    "repetition_penalty": [0.0, 0.0, 0.0],
}


@pytest.mark.parametrize("function", CASES)
def test_functions_written_for_trl_run_unchanged(function):
    scores, _ = TrlReward(getattr(trl_functions, function)).score(answers(), TrainerState())
    assert scores == CASES[function]


@pytest.mark.parametrize("function", sorted({*CASES} - {"text_length"}))
def test_they_give_the_same_for_a_chat_prompt(function):
    scores, _ = TrlReward(getattr(trl_functions, function)).score(answers(chat=True), TrainerState())
    assert scores == CASES[function]


@pytest.mark.parametrize("function", ["accuracy", "judge", "repetition_penalty", "some_do_not_apply"])
def test_they_run_in_their_own_process(function):
    assert scores_of(function, answers()) == CASES[function]


def test_lengths_and_cosines_are_those_of_the_text_in_the_message():
    sizes = [len(text) for text in (RIGHT, WRONG, PROSE)]
    cosine = [
        sign * (0.5 + 0.5 * math.cos(size / 1000 * math.pi))
        for sign, size in zip((1, -1, -1), sizes, strict=True)
    ]
    assert scores_of("cosine_scaled", answers()) == pytest.approx(cosine)
    assert scores_of("length", answers())[0] == pytest.approx(
        0.5 - (sizes[0] - min(sizes)) / (max(sizes) - min(sizes))
    )


def test_a_repeated_text_is_penalised_by_its_token_ids():
    given = [replace(one, completion_ids=(5, 5, 5, 5, 5)) for one in answers()[:1]]
    assert scores_of("repetition_penalty", given) == [-0.75]  # 1 of 4 bigrams is unique


def test_the_form_can_be_fixed_and_is_found_in_a_dry_run():
    assert scores_of("text_length", answers(chat=True), completions="messages") == [-19.0] * 3
    assert scores_of("text_length", answers(chat=True), completions="text") == CASES["text_length"]
    term = make_reward(RewardTermConfig(name="trl_functions:text_length"))
    assert isinstance(term, CustomReward)
    term.dry_run(made_up_answers(PROBLEM, 4))  # only texts have lengths that differ
    assert term.score(answers(chat=True), None) == CASES["text_length"]
    term.close()


def test_a_failure_on_a_later_batch_does_not_change_the_form():
    term = make_reward(RewardTermConfig(name="trl_functions:accuracy"))
    assert term.score(answers(chat=True), None) == CASES["accuracy"]
    with pytest.raises(RewardError, match="AttributeError"):
        broken = [replace(one, completion=None) for one in answers(chat=True)]
        term.score([replace(one, problem=replace(PROBLEM, columns={"solution": 3})) for one in broken], None)
    assert term.score(answers(chat=True), None) == CASES["accuracy"]
    term.close()


def test_the_columns_of_a_problem_reach_the_function_and_win_over_ours():
    rows = [replace(PROBLEM, columns={"rubric": gold, "solution": "return 3"}) for gold in ("gold", "silver")]
    given = [replace(one, problem=row) for one, row in zip(answers()[:2], rows, strict=True)]
    assert scores_of("open_need", given, row_columns=("rubric",)) == [1.0, 0.0]
    assert scores_of("column_first", given, row_columns=("rubric",)) == [1.0, 0.0]
    assert scores_of("accuracy", given) == [0.0, 1.0]


def test_a_column_can_be_given_under_the_name_that_the_function_has():
    given = [
        replace(one, problem=replace(PROBLEM, task_id=name))
        for one, name in zip(answers(), ("gold", "x", "y"), strict=True)
    ]
    assert scores_of("open_need", given, columns={"rubric": "task_id"}) == [1.0, 0.0, 0.0]


def test_metrics_extra_columns_and_the_trainers_state():
    term = make_reward(RewardTermConfig(name="trl_functions:logs"), max_steps=10)
    term.begin(4)
    lost = replace(answers()[0], verdict=Verdict(Status.INFRASTRUCTURE))
    rewards = combine([term], [lost, *answers()], None)
    assert [reward.total for reward in rewards] == [0.0, 0.4, 0.4, 0.4]
    assert [dict(reward.extra) for reward in rewards] == [
        {},
        *({"size": len(text), "step": 4} for text in (RIGHT, WRONG, PROSE)),
    ]
    assert term.take_metrics() == {"trl_functions:logs/share": [0.25, 0.75]}
    assert term.take_metrics() == {}
    term.close()


def test_what_is_logged_becomes_plain_data():
    term = make_reward(RewardTermConfig(name="trl_functions:logs_if_asked"))
    term.score(answers(), None)
    (column,) = term.extra
    assert column.encode() and term.extra[column][0] == {
        "text": RIGHT,
        "nan": "nan",
        "object": "<class 'object'>",
    }
    term.close()


@pytest.mark.parametrize(
    ("function", "config", "message"),
    [
        ("environments_needed", {}, "environment_factory"),
        ("open_need", {}, "the function needs rubric, which training does not have"),
        ("open_need", {"columns": {"rubric": "gold"}}, "the column 'gold', meant for the parameter 'rubric'"),
        ("open_need", {"columns": {"rubrik": "task_id", "rubric": "task_id"}}, "no parameter 'rubrik'"),
        ("only_ids", {"options": {"scael": 2}}, "no parameter for the option 'scael'"),
        ("get_cosine_scaled", {}, "does not fit"),
    ],
)
def test_what_cannot_be_served_is_refused_when_the_term_is_made(function, config, message):
    if function == "get_cosine_scaled":
        config = {"options": {"gold": 1}}
    with pytest.raises(RewardError, match=message) as caught:
        make_reward(RewardTermConfig(name=f"trl_functions:{function}", **config))
    assert caught.value.remedy


def test_a_refusal_lists_what_is_available():
    with pytest.raises(RewardError) as caught:
        make_reward(RewardTermConfig(name="trl_functions:open_need"), row_columns=("difficulty",))
    for name in ("prompts", "completion_ids", "trainer_state", "log_metric", "ground_truth", "difficulty"):
        assert name in caught.value.remedy


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("hidden_need", "before training, it raised KeyError: 'rubric'"),
        ("wrong_number", "gave 1 scores for 3 answers"),
        ("logs_badly", r"log_extra\('size'\) got 1 values for 3 answers"),
        ("logs_text", r"log_metric\('mood'\) got 'good'"),
    ],
)
def test_a_dry_run_finds_what_the_signature_does_not_show(function, message):
    term = make_reward(RewardTermConfig(name=f"trl_functions:{function}"))
    with pytest.raises(RewardError, match=message):
        term.dry_run(made_up_answers(PROBLEM, 3))
    term.close()


def test_numbers_of_numpy_are_logged_as_numbers():
    logged = Logged()
    logged.log_extra("length", np.array([173, 120]))
    logged.log_extra("share", [np.float32(0.5), np.nan])
    assert logged.to_plain(2)["extra"] == {"length": [173, 120], "share": [0.5, "nan"]}
