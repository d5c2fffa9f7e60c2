"""The memory estimate beside the measured peak of real training steps, for several shapes and batches.

Each case runs in a process of its own: it trains a tiny decoder for a step, by which everything is imported,
notes its resident memory, makes the decoder of the case from random weights, and takes two steps of GRPO
(sampling, update) with random rewards. Measured is the peak of resident memory above that baseline.

    nice python benchmarks/memory_estimate.py --output benchmarks/results/memory_estimate.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MIB = 2**20
STEPS = 2


@dataclass(frozen=True)
class Case:
    """One shape and batch, with tied embeddings of `vocab` tokens; `lora` is the rank of an adapter."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    dtype: str = "float32"
    prompts: int = 2
    group: int = 4
    micro_batch: int = 4
    prompt_tokens: int = 64
    completion_tokens: int = 48
    gradient_checkpointing: bool = False
    reference: bool = False
    qkv_bias: bool = False
    lora: int | None = None


WIDE: dict[str, int] = {
    "layers": 8,
    "hidden": 768,
    "heads": 12,
    "kv_heads": 4,
    "intermediate": 2048,
    "vocab": 16384,
}
QWEN: dict[str, int] = {
    "layers": 4,
    "hidden": 896,
    "heads": 14,
    "kv_heads": 2,
    "intermediate": 4864,
    "vocab": 49152,
}
DEEP: dict[str, int] = {
    "layers": 24,
    "hidden": 448,
    "heads": 7,
    "kv_heads": 7,
    "intermediate": 1216,
    "vocab": 8192,
}
SMOLLM: dict[str, int] = {
    "layers": 30,
    "hidden": 576,
    "heads": 9,
    "kv_heads": 3,
    "intermediate": 1536,
    "vocab": 49152,
}
QWEN_05: dict[str, int] = {
    "layers": 24,
    "hidden": 896,
    "heads": 14,
    "kv_heads": 2,
    "intermediate": 4864,
    "vocab": 151936,
}
CASES = (
    Case("SmolLM2-135M", **SMOLLM),
    Case("Qwen2.5-0.5B, adapter", **QWEN_05, qkv_bias=True, lora=16, reference=True),
    Case("wide", **WIDE),
    Case("wide, one micro-batch", **WIDE, micro_batch=8),
    Case("wide, bfloat16", **WIDE, dtype="bfloat16"),
    Case("wide, long prompts", **WIDE, prompt_tokens=1024),
    Case("wide, long prompts, checkpointing", **WIDE, prompt_tokens=1024, gradient_checkpointing=True),
    Case("large vocabulary", **QWEN),
    Case("large vocabulary, bfloat16, reference", **QWEN, dtype="bfloat16", reference=True),
    Case("large vocabulary, many answers", **QWEN, prompts=4, group=16, micro_batch=16, completion_tokens=12),
    Case("deep", **DEEP, prompt_tokens=256),
    Case(
        "deep, bfloat16, checkpointing",
        **DEEP,
        dtype="bfloat16",
        prompt_tokens=512,
        gradient_checkpointing=True,
    ),
)


def shape_of(case: Case) -> Any:
    from greenward.models.decoder import DecoderShape

    return DecoderShape(
        vocab_size=case.vocab,
        hidden_size=case.hidden,
        layers=case.layers,
        heads=case.heads,
        kv_heads=case.kv_heads,
        head_dim=case.hidden // case.heads,
        intermediate_size=case.intermediate,
        max_positions=2048,
        qkv_bias=case.qkv_bias,
    )


def estimated(case: Case) -> Any:
    from greenward.models.memory import Workload, estimate

    return estimate(
        shape_of(case),
        Workload(
            dtype_bytes=4 if case.dtype == "float32" else 2,
            answers_per_step=case.prompts * case.group,
            answers_per_prompt=case.group,
            micro_batch=case.micro_batch,
            prompt_tokens=case.prompt_tokens,
            completion_tokens=case.completion_tokens,
            gradient_checkpointing=case.gradient_checkpointing,
            reference=case.reference,
            lora_rank=case.lora,
        ),
    )


def status_mib(field: str) -> float:
    """A field of /proc/self/status in MiB. (ru_maxrss would begin with the peak of the parent process.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def measure(case: Case) -> dict[str, float]:
    """In a process of its own: the peak above what imports took, in MiB."""
    train(replace(case, layers=1, hidden=16 * case.heads, intermediate=64, vocab=64), steps=1)
    baseline = status_mib("VmRSS")
    train(case, steps=STEPS)
    return {"baseline": baseline, "measured": status_mib("VmHWM") - baseline}


def train(case: Case, steps: int) -> None:
    """Steps of GRPO on random prompts with random rewards."""
    import numpy as np
    import torch

    from greenward.config.sections import GRPOAlgorithmConfig, LoraConfig, TrainingConfig
    from greenward.models.decoder import Decoder
    from greenward.models.policy import Policy, release_sampling
    from greenward.rollouts.protocols import Episode, SamplingParams, Turn
    from greenward.training.advantages import ESTIMATORS
    from greenward.training.trainer import RLTrainer

    dtype = getattr(torch, case.dtype)
    make = Decoder if case.lora is None else Decoder.frozen
    decoder = make(shape_of(case), compute_dtype=dtype)
    decoder.initialise(torch.Generator().manual_seed(0))
    tokenizer: Any = SimpleNamespace(vocab_size=case.vocab, pad_id=0, eos_ids=[-1])
    policy = Policy(decoder, tokenizer, dtype=decoder.compute_dtype)
    if case.lora is not None:
        policy.add_adapter(LoraConfig(r=case.lora), seed=0)
    policy.set_gradient_checkpointing(case.gradient_checkpointing)
    collector: Any = SimpleNamespace(players={})
    training = TrainingConfig(micro_batch_sequences=case.micro_batch, learning_rate=1e-5)
    algorithm = GRPOAlgorithmConfig.model_validate({"kl": {"coefficient": 0.01}} if case.reference else {})
    trainer = RLTrainer(
        policy,
        collector,
        ESTIMATORS["grpo"],
        algorithm,
        training,
        max_completion_tokens=case.completion_tokens,
        reference=policy.frozen_copy() if case.reference else None,
    )
    rng = np.random.default_rng(0)
    for step in range(steps):
        prompts = [rng.integers(1, case.vocab, case.prompt_tokens).tolist() for _ in range(case.prompts)]
        params = SamplingParams(max_tokens=case.completion_tokens)
        groups = policy.sample(prompts, case.group, params, seed=step)
        episodes = [
            Episode(
                (
                    Turn(
                        role="programmer",
                        prompt_ids=tuple(prompt),
                        completion_ids=answer.token_ids,
                        logprobs_T=answer.logprobs,
                        policy_wrote_T=np.ones(len(answer.token_ids), dtype=bool),
                        stop_reason=answer.stop_reason,
                        policy_version=answer.policy_version,
                    ),
                ),
                {"programmer": float(rng.random())},
                group_id=number,
                task_id=str(number),
                outcome="passed",
            )
            for number, (prompt, group) in enumerate(zip(prompts, groups, strict=True))
            for answer in group
        ]
        release_sampling(policy)
        trainer.update(episodes, ESTIMATORS["grpo"](episodes), step)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--case", help="measure this one only, in this process")
    parser.add_argument("--only", help="cases whose names contain this")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(next(case for case in CASES if case.name == arguments.case))))
        return
    from greenward.models.memory import parameters

    rows = []
    for case in CASES:
        if arguments.only and arguments.only not in case.name:
            continue
        command = [sys.executable, __file__, "--case", case.name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout)
        expected = estimated(case)
        row = {
            "case": case.name,
            "parameters": parameters(shape_of(case)),
            "estimated_mib": expected.total / MIB,
            "measured_mib": found["measured"],
            "error": expected.total / MIB / found["measured"] - 1,
        }
        rows.append(row)
        print(
            f"{case.name:40} {row['parameters'] / 1e6:6.0f} M  estimated {row['estimated_mib']:6.0f} MiB  "
            f"measured {row['measured_mib']:6.0f} MiB  {row['error']:+.1%}",
            flush=True,
        )
    if arguments.output:
        result = {
            "steps": STEPS,
            "cases": rows,
            "settings": [asdict(c) for c in CASES],
        }
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
