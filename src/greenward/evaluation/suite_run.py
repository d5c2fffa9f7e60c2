"""One evaluation carried out in its folder: what is missing is drawn and graded, nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from greenward.errors import RunError
from greenward.evaluation.drawing import Answer, Seconds, judge_while_drawing
from greenward.evaluation.folder import EvaluationFolder
from greenward.evaluation.results import Result
from greenward.grading.verdict import Verdict

if TYPE_CHECKING:
    from greenward.grading.grader import Grader

ANSWERS_PER_CHUNK = 128  # drawn in one call, while the chunk before is graded

Draw = Callable[[Seconds], Iterator[list[Answer]]]
"""Answers that a folder does not hold yet, chunk by chunk; it holds them once they are given."""


def complete(
    folder: EvaluationFolder,
    draw: Draw,
    grader: Grader,
    *,
    seconds: Seconds,
    on_result: Callable[[Result], None] = lambda _: None,
) -> None:
    """Has every answer in `folder` drawn and judged; each is written as soon as it is there.

    Verdicts are written as they arrive, so that a kill loses those of the answers that are running.
    """
    ungraded = [answer for key, answer in folder.samples.items() if key not in folder.results]

    def chunks() -> Iterator[list[Answer]]:
        if ungraded:
            yield ungraded
        yield from draw(seconds)

    def record(answer: Answer, verdict: Verdict) -> None:
        result = Result.of(answer, verdict)
        folder.add_result(result)
        on_result(result)

    judge_while_drawing(chunks(), grader, record, seconds)


def given(answers: Sequence[Answer], folder: EvaluationFolder) -> Draw:
    """`Draw` for answers that are there already.

    Raises `RunError` when the folder holds another answer under the same number.
    """
    for answer in answers:
        kept = folder.samples.get(answer.key)
        if kept is not None and kept.code != answer.code:
            raise RunError(
                f"{folder.path} holds another answer {answer.sample} to {answer.problem.task_id}.",
                remedy="These are other samples than were graded there before: choose another --out.",
            )

    def draw(_: Seconds) -> Iterator[list[Answer]]:
        fresh = [answer for answer in answers if answer.key not in folder.samples]
        if fresh:
            folder.add_samples(fresh)
            yield fresh

    return draw


def flaky_answers(answers: Iterable[Answer], grader: Grader, repeats: int) -> list[dict[str, object]]:
    """The answers whose verdict differs from run to run, each judged `repeats` times, as plain data."""
    judged = list(answers)
    return [
        {
            "task_id": judged[flaky.index].problem.task_id,
            "sample": judged[flaky.index].sample,
            "statuses": [verdict.status.value for verdict in flaky.verdicts],
        }
        for flaky in grader.flaky([(answer.problem, answer.code) for answer in judged], repeats)
    ]
