"""The section `rejection` of a recipe."""

from __future__ import annotations

from pydantic import Field

from greenward.config.section import NonNegativeInt, PositiveInt, Section


class RejectionConfig(Section):
    """`kind: rejection`: which sampled answers are kept, and how the policy is trained on them."""

    min_reward: float | None = Field(
        None, description="keep answers with at least this reward; none = answers that pass all their tests"
    )
    max_per_prompt: PositiveInt = Field(
        4, description="different answers to one problem that are trained on, at most"
    )
    replay_rounds: NonNegativeInt = Field(
        0, description="earlier rounds whose kept answers are trained on again"
    )
    epochs: PositiveInt = Field(1, description="passes over the kept answers in each round")
    batch_size: PositiveInt = Field(64, description="kept answers per optimizer step")
