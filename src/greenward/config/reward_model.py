"""The section `reward_model` of a recipe."""

from __future__ import annotations

from pydantic import Field

from greenward.config.section import NonNegativeFloat, PositiveFloat, PositiveInt, Section


class RewardModelConfig(Section):
    """A learned reward model: a head on the starting policy that predicts the chance of passing all tests."""

    weight: float = Field(0.0, description="of the predicted chance in the reward; 0 = only measured")
    hidden_size: PositiveInt = 64
    learning_rate: PositiveFloat = 3e-4
    weight_decay: NonNegativeFloat = 0.1
    buffer: PositiveInt = Field(4096, description="graded answers that are kept to train on, the newest")
    batch_size: PositiveInt = 256
    updates_per_step: PositiveInt = Field(8, description="optimizer steps of the head at each training step")
