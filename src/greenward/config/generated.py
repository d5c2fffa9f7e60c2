"""Defines the sections of problems that are generated: compositions of functions, and planted bugs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from greenward.config.section import ConfigSection, Seed, Share


class FamiliesConfig(ConfigSection):
    """Generated problems: compositions of small list, string and number functions."""

    max_depth: Annotated[int, Field(ge=1, le=3)] = 2
    limit: PositiveInt | None = Field(None, description="number of compositions to use; none = all")
    held_out: Share = Field(0.2, description="share of compositions that training never sees")
    seed: Seed = 0


class BugsConfig(ConfigSection):
    """Repair problems: how bugs are put into the programs of `bugs:<problems>`, and what is shown."""

    per_problem: PositiveInt = Field(1, description="buggy versions of each program, each with one bug")
    show_failing_test: bool = Field(False, description="show the first failing test in the prompt")
    seed: Seed = 0
