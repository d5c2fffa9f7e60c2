"""An estimate of the memory that training a model takes, before anything is loaded.

It follows the native decoder and trainer: what stays (trained weights in float32, AdamW's two moments,
copies in the type of the arithmetic, keys and values), and the larger of what sampling and training need
beside it. On CPUs it is checked against measured peaks (`benchmarks/memory_estimate.py`).

Shape suffixes of comments: M tokens of a micro-batch, E hidden size, F intermediate size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from greenward.policies.decoder import DecoderShape
from greenward.policies.decoding import CACHE_BYTES
from greenward.policies.sampler import Sampler
from greenward.policies.scoring import CHUNK_NUMBERS

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
    trainable copies of the model (a critic's own trunk). `engine_bytes` is what another engine takes for
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

    @property
    def total(self) -> int:
        return sum(self.state.values()) + max(self.sampling, sum(self.training.values()))


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
    copied = samples_itself and c < _FLOAT32 and work.native and work.lora_rank is None
    if work.native:
        rows = min(rows, max(1, CACHE_BYTES // (2 * _cache_bytes(shape, work.completion_tokens, c))))
    cache = (2 * rows if work.native else rows) * _cache_bytes(shape, work.completion_tokens, c)
    prompts = math.ceil(rows / work.answers_per_prompt) if work.native else rows
    cache += prompts * _cache_bytes(shape, work.prompt_tokens, c)
    state = {
        "weights": (_FLOAT32 * trained * (1 + work.copies) + c * (all_weights - trained)) // work.shards,
        "adapter": _FLOAT32 * adapter,
        "optimizer": 2 * _FLOAT32 * learnt // work.shards,
        "reference": frozen // work.shards,
        "weights for sampling": c * all_weights if copied else 0,
        "keys and values": cache if samples_itself else 0,
        "other engine": work.engine_bytes or 0,
    }
    gradients = _FLOAT32 * learnt // work.shards
    training = {"gradients": gradients, "activations and logits": _training(shape, work, gradients)}
    return MemoryEstimate(
        {name: size for name, size in state.items() if size},
        _sampling(shape, work, rows) if samples_itself else 0,
        training,
    )


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
    embedding = _FLOAT32 * V * E
    if work.native:
        numbers = min(scored * V, max(CHUNK_NUMBERS, V))
        head = (3 * _FLOAT32 + c) * numbers + embedding + c * V * E
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
    return rows * shape.vocab_size * per_logit + prompts * work.prompt_tokens * c * values


def _cache_bytes(shape: DecoderShape, tokens: int, dtype_bytes: int) -> int:
    """Keys and values of one row of `tokens`."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * tokens * dtype_bytes


def _qkv(shape: DecoderShape) -> int:
    return (shape.heads + 2 * shape.kv_heads) * shape.head_dim


def _matrices(shape: DecoderShape) -> int:
    E, F = shape.hidden_size, shape.intermediate_size
    return E * (_qkv(shape) + shape.heads * shape.head_dim) + 3 * E * F
