"""Whether a recipe's training fits into memory and on the disk, from its config alone."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from greenward.config.loading import load_recipe
from greenward.config.recipe import (
    CodeRecipe,
    ModelRecipe,
    PPORecipe,
    Recipe,
    ReinforcementRecipe,
    language_model,
)
from greenward.errors import ConfigError, GreenwardError
from greenward.platforms.memory import LORA_TARGETS, MemoryEstimate, Workload, advice, estimate, parameters
from greenward.platforms.plan import find_gpu, make_plan
from greenward.policies.checkpoint import read_shape, resolve, shape_of
from greenward.policies.decoder import DecoderShape
from greenward.policies.devices import resolve_device, resolve_dtype
from greenward.policies.tokenizer import read_json
from greenward.runs.machine import available_mb

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


def model_shape(recipe: ModelRecipe) -> tuple[DecoderShape, bool] | None:
    """The shape of a recipe's model, and whether the native decoder computes it; None if it cannot be told.

    Nothing is fetched: of a model on the hub it is known once it is in the cache, and of Qwen2.5 before.
    """
    if recipe.model.id is None:
        sizes = recipe.model.shape
        head_dim = sizes.hidden_size // sizes.heads
        return DecoderShape(head_dim=head_dim, **sizes.model_dump()), True
    qwen = re.fullmatch(r"Qwen/Qwen2\.5-(?:Coder-)?([\d.]+)B(?:-Instruct)?", recipe.model.id)
    if qwen and qwen[1] in _QWEN:
        layers, hidden, heads, kv_heads, intermediate, vocab = _QWEN[qwen[1]]
        numbers = (vocab, hidden, layers, heads, kv_heads, hidden // heads, intermediate, 32768)
        return DecoderShape(*numbers, qkv_bias=True, tied_embeddings=hidden < 3584), True
    try:
        folder = resolve(recipe.model.id, recipe.model.cache_dir, offline=True)
        if shape := read_shape(folder):
            return shape, True
        config = read_json(folder / "config.json")
        inner = config.get("text_config")
        return shape_of(inner if isinstance(inner, dict) and inner else config, folder), False
    except GreenwardError:
        return None


def workload(
    recipe: Recipe, *, dtype_bytes: int, gpu_bytes: int | None, native: bool, prompt_tokens: int
) -> Workload:
    """What the recipe asks of a model's memory on a GPU with `gpu_bytes`, or on a CPU (None)."""
    length = recipe.sampling.max_tokens
    if isinstance(recipe, CodeRecipe):
        length *= recipe.environment.max_turns
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
        gradient_checkpointing=recipe.model.gradient_checkpointing,
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
        reference=kl is not None and kl.coefficient > 0,
        copies=int(isinstance(recipe, PPORecipe) and recipe.algorithm.critic.trunk == "separate"),
    )


def memory_lines(shape: DecoderShape, work: Workload, found: MemoryEstimate) -> list[str]:
    """The estimate for people, one line for each part."""
    lines = [
        f"{parameters(shape) / 1e6:,.1f} M parameters; estimated memory at the peak {_gib(found.total)}:"
    ]
    parts = {**found.state, **found.training, "while sampling, in place of the two": found.sampling}
    lines += [f"  {name}: {_gib(size)}" for name, size in parts.items()]
    return [*lines, f"  for prompts of {work.prompt_tokens} and answers of {work.completion_tokens} tokens"]


def check_memory(recipe: Recipe) -> tuple[list[str], str | None]:
    """The lines of the estimate for this machine, and a warning where the training will hardly fit.

    Raises `ConfigError` where what must stay in memory is alone more than the device has left.
    """
    known = model_shape(recipe)
    if known is None:
        return [f"{recipe.model.id}: its memory can be estimated once it is in the cache."], None
    shape, native = known
    device = resolve_device(recipe.model.device)
    on_cpu = device.type == "cpu"
    dtype = resolve_dtype(recipe.model.dtype, device)
    left, gpu_bytes = (int(available_mb() * 2**20), None) if on_cpu else torch.cuda.mem_get_info(device)
    work = workload(
        recipe, dtype_bytes=dtype.itemsize, gpu_bytes=gpu_bytes, native=native, prompt_tokens=PROMPT_TOKENS
    )
    if "true" in (os.environ.get("ACCELERATE_USE_FSDP"), os.environ.get("ACCELERATE_USE_DEEPSPEED")):
        work = replace(work, shards=int(os.environ.get("WORLD_SIZE", "1")))
    found = estimate(shape, work)
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


def check_disk(recipe: Recipe, output: Path) -> str | None:
    """A warning where the checkpoints that are kept will hardly fit on the disk of `output`."""
    known = model_shape(recipe)
    if known is None:
        return None
    # Weights in the type of the arithmetic, and in trainer.pt in float32 with AdamW's two moments.
    size = parameters(known[0]) * (4 + 12)
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
    recipe = language_model(load_recipe(path, overrides, machine=lambda: model.preset))
    known = model_shape(recipe)
    if known is None:
        raise ConfigError(
            f"The shape of {recipe.model.id} is not at hand: it is no local folder and not in the cache.",
            remedy=f"hf download {recipe.model.id}, or give model.shape and no model.id.",
        )
    shape, native = known
    size = 4 if recipe.model.dtype == "float32" else 2
    limit = model.memory * _GIB
    work = workload(recipe, dtype_bytes=size, gpu_bytes=limit, native=native, prompt_tokens=prompt_tokens)
    found = make_plan(shape, work, model, gpus)
    lines = [
        f"{recipe.name} on {gpus} × {gpu} ({model.memory} GiB each): unmeasured, from data sheets",
        *memory_lines(shape, work, found.memory),
    ]
    for kind, memory in {"whole copies": found.memory, "sharded": found.sharded}.items():
        if kind == "whole copies" or gpus > 1:
            fits = "fits" if memory.total <= limit else "does NOT fit"
            lines.append(f"memory of each GPU, {kind}: {_gib(memory.total)} of {_gib(limit)}: {fits}")
    if found.memory.total > limit and (smaller := advice(shape, work, limit)):
        lines.append(f"what fits: {smaller}")
    steps = recipe.training.max_steps if isinstance(recipe, ReinforcementRecipe) else 1
    fast, slow = found.step_seconds
    sampling, training = found.sampling_seconds, found.training_seconds
    lines += [
        f"a step: {_range(fast, slow)} s (sampling {_range(*sampling)}, training {_range(*training)}), "
        f"all answers {work.completion_tokens} tokens long",
        f"{steps} steps: {_range(steps * fast / 3600, steps * slow / 3600)} hours, without judging, "
        "evaluation and communication between GPUs",
    ]
    if price is not None:
        hours = steps * gpus * price / 3600
        lines.append(f"cost at {price:g} an hour for each GPU: {hours * fast:,.2f} to {hours * slow:,.2f}")
    return lines


def _range(low: float, high: float) -> str:
    return " to ".join(f"{value:,.1f}" if value >= 10 else f"{value:.2g}" for value in (low, high))


def _gib(size: int) -> str:
    return f"{size / _GIB:,.1f} GiB" if size >= _GIB / 10 else f"{size / 2**20:,.0f} MiB"
