"""Defines what all sections of a recipe have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what NumPy and torch take
Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(gt=0, lt=1)]


class ConfigSection(BaseModel):
    """A frozen group of keys. An unknown key is an error."""

    # A section's validator is built when the section is used first: few commands use more than one or two.
    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False, defer_build=True
    )

    def model_post_init(self, context: Any, /) -> None:
        for mistake in self.mistakes():
            raise ValueError(mistake)

    def mistakes(self) -> Iterator[str]:
        """What is wrong with values that are possible one by one; the first is the error that users see."""
        yield from ()
