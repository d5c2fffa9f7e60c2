"""Reward functions in the style of those that TRL and open-r1 users have: signatures, forms, logging."""

from __future__ import annotations

import asyncio
import functools
import math
import re
import subprocess
import sys

# -- conversational completions, as in open-r1 --


def accuracy(completions, solution, **kwargs):
    """1 where the answer holds the gold text; None where there is no gold text."""
    contents = [completion[0]["content"] for completion in completions]
    return [
        float(gold.strip() in text) if gold else None for text, gold in zip(contents, solution, strict=True)
    ]


def reasoning_steps(completions: list[list[dict[str, str]]], **kwargs):
    pattern = r"(Step \d+:|^\d+\.|\n-|\n\*|First,|Second,|Next,|Finally,)"
    return [min(1.0, len(re.findall(pattern, one[0]["content"])) / 3) for one in completions]


def length(completions: list[list[dict[str, str]]], solution: list[str], **kwargs) -> list[float]:
    """Short right answers above long ones, within the batch."""
    contents = [completion[0]["content"] for completion in completions]
    right = [gold.strip() in text for text, gold in zip(contents, solution, strict=True)]
    lengths = [len(text) for text in contents]
    shortest, longest = min(lengths), max(lengths)
    if shortest == longest:
        return [0.0] * len(lengths)
    share = [0.5 - (one - shortest) / (longest - shortest) for one in lengths]
    return [one if good else min(0.0, one) for one, good in zip(share, right, strict=True)]


def get_cosine_scaled(low=-1.0, high=1.0, max_len=1000):
    def cosine_scaled(completions, solution, **kwargs):
        scores = []
        for completion, gold in zip(completions, solution, strict=True):
            progress = min(1.0, len(completion[0]["content"]) / max_len)
            bound = high if gold.strip() in completion[0]["content"] else low
            scores.append(bound * (0.5 + 0.5 * math.cos(progress * math.pi)))
        return scores

    return cosine_scaled


cosine_scaled = get_cosine_scaled()


def get_code_format(language="python"):
    def code_format(completions, **kwargs):
        languages = kwargs["language"] if "language" in kwargs else [language] * len(completions)
        patterns = [re.compile(rf"^```{one}\n.*?```\s*$", re.DOTALL) for one in languages]
        return [
            1.0 if pattern.match(one[0]["content"]) else 0.0
            for one, pattern in zip(completions, patterns, strict=True)
        ]

    return code_format


code_format = get_code_format()


def run_code(completions, **kwargs) -> list[float]:
    """The share of `verification_info`'s test cases that a program passes."""
    scores = []
    for completion, info in zip(completions, kwargs["verification_info"], strict=True):
        blocks = re.findall(r"```python\n(.*?)```", completion[-1]["content"], re.DOTALL)
        code = blocks[-1] if blocks else ""
        passed = 0
        for case in info["test_cases"]:
            if case["type"] == "stdin_stdout":
                program, stdin = code, case["input"]
            else:
                program = f"{code}\nassert {case['fn_name']}(*{case['input']!r}) == {case['output']!r}\n"
                stdin = ""
            try:
                done = subprocess.run(
                    [sys.executable, "-c", program], input=stdin, capture_output=True, text=True, timeout=2
                )
            except subprocess.TimeoutExpired:
                continue
            printed = case["type"] != "stdin_stdout" or done.stdout.split() == case["output"].split()
            passed += done.returncode == 0 and printed
        scores.append(passed / len(info["test_cases"]))
    return scores


# -- token ids, as in TRL's own rewards --


class RepetitionPenalty:
    __name__ = "repetition_penalty"

    def __init__(self, size, most):
        self.size, self.most = size, most

    def __call__(self, completion_ids: list[list[int]], **kwargs) -> list[float]:
        scores = []
        for ids in completion_ids:
            grams = [tuple(ids[start : start + self.size]) for start in range(len(ids) - self.size + 1)]
            scores.append((1 - len(set(grams)) / len(grams)) * self.most if grams else 0.0)
        return scores


repetition_penalty = RepetitionPenalty(2, -1.0)


def only_ids(completion_ids):
    return [float(sum(ids)) for ids in completion_ids]


def lengths_agree(prompts, completions, completion_ids, prompt_ids, **kwargs):
    assert all(type(one) is int for ids in (*completion_ids, *prompt_ids) for one in ids)
    return [float(len(prompt)) for prompt in prompt_ids]


# -- plain texts --


def text_length(completions, **kwargs):
    """TRL's first example. Lists of one message would all have length 1."""
    return [-abs(20 - len(completion)) for completion in completions]


def letters(completions: list[str], **kwargs) -> list[float]:
    return [float(len(set(completion))) for completion in completions]


def either_form(completions, **kwargs):
    texts = [one if isinstance(one, str) else one[0]["content"] for one in completions]
    return [float("def" in text) for text in texts]


# -- async --


async def slowly(prompts, completions, task_id, **kwargs):
    await asyncio.sleep(0.01)
    return [float(len(name)) for name in task_id]


class Judge:
    async def __call__(self, completions, **kwargs):
        return await asyncio.gather(*(self.judged(one) for one in completions))

    async def judged(self, completion):
        await asyncio.sleep(0)
        return 0.25


judge = Judge()
partly = functools.partial(slowly, task_id=["four"] * 3)

# -- what the trainer gives --


def logs(completions, log_metric, log_extra, trainer_state, **kwargs):
    log_metric("share", 0.25)
    log_metric("share", 0.75)
    log_extra("size", [len(one) for one in completions])
    log_extra("step", [trainer_state.global_step] * len(completions))
    return [trainer_state.global_step / trainer_state.max_steps] * len(completions)


def logs_if_asked(completions, log_extra=None, log_metric=None, **kwargs):
    for completion in completions:
        log_extra("odd \ud800", [{"text": completion, "nan": float("nan"), "object": object}])
    return [1.0] * len(completions)


def logs_badly(completions, log_extra, **kwargs):
    log_extra("size", [1])
    return [1.0] * len(completions)


def logs_text(completions, log_metric, **kwargs):
    log_metric("mood", "good")
    return [1.0] * len(completions)


def environments_needed(completions, environments, **kwargs):
    return [0.0] * len(completions)


def environments_welcome(completions, environments=None, **kwargs):
    return [float(environments is None)] * len(completions)


def some_do_not_apply(completions, **kwargs):
    return [None if index % 2 else 1.0 for index, _ in enumerate(completions)]


def keywords_only(**kwargs):
    return [float(len(name)) for name in kwargs["entry_point"]]


def hidden_need(completions, **kwargs):
    return [float(text in one) for one, text in zip(completions, kwargs["rubric"], strict=True)]


def open_need(completions, rubric):
    return [float(one == "gold") for one in rubric]


def wrong_number(completions, **kwargs):
    return [0.0]


def column_first(rubric, **kwargs):
    return [
        float(one == "gold" and text != "") for one, text in zip(rubric, kwargs["completions"], strict=True)
    ]
