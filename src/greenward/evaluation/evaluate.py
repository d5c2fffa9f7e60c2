"""How good a policy is on a problem set: answers drawn, executed, counted, each rate with its interval.

Says nothing about two policies side by side, and trains nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from greenward.config.schema import EvaluationConfig
from greenward.errors import ProblemError, SandboxError
from greenward.evaluation.intervals import Estimate, bootstrap_mean, bootstrap_ratio, wilson
from greenward.evaluation.pass_at_k import pass_at_k
from greenward.evaluation.subset import choose
from greenward.grading.verdict import Family, Status, Verdict
from greenward.policies.protocol import Sampler, SamplingParams, StopReason
from greenward.problems.problem import Problem, ProblemSet

if TYPE_CHECKING:
    from greenward.environments.prompts import PromptRenderer
    from greenward.grading.grader import Grader

ANSWERS_PER_CHUNK = 512  # drawn in one call, while the chunk before is graded
_NOT_COMPILED = frozenset({Status.SYNTAX_ERROR, Status.NO_CODE})


@dataclass(frozen=True)
class JudgedAnswer:
    """One answer to a problem: the program in it, if any, and its verdict."""

    code: str | None
    verdict: Verdict
    truncated: bool

    @property
    def scored(self) -> bool:
        """False when the infrastructure failed: the answer then counts for nothing but that."""
        return self.verdict.status.family is not Family.INFRASTRUCTURE


@dataclass(frozen=True)
class JudgedProblem:
    """One problem with its sampled answers and, if asked for, the greedy one."""

    problem: Problem
    prompt: str
    answers: tuple[JudgedAnswer, ...]
    greedy: JudgedAnswer | None

    @property
    def scored(self) -> int:
        return sum(answer.scored for answer in self.answers)

    @property
    def passed(self) -> int:
        return sum(answer.verdict.passed for answer in self.answers)


@dataclass(frozen=True)
class EvaluationResult:
    """What one evaluation found. `metrics` and `rates` carry 95 % intervals; seconds are wall time.

    A pass@k is missing when no problem has k answers that could be scored. `rates` are over sampled
    answers: `compile` of the scored ones, `truncated` and `infrastructure` of all.
    """

    suite: str
    step: int
    elapsed_seconds: float
    samples: int
    temperature: float
    metrics: dict[str, Estimate]
    rates: dict[str, Estimate]
    statuses: dict[str, int]
    seconds: dict[str, float]
    problems: tuple[JudgedProblem, ...]

    def to_json(self) -> dict[str, Any]:
        """The record that is kept with a run, as plain data."""
        return {
            "suite": self.suite,
            "step": self.step,
            "elapsed_seconds": self.elapsed_seconds,
            "problems": len(self.problems),
            "samples": self.samples,
            "temperature": self.temperature,
            "metrics": {name: estimate.to_json() for name, estimate in self.metrics.items()},
            "statuses": self.statuses,
            "rates": {name: estimate.to_json() for name, estimate in self.rates.items()},
            "seconds": self.seconds,
            "rows": [_row(judged) for judged in self.problems],
        }


def evaluate(
    policy: Sampler,
    problems: ProblemSet,
    renderer: PromptRenderer,
    grader: Grader,
    config: EvaluationConfig,
    *,
    sampling: SamplingParams,
    step: int = 0,
    elapsed_seconds: float = 0.0,
) -> EvaluationResult:
    """Draws `config.samples` answers to each of `config.num_questions` problems and judges them.

    `sampling` is used with `config.temperature`. The same weights and `config.seed` give the same
    answers. `step` and `elapsed_seconds` say when in a run this is and are only recorded.

    Raises `ProblemError` when there is no problem, `SandboxError` when no answer could be judged.
    """
    chosen = choose(problems, config.num_questions)
    if not chosen:
        raise ProblemError(f"{problems.name}: there is no problem to evaluate on.")
    drawing = _Drawing(policy, renderer, grader, chosen, config.seed)
    sampled = drawing.judged(config.samples, replace(sampling, temperature=config.temperature))
    greedy: list[tuple[JudgedAnswer, ...]] = [()] * len(chosen)
    if config.greedy:
        greedy = drawing.judged(1, replace(sampling, temperature=0.0))
    judged = tuple(
        JudgedProblem(problem, renderer.prompt_text(problem), answers, next(iter(one), None))
        for problem, answers, one in zip(chosen, sampled, greedy, strict=True)
    )
    if not any(row.scored for row in judged):
        raise SandboxError(
            f"{problems.name}: none of {len(judged) * config.samples} answers could be judged.",
            remedy=f"The sandbox said: {judged[0].answers[0].verdict.error_message or 'nothing'}.",
        )
    return EvaluationResult(
        suite=problems.name,
        step=step,
        elapsed_seconds=elapsed_seconds,
        samples=config.samples,
        temperature=config.temperature,
        metrics=_metrics(judged, config),
        rates=_rates(judged, config.seed),
        statuses=dict(Counter(answer.verdict.status.value for row in judged for answer in row.answers)),
        seconds={"sampling": drawing.sampling_seconds, "grading": drawing.grading_seconds},
        problems=judged,
    )


class _Drawing:
    """Draws and judges answers chunk by chunk: one chunk is graded while the next is sampled."""

    def __init__(
        self,
        policy: Sampler,
        renderer: PromptRenderer,
        grader: Grader,
        problems: Sequence[Problem],
        seed: int,
    ) -> None:
        self._policy = policy
        self._renderer = renderer
        self._grader = grader
        self._problems = problems
        self._seed = seed
        self.sampling_seconds = 0.0
        self.grading_seconds = 0.0

    def judged(self, per_problem: int, params: SamplingParams) -> list[tuple[JudgedAnswer, ...]]:
        """The answers to each problem, in order."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="grading") as background:
            chunks = [background.submit(self._grade, chunk) for chunk in self._sample(per_problem, params)]
            answers = [answer for chunk in chunks for answer in chunk.result()]
        return [tuple(answers[i : i + per_problem]) for i in range(0, len(answers), per_problem)]

    def _sample(
        self, per_problem: int, params: SamplingParams
    ) -> Iterator[list[tuple[Problem, str | None, bool]]]:
        size = max(1, ANSWERS_PER_CHUNK // per_problem)
        for start in range(0, len(self._problems), size):
            problems = self._problems[start : start + size]
            seed = int(np.random.SeedSequence((self._seed, start)).generate_state(1)[0])
            prompts = [self._renderer.prompt_ids(problem) for problem in problems]
            began = time.perf_counter()
            groups = self._policy.sample(prompts, per_problem, params, seed=seed)
            self.sampling_seconds += time.perf_counter() - began
            yield [
                (
                    problem,
                    self._renderer.answer(problem, completion.token_ids.tolist()),
                    completion.stop_reason is StopReason.LENGTH,
                )
                for problem, group in zip(problems, groups, strict=True)
                for completion in group
            ]

    def _grade(self, chunk: Sequence[tuple[Problem, str | None, bool]]) -> list[JudgedAnswer]:
        began = time.perf_counter()
        verdicts = self._grader.grade([(problem, code) for problem, code, _ in chunk])
        self.grading_seconds += time.perf_counter() - began
        return [
            JudgedAnswer(code, verdict, truncated)
            for (_, code, truncated), verdict in zip(chunk, verdicts, strict=True)
        ]


def _metrics(judged: Sequence[JudgedProblem], config: EvaluationConfig) -> dict[str, Estimate]:
    metrics = {}
    for k in config.k:
        values = [pass_at_k(row.scored, row.passed, k) for row in judged]
        values_P = np.array([value for value in values if value is not None])
        if len(values_P):
            metrics[f"pass@{k}"] = (
                wilson(values_P.sum(), len(values_P))
                if config.samples == 1
                else bootstrap_mean(values_P, seed=config.seed)
            )
    greedy = [row.greedy for row in judged if row.greedy is not None and row.greedy.scored]
    if greedy:
        metrics["greedy_pass@1"] = wilson(sum(answer.verdict.passed for answer in greedy), len(greedy))
    return metrics


def _rates(judged: Sequence[JudgedProblem], seed: int) -> dict[str, Estimate]:
    scored = [row for row in judged if row.scored]
    compiled_P = [
        sum(answer.scored and answer.verdict.status not in _NOT_COMPILED for answer in row.answers)
        for row in scored
    ]
    answers_P = np.array([len(row.answers) for row in judged])
    truncated_P = [sum(answer.truncated for answer in row.answers) for row in judged]
    lost_P = [len(row.answers) - row.scored for row in judged]
    return {
        "compile": bootstrap_ratio(np.array(compiled_P), np.array([row.scored for row in scored]), seed=seed),
        "truncated": bootstrap_ratio(np.array(truncated_P), answers_P, seed=seed),
        "infrastructure": bootstrap_ratio(np.array(lost_P), answers_P, seed=seed),
    }


def _row(judged: JudgedProblem) -> dict[str, Any]:
    greedy = judged.greedy
    return {
        "task_id": judged.problem.task_id,
        "prompt": judged.prompt,
        "passed": judged.passed,
        "samples": judged.scored,
        "greedy_passed": greedy.verdict.passed if greedy is not None and greedy.scored else None,
        "answers": [
            {
                "code": answer.code or "",
                "status": answer.verdict.status.value,
                "first_failure": answer.verdict.first_failure,
            }
            for answer in judged.answers
        ],
    }
