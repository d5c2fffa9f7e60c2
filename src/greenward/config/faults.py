"""The section `faults`: bugs to plant in a training, each off unless its section is given (`{}` will do)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from greenward.config.section import PositiveInt, Section

MoreThanOne = Annotated[float, Field(gt=1, allow_inf_nan=False)]


class MemoryLeakConfig(Section):
    """Tensors are kept for ever: memory grows linearly over `training.max_steps`."""

    growth_factor: MoreThanOne = Field(2.1, description="memory at the last step over that at the first")


class GradientExplosionConfig(Section):
    """The learning rate jumps and clipping goes, so that gradient norms explode."""

    after_step: PositiveInt = Field(300, description="the last healthy step, as metrics.jsonl counts")
    rate_factor: MoreThanOne = Field(3000.0, description="on the learning rate, from the next step on")
    rate_growth: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        1.05, description="on the factor at each further step; 1 = none, and norms come down again"
    )
    remove_clip: bool = Field(True, description="no gradient clipping from the next step on")


class RewardOverconfidenceConfig(Section):
    """The reward model's logits are scaled up, so that it promises more than it keeps."""

    calibration_score: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.65, description="to which the score (docs/diagnostics.md) falls; healthy is above 0.85"
    )


class FaultsConfig(Section):
    """Bugs planted in the training, to measure what finds them. All off by default."""

    memory_leak: MemoryLeakConfig | None = None
    gradient_explosion: GradientExplosionConfig | None = None
    reward_overconfidence: RewardOverconfidenceConfig | None = None

    @property
    def planted(self) -> dict[str, Section]:
        """The sections of the faults that are on, by name."""
        sections = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: section for name, section in sections.items() if section is not None}
