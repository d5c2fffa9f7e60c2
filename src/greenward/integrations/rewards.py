"""Our rewards as functions of other trainers: TRL's `reward_funcs` and verl's `compute_score`."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from greenward.api import load_problems
from greenward.common.errors import RewardError
from greenward.config.sections import RewardTermConfig
from greenward.environments.prompts import question
from greenward.grading.answers import begun_thought, extract_code, final_text
from greenward.grading.edits import edited_program, extract_edited, form_of, holds_edits
from greenward.grading.extracted import Extracted
from greenward.grading.judge import Grader
from greenward.grading.reward_terms import make_reward
from greenward.grading.rewards import GradedAnswer, combine
from greenward.grading.user_rewards import Rewards, reward_terms
from greenward.grading.verdict import Family, Verdict
from greenward.problems.problem import Problem, ProblemSet


@dataclass(frozen=True)
class ScoredAnswer:
    """The weighted reward of an answer and its verdict; `scored` is False where the infrastructure failed."""

    reward: float
    verdict: Verdict

    @property
    def scored(self) -> bool:
        return self.verdict.status.family is not Family.INFRASTRUCTURE


class Scorer:
    """Scores texts of models by the tests of `problems` and the weighted `rewards`.

    A text with a fenced block, or one that defines the entry point itself where there is starter code, is an
    answer in a chat; any other continues the starter code. Where the problem has a program to edit, a text
    that holds SEARCH/REPLACE blocks or a diff edits that program.
    """

    def __init__(
        self, rewards: Rewards, problems: str | Sequence[Problem], grader: Grader | None = None
    ) -> None:
        functions: dict[str, Callable[..., Any]] = {}
        configs = [RewardTermConfig.model_validate(term) for term in reward_terms(rewards, functions)]
        self._terms = [make_reward(config, function=functions.get(config.name)) for config in configs]
        self.problems = problem_set(problems)
        self._grader = grader or Grader()

    def score(
        self,
        task_ids: Sequence[str],
        prompts: Sequence[str],
        texts: Sequence[str],
        begun: Sequence[str] | None = None,
    ) -> list[ScoredAnswer]:
        """One entry for each text; `begun` is what the prompt wrote of each answer.

        Raises `ProblemError` for an unknown task id.
        """
        asked = [self.problems.by_id(one) for one in task_ids]
        begun = begun or [""] * len(texts)
        found = list(map(extracted_answer, texts, asked, begun))
        verdicts = self._grader.grade(
            [(problem, one.answer) for problem, one in zip(asked, found, strict=True)]
        )
        answers = [
            GradedAnswer(problem, prompt, text, one.code, verdict, files=one.files, begun=begins)
            for problem, prompt, text, one, verdict, begins in zip(
                asked, prompts, texts, found, verdicts, begun, strict=True
            )
        ]
        rewards = combine(self._terms, answers, self._grader)
        return [ScoredAnswer(one.total, verdict) for one, verdict in zip(rewards, verdicts, strict=True)]


def reward_function(
    rewards: Rewards, problems: str | Sequence[Problem], *, grader: Grader | None = None, begun: str = ""
) -> Callable[..., list[float]]:
    """A reward function with TRL's signature that runs completions against the tests of `problems`.

    The trainer's data set needs a column `task_id`. `rewards` are names of shipped terms and functions, each
    with weight 1, or with weights in a mapping. An answer that the infrastructure failed gets 0.

    `begun` is what the chat template writes of each answer, as `"<think>\\n"`. It need not be given for
    prompts that are texts and end with such a tag, or that end with a message of the assistant.
    """
    scorer = Scorer(rewards, problems, grader)

    def greenward_reward(
        prompts: Sequence[Any], completions: Sequence[Any], task_id: Sequence[str] = (), **columns: Any
    ) -> list[float]:
        texts = texts_of(completions)
        if not _are_texts(task_id) or len(task_id) != len(texts):
            raise RewardError(
                f"expected a task_id for each of {len(texts)} completions, found {_shown(task_id)}.",
                remedy="Give the trainer's data set a column task_id with the ids of the problems.",
            )
        asked = texts_of(prompts, "prompt")
        if len(asked) != len(texts):
            raise RewardError(f"expected a prompt for each of {len(texts)} completions, found {len(asked)}.")
        begins = [_begun(prompt) or begun for prompt in prompts]
        return [one.reward for one in scorer.score(task_id, asked, texts, begins)]

    return greenward_reward


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """verl's reward of one answer (`custom_reward_function`), for the rows that `verl_row` makes.

    `data_source` names the problems as `problems.train` does and `ground_truth` is the task id. `rewards` in
    `extra_info` are names of shipped terms; none = tests. Its `begun` is what the chat template writes of
    the answer. Gives `score`, which verl trains on, and to be logged whether the answer passed (`acc`) and
    whether the infrastructure failed; the score is then 0.
    """
    extra = extra_info or {}
    if not isinstance(extra, Mapping):
        raise RewardError(f"extra_info: expected a mapping, found {_shown(extra)}.")
    rewards, begun = (extra.get(name, default) for name, default in (("rewards", "tests"), ("begun", "")))
    begun = "" if begun is None else begun
    texts = {"data_source": data_source, "solution_str": solution_str, "ground_truth": ground_truth}
    for name, text in {**texts, "extra_info.begun": begun}.items():
        if not isinstance(text, str):
            raise RewardError(f"{name}: expected text, found {_shown(text)}.")
    terms = _shipped([rewards] if isinstance(rewards, str) else ["tests"] if rewards is None else rewards)
    (one,) = scorer_of(data_source, terms or ("tests",)).score([ground_truth], [""], [solution_str], [begun])
    return {
        "score": one.reward if one.scored else 0.0,
        "acc": float(one.verdict.passed),
        "infrastructure": float(not one.scored),
    }


def verl_row(
    problem: Problem, data_source: str, rewards: Sequence[str] = ("tests",), begun: str = ""
) -> dict[str, Any]:
    """A row of verl's data set that asks a problem of the set `data_source`.

    `rewards` are names of shipped terms. `begun` is what the model's chat template writes of each answer, as
    `"<think>\\n"`.
    """
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": question(problem, "chat")}],
        "reward_model": {"style": "rule", "ground_truth": problem.task_id},
        "extra_info": {"rewards": list(_shipped(rewards)), "begun": begun},
    }


def _shipped(names: Any) -> tuple[str, ...]:
    """The names, unless one is no text or names a function: a row may come from anybody, and runs nothing."""
    if not _are_texts(names) or any(":" in name for name in names):
        raise RewardError(
            f"expected names of shipped reward terms, found {_shown(names)}.",
            remedy="Call functions of your own in the file that verl loads, beside compute_score.",
        )
    return tuple(names)


@cache
def scorer_of(problems: str, rewards: tuple[str, ...]) -> Scorer:
    """The scorer for problems and rewards by name: one in each process, where all share one sandbox."""
    return Scorer(rewards, load_problems(problems), _grader())


@cache
def _grader() -> Grader:
    return Grader()


def problem_set(problems: str | Sequence[Problem]) -> ProblemSet:
    """Problems by name (the held-out part of generated ones), or the given ones."""
    return load_problems(problems, part="held_out") if isinstance(problems, str) else ProblemSet(problems)


def extracted_answer(text: str, problem: Problem, begun: str = "") -> Extracted:
    """The program that an answer holds, or the one that its edits make of the problem's."""
    answer = final_text(text, begun)
    if edited_program(problem) is not None and holds_edits(answer):
        return extract_edited(text, problem, form_of(answer), begun)
    return extract_code(text, problem, begun=begun)


def _begun(prompt: Any) -> str:
    """What a prompt writes of the answer: the assistant's message at its end, or a tag there."""
    if isinstance(prompt, str):
        return begun_thought(prompt)
    return content_of(prompt[-1]) if prompt and prompt[-1].get("role") == "assistant" else ""


def texts_of(conversations: Sequence[Any], what: str = "completion") -> list[str]:
    """Prompts or completions, each a text or a list of messages, as texts: of these the assistant's last.

    Raises `RewardError` for anything else; `what` names one of them there.
    """
    if isinstance(conversations, str) or not isinstance(conversations, Sequence):
        raise RewardError(f"expected a list of {what}s, found {_shown(conversations)}.")
    return [_text_of(one, f"{what} {place}") for place, one in enumerate(conversations)]


def _text_of(one: Any, place: str) -> str:
    if isinstance(one, str):
        return one
    if not isinstance(one, Sequence) or not all(isinstance(message, Mapping) for message in one):
        raise RewardError(f"{place}: expected a text or a list of messages, found {_shown(one)}.")
    answers = [message for message in one if message.get("role") == "assistant"] or one
    return content_of(answers[-1], place) if answers else ""


def content_of(message: Mapping[str, Any], place: str = "a message") -> str:
    """The text of a message, which may come in parts, or be missing beside calls of tools.

    Raises `RewardError` for a content that is neither; `place` says where.
    """
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    found = content if isinstance(content, Sequence) else [content]
    parts = [part.get("text") or "" if isinstance(part, Mapping) else part for part in found]
    if content is found and _are_texts(parts):
        return "".join(parts)
    raise RewardError(
        f"{place}: expected the content of a message to be a text or a list of parts with a text, "
        f"found {_shown(content)}."
    )


def _are_texts(values: Any) -> bool:
    is_list = hasattr(values, "__len__") and not isinstance(values, str | Mapping)
    return is_list and all(isinstance(value, str) for value in values)


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {reprlib.repr(value)[:80]}"
