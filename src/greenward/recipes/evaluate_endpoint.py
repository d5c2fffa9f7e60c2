"""Evaluates a model behind an OpenAI-compatible server: answers are kept and judged as they arrive."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Lock
from typing import Any

from greenward.errors import ConfigError, EngineError
from greenward.evaluation.engine import Seconds
from greenward.evaluation.folder import EvaluationFolder
from greenward.evaluation.rows import Sample
from greenward.grading.extraction import Extracted
from greenward.http_client import Patience, RequestError
from greenward.policies.endpoint import (
    CONCURRENCY,
    Answer,
    Endpoint,
    EndpointEngine,
    is_endpoint,
    refuses_all,
)
from greenward.problems.problem import ProblemSet
from greenward.recipes.evaluate_model import AnswerOptions, ModelEvaluation
from greenward.recipes.evaluation_session import GradingOptions
from greenward.recipes.models import ServedModel
from greenward.runs.progress import Progress

REQUEST_SECONDS = 300.0
AGENTS_AT_ONCE = 32


def open_evaluation(model: str, options: AnswerOptions) -> ModelEvaluation:
    """The evaluation of a model on disk, on the Hub or, as MODEL@URL or a URL, behind a server."""
    return (EndpointEvaluation if is_endpoint(model) else ModelEvaluation)(model, options)


class EndpointEvaluation(ModelEvaluation):
    """A model behind a server and what it is asked.

    In chat style the server gets messages, in completion style a text to continue. Answers whose requests
    failed for good are lost to the infrastructure. A seed is sent only if there is one.
    """

    def __init__(self, model: str, options: AnswerOptions) -> None:
        if options.suite is None:
            raise ConfigError("Which problems are held out is known of a run only; name a --suite.")
        seconds = options.request_timeout or REQUEST_SECONDS
        self._endpoint = Endpoint(
            model,
            key_variable=options.api_key_env,
            concurrency=options.concurrency or CONCURRENCY,
            patience=Patience(attempt_seconds=seconds, total_seconds=300 + 3 * seconds),
        )
        super().__init__(ServedModel(self._endpoint), options)

    def run(
        self, out: str | Path | None, grading: GradingOptions, progress: Progress
    ) -> tuple[dict[str, Any], Path]:
        """As `ModelEvaluation.run`. Raises `EngineError` where the first request gets no answer, and
        `ConfigError` where the server refuses it, or whatever is asked.
        """
        with closing(self._endpoint):
            return super().run(out, grading, progress)

    def source(
        self, folder: EvaluationFolder, problems: ProblemSet, seconds: Seconds
    ) -> Iterator[list[Sample]]:
        if self.tools is not None:
            try:
                yield from self.agents(
                    EndpointEngine(self._endpoint), folder, problems, seconds, AGENTS_AT_ONCE
                )
            except EngineError as error:
                raise EngineError(
                    error.message, remedy="The same command goes on with what is missing."
                ) from None
            return
        numbers, seed = range(self.options.samples), self.options.seed
        asked = [(one, n) for one in problems for n in numbers if (one.task_id, n) not in folder.samples]
        writing, began, lost = Lock(), time.perf_counter(), 0
        # The first question is asked alone, and what is wrong with the server ends the command.
        for is_first, part in ((True, asked[:1]), (False, asked[1:])):

            def keep(number: int, answer: Answer, part: list[Any] = part) -> None:
                problem, n = part[number]
                found = self.renderer.extracted(problem, answer.text)
                tokens = answer.completion_tokens, answer.prompt_tokens
                sample = Sample(problem, n, answer.text, found, answer.truncated, *tokens)
                with writing:
                    folder.add_new([sample])

            prompts = [
                (
                    self.renderer.messages(problem) or self.renderer.prompt_text(problem),
                    None if seed is None else seed + n,
                )
                for problem, n in part
            ]
            for batch in self._endpoint.ask_all(prompts, self.sampling, keep):
                chunk = []
                for number, answer in batch:
                    problem, n = part[number]
                    if not isinstance(answer, RequestError):
                        chunk.append(folder.samples[problem.task_id, n])
                        continue
                    if is_first or refuses_all(answer):
                        raise self._endpoint.explained(answer)
                    if not lost:
                        self.notes.append(f"the first answer that was lost: {answer.message}")
                    lost += 1
                    chunk.append(Sample(problem, n, "", Extracted(None), lost=answer.message))
                yield chunk
        seconds.sampling += time.perf_counter() - began

    def facts_of(self, folder: EvaluationFolder) -> dict[str, Any]:
        """The tokens of all answers, as far as the server has counted them."""
        samples = [sample for sample in folder.samples.values() if not sample.lost]
        counted = [sample for sample in samples if None not in (sample.prompt_tokens, sample.tokens)]
        return super().facts_of(folder) | {
            "usage": {
                "prompt_tokens": sum(sample.prompt_tokens or 0 for sample in counted),
                "completion_tokens": sum(sample.tokens or 0 for sample in counted),
                "answers_not_counted": len(samples) - len(counted),
            }
        }
