"""Defines what all sections of a recipe have in common, and those that problems and grading read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

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


class RaySandboxConfig(ConfigSection):
    """Sandboxes on the nodes of a Ray cluster."""

    address: str = Field("auto", description="auto (a cluster of this machine) or HOST:PORT")
    workers_per_node: PositiveInt | None = Field(None, description="as many CPUs are taken; default: all")


class HttpSandboxConfig(ConfigSection):
    """Sandboxes behind servers: `greenward sandbox serve`, or SandboxFusion's."""

    urls: tuple[str, ...] = Field(min_length=1)
    token_env: str | None = Field(None, description="environment variable that holds the servers' token")


class SandboxConfig(ConfigSection):
    """Where answers run, the resources of one answer, and the isolation that is required."""

    backend: Literal["local", "ray", "http"] = "local"
    ray: RaySandboxConfig = RaySandboxConfig()
    http: HttpSandboxConfig | None = None
    jobs_per_call: PositiveInt = Field(64, description="answers that a host gets at once (ray, http)")
    workers: PositiveInt | None = Field(
        None, description="answers that run at a time (local); default: one more than the cores"
    )
    cpu_seconds: PositiveFloat = 1.0
    suite_times: bool = Field(
        False, description="use the time limits of a public suite in place of cpu_seconds, where it has them"
    )
    wall_seconds: PositiveFloat = 4.0
    memory_mb: PositiveInt = 512
    output_kb: PositiveInt = 64
    require: Literal["A", "B", "C", "D"] = Field(
        "B", description="lowest isolation level to run at; `greenward doctor` shows this machine's level"
    )
    packages: tuple[str, ...] = Field((), description="what answers may import besides the standard library")

    def mistakes(self) -> Iterator[str]:
        if (self.backend == "http") is (self.http is None):
            yield f"http.urls are for backend http, and it needs them; backend is {self.backend}"


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
