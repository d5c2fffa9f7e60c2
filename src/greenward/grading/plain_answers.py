"""Graded answers as plain data and back, for the process that runs a user's reward function."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from greenward.grading.graded_answer import GradedAnswer
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Case, Comparison, Problem, StdioCase


def answers_to_plain(answers: Sequence[GradedAnswer]) -> list[Any]:
    """[problems, rows]; each problem once, however many answers it has."""
    positions: dict[int, int] = {}
    problems: list[dict[str, Any]] = []
    rows = []
    for answer in answers:
        position = positions.setdefault(id(answer.problem), len(problems))
        if position == len(problems):
            problems.append(dataclasses.asdict(answer.problem))
        verdict = dataclasses.asdict(answer.verdict)
        told = [list(map(dict, answer.messages)), list(answer.prompt_ids), list(answer.completion_ids)]
        rows.append([position, answer.prompt, answer.completion, answer.code, verdict, *told])
    return [problems, rows]


def answers_from_plain(plain: list[Any]) -> list[GradedAnswer]:
    """The inverse of `answers_to_plain`."""
    problems = [_problem(fields) for fields in plain[0]]
    return [
        GradedAnswer(
            problems[position],
            prompt,
            completion,
            code,
            _verdict(verdict),
            tuple(messages),
            tuple(prompt_ids),
            tuple(completion_ids),
        )
        for position, prompt, completion, code, verdict, messages, prompt_ids, completion_ids in plain[1]
    ]


def _problem(fields: dict[str, Any]) -> Problem:
    return Problem(
        **{
            **fields,
            "cases": tuple(Case(**case) for case in fields["cases"]),
            "stdio_cases": tuple(StdioCase(**case) for case in fields["stdio_cases"]),
            "comparison": Comparison(**fields["comparison"]),
        }
    )


def _verdict(fields: dict[str, Any]) -> Verdict:
    return Verdict(**{**fields, "status": Status(fields["status"])})
