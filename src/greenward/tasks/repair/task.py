"""Defines the task `repair`."""

from __future__ import annotations

from typing import ClassVar

from greenward.config.recipe import EditSections, recipes_with
from greenward.tasks.problem_task import EditTask


class Repair(EditTask):
    """Programs with a bug, which are repaired as a whole or by edits."""

    recipes: ClassVar = recipes_with("repair", EditSections)
