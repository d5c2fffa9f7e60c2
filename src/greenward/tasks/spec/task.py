"""Defines the task `spec`."""

from __future__ import annotations

from typing import ClassVar

from greenward.config.recipe import EditSections, recipes_with
from greenward.tasks.problem_task import EditTask


class Spec(EditTask):
    """Functions that are written inside of their files, from a specification."""

    recipes: ClassVar = recipes_with("spec", EditSections)
