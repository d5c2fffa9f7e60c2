"""One question, one answer, one grade: the environment of function synthesis.

Each problem is asked `group_size` times; the answers are executed, graded and rewarded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from greenward.config.algorithm import OverlongConfig
from greenward.environments.episode import Episode, Turn
from greenward.environments.prompts import PromptRenderer
from greenward.grading.grader import Grader
from greenward.grading.rewards import GradedAnswer, LoggingTerm, RewardTerm, combine
from greenward.grading.verdict import Verdict
from greenward.policies.engine import Completion, RolloutEngine, SamplingParams, StopReason
from greenward.problems.problem import Problem

ROLE = "programmer"


@dataclass(frozen=True)
class Collection:
    """Episodes, group-major, and where the time went (seconds).

    Grading goes on beside sampling; `grading_seconds` is what it took beyond. `metrics` are those that
    reward terms logged, each value by name.
    """

    episodes: list[Episode]
    sampling_seconds: float
    grading_seconds: float
    metrics: Mapping[str, Sequence[float]] = field(default_factory=dict)


class SingleTurn:
    """Asks, executes, rewards. `overlong` adds DAPO's soft length penalty (2503.14476 eq. 13)."""

    def __init__(
        self,
        renderer: PromptRenderer,
        grader: Grader,
        reward_terms: Sequence[RewardTerm],
        *,
        sampling: SamplingParams,
        group_size: int,
        overlong: OverlongConfig | None = None,
    ) -> None:
        self._renderer = renderer
        self._grader = grader
        self._terms = tuple(reward_terms)
        self._sampling = sampling
        self._group_size = group_size
        self._overlong = overlong or OverlongConfig()

    def collect(
        self,
        policy: RolloutEngine,
        problems: Sequence[Problem],
        *,
        seed: int,
        first_group_id: int = 0,
        step: int = 0,
    ) -> Collection:
        """Episodes for `group_size` answers to each problem; the same seed gives the same episodes.

        Groups are numbered from `first_group_id` in the order of the problems. `step` is what reward terms
        are told of the progress.
        """
        started = time.perf_counter()
        prompts = [self._renderer.prompt_ids(problem) for problem in problems]
        texts: dict[int, list[str]] = {}
        codes: dict[int, list[str | None]] = {}
        verdicts: dict[int, Future[list[Verdict]]] = {}

        def grade(index: int, group: list[Completion]) -> None:
            """Has a group graded in the background while others are still being sampled."""
            problem = problems[index]
            texts[index] = [self._renderer.completion_text(completion.token_ids) for completion in group]
            codes[index] = [self._renderer.extracted(problem, text).code for text in texts[index]]
            verdicts[index] = self._grader.submit([(problem, code) for code in codes[index]])

        groups = policy.sample(prompts, self._group_size, self._sampling, seed=seed, on_group=grade)
        sampled = time.perf_counter()
        rows = [(index, completion) for index, group in enumerate(groups) for completion in group]
        answers = [
            GradedAnswer(
                problem=problem,
                prompt=self._renderer.prompt_text(problem),
                completion=text,
                code=code,
                verdict=verdict,
                messages=tuple(self._renderer.messages(problem)),
                prompt_ids=prompts[index],
                completion_ids=tuple(completion.token_ids.tolist()),
            )
            for index, problem in enumerate(problems)
            for text, code, verdict, completion in zip(
                texts[index], codes[index], verdicts[index].result(), groups[index], strict=True
            )
        ]
        logging = [term for term in self._terms if isinstance(term, LoggingTerm)]
        for term in logging:
            term.begin(step)
        rewards = combine(self._terms, answers, self._grader)
        episodes = []
        for (index, completion), answer, reward in zip(rows, answers, rewards, strict=True):
            terms = dict(reward.terms)
            total = reward.total
            if self._overlong.penalty_buffer:
                terms["overlong"] = self._length_penalty(len(completion.token_ids))
                total += terms["overlong"]
            episodes.append(
                Episode(
                    turns=(_turn(prompts[index], completion),),
                    rewards={ROLE: total},
                    group_id=first_group_id + index,
                    problem_id=answer.problem.task_id,
                    verdict=answer.verdict,
                    answer=answer.code or "",
                    reward_terms=terms,
                    extra=reward.extra,
                )
            )
        metrics = {name: values for term in logging for name, values in term.take_metrics().items()}
        return Collection(episodes, sampled - started, time.perf_counter() - sampled, metrics)

    def _length_penalty(self, length: int) -> float:
        buffer = self._overlong.penalty_buffer
        excess = length - (self._sampling.max_tokens - buffer)
        return -self._overlong.penalty * float(np.clip(excess / buffer, 0.0, 1.0))


def _turn(prompt_ids: tuple[int, ...], completion: Completion) -> Turn:
    return Turn(
        role=ROLE,
        prompt_ids=prompt_ids,
        completion_ids=completion.token_ids,
        logprobs_T=completion.logprobs,
        policy_wrote_T=np.ones(len(completion.token_ids), dtype=bool),
        stop_reason=completion.stop_reason,
        policy_version=completion.policy_version,
    )


def truncated(episode: Episode) -> bool:
    """Whether any answer of the episode hit the token limit."""
    return any(turn.stop_reason is StopReason.LENGTH for turn in episode.turns)
