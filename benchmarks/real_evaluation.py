"""An evaluation as a user runs it, beside its matrix products alone: time, memory, first progress, grading.

    GREENWARD_DATA=FOLDER python benchmarks/real_evaluation.py MODEL [--suite humaneval+] [--dtype bfloat16]

`greenward.evaluate` answers a whole suite greedily. The rows of every step and the tokens of every prefill
are counted; then the products of all of them are computed alone, by the faster of torch's products and packed
ones. The share is their time over that of sampling.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import greenward
from greenward.models import sampler
from greenward.runs.machine import peak_resident_mb
from limits import Products, Shape

REPEATS = 2


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a model's folder")
    parser.add_argument("--suite", default="humaneval+")
    parser.add_argument("--limit", type=int, help="the first so many problems")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--max-tokens", type=int, default=768)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    steps: Counter[int] = Counter()
    prefills: Counter[tuple[int, int]] = Counter()  # tokens and prompts
    marks: dict[str, float] = {}
    step, add = sampler.NativeDecoding.step, sampler.NativeDecoding.add

    def counted_step(self: Any, token_ids_B: torch.Tensor) -> torch.Tensor:
        marks.setdefault("first token", time.perf_counter())
        steps[len(token_ids_B)] += 1
        return step(self, token_ids_B)

    def counted_add(self: Any, prompts: Any, group_sizes: Any) -> torch.Tensor:
        marks.setdefault("loaded", time.perf_counter())
        prefills[sum(map(len, prompts)), len(prompts)] += 1
        return add(self, prompts, group_sizes)

    sampler.NativeDecoding.step = counted_step  # type: ignore[method-assign]
    sampler.NativeDecoding.add = counted_add  # type: ignore[method-assign]
    folder = Path(tempfile.mkdtemp(prefix="real-evaluation-"))
    asked = {"limit": options.limit} if options.limit else {}
    began = time.perf_counter()
    found = greenward.evaluate(
        options.model, options.suite, dtype=options.dtype, max_tokens=options.max_tokens,
        output=folder / "evaluation", quiet=False, **asked,
    )  # fmt: skip
    wall = time.perf_counter() - began
    rows = [json.loads(line) for line in (folder / "evaluation" / "samples.jsonl").read_text().splitlines()]
    shutil.rmtree(folder)
    peak = peak_resident_mb()
    tokens = sum(row["tokens"] for row in rows)
    sampling = found.summary["seconds"]["sampling"]
    shape = Shape.read(Path(options.model))
    products = Products(shape, getattr(torch, options.dtype), packed=True)

    def alone(counts: Counter[tuple[int, int]], near: Sequence[int], prompts: int | None = None) -> float:
        """The time of all, between those of the nearest numbers of rows, which are measured."""
        rows = [one for one in near if one <= 2 * max(number for number, _ in counts)]
        seconds = [products.seconds(number, prompts or number, repeats=REPEATS) for number in rows]
        return sum(n * float(np.interp(number, rows, seconds)) for (number, _), n in counts.items())

    decoding = alone(Counter({(number, number): n for number, n in steps.items()}), (1, 4, 8, 16, 32, 48, 64))
    prefill = alone(prefills, (64, 128, 256, 512, 1024, 2048, 4096), prompts=1)
    record = {
        "model": Path(options.model).name,
        "suite": options.suite,
        "dtype": options.dtype,
        "answers": len(rows),
        "tokens": tokens,
        "prompt_tokens": sum(length * count for (length, _), count in prefills.items()),
        "seconds": {
            "wall": wall,
            "sampling": sampling,
            "grading": found.summary["seconds"]["grading"],
            "after_sampling": wall - (marks["loaded"] - began) - sampling,
            "first_token_after_loading": marks["first token"] - marks["loaded"],
            "products_of_steps": decoding,
            "products_of_prompts": prefill,
        },
        "share_of_limit": (decoding + prefill) / sampling,
        "mean_rows": sum(number * count for number, count in steps.items()) / sum(steps.values()),
        "peak_mb": peak,
        "pass@1": found.summary["metrics"]["pass@1"]["value"],
    }
    seconds = record["seconds"]
    print(
        f"{record['model']}, {options.suite}, {options.dtype}, greedy: {len(rows)} answers, {tokens} tokens, "
        f"{record['prompt_tokens']} of prompts; pass@1 {record['pass@1']:.1%}\n"
        f"  {wall:.0f} s in all; sampling {sampling:.0f} s ({tokens / sampling:.0f} tokens a second, "
        f"{record['mean_rows']:.0f} rows in the mean); {seconds['after_sampling']:.1f} s after sampling\n"
        f"  products alone {decoding:.0f} s of steps and {prefill:.0f} s of prompts: "
        f"{record['share_of_limit']:.0%} of the limit\n"
        f"  first token {seconds['first_token_after_loading']:.1f} s after loading; peak {peak:,.0f} MiB"
    )
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
