"""Sampling, training and memory of random models of real shapes, beside `transformers.generate`.

Weights do not matter for speed, so they are random; prompts and answers have fixed lengths, and no answer
ends early. Printed are, for each of `--shapes`:

- tokens per second of sampling, by the native engine and by `transformers.generate`;
- tokens per second of the GRPO update, and both parts' model FLOPs utilisation: the arithmetic that the model
  needs, without recomputation, over what the device's data sheet promises for dense bfloat16;
- what each part of the path for GPUs gains (`PARTS`): the time, and on CUDA the peak of memory, of sampling
  or update without the part over that with it, in turns; and whether flex attention and graphs were used,
  which they never are on a CPU;
- the peak of the device's memory beside the estimate of `greenward plan` (on CUDA);
- `--lora-steps` steps of GRPO with an adapter of rank 16: seconds a step, peak, and the adapter's change.

TRL on a GPU: `benchmarks/grpo_vs_trl.py --device cuda`; vLLM: `make test-vllm` and `rollouts.engine=vllm`.

    python benchmarks/gpu.py --device cuda --shapes 0.5b 1.5b --lora-steps 50
    python benchmarks/gpu.py --device cpu --shapes tiny --prompts 2 --max-tokens 16 --lora-steps 2 --rounds 1
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from greenward.config.sections import GRPOAlgorithmConfig, LoraConfig, TrainingConfig
from greenward.models import flex, sampler
from greenward.models import sampler as decoding
from greenward.models.decoder import Decoder, DecoderShape
from greenward.models.memory import Workload, estimate, parameters
from greenward.models.policy import Policy
from greenward.models.tokenizer import train_tokenizer
from greenward.rollouts.protocols import Completion, Episode, SamplingParams, Turn
from greenward.training.advantages import ESTIMATORS
from greenward.training.collector import Collector
from greenward.training.trainer import RLTrainer
from side_by_side import spread

DENSE_BF16_TFLOPS = {"H200": 989, "H100": 989, "A100": 312, "L40S": 362, "L4": 121, "A10G": 70, "4090": 165}

PARTS = {
    "flex attention": ("sampling", "update"),
    "CUDA graphs": ("sampling",),
    "checks every few tokens": ("sampling",),
    "one cast for each step": ("update",),
}

COMMON: dict[str, Any] = {
    "vocab_size": 151_936,
    "kv_heads": 2,
    "head_dim": 64,
    "max_positions": 4096,
    "rope_theta": 1e6,
    "qkv_bias": True,
}
SHAPES: dict[str, dict[str, Any]] = {  # Qwen2.5's, and one for trying this program out
    "tiny": {"hidden_size": 128, "layers": 2, "heads": 2, "intermediate_size": 384},
    "0.5b": {"hidden_size": 896, "layers": 24, "heads": 14, "intermediate_size": 4864},
    "1.5b": {"hidden_size": 1536, "layers": 28, "heads": 12, "intermediate_size": 8960, "head_dim": 128},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["0.5b", "1.5b"])
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=320)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lora-steps", type=int, default=0)
    parser.add_argument("--peak-tflops", type=float, help="dense bfloat16, for devices not known here")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    records = {name: measure(name, device, arguments) for name in arguments.shapes}
    print(json.dumps(records, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(records, indent=2) + "\n")


def measure(name: str, device: torch.device, arguments: argparse.Namespace) -> dict[str, Any]:
    """The record of one shape."""
    shape = DecoderShape(**COMMON | SHAPES[name])
    rng = np.random.default_rng(0)
    size = (arguments.prompts, arguments.prompt_tokens)
    prompts = [tuple(row) for row in rng.integers(300, shape.vocab_size, size).tolist()]
    params = SamplingParams(max_tokens=arguments.max_tokens)
    policy = random_policy(shape, device)
    trainer = trainer_of(policy, arguments)
    forget_peak(device)
    groups = policy.sample(prompts, arguments.group_size, params, seed=0)
    episodes = episodes_of(prompts, groups)
    advantages = ESTIMATORS["grpo"](episodes)
    works: dict[str, Callable[[], object]] = {
        "sampling": lambda: policy.sample(prompts, arguments.group_size, params, seed=1),
        "update": lambda: trainer.update(episodes, advantages, 0),
    }
    sampling, update = (seconds_of(work, arguments.rounds, device) for work in works.values())
    peak_of_all = peak_bytes(device)
    gains = {
        title: {name: gain(works[name], policy, parts, arguments.rounds, device) for name in names}
        for title, parts, names in (
            *((part, [part], names) for part, names in PARTS.items()),
            ("all", PARTS, works),
        )
    }
    lengths = [len(turn.completion_ids) for episode in episodes for turn in episode.turns]
    work = Workload(
        dtype_bytes=2,
        answers_per_step=len(lengths),
        answers_per_prompt=arguments.group_size,
        micro_batch=arguments.micro_batch,
        prompt_tokens=arguments.prompt_tokens,
        completion_tokens=arguments.max_tokens,
        fused_attention=device.type == "cpu" or flex.flex_serves(policy.model),
    )
    device_name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    peak = arguments.peak_tflops or next(
        (v for key, v in DENSE_BF16_TFLOPS.items() if key in device_name), None
    )
    flops = forward_flops(policy.model, shape, arguments.prompts, arguments.prompt_tokens, lengths)
    record: dict[str, Any] = {
        "device": device_name,
        "torch": torch.__version__,
        "parameters": parameters(shape),
        "completions": len(lengths),
        "peak_bytes": peak_of_all,
        "estimated_bytes": estimate(shape, work).total,
        "used": {
            "flex attention": flex.flex_serves(policy.model),
            "CUDA graphs": graphs_of(policy)._captures,
        },
        "without_over_with": gains,
    }
    for part, seconds, passes in (("sampling", sampling, 1), ("update", update, 3)):
        achieved = passes * flops / seconds / 1e12
        record[part] = {
            "seconds": seconds,
            "completion_tokens_per_second": sum(lengths) / seconds,
            "achieved_tflops": achieved,
            "model_flops_utilisation": None if peak is None else achieved / peak,
        }
    with tempfile.TemporaryDirectory() as folder:
        policy.save(Path(folder, "model"))
        seconds = transformers_seconds(Path(folder, "model"), prompts, device, arguments)
        record["transformers_generate"] = {
            "seconds": seconds,
            "completion_tokens_per_second": len(lengths) * arguments.max_tokens / seconds,
        }
    if arguments.lora_steps:
        del policy, trainer, works  # whose memory is not the adapter's
        record["lora"] = lora_steps(shape, prompts, device, arguments)
    return record


def trainer_of(policy: Policy, arguments: argparse.Namespace, rate: float = 1e-9) -> RLTrainer:
    return RLTrainer(
        policy,
        Collector(None, {}, groups_per_step=1, seed=0),  # the episodes are made here
        ESTIMATORS["grpo"],
        GRPOAlgorithmConfig(),
        TrainingConfig(
            prompts_per_step=arguments.prompts,
            num_generations=arguments.group_size,
            micro_batch_sequences=arguments.micro_batch,
            learning_rate=rate,
        ),
        max_completion_tokens=arguments.max_tokens,
    )


def transformers_seconds(
    folder: Path, prompts: Sequence[Sequence[int]], device: torch.device, arguments: argparse.Namespace
) -> float:
    """The median time in which `transformers.generate` samples as many answers of full length."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    rows = torch.tensor(prompts, device=device).repeat_interleave(arguments.group_size, 0)

    def generate() -> None:
        model.generate(
            rows,
            attention_mask=torch.ones_like(rows),
            do_sample=True,
            top_k=0,
            min_new_tokens=arguments.max_tokens,
            max_new_tokens=arguments.max_tokens,
            pad_token_id=0,
        )

    return seconds_of(generate, arguments.rounds, device)


def lora_steps(
    shape: DecoderShape,
    prompts: Sequence[tuple[int, ...]],
    device: torch.device,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Whole steps of GRPO with an adapter: sampling, a reward by the first token's parity, the update."""
    policy = random_policy(shape, device)
    policy.add_adapter(LoraConfig(), seed=0)
    before = [one.detach().clone() for one in policy.parameters() if one.requires_grad]
    trainer = trainer_of(policy, arguments, rate=1e-4)
    params = SamplingParams(max_tokens=arguments.max_tokens)
    forget_peak(device)
    seconds, rewards = [], []
    for step in range(arguments.lora_steps):
        started = time.perf_counter()
        episodes = episodes_of(prompts, policy.sample(prompts, arguments.group_size, params, seed=step))
        trainer.update(episodes, ESTIMATORS["grpo"](episodes), step)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        rewards.append(float(np.mean([episode.reward for episode in episodes])))
    after = [one.detach() for one in policy.parameters() if one.requires_grad]
    return {
        "steps": arguments.lora_steps,
        "median_seconds_per_step": float(np.median(seconds)),
        "peak_bytes": peak_bytes(device),
        "mean_reward_of_first_and_last_fifth": [
            float(np.mean(part))
            for part in (rewards[: len(rewards) // 5 or 1], rewards[-len(rewards) // 5 :])
        ],
        "largest_change": max(
            float((one - other).abs().max()) for one, other in zip(after, before, strict=True)
        ),
    }


def forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else None


def random_policy(shape: DecoderShape, device: torch.device) -> Policy:
    """Ids are random, so a small tokenizer will do; its end token is as unlikely as any other."""
    decoder = Decoder(shape, compute_dtype=torch.bfloat16).to(device)
    decoder.initialise(torch.Generator(device).manual_seed(0))
    return Policy(decoder, train_tokenizer(["text"], 300), dtype=torch.bfloat16)


def episodes_of(prompts: Sequence[tuple[int, ...]], groups: Sequence[Sequence[Completion]]) -> list[Episode]:
    """One episode for each completion; its reward is 1 if its first token is even, else 0."""
    episodes = []
    for group_id, (prompt, group) in enumerate(zip(prompts, groups, strict=True)):
        for one in group:
            wrote_T = np.ones(len(one.token_ids), dtype=bool)
            turn = Turn("writer", prompt, one.token_ids, one.logprobs, wrote_T, one.stop_reason, 0)
            reward = float(one.token_ids[0] % 2 == 0)
            episodes.append(Episode((turn,), {"writer": reward}, group_id, str(group_id), "written"))
    return episodes


def graphs_of(policy: Policy) -> Any:
    return policy._decoding._graph  # type: ignore[attr-defined]


def without(parts: Iterable[str], policy: Policy) -> ExitStack:
    """Inside, the operations that the parts replace compute."""
    ways: dict[str, list[Any]] = {
        "flex attention": [
            patch.object(where, "flex_serves", lambda decoder: False) for where in (flex, decoding)
        ],
        "CUDA graphs": [patch.object(graphs_of(policy), "_captures", False)],
        "checks every few tokens": [patch.dict(sampler._CHECKED_EVERY, clear=True)],
        "one cast for each step": [patch.object(Decoder, "casting_once", lambda decoder: nullcontext())],
    }
    stack = ExitStack()
    for part in parts:
        for way in ways[part]:
            stack.enter_context(way)
    return stack


def gain(
    work: Callable[[], object], policy: Policy, left_out: Iterable[str], rounds: int, device: torch.device
) -> dict[str, Any]:
    """Time and peak of memory without some parts over those with them; the first round is not counted."""
    times, peaks = [], []
    for _ in range(rounds + 1):
        forget_peak(device)
        having, whole = timed(work, device), peak_bytes(device)
        forget_peak(device)
        with without(left_out, policy):
            lacking = timed(work, device)
        times.append(lacking / having)
        if whole is not None:
            peaks.append((peak_bytes(device) or 0) / whole)
    return {"time": spread(times[1:]), **({"peak": spread(peaks[1:])} if peaks else {})}


def timed(work: Callable[[], object], device: torch.device) -> float:
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def seconds_of(work: Callable[[], object], rounds: int, device: torch.device) -> float:
    """The median of several rounds, after one that is not counted."""
    return float(np.median([timed(work, device) for _ in range(rounds + 1)][1:]))


def forward_flops(
    model: torch.nn.Module, shape: DecoderShape, prompts: int, prompt_tokens: int, lengths: Sequence[int]
) -> float:
    """One forward pass, each prompt read once: matrices, causal attention, logits of completions."""
    matrices = sum(
        p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embedding" not in name
    )
    inputs = prompts * prompt_tokens + sum(lengths)
    attended = prompts * prompt_tokens**2 / 2 + sum(prompt_tokens * n + n**2 / 2 for n in lengths)
    attention = 4 * shape.layers * shape.heads * shape.head_dim * attended
    return 2 * matrices * inputs + attention + 2 * shape.vocab_size * shape.hidden_size * sum(lengths)


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
