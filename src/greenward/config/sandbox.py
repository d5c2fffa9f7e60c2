"""Defines the section `sandbox`: where answers run, and what they may take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from greenward.config.section import ConfigSection


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
    workers: PositiveInt = Field(2, description="answers that run at a time (local)")
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
