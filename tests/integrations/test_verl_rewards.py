"""verl calls `compute_score` with the columns of a row: the rewards are those of the grader."""

from __future__ import annotations

from typing import Any

import pytest

from greenward.api import load_problems
from greenward.common.errors import RewardError
from greenward.grading.judge import Grader
from greenward.integrations import compute_score, reward_function, verl_row


def test_scores_are_executions_of_the_problem_that_the_row_names() -> None:
    problem = load_problems("classic_training")[0]
    row = verl_row(problem, "classic_training")
    assert problem.entry_point in row["prompt"][0]["content"]
    source, truth = row["data_source"], row["reward_model"]["ground_truth"]
    right = f"Here it is:\n```python\n{problem.reference}\n```"
    for answer, passes in ((right, 1.0), ("```python\nimport sys; sys.exit(0)\n```", 0.0), ("no code", 0.0)):
        scored = compute_score(source, answer, truth, row["extra_info"])
        assert scored == {"score": 2 * passes, "acc": passes, "infrastructure": 0.0}


def answers_of(right: str, wrong: str) -> list[tuple[str, str, float]]:
    """What the prompt began of an answer, the answer, and whether it is right."""
    fenced, draft = (f"```python\n{code}\n```" for code in (right, wrong))
    return [
        *(("", f"{fenced}{end}", 1.0) for end in ENDS),
        *(("", f"{draft}{end}", 0.0) for end in ENDS),
        ("", f"```\npython\n{right}\n```", 1.0),
        ("", f"<think>\n{draft}\n</think>\n{fenced}<|im_end|>", 1.0),
        ("", f"<think>\n{fenced}\n</think>\n{draft}<|im_end|>", 0.0),
        ("", f"<think>\n{fenced}\n</think>\nI cannot solve this.", 0.0),
        ("<think>\n", f"{draft}\n</think>\n{fenced}", 1.0),
        ("<think>\n", f"{fenced}\n</think>\n{draft}", 0.0),
        ("<think>\n", f"{fenced}\nWait", 0.0),
        ("<think>\n", fenced, 0.0),
    ]


ENDS = (
    "<|im_end|>", "\n<|im_end|>", "<|im_end|><|endoftext|><|endoftext|>", "<|eot_id|>", "</s>", "<|endoftext|>",
    "<end_of_turn>", "<｜end▁of▁sentence｜>", "\n[DONE]", "<|im_end|>\n<|im_start|>user\nThanks.<|im_end|>\n",
)  # fmt: skip


def test_end_tokens_and_thoughts_that_the_prompt_opened_are_no_part_of_an_answer() -> None:
    """By verl's function and by TRL's, whose prompts are texts, messages, or messages with a beginning."""
    problem = load_problems("classic_training")[0]
    wrong = f"def {problem.entry_point}(*arguments):\n    return None"
    begins, answers, expected = zip(*answers_of(problem.reference, wrong), strict=True)
    rewards = {"tests": 0.5}  # 1 for an answer that passes
    for begun, answer, passes in zip(begins, answers, expected, strict=True):
        row = verl_row(problem, "classic_training", begun=begun)
        scored = compute_score(
            row["data_source"], answer, row["reward_model"]["ground_truth"], row["extra_info"]
        )
        assert scored["acc"] == passes, (begun, answer)
    with Grader() as grader:
        by_prompt = reward_function(rewards, [problem], grader=grader)
        by_option = reward_function(rewards, [problem], grader=grader, begun="<think>\n")
        ids = [problem.task_id] * len(answers)
        asked: list[Any] = [{"role": "user", "content": "Write it."}]
        texts = [f"<|im_start|>assistant\n{begun}" for begun in begins]
        prefilled = [[*asked, {"role": "assistant", "content": begun}] for begun in begins]
        replies = [[{"role": "assistant", "content": answer}] for answer in answers]
        assert by_prompt(texts, answers, task_id=ids) == list(expected)
        assert by_prompt(prefilled, replies, task_id=ids) == list(expected)
        opened = [number for number, begun in enumerate(begins) if begun]
        found = by_option([asked] * len(opened), [replies[one] for one in opened], task_id=ids[: len(opened)])
        assert found == [expected[one] for one in opened]


MESSAGE = {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        *(({"completions": [one]}, "completion 0: expected a text or a list of messages, found")
          for one in (None, 3, b"x", MESSAGE, {1}, ["x"], [None], [[MESSAGE]])),
        *(({"completions": [[MESSAGE | {"content": one}]]}, "completion 0: expected the content of a message")
          for one in (3, {"text": "x"}, [3], [None], [{"text": 3}])),
        ({"completions": None}, "expected a list of completions, found NoneType None"),
        ({"completions": "x"}, "expected a list of completions, found str 'x'"),
        ({"prompts": [None]}, "prompt 0: expected a text or a list of messages, found NoneType None"),
        ({"prompts": []}, "expected a prompt for each of 1 completions, found 0"),
        *(({"task_id": one}, "expected a task_id for each of 1 completions, found")
          for one in (None, [], [None], [3], "x", [[1]])),
    ],
)  # fmt: skip
def test_columns_of_another_form_are_named_in_the_error(
    changed: dict[str, Any], message: str, function: Any
) -> None:
    columns = {"prompts": ["p"], "completions": ["x"], "task_id": ["multiply"]}
    assert function(**columns) == [0.0]
    with pytest.raises(RewardError, match=message):
        function(**columns | changed)


@pytest.fixture(scope="module")
def function() -> Any:
    with Grader() as grader:
        yield reward_function(["all_tests"], load_problems("classic_evaluation"), grader=grader)


@pytest.mark.parametrize("name", ["solution_str", "ground_truth", "data_source", "extra_info"])
def test_a_field_of_a_row_of_verl_that_is_no_text_is_named_in_the_error(name: str) -> None:
    row = {"data_source": "classic_training", "solution_str": "x", "ground_truth": "add", "extra_info": None}
    with pytest.raises(RewardError, match=f"^{name}: expected .* found list \\[1\\]"):
        compute_score(**row | {name: [1]})


def test_rows_of_any_problems_and_rewards_share_one_sandbox(monkeypatch: Any) -> None:
    problem = load_problems("classic_training")[0]
    rows = [verl_row(problem, name, terms) for name in ("classic_training", "classic_evaluation")
            for terms in (["tests"], ["format"], ["tests", "format"])]  # fmt: skip
    compute_score(rows[0]["data_source"], "x", problem.task_id, rows[0]["extra_info"])
    monkeypatch.setattr("greenward.grading.judge.LocalExecutor", None)  # no other is opened
    for row in rows:
        task_id = load_problems(row["data_source"])[0].task_id
        assert compute_score(row["data_source"], "x", task_id, row["extra_info"])["acc"] == 0.0


def test_a_row_of_verl_runs_no_function_that_it_names(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "of_a_stranger.py").write_text(
        "open('was_imported', 'w').close()\nscore = lambda answers: [1.0]\n"
    )
    monkeypatch.chdir(tmp_path)
    problem = load_problems("classic_training")[0]
    row = verl_row(problem, "classic_training")
    row["extra_info"]["rewards"] = ["of_a_stranger:score"]
    with pytest.raises(RewardError, match="expected names of shipped reward terms"):
        compute_score(row["data_source"], "x", problem.task_id, row["extra_info"])
    with pytest.raises(RewardError, match="expected names of shipped reward terms"):
        verl_row(problem, "classic_training", ["of_a_stranger:score"])
    assert not (tmp_path / "was_imported").exists()
