"""Defines the task `functions`."""

from __future__ import annotations

from typing import ClassVar

from greenward.config.recipe import TurnSections, recipes_with
from greenward.tasks.problem_task import ProblemTask


class Functions(ProblemTask):
    """Functions and programs that are written from what they are to do, or repaired as a whole."""

    recipes: ClassVar = recipes_with("functions", TurnSections)
