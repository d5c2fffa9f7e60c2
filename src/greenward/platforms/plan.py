"""What a training would take on GPUs that are not at hand: memory, time of a step, cost. Nothing is measured.

Times are work over peak over utilisation. The peaks are those of NVIDIA's data sheets (V100, T4, A100, L4,
L40S, H100, H200) and of its white paper on the Ada architecture (RTX 4090): dense products of half-precision
matrices with float32 accumulation, without sparsity, and memory bandwidth, of the SXM version where there is
one. The ranges of utilisation are assumptions: training reaches 20 to 50 % of the arithmetic, sampling 10 to
60 % of the bandwidth.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

from greenward.errors import ConfigError
from greenward.platforms.detection import Gpu
from greenward.platforms.memory import MemoryEstimate, Workload, estimate, parameters
from greenward.policies.decoder import DecoderShape

TRAINING_UTILISATION = (0.2, 0.5)
SAMPLING_UTILISATION = (0.1, 0.6)


@dataclass(frozen=True)
class GpuModel:
    """Data-sheet figures: memory in GiB, TFLOP/s of half-precision products, GB/s, compute capability."""

    memory: int
    tflops: float
    bandwidth: float
    capability: float

    @property
    def preset(self) -> str:
        return Gpu("", self.memory << 10, self.capability).preset


GPUS: Mapping[str, GpuModel] = {
    "v100": GpuModel(32, 125, 900, 7.0),
    "v100-16": GpuModel(16, 125, 900, 7.0),
    "t4": GpuModel(16, 65, 320, 7.5),
    "a100": GpuModel(80, 312, 2039, 8.0),
    "a100-40": GpuModel(40, 312, 1555, 8.0),
    "4090": GpuModel(24, 165, 1008, 8.9),
    "l4": GpuModel(24, 121, 300, 8.9),
    "l40s": GpuModel(48, 362, 864, 8.9),
    "h100": GpuModel(80, 989, 3350, 9.0),
    "h200": GpuModel(141, 989, 4800, 9.0),
}


@dataclass(frozen=True)
class Plan:
    """Bytes on each GPU, with whole copies and with all split; seconds of the fastest and slowest step."""

    memory: MemoryEstimate
    sharded: MemoryEstimate
    sampling_seconds: tuple[float, float]
    training_seconds: tuple[float, float]

    @property
    def step_seconds(self) -> tuple[float, float]:
        (fast, slow), (also_fast, also_slow) = self.sampling_seconds, self.training_seconds
        return fast + also_fast, slow + also_slow


def find_gpu(name: str) -> GpuModel:
    """The GPU of that name, however it is written. Raises `ConfigError` naming the nearest."""
    key = re.sub(r"nvidia|geforce|tesla|rtx|sxm\d?|pcie|gb", "", name.lower())
    key = "-".join(re.findall("[a-z0-9]+", key))
    model, _, memory = key.partition("-")
    if model in GPUS and memory == str(GPUS[model].memory):
        key = model
    if key not in GPUS:
        near = get_close_matches(key, GPUS, n=1, cutoff=0.4)
        raise ConfigError(
            f"--gpu: expected {', '.join(GPUS)}, found {name!r}.",
            remedy=f"Nearest: {near[0]}." if near else None,
        )
    return GPUS[key]


def make_plan(shape: DecoderShape, work: Workload, gpu: GpuModel, gpus: int) -> Plan:
    """The plan of one step on `gpus` GPUs that share its answers evenly; communication is not counted."""
    answers = math.ceil(work.answers_per_step / gpus)
    each = replace(work, answers_per_step=answers, fused_attention=False)
    weights, c = parameters(shape), work.dtype_bytes
    prompts = math.ceil(answers / work.answers_per_prompt)
    tokens = prompts * work.prompt_tokens + answers * work.completion_tokens
    passes = 6 + 2 * work.gradient_checkpointing + 2 * work.reference
    training = passes * weights * tokens / (gpu.tflops * 1e12)
    context = work.prompt_tokens + work.completion_tokens / 2
    cached = 2 * shape.layers * shape.kv_heads * shape.head_dim * c * context * answers
    token = max((c * weights + cached) / (gpu.bandwidth * 1e9), 2 * weights * answers / (gpu.tflops * 1e12))
    prefill = 2 * weights * prompts * work.prompt_tokens / (gpu.tflops * 1e12)
    sampling = work.completion_tokens * token + prefill
    return Plan(
        estimate(shape, each),
        estimate(shape, replace(each, shards=gpus)),
        _range(sampling, SAMPLING_UTILISATION),
        _range(training, TRAINING_UTILISATION),
    )


def _range(seconds: float, utilisation: tuple[float, float]) -> tuple[float, float]:
    low, high = utilisation
    return seconds / high, seconds / low
