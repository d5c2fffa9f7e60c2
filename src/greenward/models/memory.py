"""Estimates what a recipe needs of a machine, in memory, time and cost, before anything is loaded.

The estimate of memory follows the native decoder and trainer: what stays (trained weights in float32,
AdamW's two moments, copies in the type of the arithmetic, keys and values), and the larger of what sampling
and training need beside it. On CPUs it is checked against measured peaks (`benchmarks/memory_estimate.py`).
Plans for GPUs that are not at hand measure nothing: times are work over peak over utilisation. The peaks are
those of NVIDIA's data sheets (V100, T4, A100, L4, L40S, H100, H200) and of its white paper on the Ada
architecture (RTX 4090): dense products of half-precision matrices with float32 accumulation, without
sparsity, and memory bandwidth, of the SXM version where there is one. The ranges of utilisation are
assumptions: training reaches 20 to 50 % of the arithmetic, sampling 10 to 60 % of the bandwidth.
Shape suffixes of comments: M tokens of a micro-batch, E hidden size, F intermediate size, V vocabulary.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from greenward.common.errors import ConfigError, GreenwardError
from greenward.config.loading import Surroundings, load_recipe
from greenward.config.recipe import ModelRecipe, PPORecipe, ReinforcementRecipe, language_model
from greenward.hardware.detection import Gpu
from greenward.models.checkpoint import holding, read_shape, resolve, shape_of
from greenward.models.decoder import DecoderShape
from greenward.models.devices import INT8, resolve_device, resolve_dtype
from greenward.models.products import LARGEST_WEIGHT, SMALLEST_PACKED
from greenward.models.sampler import CACHE_BYTES, PREFILL_TOKENS, Sampler
from greenward.models.scoring import CHUNK_NUMBERS, KEPT_NUMBERS
from greenward.models.tokenizer import read_json
from greenward.runs.machine import available_mb, peak_resident_mb, resident_mb

_FLOAT32 = 4
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# The overrides that `advice` proposes, by the fields of `Workload` that they change.
_OVERRIDES = {
    "micro_batch": "training.micro_batch_sequences={}",
    "gradient_checkpointing": "model.gradient_checkpointing=true",
    "dtype_bytes": "model.dtype=bfloat16",
    "lora_rank": "model.lora.r={}",
}


@dataclass(frozen=True)
class Workload:
    """What a run asks of a model's memory: numbers of answers, lengths in tokens, sizes in bytes.

    `lora_rank` is that of adapters on `lora_targets`; None trains all weights. `copies` counts whole further
    trainable copies of the model (a critic's own trunk), `imitates` says that self-imitation has an AdamW of
    its own for the policy's weights. `engine_bytes` is what another engine takes for
    itself and samples in (vLLM's share of the device); None: the native one samples. `shards` is the number
    of processes over which weights, gradients and optimizer are split. `fused_attention` is that of CPUs
    and of flex attention; elsewhere the scores of a layer exist as a whole. `native` is False for a model of
    transformers, which pads its rows, repeats prompts and keeps all logits.
    """

    dtype_bytes: int
    answers_per_step: int
    answers_per_prompt: int
    micro_batch: int
    prompt_tokens: int
    completion_tokens: int
    gradient_checkpointing: bool = False
    reference: bool = False
    copies: int = 0
    imitates: bool = False
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] = LORA_TARGETS
    engine_bytes: int | None = None
    shards: int = 1
    fused_attention: bool = True
    native: bool = True


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that stay (`state`, by part) and the most that sampling and training need beside them."""

    state: Mapping[str, int]
    sampling: int
    training: Mapping[str, int]
    packed: int = 0
    """Weights that are packed for sampling, on CPUs, and given back for the update."""
    renewal: int = 0
    """Of sharded weights: what gathering them for the copy that samples takes after each step."""

    @property
    def total(self) -> int:
        most = max(self.sampling + self.packed, self.renewal, sum(self.training.values()))
        return sum(self.state.values()) + most


def parameters(shape: DecoderShape) -> int:
    """The number of weights of a decoder."""
    embeddings = shape.vocab_size * shape.hidden_size * (1 if shape.tied_embeddings else 2)
    norms = 2 * shape.hidden_size + (2 * shape.head_dim if shape.qk_norm else 0)
    bias = _qkv(shape) if shape.qkv_bias else 0
    return embeddings + shape.layers * (_matrices(shape) + norms + bias) + shape.hidden_size


def adapter_parameters(shape: DecoderShape, rank: int, targets: tuple[str, ...] = LORA_TARGETS) -> int:
    """The number of weights of LoRA adapters (Hu et al. 2021): rank · (inputs + outputs) of each matrix."""
    E, F, D = shape.hidden_size, shape.intermediate_size, shape.head_dim
    sizes = {
        **dict.fromkeys(("q_proj", "o_proj"), E + shape.heads * D),
        **dict.fromkeys(("k_proj", "v_proj"), E + shape.kv_heads * D),
        **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), E + F),
    }
    return shape.layers * rank * sum(sizes[target] for target in targets if target in sizes)


def estimate(shape: DecoderShape, work: Workload) -> MemoryEstimate:
    """The memory of each process that trains a model of this shape."""
    c, all_weights = work.dtype_bytes, parameters(shape)
    trained = all_weights if work.lora_rank is None else 0
    adapter = 0 if work.lora_rank is None else adapter_parameters(shape, work.lora_rank, work.lora_targets)
    learnt = trained * (1 + work.copies) + adapter
    frozen = c * all_weights if work.reference and work.lora_rank is None else 0
    rows = min(work.answers_per_step, Sampler.max_rows)
    samples_itself = work.engine_bytes is None
    cast = c < _FLOAT32 and work.native and work.lora_rank is None
    copied = samples_itself and (cast or _packs(shape, work) or work.shards > 1)
    embedding = c * shape.vocab_size * shape.hidden_size
    copy, packed = c * all_weights if copied else 0, 0
    if copied and _packs(shape, work) and work.shards == 1:  # the input embedding is not packed
        packed = copy - (0 if shape.tied_embeddings else embedding)
        copy = embedding if cast else 0
    if work.native:
        room = CACHE_BYTES["cpu"] if work.fused_attention else CACHE_BYTES["cuda"] // 2
        rows = min(rows, max(1, room // _cache_bytes(shape, work.completion_tokens, c)))
    grows = work.native and not work.fused_attention  # by copying, into a second memory
    cache = (2 * rows if grows else rows) * _cache_bytes(shape, work.completion_tokens, c)
    prompts = math.ceil(rows / work.answers_per_prompt) if work.native else rows
    cache += prompts * _cache_bytes(shape, work.prompt_tokens, c)
    state = {
        "weights": (_FLOAT32 * trained * (1 + work.copies) + c * (all_weights - trained)) // work.shards,
        "adapter": _FLOAT32 * adapter,
        "optimizer": 2 * _FLOAT32 * (learnt + work.imitates * (trained + adapter)) // work.shards,
        "reference": frozen,
        "weights for sampling": copy + (_panels(shape, work) if samples_itself else 0),
        "keys and values": cache if samples_itself else 0,
        "other engine": work.engine_bytes or 0,
    }
    gradients = _FLOAT32 * learnt // work.shards
    return MemoryEstimate(
        {name: size for name, size in state.items() if size},
        _sampling(shape, work, rows) if samples_itself else 0,
        {"gradients": gradients, "activations and logits": _training(shape, work, gradients)},
        packed,
        _FLOAT32 * all_weights if work.shards > 1 else 0,
    )


def sampling_estimate(shape: DecoderShape, work: Workload) -> MemoryEstimate:
    """The memory of a process that only samples from a model of this shape, whose weights it holds once."""
    c, found = work.dtype_bytes, estimate(shape, work)
    head = c * shape.vocab_size * shape.hidden_size if shape.tied_embeddings and _packs(shape, work) else 0
    weights = c * parameters(shape) + head
    weights += _panels(shape, work)
    state = {"weights": weights, "keys and values": found.state["keys and values"]}
    return MemoryEstimate(state, found.sampling, {})


def _packs(shape: DecoderShape, work: Workload) -> bool:
    """Whether matrices are packed for sampling, which those of small models are not (`products.packs`)."""
    smallest = LARGEST_WEIGHT if work.dtype_bytes == _FLOAT32 else SMALLEST_PACKED
    largest = 2 * shape.hidden_size * shape.intermediate_size
    return work.native and work.fused_attention and largest > smallest


def _panels(shape: DecoderShape, work: Workload) -> int:
    """The matrices of a small decoder as its steps of sampling read them, beside those that it has."""
    inputs = max(2 * shape.intermediate_size, _qkv(shape), shape.heads * shape.head_dim)
    if not work.native or not work.fused_attention or work.lora_rank is not None:
        return 0
    if inputs * shape.hidden_size >= SMALLEST_PACKED:
        return 0
    return _FLOAT32 * (shape.layers * _matrices(shape) + shape.vocab_size * shape.hidden_size)


def advice(shape: DecoderShape, work: Workload, limit: int) -> str | None:
    """The first change of settings with which training fits into `limit` bytes; None if none does.

    Those that change no number but rounding come first; adapters train other weights.
    """
    checkpointed = replace(work, gradient_checkpointing=True)
    one_by_one = replace(checkpointed, micro_batch=1)
    for changed in (
        *_smaller_micro_batches(work),
        *_smaller_micro_batches(checkpointed),
        replace(one_by_one, dtype_bytes=2),
        replace(checkpointed, lora_rank=16),
        replace(one_by_one, lora_rank=16, dtype_bytes=2),
    ):
        if changed != work and estimate(shape, changed).total <= limit:
            differing = (name for name in _OVERRIDES if getattr(changed, name) != getattr(work, name))
            return ", ".join(_OVERRIDES[name].format(getattr(changed, name)) for name in differing)
    return None


def _smaller_micro_batches(work: Workload) -> Iterator[Workload]:
    size = work.micro_batch
    while size >= 1:
        yield replace(work, micro_batch=size)
        size //= 2


def activations(shape: DecoderShape, work: Workload) -> int:
    """What is kept for the backward pass of a micro-batch, logits apart, in bytes.

    Of each layer: the residual stream and the normed input of attention and MLP, queries, keys and values,
    what was attended, gate, up and their product; sums and norms in float32; the weights as cast. With
    gradient checkpointing, of each layer its input, and all of this of one.
    """
    c, E = work.dtype_bytes, shape.hidden_size
    _, M, _ = _micro_batch(work)
    numbers = 4 * E + _qkv(shape) + shape.heads * shape.head_dim + 3 * shape.intermediate_size
    layer = M * (c * numbers + _FLOAT32 * (shape.heads + 2))
    cast = c < _FLOAT32
    layer += c * _matrices(shape) * cast
    embeddings = c * shape.vocab_size * E * cast
    outer = 2 * M * c * E + embeddings  # the last residual stream, before and after its norm
    if work.gradient_checkpointing:
        return shape.layers * M * c * E + layer + outer
    return shape.layers * layer + outer


def _micro_batch(work: Workload) -> tuple[int, int, int]:
    """The prompts, all tokens and the scored tokens of a micro-batch."""
    rows = min(work.micro_batch, work.answers_per_step)
    prompts = math.ceil(rows / work.answers_per_prompt) if work.native else rows
    scored = rows * work.completion_tokens
    return prompts, prompts * work.prompt_tokens + scored, scored


def _training(shape: DecoderShape, work: Workload, gradients: int) -> int:
    """What an update needs beside gradients: activations, logits and temporaries, in bytes."""
    c, E, V, F = work.dtype_bytes, shape.hidden_size, shape.vocab_size, shape.intermediate_size
    attended = shape.heads * shape.head_dim
    prompts, M, scored = _micro_batch(work)
    kept = activations(shape, work)
    embedding = _FLOAT32 * V * E if work.lora_rank is None else 0  # of the gradient of both embeddings
    if work.native:
        numbers = min(scored * V, max(CHUNK_NUMBERS, V))
        kept_logits = scored * V if work.lora_rank is None and scored * V <= KEPT_NUMBERS else 0
        head = (3 * _FLOAT32 + c) * numbers + c * kept_logits + embedding
        head += c * V * E if work.lora_rank is None else 0
    else:
        whole = M * V
        head = (c + 2 * _FLOAT32) * whole + 3 * _FLOAT32 * scored * V + embedding
    # Gradients of a layer's values, and of its largest matrix.
    backward = M * (c * 4 * F + 4 * _FLOAT32 * E) + (_FLOAT32 + c) * 2 * F * E
    if not work.fused_attention:  # scores, weights and their gradients, in float32 and the arithmetic's type
        pairs = scored * (work.completion_tokens + work.prompt_tokens)
        pairs += prompts * work.prompt_tokens**2
        backward += (3 * _FLOAT32 + 2 * c) * shape.heads * pairs
    elif c < _FLOAT32:  # attention's backward pass on CPUs is in float32
        backward += 8 * _FLOAT32 * M * attended
    accumulated = gradients if work.answers_per_step > work.micro_batch else 0
    # With one micro-batch, gradients take the place of activations.
    return max(kept + max(head, backward) + accumulated, gradients + 2 * embedding) - gradients


def _sampling(shape: DecoderShape, work: Workload, rows: int) -> int:
    """Logits of all rows with their probabilities and sums, and the prefill of their prompts."""
    c = work.dtype_bytes
    per_logit = c + 2 * _FLOAT32 + (_FLOAT32 if c < _FLOAT32 else 0)
    prompts = math.ceil(rows / work.answers_per_prompt) if work.native else rows
    values = 3 * shape.hidden_size + 2 * _qkv(shape) + 3 * shape.intermediate_size
    tokens = prompts * work.prompt_tokens
    if work.native and work.fused_attention:  # computed in parts
        tokens = min(tokens, max(PREFILL_TOKENS, work.prompt_tokens))
    return rows * shape.vocab_size * per_logit + tokens * c * values


def _cache_bytes(shape: DecoderShape, tokens: int, dtype_bytes: int) -> int:
    """Keys and values of one row of `tokens`."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * tokens * dtype_bytes


def _qkv(shape: DecoderShape) -> int:
    return (shape.heads + 2 * shape.kv_heads) * shape.head_dim


def _matrices(shape: DecoderShape) -> int:
    E, F = shape.hidden_size, shape.intermediate_size
    return E * (_qkv(shape) + shape.heads * shape.head_dim) + 3 * E * F


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
    """Bytes on each GPU, with whole copies and with all split; seconds of the fastest and slowest step.

    `sharded` is None for adapters, which are trained with whole copies.
    """

    memory: MemoryEstimate
    sharded: MemoryEstimate | None
    sampling_seconds: tuple[float, float]
    training_seconds: tuple[float, float]


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
    each = _of_each(work, gpus)
    answers = each.answers_per_step
    weights, c = parameters(shape), work.dtype_bytes
    prompts = math.ceil(answers / work.answers_per_prompt)
    tokens = prompts * work.prompt_tokens + answers * work.completion_tokens
    passes = 6 + 2 * work.gradient_checkpointing + 2 * work.reference
    training = passes * weights * tokens / (gpu.tflops * 1e12)
    context = work.prompt_tokens + work.completion_tokens / 2
    cached = 2 * shape.layers * shape.kv_heads * shape.head_dim * c * context * answers
    token = max((c * weights + cached) / (gpu.bandwidth * 1e9), 2 * weights * answers / (gpu.tflops * 1e12))
    prefill = 2 * weights * prompts * work.prompt_tokens / (gpu.tflops * 1e12)
    return Plan(
        estimate(shape, each),
        estimate(shape, replace(each, shards=gpus)) if work.lora_rank is None else None,
        _over_utilisation(work.completion_tokens * token + prefill, SAMPLING_UTILISATION),
        _over_utilisation(training, TRAINING_UTILISATION),
    )


def _of_each(work: Workload, gpus: int) -> Workload:
    """The part of one of several GPUs that share the answers of a step."""
    answers = math.ceil(work.answers_per_step / gpus)
    return replace(work, answers_per_step=answers, fused_attention=False)


def _over_utilisation(seconds: float, utilisation: tuple[float, float]) -> tuple[float, float]:
    low, high = utilisation
    return seconds / high, seconds / low


ESTIMATE_ERROR = 0.15
"""By how much of itself the estimate may be too low: the tests hold it to that on two models."""
PROMPT_TOKENS = 512
"""The length that is assumed of a pretrained model's prompts."""
_GIB = 2**30
# layers, hidden size, heads, key/value heads, intermediate size, vocabulary: of Qwen2.5 and Qwen2.5-Coder.
_QWEN = {
    "0.5": (24, 896, 14, 2, 4864, 151936),
    "1.5": (28, 1536, 12, 2, 8960, 151936),
    "3": (36, 2048, 16, 2, 11008, 151936),
    "7": (28, 3584, 28, 4, 18944, 152064),
    "14": (48, 5120, 40, 8, 13824, 152064),
    "32": (64, 5120, 40, 8, 27648, 152064),
}
_QWEN_3 = {
    "0.6": (28, 1024, 16, 8, 3072, 151936),
    "1.7": (28, 2048, 16, 8, 6144, 151936),
    "4": (36, 2560, 32, 8, 9728, 151936),
    "8": (36, 4096, 32, 8, 12288, 151936),
    "14": (40, 5120, 40, 8, 17408, 151936),
    "32": (64, 5120, 64, 8, 25600, 151936),
}


def model_shape(recipe: ModelRecipe) -> tuple[DecoderShape, bool] | None:
    """The shape of a recipe's model, and whether the native decoder computes it; None if it cannot be told.

    Nothing is fetched: of a model on the hub it is known once it is in the cache, and of Qwen2.5 and Qwen3
    before.
    """
    if recipe.model.id is None:
        sizes = recipe.model.shape
        return DecoderShape(head_dim=sizes.hidden_size // sizes.heads, **sizes.model_dump()), True
    if (published := _published_shape(recipe.model.id)) is not None:
        return published, True
    try:
        return shape_in(resolve(recipe.model.id, recipe.model.cache_dir, offline=True))
    except GreenwardError:
        return None


def _published_shape(name: str) -> DecoderShape | None:
    """The shape of a model of Qwen2.5, Qwen2.5-Coder or Qwen3 by its name on the hub."""
    named = re.fullmatch(r"Qwen/Qwen(2\.5|3)-(?:Coder-)?([\d.]+)B(?:-Instruct|-Base)?", name)
    if named is None or (sizes := {"2.5": _QWEN, "3": _QWEN_3}[named[1]].get(named[2])) is None:
        return None
    layers, hidden, heads, kv_heads, intermediate, vocab = sizes
    is_third = named[1] == "3"
    head_dim = 128 if is_third else hidden // heads
    return DecoderShape(
        vocab,
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        intermediate,
        40960 if is_third else 32768,
        qkv_bias=not is_third,
        qk_norm=is_third,
        tied_embeddings=hidden < (4096 if is_third else 3584),
    )


def shape_in(folder: Path) -> tuple[DecoderShape, bool] | None:
    """As `model_shape`, of a model folder."""
    try:
        folder = holding("config.json", folder)
        if shape := read_shape(folder):
            return shape, True
        config = read_json(folder / "config.json")
        inner = config.get("text_config")
        return shape_of(inner if isinstance(inner, dict) and inner else config, folder), False
    except GreenwardError:
        return None


def workload(
    recipe: ModelRecipe, *, dtype_bytes: int, gpu_bytes: int | None, native: bool, prompt_tokens: int
) -> Workload:
    """What the recipe asks of a model's memory on a GPU with `gpu_bytes`, or on a CPU (None)."""
    length = recipe.sampling.max_tokens
    length *= getattr(getattr(recipe, "environment", None), "max_turns", 1)
    if recipe.model.id is None:
        prompt_tokens = min(
            prompt_tokens, max(1, recipe.model.shape.max_positions - recipe.sampling.max_tokens)
        )
    work = Workload(
        dtype_bytes=dtype_bytes,
        answers_per_step=1,
        answers_per_prompt=1,
        micro_batch=1,
        prompt_tokens=prompt_tokens,
        completion_tokens=length,
        gradient_checkpointing=recipe.model.gradient_checkpointing is True,
        fused_attention=gpu_bytes is None,
        native=native,
    )
    if (lora := recipe.model.lora) is not None:
        targets = LORA_TARGETS if lora.target_modules == "all-linear" else tuple(lora.target_modules)
        work = replace(work, lora_rank=lora.r, lora_targets=targets)
    if not isinstance(recipe, ReinforcementRecipe):
        batch = recipe.warm_start.batch_size if recipe.warm_start else 1
        return replace(work, answers_per_step=batch, micro_batch=batch)
    training, rollouts = recipe.training, recipe.rollouts
    taken = int((gpu_bytes or 0) * rollouts.vllm.gpu_memory_utilization)
    algorithm: Any = recipe.algorithm
    kl = getattr(algorithm, "kl", None)
    return replace(
        work,
        answers_per_step=training.prompts_per_step * training.num_generations,
        answers_per_prompt=training.num_generations,
        micro_batch=training.micro_batch_sequences,
        engine_bytes={"native": None, "vllm": taken, "server": 0}[rollouts.engine],
        reference=kl is not None and (kl.coefficient > 0 or kl.measure),
        copies=int(isinstance(recipe, PPORecipe) and recipe.algorithm.critic.trunk == "separate"),
        imitates=getattr(algorithm, "self_imitation", None) is not None,
    )


def checkpoints(recipe: ModelRecipe, shape: DecoderShape, work: Workload, limit: int) -> bool:
    """Whether a recipe's training in `limit` bytes uses gradient checkpointing.

    Where the recipe leaves that to the memory (`auto`), it does if it would not fit without, by an estimate
    that may be too low by `ESTIMATE_ERROR`.
    """
    asked = recipe.model.gradient_checkpointing
    if asked != "auto":
        return asked
    whole = estimate(shape, replace(work, gradient_checkpointing=False)).total
    return whole * (1 + ESTIMATE_ERROR) > limit


def checkpoints_here(recipe: ModelRecipe) -> bool:
    """As `checkpoints`, with what this machine has left; on a GPU also where the shape cannot be told."""
    if (known := _workload_here(recipe)) is None:
        asked, device = recipe.model.gradient_checkpointing, resolve_device(recipe.model.device)
        return device.type != "cpu" if asked == "auto" else asked
    return known[1].gradient_checkpointing


def memory_lines(shape: DecoderShape, work: Workload, found: MemoryEstimate) -> list[str]:
    """The estimate for people, one line for each part."""
    lines = [
        f"{parameters(shape) / 1e6:,.1f} M parameters; estimated memory at the peak {_gib(found.total)}:"
    ]
    parts = {
        **found.state,
        **found.training,
        "while sampling, in place of the two": found.sampling + found.packed,
    }
    lines += [f"  {name}: {_gib(size)}" for name, size in parts.items()]
    return [*lines, f"  for prompts of {work.prompt_tokens} and answers of {work.completion_tokens} tokens"]


def check_memory(recipe: ModelRecipe) -> tuple[list[str], str | None]:
    """The lines of the estimate for this machine, and a warning where the training will hardly fit.

    Raises `ConfigError` where what must stay in memory is alone more than the device has left.
    """
    if (known := _estimate_here(recipe)) is None:
        return [f"{recipe.model.id}: its memory can be estimated once it is in the cache."], None
    shape, work, found = known
    device = resolve_device(recipe.model.device)
    left = free_bytes(device)
    lines = memory_lines(shape, work, found)
    if found.total <= left:
        return lines, None
    smaller = advice(shape, work, left)
    remedy = f"What fits: {smaller}." if smaller else "No setting makes it fit: train a smaller model."
    short = f"{device} has {_gib(left)} left"
    if sum(found.state.values()) + found.training["gradients"] > left:
        raise ConfigError(
            f"Weights, gradients and optimizer alone take {_gib(sum(found.state.values()))}; {short}.",
            remedy=remedy,
        )
    return lines, f"Training takes about {_gib(found.total)}, and {short}. {remedy}"


def estimated_mb(recipe: ModelRecipe) -> float | None:
    """The estimated peak of a training in MiB, on a CPU with what the process holds now; None if unknown."""
    if (known := _estimate_here(recipe)) is None:
        return None
    resident = resident_mb() if resolve_device(recipe.model.device).type != "cuda" else 0.0
    return resident + known[2].total / 2**20


def _estimate_here(recipe: ModelRecipe) -> tuple[DecoderShape, Workload, MemoryEstimate] | None:
    """The estimate for this machine, with what it follows from; None if the shape cannot be told."""
    known = _workload_here(recipe)
    return known and (*known, estimate(*known))


def _workload_here(recipe: ModelRecipe) -> tuple[DecoderShape, Workload] | None:
    """A recipe's shape and what it asks of the memory of this machine; None if the shape cannot be told."""
    if (known := model_shape(recipe)) is None:
        return None
    shape, native = known
    device = resolve_device(recipe.model.device)
    dtype = resolve_dtype(recipe.model.dtype, device)
    gpu_bytes = None if device.type != "cuda" else torch.cuda.mem_get_info(device)[1]
    work = workload(
        recipe, dtype_bytes=dtype.itemsize, gpu_bytes=gpu_bytes, native=native, prompt_tokens=PROMPT_TOKENS
    )
    if "true" in (os.environ.get("ACCELERATE_USE_FSDP"), os.environ.get("ACCELERATE_USE_DEEPSPEED")):
        work = replace(work, shards=int(os.environ.get("WORLD_SIZE", "1")))
    return shape, replace(work, gradient_checkpointing=checkpoints(recipe, shape, work, free_bytes(device)))


def check_sampling_memory(
    folder: Path,
    *,
    dtype: torch.dtype | str,
    device: torch.device,
    answers: int,
    answers_per_prompt: int,
    prompt_tokens: Sequence[int],
    completion_tokens: int,
) -> tuple[float | None, str]:
    """The estimated peak in MiB (None without a known shape) of sampling from a model, and a line on it.

    On a CPU the peak is that of the whole process. Raises `ConfigError` where the weights alone do not fit.
    """
    left = free_bytes(device)
    if (known := shape_in(folder)) is None:
        return None, f"memory: no estimate for this architecture; {_gib(left)} free on {device}"
    shape, native = known
    mean = math.ceil(sum(prompt_tokens) / len(prompt_tokens))
    work = Workload(
        # Weights of 8 bits are made of those that were read, which is when most memory is taken.
        dtype_bytes=resolve_dtype("auto" if dtype == INT8 else dtype, device).itemsize,
        answers_per_step=answers,
        answers_per_prompt=answers_per_prompt,
        micro_batch=1,
        prompt_tokens=mean if native else max(prompt_tokens),
        completion_tokens=completion_tokens,
        native=native,
    )
    found = sampling_estimate(shape, work)
    weights = found.state["weights"]
    if weights > left:
        raise ConfigError(
            f"The weights alone take {_gib(weights)}, and {device} has {_gib(left)} free.",
            remedy="End other programs, or use a smaller model.",
        )
    peak = found.total + (int(resident_mb() * 2**20) if device.type != "cuda" else 0)
    line = f"memory: estimated {_gib(peak)} at the peak, {_gib(left)} free"
    return peak / 2**20, line if found.total <= left else f"{line}: it will hardly fit"


def free_bytes(device: torch.device) -> int:
    """The memory that can still be taken there; MPS takes that of the machine."""
    return int(available_mb() * 2**20) if device.type != "cuda" else torch.cuda.mem_get_info(device)[0]


def peak_mb(device: torch.device) -> float:
    """The most memory taken so far, in MiB: by this process, or by its tensors on a GPU."""
    return peak_resident_mb() if device.type != "cuda" else torch.cuda.max_memory_allocated(device) / 2**20


def check_disk(recipe: ModelRecipe, output: Path) -> str | None:
    """A warning where the checkpoints that are kept will hardly fit on the disk of `output`."""
    if (known := model_shape(recipe)) is None:
        return None
    # Weights in the type of the arithmetic, and in trainer.pt in float32 with two moments of each AdamW.
    imitates = getattr(recipe.algorithm, "self_imitation", None) is not None
    size = parameters(known[0]) * (4 + 12 + 8 * imitates)
    training = recipe.training
    # A new one is written before an old one goes.
    count = training.keep_checkpoints + training.keep_spaced_checkpoints + 1
    needed = size * count
    there = next(one for one in (output, *output.absolute().parents) if one.exists())
    free = shutil.disk_usage(there).free
    if needed <= free:
        return None
    return (
        f"The disk is nearly full: {count} checkpoints take up to "
        f"{_gib(needed)}, and {_gib(free)} are free at {there}."
    )


def plan_lines(
    path: str, overrides: Sequence[str], *, gpu: str, gpus: int, price: float | None, prompt_tokens: int
) -> list[str]:
    """What training by a recipe takes on `gpus` GPUs of that name, for people. Raises `ConfigError`."""
    model = find_gpu(gpu)
    recipe = language_model(load_recipe(path, overrides, machine=lambda: Surroundings(model.preset)))
    if (known := model_shape(recipe)) is None:
        raise ConfigError(
            f"The shape of {recipe.model.id} is not at hand: it is no local folder and not in the cache.",
            remedy=f"hf download {recipe.model.id}, or give model.shape and no model.id.",
        )
    shape, native = known
    size = 4 if recipe.model.dtype == "float32" else 2
    limit = model.memory * _GIB
    work = workload(recipe, dtype_bytes=size, gpu_bytes=limit, native=native, prompt_tokens=prompt_tokens)
    checkpointed = checkpoints(recipe, shape, _of_each(work, gpus), limit)
    work = replace(work, gradient_checkpointing=checkpointed)
    found = make_plan(shape, work, model, gpus)
    lines = [
        f"{recipe.name} on {gpus} × {gpu} ({model.memory} GiB each): unmeasured, from data sheets",
        *memory_lines(shape, work, found.memory),
    ]
    for kind, memory in {"whole copies": found.memory, "sharded": found.sharded}.items():
        if memory is not None and (kind == "whole copies" or gpus > 1):
            fits = "fits" if memory.total <= limit else "does NOT fit"
            lines.append(f"memory of each GPU, {kind}: {_gib(memory.total)} of {_gib(limit)}: {fits}")
    lines.append(f"gradient checkpointing: {'on' if checkpointed else 'off'}")
    if found.memory.total > limit and (smaller := advice(shape, _of_each(work, gpus), limit)):
        lines.append(f"what fits: {smaller}")
    steps = recipe.training.max_steps if isinstance(recipe, ReinforcementRecipe) else 1
    sampling, training = found.sampling_seconds, found.training_seconds
    fast, slow = map(sum, zip(sampling, training, strict=True))
    lines += [
        f"a step: {_shown_range(fast, slow)} s (sampling {_shown_range(*sampling)}, "
        f"training {_shown_range(*training)}), "
        f"all answers {work.completion_tokens} tokens long",
        f"{steps} steps: {_shown_range(steps * fast / 3600, steps * slow / 3600)} hours, without judging, "
        "evaluation and communication between GPUs",
    ]
    if price is not None:
        hours = steps * gpus * price / 3600
        lines.append(f"cost at {price:g} an hour for each GPU: {hours * fast:,.2f} to {hours * slow:,.2f}")
    return lines


def _shown_range(low: float, high: float) -> str:
    return " to ".join(f"{value:,.1f}" if value >= 10 else f"{value:.2g}" for value in (low, high))


def _gib(size: int) -> str:
    return f"{size / _GIB:,.1f} GiB" if size >= _GIB / 10 else f"{size / 2**20:,.0f} MiB"
