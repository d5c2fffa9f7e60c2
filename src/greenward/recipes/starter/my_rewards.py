"""Rewards of your own. `greenward audit recipe.yaml` tries to cheat the sum of all terms."""

from __future__ import annotations

from greenward.grading.rewards import GradedAnswer


def short(answers: list[GradedAnswer], *, characters: int = 60) -> list[float | None]:
    """1 for programs of so many characters or fewer, less for longer ones; None: the term adds nothing.

    An answer has `problem`, `prompt`, `completion` (the text), `code` (the program in it, None without one)
    and `verdict` (what the tests said).
    """
    return [
        min(1.0, characters / max(1, len(answer.code))) if answer.code and answer.verdict.passed else None
        for answer in answers
    ]
