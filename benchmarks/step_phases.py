"""CPU time of each phase of a step beside that of its matrix products alone, in one run and the same shapes.

    .venv/bin/python benchmarks/step_phases.py [--dtype bfloat16] [--prompt-tokens 64] [--threads 1]

A step of GRPO is that of `grpo_vs_trl.py`; grading is left out. A step of the warm start trains on 64
examples of such lengths. The matrix products of one step are noted as they are called, and computed again
alone, each as often as it was; the least of six measurements counts. A share is what they take of the phase.
Those of a step of decoding in one call (`kernels/step.h`) are computed again by torch, for all rows at once.
Exit code 1 where sampling, the update or the warm start has a smaller one than `--least`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from greenward.config.sections import SupervisedConfig
from greenward.models.decoder import MATRICES
from greenward.models.kernels.native import Kernels
from greenward.models.kernels.step import KernelStep
from greenward.models.policy import Policy
from greenward.models.sampler import NativeDecoding
from greenward.training.protocols import Example
from greenward.training.sft import SFTTrainer
from greenward.training.trainer import RLTrainer
from grpo_step import trainer_on_texts
from side_by_side import machine, make_inputs

FACTORS = {torch.ops.aten.mm.default: (0, 1), torch.ops.aten.addmm.default: (1, 2)}
SAMPLING, UPDATE = "sampling", "update"
PHASES: Sequence[tuple[Any, str, str]] = (
    (Policy, "sample", f"{SAMPLING}: the rest"),
    (NativeDecoding, "add", f"{SAMPLING}: prompts"),
    (NativeDecoding, "step", f"{SAMPLING}: tokens"),
    (NativeDecoding, "draw", f"{SAMPLING}: tokens"),
    (RLTrainer, "update", f"{UPDATE}: the rest"),
    (SFTTrainer, "train_step", f"{UPDATE}: the rest"),
    (Policy, "completion_logprobs", f"{UPDATE}: forward"),
    (Tensor, "backward", f"{UPDATE}: backward"),
    (torch.optim.AdamW, "step", f"{UPDATE}: optimizer"),
    *(
        (Kernels, name, "attention")
        for name in ("attention", "attention_backward", "decode", "cache_prompts")
    ),
)
BATCH = 64  # examples of the warm start
# Of both factors, their sizes and strides; and whether torch or greenward multiplies.
Product = tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]], str]


class Phases:
    """Processor seconds and matrix products of each phase, without those of phases inside it."""

    def __init__(self) -> None:
        self._open = ["the rest"]
        self._since = time.process_time()
        self.seconds: dict[str, float] = defaultdict(float)
        self.products: dict[str, Counter[Product]] = defaultdict(Counter)

    def count(self) -> None:
        """Count the time since the last call for the innermost phase."""
        now = time.process_time()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.count()
        outer = self._open[-1].partition(":")[0]
        self._open.append(name if ":" in name else f"{outer}: {name}")
        try:
            yield
        finally:
            self.count()
            self._open.pop()

    def wrap(self, owner: Any, method: str, name: str) -> None:
        """Let the calls of a method be a phase."""
        whole = getattr(owner, method)

        def timed(*arguments: Any, **options: Any) -> Any:
            with self.phase(name):
                return whole(*arguments, **options)

        setattr(owner, method, timed)

    def note(self, kind: str, a: Tensor, b: Tensor) -> None:
        sizes = (tuple(a.shape), a.stride(), tuple(b.shape), b.stride())
        self.products[self._open[-1]][sizes, kind] += 1


class Noting(TorchDispatchMode):
    """Notes the matrix products of torch."""

    def __init__(self, phases: Phases) -> None:
        super().__init__()
        self._phases = phases

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function in FACTORS:
            self._phases.note("torch", *(arguments[i] for i in FACTORS[function]))
        elif function is torch.ops.aten.linear.default:  # which inference mode leaves as it is
            self._phases.note("torch", arguments[0], arguments[1].t())
        return function(*arguments, **(options or {}))


@contextmanager
def noting(phases: Phases) -> Iterator[None]:
    multiply, decode = Kernels.product, KernelStep._decoded

    def noted_steps(step: KernelStep, token_ids_B: Tensor, attention: Any, draws: Any = None) -> Tensor:
        layers = [getattr(layer, name) for layer in step._decoder.layers for name in MATRICES]
        for weight in [*layers, step._decoder.unembedding_VE]:
            for _ in range(1 if draws is None else len(draws[2])):
                phases.note("torch", weight.new_empty(len(token_ids_B), weight.shape[1]), weight.t())
        return decode(step, token_ids_B, attention, draws)

    def noted(native: Kernels, a_ME: Tensor, b_EN: Tensor, add: Tensor | None = None) -> Tensor:
        phases.note("greenward", a_ME, b_EN)
        return multiply(native, a_ME, b_EN, add)

    Kernels.product = noted  # type: ignore[method-assign]
    KernelStep._decoded = noted_steps  # type: ignore[method-assign]
    try:
        with Noting(phases):
            yield
    finally:
        Kernels.product, KernelStep._decoded = multiply, decode  # type: ignore[method-assign]


def seconds_alone(product: Product, dtype: torch.dtype) -> float:
    from greenward.models.kernels.build import kernels

    (size_a, stride_a, size_b, stride_b), kind = product
    a, b = (
        torch.ones(
            sum((n - 1) * step for n, step in zip(size, strides, strict=True)) + 1, dtype=dtype
        ).as_strided(size, strides)
        for size, strides in ((size_a, stride_a), (size_b, stride_b))
    )
    native = kernels()
    multiply = torch.mm if kind == "torch" or native is None else native.product
    times = []
    with torch.inference_mode():
        for _ in range(6):
            began = time.process_time()
            for _ in range(4):
                multiply(a, b)
            times.append((time.process_time() - began) / 4)
    return min(times)


def measure(step: Callable[[int], object], phases: Phases, rounds: int, dtype: torch.dtype) -> dict[str, Any]:
    """Seconds of each phase, the median of the rounds, and of its matrix products alone."""
    step(0)
    phases.products.clear()
    with noting(phases):
        step(1)
    noted = {name: Counter(products) for name, products in phases.products.items()}
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        phases.count()
        phases.seconds.clear()
        step(2 + number)
        phases.count()
        for name, seconds in phases.seconds.items():
            found[name].append(seconds)
    alone = {
        name: sum(times * seconds_alone(product, dtype) for product, times in products.items())
        for name, products in noted.items()
    }
    return {
        name: {"seconds": statistics.median(seconds), "products": alone.get(name, 0.0)}
        for name, seconds in found.items()
    }


def summed(phases: dict[str, dict[str, float]], beginning: str) -> dict[str, float]:
    chosen = [phase for name, phase in phases.items() if name.startswith(beginning)]
    return {key: sum(phase[key] for phase in chosen) for key in ("seconds", "products")}


def main() -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--completions", type=int, default=256, help="per step")
    parser.add_argument("--max-tokens", type=int, default=64, help="per completion")
    parser.add_argument("--micro-batch", type=int, default=256, help="rows per forward and backward pass")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--least", type=float, default=0.35, help="share of the matrix products (0.35)")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    options = parser.parse_args()
    if min(options.rounds, options.threads) < 1:
        parser.error("--rounds and --threads: expected at least 1")
    if options.completions < options.group_size or options.group_size < 2:
        parser.error("--completions: expected at least --group-size, which is at least 2")
    torch.set_num_threads(options.threads)
    phases = Phases()
    for owner, method, name in PHASES:
        phases.wrap(owner, method, name)
    with tempfile.TemporaryDirectory() as folder:
        make_inputs(Path(folder), options, options.prompt_tokens)
        policy = Policy.from_folder(Path(folder, "model"), dtype=options.dtype, device="cpu")
        prompts = json.loads(Path(folder, "prompts.json").read_text())
    trainer = trainer_on_texts(
        policy,
        prompts,
        lambda text: len(set(text)) / 64,
        group_size=options.group_size,
        max_tokens=options.max_tokens,
        micro_batch=options.micro_batch,
    )
    answer = policy.tokenizer.encode(" ".join(prompts))[: options.max_tokens]
    examples = [
        Example(tuple(policy.tokenizer.encode(prompt)), tuple(answer[i : options.max_tokens]))
        for prompt in prompts
        for i in range(4)
    ]
    warm_start = SFTTrainer(policy, examples, SupervisedConfig(batch_size=BATCH), seed=0)
    found = {
        "GRPO": measure(trainer.train_step, phases, options.rounds, policy.dtype),
        "warm start": measure(warm_start.train_step, phases, options.rounds, policy.dtype),
    }
    wholes = {
        ("GRPO", SAMPLING): summed(found["GRPO"], SAMPLING),
        ("GRPO", UPDATE): summed(found["GRPO"], UPDATE),
        ("warm start", UPDATE): summed(found["warm start"], UPDATE),
    }
    print(f"{'':32}{'CPU ms':>9}{'products':>10}{'share':>8}")
    too_small = False
    for step, of_step in found.items():
        lines = [(f"{step}, {name}", phase) for name, phase in sorted(of_step.items())]
        lines += [(f"{step}, {part} in all", whole) for (s, part), whole in wholes.items() if s == step]
        for name, one in lines:
            share = one["products"] / one["seconds"]
            print(f"{name:32}{1e3 * one['seconds']:9.1f}{1e3 * one['products']:10.1f}{share:8.0%}")
            too_small |= name.endswith("in all") and share < options.least
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        record = {"settings": settings, "machine": machine("cpu"), "steps": found}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(too_small)


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
