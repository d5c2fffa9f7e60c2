"""What an adapter takes and gives: peak memory of updates, the cost of sampling, and what a tiny run learns.

Memory is that of one process above what it takes after its imports: the model, a batch of answers sampled,
and two steps of AdamW on them. Speed is processor time, adapter and all weights by turns, the median of
rounds, so that other programs on the machine hardly matter.

    python benchmarks/lora.py memory
    python benchmarks/lora.py sampling
    python benchmarks/lora.py learning
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from greenward.config.loading import load_recipe
from greenward.config.sections import LoraConfig, ShapeConfig, SupervisedConfig
from greenward.models.policy import Policy
from greenward.models.tokenizer import Tokenizer, train_tokenizer
from greenward.recipes.run import train
from greenward.rollouts.protocols import SamplingParams
from greenward.runs.machine import peak_resident_mb, resident_mb
from greenward.runs.reading import read_metrics
from greenward.training.protocols import Example
from greenward.training.sft import SFTTrainer

SHAPES = {
    "60 M": ShapeConfig(layers=8, hidden_size=768, heads=12, kv_heads=4, intermediate_size=2560),
    "160 M": ShapeConfig(layers=10, hidden_size=1152, heads=18, kv_heads=6, intermediate_size=3584),
}
SMALL = ShapeConfig(layers=4, hidden_size=128, heads=4, kv_heads=4, intermediate_size=384)
STARTER = Path(__file__).parents[1] / "tests" / "system" / "recorded_runs"


def tokenizer() -> Tokenizer:
    return train_tokenizer(["def add(a, b):\n    return a + b\n"] * 5, 300)


def measure_memory(shape: str, dtype: str, lora: bool) -> None:
    """Print the parameters, those that are trained, and the peak in MiB above the imports."""
    before = resident_mb()
    policy = Policy.random(SHAPES[shape], tokenizer(), seed=0, dtype=dtype, device="cpu")
    if lora:
        policy.add_adapter(LoraConfig(), seed=0)
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    (group,) = policy.sample([[5, 6, 7, 8] * 4], 2, SamplingParams(max_tokens=16), seed=0)
    batch = [Example((5, 6, 7, 8) * 4, tuple(map(int, answer.token_ids))) for answer in group]
    trainer = SFTTrainer(policy, batch, SupervisedConfig(max_steps=2, batch_size=len(batch)), seed=0)
    for step in range(2):
        trainer.train_step(step)
    total = sum(parameter.numel() for parameter in policy.parameters())
    print(total, sum(parameter.numel() for parameter in trained), round(peak_resident_mb() - before))


def memory() -> None:
    print("| shape | arithmetic | all weights | adapter (r = 16) | share of parameters that are trained |")
    print("|---|---|---|---|---|")
    for shape in SHAPES:
        for dtype in ("float32", "bfloat16"):
            found = []
            for lora in (False, True):
                command = [sys.executable, __file__, "memory", shape, dtype, *(["lora"] if lora else [])]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found.append(list(map(int, done.stdout.split())))
            (_, _, whole), (total, trained, adapted) = found
            print(
                f"| {shape} | {dtype} | {whole:,} MiB | {adapted:,} MiB | {trained / total:.1%} |", flush=True
            )


def sampling() -> None:
    print("| shape | processor time of sampling, adapter over all weights |\n|---|---|")
    for name, shape, tokens, rounds in (("1 M", SMALL, 32, 15), ("60 M", SHAPES["60 M"], 12, 7)):
        policies = [Policy.random(shape, tokenizer(), seed=0, device="cpu") for _ in range(2)]
        policies[1].add_adapter(LoraConfig(), seed=0)
        params, prompts = SamplingParams(max_tokens=tokens), [[5 + n, 6, 7, 8] * 6 for n in range(8)]
        seconds: list[list[float]] = [[], []]
        for _ in range(rounds):
            for policy, taken in zip(policies, seconds, strict=True):
                started = time.process_time()
                policy.sample(prompts, 8, params, seed=0)
                taken.append(time.process_time() - started)
        print(f"| {name} | {statistics.median(seconds[1]) / statistics.median(seconds[0]):.2f} |", flush=True)


def learning() -> None:
    """GRPO from the small model of the tests, with an adapter and with all weights."""
    print("| seed | trained | pass rate of the first 5 steps | of the last 5 of 40 |\n|---|---|---|---|")
    settings = [
        "pretrained=null", "warm_start=null", f"model={STARTER / 'starter'}", "model.dtype=float32",
        f"problems.train={STARTER / 'problems.json'}", f"problems.held_out={STARTER / 'held_out.json'}",
        "sampling.max_tokens=20", "evaluation.enabled=false", "sandbox={workers: 1, require: D}",
        "training={max_steps: 40, prompts_per_step: 8, num_generations: 8, threads: 1}",
    ]  # fmt: skip
    for seed in (0, 1, 2):
        arms = {"all weights": ["training.learning_rate=1e-3"], "adapter": ["model.lora={r: 4, alpha: 8}"]}
        arms["adapter"].append("training.learning_rate=1e-2")
        for arm, own in arms.items():
            with tempfile.TemporaryDirectory() as folder:
                train(
                    load_recipe("quickstart", [*settings, *own, f"seed={seed}"]),
                    Path(folder) / "run",
                    quiet=True,
                )
                rates = [row["pass_rate"] for row in read_metrics(Path(folder) / "run/metrics.jsonl").rows]
            print(f"| {seed} | {arm} | {sum(rates[:5]) / 5:.1%} | {sum(rates[-5:]) / 5:.1%} |", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[2:]:
        measure_memory(sys.argv[2], sys.argv[3], "lora" in sys.argv)
    else:
        {"memory": memory, "sampling": sampling, "learning": learning}[sys.argv[1]]()


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
