"""The section `rollouts` of a recipe: which engine samples, and how far it may lag behind the policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from greenward.config.sections import ConfigSection, PositiveFraction


class VLLMConfig(ConfigSection):
    """vLLM on this machine, in processes of its own beside the training."""

    gpu_memory_utilization: PositiveFraction = Field(
        0.45, description="share of the GPU's memory for vLLM's weights and cache, beside the training's"
    )
    max_model_len: PositiveInt | None = Field(
        None, description="longest prompt and answer together, in tokens; none = the model's positions"
    )
    enforce_eager: bool = Field(False, description="no CUDA graphs and no compilation")
    tensor_parallel_size: PositiveInt = 1
    sleep: bool = Field(False, description="give the GPU's memory back during each update")
    options: dict[str, Any] = Field(
        default_factory=dict, description="further arguments of vllm.LLM, such as {max_num_seqs: 64}"
    )


class ServerConfig(ConfigSection):
    """A server of `vllm serve`; its key, if it asks for one, is read from VLLM_API_KEY."""

    base_url: str | None = Field(None, description="such as http://localhost:8000")
    model: str | None = Field(None, description="the name it serves; none = the only one")
    concurrency: PositiveInt = Field(64, description="requests at a time, one for each prompt")
    request_seconds: PositiveFloat = Field(300.0, description="longest time of one request")
    patience_seconds: PositiveFloat = Field(
        600.0, description="time for which a server that does not answer is tried before the run stops"
    )


class RolloutsConfig(ConfigSection):
    """Where answers are sampled: by the trainer's own model, by vLLM beside it, or by a server of vLLM."""

    engine: Literal["native", "vllm", "server"] = "native"
    vllm: VLLMConfig = VLLMConfig()
    server: ServerConfig = ServerConfig()
    transfer: Literal["file", "nccl", "ipc"] = Field(
        "file", description="how weights reach vLLM: by files, or vLLM's transfers between CUDA devices"
    )
    transfer_dir: str | None = Field(
        None, description="folder that vLLM reads as well; none = memory (/dev/shm), else a temporary one"
    )
    max_staleness: NonNegativeInt = Field(
        0, description="1 = sample for the next step during the update, with weights one update old"
    )

    def mistakes(self) -> Iterator[str]:
        if self.max_staleness > 1:
            yield (
                f"max_staleness {self.max_staleness} is more than the correction covers: 1 is the most, "
                "since samples that are several updates old say too little about the policy"
            )
        if self.engine == "server" and self.server.base_url is None:
            yield "engine: server needs server.base_url, such as http://localhost:8000"
        if self.engine != "server" and self.server.base_url is not None:
            yield f"server.base_url is given, but engine is {self.engine}: set engine=server"
        if self.transfer != "file" and self.engine == "native":
            yield f"transfer: {self.transfer} sends weights to vLLM, but engine is native"
        if self.transfer == "ipc" and self.engine == "server":
            yield "transfer: ipc shares a GPU's memory with engine: vllm; a server needs file or nccl"
        if self.transfer == "nccl" and self.engine == "vllm":
            yield (
                "transfer: nccl needs a GPU for vLLM alone, and engine: vllm shares that of the training: "
                "use file or ipc, or engine=server"
            )
        if self.vllm.sleep and self.engine != "vllm":
            yield f"vllm.sleep needs engine: vllm, found {self.engine}"

    @property
    def differs(self) -> bool:
        """Whether the probabilities that answers are sampled with are not exactly those of the trainer."""
        return self.engine != "native" or self.max_staleness > 0
