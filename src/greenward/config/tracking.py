"""The section `tracking`: mirrors of a run beside its local files. None is required."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlparse

from pydantic import Field, NonNegativeInt, field_validator

from greenward.config.sections import ConfigSection


class WandbConfig(ConfigSection):
    """The mirror on Weights & Biases; offline needs no account."""

    project: str = "greenward"
    entity: str | None = None
    mode: Literal["online", "offline"] = "offline"


class TrackioConfig(ConfigSection):
    """The mirror in Trackio: on this machine, or in a Hugging Face Space."""

    project: str = "greenward"
    space_id: str | None = Field(None, description="owner/name of a Space; none = on this machine")


class MlflowConfig(ConfigSection):
    """The mirror in MLflow."""

    experiment: str = "greenward"
    uri: str | None = Field(
        None, description="of the tracking server; none = MLFLOW_TRACKING_URI, else mlflow.db in the run"
    )

    @field_validator("uri", mode="after")
    @classmethod
    def _without_password(cls, uri: str | None) -> str | None:
        if uri is not None and urlparse(uri).password:
            raise ValueError(
                "a password does not belong into a recipe, which is kept with the run; set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        return uri


class TrackingConfig(ConfigSection):
    """Mirrors of the local files. None is required."""

    tensorboard: bool = False
    wandb: WandbConfig | None = None
    trackio: TrackioConfig | None = None
    mlflow: MlflowConfig | None = None
    samples: NonNegativeInt = Field(
        4, description="answers of each evaluation, and of the step before it, that go into tables"
    )
