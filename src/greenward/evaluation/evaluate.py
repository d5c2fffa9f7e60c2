"""How good a policy is on a problem set: answers drawn, executed, counted, each rate with its interval.

Says nothing about two policies side by side, and trains nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from greenward.config.sections import EvaluationConfig
from greenward.errors import ProblemError, SandboxError
from greenward.evaluation.drawing import Answer, AnswerKey, Seconds, draw_answers, judge_while_drawing
from greenward.evaluation.measures import by_tag, is_scored, pass_at_k_of, passed, rates_of
from greenward.evaluation.subset import choose
from greenward.grading.verdict import Status, Verdict
from greenward.intervals import Estimate
from greenward.policies.engine import RolloutEngine, SamplingParams
from greenward.problems.problem import Problem, ProblemSet

if TYPE_CHECKING:
    from greenward.environments.prompts import PromptRenderer
    from greenward.grading.grader import Grader

ANSWERS_PER_CHUNK = 512  # drawn in one call, while the chunk before is graded


@dataclass(frozen=True)
class JudgedAnswer:
    """One answer to a problem: the program in it, if any, and its verdict."""

    code: str | None
    verdict: Verdict
    truncated: bool

    @property
    def status(self) -> Status:
        return self.verdict.status

    @property
    def fraction_passed(self) -> float:
        return self.verdict.fraction_passed

    @property
    def extraction_failed(self) -> bool:
        return self.code is None


@dataclass(frozen=True)
class JudgedProblem:
    """One problem with its sampled answers and, if asked for, the greedy one."""

    problem: Problem
    prompt: str
    answers: tuple[JudgedAnswer, ...]
    greedy: JudgedAnswer | None

    @property
    def passed(self) -> int:
        return sum(map(passed, self.answers))


@dataclass(frozen=True)
class EvaluationResult:
    """What one evaluation found. `metrics` and `rates` carry 95 % intervals; seconds are wall time.

    A pass@k is missing when no problem has k answers that could be scored. `rates` are over sampled
    answers; see `measures.rates_of`. `tags` has pass@1 of the problems with each tag. In the record,
    `problems_passed` counts those that any answer passed.
    """

    suite: str
    step: int
    elapsed_seconds: float
    samples: int
    temperature: float
    metrics: dict[str, Estimate]
    rates: dict[str, Estimate]
    tags: dict[str, dict[str, Any]]
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
            "problems_passed": sum(judged.passed > 0 for judged in self.problems),
            "samples": self.samples,
            "temperature": self.temperature,
            "metrics": {name: estimate.to_json() for name, estimate in self.metrics.items()},
            "tags": self.tags,
            "statuses": self.statuses,
            "rates": {name: estimate.to_json() for name, estimate in self.rates.items()},
            "seconds": self.seconds,
            "rows": [_row(judged) for judged in self.problems],
        }


def evaluate(
    policy: RolloutEngine,
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
    seconds = Seconds()

    def judged(per_problem: int, params: SamplingParams) -> list[tuple[JudgedAnswer, ...]]:
        found: dict[AnswerKey, JudgedAnswer] = {}

        def record(answer: Answer, verdict: Verdict) -> None:
            found[answer.key] = JudgedAnswer(answer.code, verdict, answer.truncated)

        chunks = draw_answers(
            policy, renderer, chosen, per_problem, params,
            seed=config.seed, chunk=ANSWERS_PER_CHUNK, seconds=seconds,
        )  # fmt: skip
        judge_while_drawing(chunks, grader, record, seconds)
        return [tuple(found[problem.task_id, sample] for sample in range(per_problem)) for problem in chosen]

    sampled = judged(config.samples, replace(sampling, temperature=config.temperature))
    greedy: list[tuple[JudgedAnswer, ...]] = [()] * len(chosen)
    if config.greedy:
        greedy = judged(1, replace(sampling, temperature=0.0))
    rows = tuple(
        JudgedProblem(problem, renderer.prompt_text(problem), answers, next(iter(one), None))
        for problem, answers, one in zip(chosen, sampled, greedy, strict=True)
    )
    if not any(is_scored(answer) for row in rows for answer in row.answers):
        raise SandboxError(
            f"{problems.name}: none of {len(rows) * config.samples} answers could be judged.",
            remedy=f"The sandbox said: {rows[0].answers[0].verdict.error_message or 'nothing'}.",
        )
    return EvaluationResult(
        suite=problems.name,
        step=step,
        elapsed_seconds=elapsed_seconds,
        samples=config.samples,
        temperature=config.temperature,
        metrics=_metrics(rows, config),
        rates=rates_of([row.answers for row in rows]),
        tags=by_tag([(row.problem.tags, row.answers) for row in rows]),
        statuses=dict(Counter(answer.status.value for row in rows for answer in row.answers)),
        seconds=asdict(seconds),
        problems=rows,
    )


def _metrics(rows: Sequence[JudgedProblem], config: EvaluationConfig) -> dict[str, Estimate]:
    metrics = {}
    asked = [(f"pass@{k}", [row.answers for row in rows], k) for k in config.k]
    asked.append(("greedy_pass@1", [(row.greedy,) for row in rows if row.greedy is not None], 1))
    for name, groups, k in asked:
        found = pass_at_k_of(groups, k)
        if found is not None:
            metrics[name], _ = found
    return metrics


def _row(judged: JudgedProblem) -> dict[str, Any]:
    greedy = judged.greedy
    return {
        "task_id": judged.problem.task_id,
        "prompt": judged.prompt,
        "passed": judged.passed,
        "samples": len(judged.answers),
        "greedy_passed": None if greedy is None else greedy.verdict.passed,
        "answers": [
            {
                "code": answer.code or "",
                "status": answer.verdict.status.value,
                "first_failure": answer.verdict.first_failure,
            }
            for answer in judged.answers
        ],
    }
