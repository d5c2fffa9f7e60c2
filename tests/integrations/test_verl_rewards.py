"""verl calls `compute_score` with the columns of a row: the rewards are those of the grader."""

from __future__ import annotations

from typing import Any

from greenward.api import load_problems
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
