"""Tokens per second and model FLOPs utilisation of sampling and of the update, on one device.

A random checkpoint of the Qwen2.5-0.5B shape (weights do not matter for speed), prompts and answers
of fixed lengths: no answer ends early. Utilisation is the arithmetic that the model needs, without
recomputation, over what the device's data sheet promises for dense bfloat16.

    python benchmarks/throughput.py --device cuda
    python benchmarks/throughput.py --device cpu --layers 2 --prompts 2 --max-tokens 16
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from greenward.algorithms.advantages import ESTIMATORS
from greenward.algorithms.collection import Collector
from greenward.algorithms.trainer import RLTrainer
from greenward.config.algorithm import GRPOAlgorithmConfig
from greenward.config.sections import TrainingConfig
from greenward.environments.episode import Episode, Turn
from greenward.policies.decoder import Decoder, DecoderShape
from greenward.policies.engine import Completion, SamplingParams
from greenward.policies.policy import Policy
from greenward.policies.tokenizer import train_tokenizer

DENSE_BF16_TFLOPS = {"H200": 989, "H100": 989, "A100": 312, "L40S": 362, "L4": 121, "A10G": 70, "4090": 165}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=320)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peak-tflops", type=float, help="dense bfloat16, for devices not known here")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    shape = DecoderShape(
        vocab_size=151_936,
        hidden_size=896,
        layers=arguments.layers,
        heads=14,
        kv_heads=2,
        head_dim=64,
        intermediate_size=4864,
        max_positions=4096,
        rope_theta=1e6,
        qkv_bias=True,
    )
    policy = random_policy(shape, torch.device(arguments.device))
    rng = np.random.default_rng(0)
    size = (arguments.prompts, arguments.prompt_tokens)
    prompts = [tuple(row) for row in rng.integers(0, shape.vocab_size, size).tolist()]
    params = SamplingParams(max_tokens=arguments.max_tokens)
    trainer = RLTrainer(
        policy,
        Collector(None, {}, groups_per_step=1, seed=0),  # the episodes are made here
        ESTIMATORS["grpo"],
        GRPOAlgorithmConfig(),
        TrainingConfig(
            prompts_per_step=arguments.prompts,
            num_generations=arguments.group_size,
            micro_batch_sequences=arguments.micro_batch,
            learning_rate=1e-9,
        ),
        max_completion_tokens=arguments.max_tokens,
    )

    groups = policy.sample(prompts, arguments.group_size, params, seed=0)
    episodes = [
        make_episode(group_id, prompts[group_id], completion, reward=float(index % 2))
        for group_id, group in enumerate(groups)
        for index, completion in enumerate(group)
    ]
    advantages = ESTIMATORS["grpo"](episodes)
    sampling = seconds_of(
        lambda: policy.sample(prompts, arguments.group_size, params, seed=1), arguments.rounds, policy.device
    )
    update = seconds_of(lambda: trainer.update(episodes, advantages, 0), arguments.rounds, policy.device)

    name = torch.cuda.get_device_name() if policy.device.type == "cuda" else "cpu"
    peak = arguments.peak_tflops or next((v for key, v in DENSE_BF16_TFLOPS.items() if key in name), None)
    lengths = [len(turn.completion_ids) for episode in episodes for turn in episode.turns]
    flops = forward_flops(policy.model, shape, arguments.prompts, arguments.prompt_tokens, lengths)
    record = {
        "device": name,
        "torch": torch.__version__,
        "dense_bf16_tflops": peak,
        "completions": len(lengths),
    }
    for part, seconds, passes in (("sampling", sampling, 1), ("update", update, 3)):
        achieved = passes * flops / seconds / 1e12
        record[part] = {
            "seconds": seconds,
            "completion_tokens_per_second": sum(lengths) / seconds,
            "achieved_tflops": achieved,
            "model_flops_utilisation": None if peak is None else achieved / peak,
        }
    print(json.dumps(record, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


def random_policy(shape: DecoderShape, device: torch.device) -> Policy:
    """Ids are random, so a small tokenizer will do; its end token is as unlikely as any other."""
    decoder = Decoder(shape, compute_dtype=torch.bfloat16).to(device)
    decoder.initialise(torch.Generator(device).manual_seed(0))
    return Policy(decoder, train_tokenizer(["text"], 300), dtype=torch.bfloat16)


def make_episode(group_id: int, prompt: tuple[int, ...], completion: Completion, reward: float) -> Episode:
    wrote_T = np.ones(len(completion.token_ids), dtype=bool)
    turn = Turn(
        "writer", prompt, completion.token_ids, completion.logprobs, wrote_T, completion.stop_reason, 0
    )
    return Episode((turn,), {"writer": reward}, group_id, str(group_id), "written")


def seconds_of(work: Callable[[], object], rounds: int, device: torch.device) -> float:
    """The median of several rounds, after one that is not counted."""
    seconds = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds[1:]))


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
    main()
