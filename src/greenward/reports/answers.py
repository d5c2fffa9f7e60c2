"""Sample answers before and after, for the same held-out problems, chosen by rule and not by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from greenward.reports.record import ReportRecord

_SHOWN_OF = {"fixed": 3, "still failing": 2, "broken": 1}
_OUTCOMES = {
    (False, True): "fixed",
    (False, False): "still failing",
    (True, False): "broken",
    (True, True): "still passing",
}
_MAX_CHARACTERS = 3000


@dataclass(frozen=True)
class Answer:
    """A sampled answer to a problem, and how many of all its answers passed."""

    code: str
    status: str
    first_failure: str
    passed: int
    samples: int


@dataclass(frozen=True)
class SampleProblem:
    """One held-out problem with its answers before and after."""

    task_id: str
    prompt: str
    outcome: str
    before: Answer
    after: Answer


@dataclass(frozen=True)
class SampleAnswers:
    """The problems shown, and the sentence that says how they were chosen."""

    problems: tuple[SampleProblem, ...]
    caption: str


def sample_answers(record: ReportRecord) -> SampleAnswers | None:
    """The first problems of each outcome, in the order of the evaluation, of the first seed.

    An outcome looks at the majority of a problem's answers: fixed, still failing, broken. The answer
    shown is the first sampled one that the outcome speaks of: before a problem is fixed one that fails,
    after it one that passes. Problems of which no such answer was recorded are not shown.
    """
    evaluations = record.main_arms[0].evaluations
    if len(evaluations) < 2:
        return None
    pairs = list(_pairs(evaluations[0], evaluations[-1]))
    problems: list[SampleProblem] = []
    counts = []
    for outcome, limit in _SHOWN_OF.items():
        found = [pair for pair in pairs if pair.outcome == outcome]
        problems += islice(found, limit)
        if found:
            counts.append(f"{min(limit, len(found))} of {len(found)} {outcome}")
    if not problems:
        return None
    caption = (
        f"Shown: {', '.join(counts)} (by the majority of a problem's answers; {record.seeds[0].label}). "
        "Each is the first of its outcome in the order of evaluation; the answers are the first sampled "
        "ones that fail or pass as the outcome says."
    )
    return SampleAnswers(tuple(problems), caption)


def _pairs(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[SampleProblem]:
    later = {row.get("task_id"): row for row in after.get("rows", ())}
    for row in before.get("rows", ()):
        other = later.get(row.get("task_id"))
        if other is None or not (row.get("samples") and other.get("samples")):
            continue
        passes = _passes(row), _passes(other)
        answers = _answer(row, passed=passes[0]), _answer(other, passed=passes[1])
        if answers[0] is not None and answers[1] is not None:
            yield SampleProblem(
                str(row["task_id"]),
                _bounded(row.get("prompt", "")),
                _OUTCOMES[passes],
                answers[0],
                answers[1],
            )


def _passes(row: Mapping[str, Any]) -> bool:
    return bool(2 * row["passed"] >= row["samples"])


def _answer(row: Mapping[str, Any], *, passed: bool) -> Answer | None:
    """The first recorded answer that passed, or that did not."""
    for answer in row.get("answers") or ():
        if (answer.get("status") == "passed") is passed:
            return Answer(
                code=_bounded(answer.get("code") or ""),
                status=str(answer.get("status", "")),
                first_failure=_bounded(answer.get("first_failure") or ""),
                passed=row["passed"],
                samples=row["samples"],
            )
    return None


def _bounded(text: str) -> str:
    text = str(text)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}\n… (cut)"
