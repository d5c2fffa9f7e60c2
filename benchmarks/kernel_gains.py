"""What each compiled kernel gains alone: CPU time of torch's operations over the kernel's, taken in turns.

The shapes are those of a step of `grpo_vs_trl.py`: 4 heads of 32, hidden size 128, groups of 8, 256 rows.
"Bucketed" is a pass over rows of new lengths beside the same without padding to row counts that come again.
The last lines are a whole pass over 64 rows, forward and backward, and the sampling of 256 answers;
`step_phases.py` compares those with their matrix products.

    .venv/bin/python benchmarks/kernel_gains.py [--dtype bfloat16] [--prompt-tokens 64] [--rounds 15]
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from greenward.config.sections import ShapeConfig
from greenward.models import decoder
from greenward.models.attention import SharedPrefixAttention
from greenward.models.kernels import build
from greenward.models.kernels.attention import KernelAttention
from greenward.models.kernels.build import SWITCH, kernels
from greenward.models.policy import Policy
from greenward.models.scoring import GroupBatch, score_tokens
from greenward.models.tokenizer import train_tokenizer
from greenward.rollouts.protocols import SamplingParams

GROUP, OWN, HIDDEN, INTERMEDIATE = 8, 64, 128, 384


@contextmanager
def torch_alone() -> Iterator[None]:
    """Without kernels."""
    os.environ[SWITCH] = "off"
    kernels.cache_clear()
    try:
        yield
    finally:
        del os.environ[SWITCH]
        kernels.cache_clear()


def seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


@contextmanager
def rows_as_they_are() -> Iterator[None]:
    """Without padding to a row count that comes again."""
    padded = decoder.pad_to_bucket
    decoder.pad_to_bucket = lambda index, *_, **__: index
    try:
        yield
    finally:
        decoder.pad_to_bucket = padded


def report(
    name: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    rounds: int,
    without: Callable[[], AbstractContextManager[None]] = torch_alone,
) -> float:
    """Prints the ratio of `theirs`, which runs `without` something, to `ours`; the median seconds of ours."""
    pairs = []
    for _ in range(rounds + 1):
        mine = seconds(ours)
        with without():
            pairs.append((mine, seconds(theirs)))
        kernels()
    ratios = [b / a for a, b in pairs[1:]]
    taken = statistics.median(a for a, _ in pairs[1:])
    spread = f"{statistics.median(ratios):6.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
    print(f"{name:34}{1e3 * taken:10.3f} ms {spread:>24}", flush=True)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--library", type=Path, help="kernels that were compiled for another processor")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.library:
        build.build = lambda: build.Built(options.library, "as given")
    if kernels() is None:
        raise SystemExit("There are no kernels here: greenward doctor says why.")
    dtype = getattr(torch, options.dtype)
    chance = random.Random(0)
    lengths = [round(options.prompt_tokens * chance.uniform(0.85, 1.15)) for _ in range(32)]
    prompts = [[chance.randrange(3, 250) for _ in range(length)] for length in lengths]
    tokenizer = train_tokenizer([str(chance.random()) for _ in range(500)], 300)
    shape = ShapeConfig(
        layers=4, hidden_size=HIDDEN, heads=4, kv_heads=4, intermediate_size=INTERMEDIATE, max_positions=1024
    )
    policy = Policy.random(shape, tokenizer, seed=0, dtype=dtype, device="cpu")
    answers = [[[5] * OWN] * GROUP] * 8
    batch = GroupBatch.build(prompts[:8], answers)
    rows = len(batch.token_ids_M)
    x, grad = (torch.randn(rows, HIDDEN).to(dtype) for _ in range(2))
    weight, gate_up = torch.ones(HIDDEN, dtype=dtype), torch.randn(2 * INTERMEDIATE, HIDDEN).to(dtype) / 11
    qkv, above = torch.randn(rows, 12, 32).to(dtype), torch.randn(rows, HIDDEN).to(dtype)

    def differentiated(
        function: Callable[[Tensor], Tensor], start: Tensor, gradient: Tensor
    ) -> Callable[[], object]:
        def work() -> None:
            leaf = start.clone().requires_grad_()
            function(leaf * 1).backward(gradient)

        return work

    def attention(kind: Callable[[], Callable[[int, Tensor], Tensor]]) -> Callable[[], object]:
        return lambda: differentiated(lambda heads: kind()(0, heads), qkv, above)()

    print(
        f"{options.dtype}, one thread, {rows} tokens in 64 rows\n"
        f"{'':34}{'kernels':>13} {'torch / kernels':>24}"
    )
    norm = differentiated(lambda one: decoder.rms_norm(one, weight, 1e-6), x, grad)
    report("RMSNorm, both ways", norm, norm, options.rounds)
    wide = torch.randn(rows, INTERMEDIATE).to(dtype)
    gated = differentiated(lambda one: decoder.swiglu(one, gate_up), x, wide)
    report("SwiGLU and its products, both ways", gated, gated, options.rounds)
    native = kernels()
    assert native is not None
    report(
        "attention, both ways",
        attention(lambda: KernelAttention(policy.model, batch, native)),
        attention(lambda: SharedPrefixAttention(policy.model, batch)),
        options.rounds,
    )

    targets, unembedding = torch.arange(rows) % 300, torch.randn(300, HIDDEN).to(dtype) / 11
    head = differentiated(
        lambda one: score_tokens(one, unembedding, targets, temperature=1.0, entropy=True)[0],
        x,
        torch.ones(rows),
    )
    report("log-probabilities, both ways", head, head, options.rounds)

    def update(batch: GroupBatch = batch) -> None:
        policy.completion_logprobs(batch, entropy=True).logprobs_BT.sum().backward()
        policy.model.zero_grad()

    calls = itertools.count()

    def ragged() -> None:
        """The same lengths for two calls in a row, then others."""
        lengths = random.Random(next(calls) // 2)
        groups = [[[5] * lengths.randint(OWN // 4, OWN) for _ in range(GROUP)] for _ in range(8)]
        update(GroupBatch.build(prompts[:8], groups))

    report("64 rows of new lengths: bucketed", ragged, ragged, options.rounds, without=rows_as_they_are)

    params = SamplingParams(max_tokens=OWN)
    report("forward and backward of 64 rows", update, update, max(3, options.rounds // 3))

    def sample() -> None:
        policy.sample(prompts, GROUP, params, seed=1)

    report("sampling 256 answers", sample, sample, max(3, options.rounds // 3))


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
