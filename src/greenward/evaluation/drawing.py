"""Answers drawn chunk by chunk: one chunk is graded while the next is sampled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from greenward.grading.verdict import Verdict
from greenward.policies.engine import Completion, RolloutEngine, SamplingParams, StopReason
from greenward.problems.problem import Problem, ProblemSet

if TYPE_CHECKING:
    from greenward.environments.prompts import PromptRenderer
    from greenward.grading.grader import Grader

AnswerKey = tuple[str, int]  # task id, number of the sample


@dataclass(frozen=True)
class Answer:
    """One answer to a problem: what the model wrote and the program in it.

    `code` is None when the text holds no program; `extraction_failure` then says why. `truncated`:
    the answer hit the token limit.
    """

    problem: Problem
    sample: int
    text: str
    code: str | None
    extraction_failure: str = ""
    truncated: bool = False

    @property
    def key(self) -> AnswerKey:
        return self.problem.task_id, self.sample


@dataclass
class Seconds:
    """Wall time spent so far. Sampling and grading overlap."""

    sampling: float = 0.0
    grading: float = 0.0


def draw_answers(
    policy: RolloutEngine,
    renderer: PromptRenderer,
    problems: ProblemSet,
    per_problem: int,
    params: SamplingParams,
    *,
    seed: int,
    chunk: int,
    seconds: Seconds,
    drawn: Collection[AnswerKey] = frozenset(),
    on_drawn: Callable[[list[Answer]], None] = lambda _: None,
) -> Iterator[list[Answer]]:
    """Answers to the problems in their order, about `chunk` at a time; those in `drawn` are left out.

    `on_drawn` gets the answers to a problem as soon as the last of them has ended. The seed of a chunk
    depends on its place in the problem set only, so that what is drawn after an interruption is what
    would have been drawn without one.
    """
    size = max(1, chunk // per_problem)
    for start in range(0, len(problems), size):
        asked = [
            problem
            for problem in problems[start : start + size]
            if any((problem.task_id, sample) not in drawn for sample in range(per_problem))
        ]
        if not asked:
            continue
        chunk_seed = int(np.random.SeedSequence((seed, start)).generate_state(1)[0])
        began = time.perf_counter()
        answers = _draw_chunk(policy, renderer, asked, per_problem, params, chunk_seed, drawn, on_drawn)
        seconds.sampling += time.perf_counter() - began
        yield answers


def _draw_chunk(
    policy: RolloutEngine,
    renderer: PromptRenderer,
    asked: Sequence[Problem],
    per_problem: int,
    params: SamplingParams,
    seed: int,
    drawn: Collection[AnswerKey],
    on_drawn: Callable[[list[Answer]], None],
) -> list[Answer]:
    answers: dict[str, list[Answer]] = {}

    def keep(problem: Problem, found: Iterable[Answer]) -> None:
        answers[problem.task_id] = [answer for answer in found if answer.key not in drawn]
        on_drawn(answers[problem.task_id])

    prompts = {problem.task_id: renderer.prompt_ids(problem) for problem in asked}
    room = policy.max_positions - params.max_tokens
    fitting = []
    for problem in asked:
        if len(prompts[problem.task_id]) <= room:
            fitting.append(problem)
        else:
            reason = (
                f"the prompt has {len(prompts[problem.task_id])} tokens; with {params.max_tokens} for the "
                f"answer that is more than the model's {policy.max_positions} positions"
            )
            keep(problem, (Answer(problem, sample, "", None, reason) for sample in range(per_problem)))

    def read(number: int, completions: list[Completion]) -> None:
        problem = fitting[number]
        keep(problem, (_read(renderer, problem, sample, one) for sample, one in enumerate(completions)))

    if fitting:
        wanted = [prompts[problem.task_id] for problem in fitting]
        policy.sample(wanted, per_problem, params, seed=seed, on_group=read)
    return [answer for problem in asked for answer in answers[problem.task_id]]


def _read(renderer: PromptRenderer, problem: Problem, sample: int, completion: Completion) -> Answer:
    text = renderer.completion_text(completion.token_ids.tolist())
    extracted = renderer.extracted(problem, text)
    truncated = completion.stop_reason is StopReason.LENGTH
    return Answer(problem, sample, text, extracted.code, extracted.reason, truncated)


def judge_while_drawing(
    chunks: Iterable[list[Answer]],
    grader: Grader,
    record: Callable[[Answer, Verdict], None],
    seconds: Seconds,
) -> None:
    """Grades each chunk in a thread while the next is drawn; `record` gets each verdict as it comes.

    `record` is called in that thread, never twice at once. When drawing ends early, by an error or
    Ctrl-C, grading ends at its next verdict.
    """
    leaving = threading.Event()

    def judge(chunk: list[Answer]) -> None:
        began = time.perf_counter()
        stream = grader.grade_stream([(answer.problem, answer.code) for answer in chunk])
        with closing(stream) as verdicts:  # type: ignore[type-var]
            for index, verdict in verdicts:
                record(chunk[index], verdict)
                if leaving.is_set():
                    return
        seconds.grading += time.perf_counter() - began

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="grading") as background:
        pending: Future[None] | None = None
        try:
            for chunk in chunks:
                if pending is not None:
                    pending.result()
                pending = background.submit(judge, chunk)
            if pending is not None:
                pending.result()
        except BaseException:
            leaving.set()
            raise
