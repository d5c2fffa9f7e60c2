"""Sampling 256 × 64 tokens: greenward beside `transformers.generate` and vLLM on the CPU, in turns.

All load the same random checkpoint and answer the same prompts in groups of 8 at temperature 1; no answer
ends before its last token. Each lives in a process of its own with as many threads, waits while another
works, and they take turns, as in `grpo_vs_trl.py`. A round's ratio is the peer's time over greenward's; the
table has its median, minimum and maximum. greenward and vLLM also return the log-probability of every token.

    python benchmarks/sampling.py --vllm-python .venv-vllm/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from side_by_side import Worker, environment_of, run_lengths, send, spread, wait_for_turn

NEVER = 10**6  # the id of no token


def parse_arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--vllm-python", help="interpreter of the environment of `make test-vllm`")
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[64])
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--completions", type=int, default=256)
    parser.add_argument("--max-tokens", type=int, default=64, help="per completion")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=2, help="rounds before measuring")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16", help="of all")
    parser.add_argument(
        "--peer-dtype", choices=["float32", "bfloat16"], help="of the others, if it is another"
    )
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--worker", choices=list(WORKERS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.worker:
        run_worker(arguments)
        return
    run_lengths(arguments, compare, print_table)


def compare(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    pythons = {"greenward": sys.executable, "transformers": sys.executable, "vllm": arguments.vllm_python}
    options = [*sys.argv[1:], "--folder", str(folder), "--worker"]
    environment = environment_of(arguments.threads)
    workers: dict[str, Worker] = {}
    try:
        for name, python in pythons.items():
            if python is not None:
                workers[name] = Worker(name, [python, __file__, *options, name], environment)
        rounds = [
            {name: worker.step() for name, worker in workers.items()}
            for _ in range(arguments.warmup + arguments.rounds)
        ][arguments.warmup :]
    finally:
        for worker in workers.values():
            worker.close()
    return {
        "seconds": {name: spread([one[name]["seconds"] for one in rounds]) for name in workers},
        "cpu_seconds": {name: spread([one[name]["cpu"] for one in rounds]) for name in workers},
        "ratios": {
            name: spread([one[name]["seconds"] / one["greenward"]["seconds"] for one in rounds])
            for name in workers
            if name != "greenward"
        },
        "tokens": rounds[0]["greenward"]["tokens"],
        "versions": {name: worker.about for name, worker in workers.items()},
    }


def print_table(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    print(
        f"\nprompts of about {result['prompt_tokens']} tokens, {arguments.completions} answers of "
        f"{arguments.max_tokens} tokens in groups of {arguments.group_size}, {arguments.dtype}"
        f"{f', others {arguments.peer_dtype}' if arguments.peer_dtype else ''}, "
        f"{arguments.threads} threads, {arguments.rounds} rounds"
    )
    print(f"{'':14}{'seconds':>22}{'CPU seconds':>22}{'tokens a second':>18}{'time / greenward':>22}")
    for name, seconds in result["seconds"].items():
        cells = [seconds, result["cpu_seconds"][name], result["ratios"].get(name)]
        first, cpu, ratio = (
            f"{c['median']:.2f} [{c['min']:.2f}, {c['max']:.2f}]" if c else "" for c in cells
        )
        print(f"{name:14}{first:>22}{cpu:>22}{result['tokens'] / seconds['median']:>18,.0f}{ratio:>22}")


# The workers: each prepares, and gives a function that samples and says how many tokens it drew.

Prompts = list[list[int]]


def greenward_sampler(arguments: argparse.Namespace, prompts: Prompts) -> tuple[str, Callable[[int], int]]:
    import greenward
    from greenward.models.policy import Policy
    from greenward.rollouts.protocols import SamplingParams

    policy = Policy.from_folder(arguments.folder / "model", dtype=arguments.dtype, device="cpu")
    policy.tokenizer.eos_ids = (NEVER,)
    params = SamplingParams(max_tokens=arguments.max_tokens)

    def sample(seed: int) -> int:
        groups = policy.sample(prompts, arguments.group_size, params, seed=seed)
        return sum(len(one.token_ids) for group in groups for one in group)

    return greenward.__version__, sample


def transformers_sampler(arguments: argparse.Namespace, prompts: Prompts) -> tuple[str, Callable[[int], int]]:
    import torch
    import transformers

    dtype = getattr(torch, arguments.peer_dtype or arguments.dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.folder / "model", dtype=dtype).eval()
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    settings = {
        "do_sample": True,
        "top_k": 0,
        "num_return_sequences": arguments.group_size,
        "max_new_tokens": arguments.max_tokens,
        "eos_token_id": NEVER,
        "pad_token_id": 0,
    }

    @torch.inference_mode()
    def sample(seed: int) -> int:
        torch.manual_seed(seed)
        found = model.generate(input_ids=ids, attention_mask=mask, **settings)
        return int(found[:, longest:].numel())

    return transformers.__version__, sample


def vllm_sampler(arguments: argparse.Namespace, prompts: Prompts) -> tuple[str, Callable[[int], int]]:
    import vllm

    model = vllm.LLM(
        str(arguments.folder / "model"),
        dtype=arguments.peer_dtype or arguments.dtype,
        max_model_len=max(map(len, prompts)) + arguments.max_tokens,
        max_num_seqs=arguments.completions,
        enforce_eager=True,
        use_tqdm_on_load=False,
    )
    params = vllm.SamplingParams(
        n=arguments.group_size, max_tokens=arguments.max_tokens, ignore_eos=True, logprobs=0, detokenize=False
    )
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]

    def sample(seed: int) -> int:
        found = model.generate(asked, params, use_tqdm=False)
        model.reset_prefix_cache()  # training has new weights by the next call
        return sum(len(one.token_ids) for request in found for one in request.outputs)

    return vllm.__version__, sample


WORKERS = {"greenward": greenward_sampler, "transformers": transformers_sampler, "vllm": vllm_sampler}


def run_worker(arguments: argparse.Namespace) -> None:
    import torch
    from tokenizers import Tokenizer

    torch.set_num_threads(arguments.threads)
    tokenizer = Tokenizer.from_file(str(arguments.folder / "model" / "tokenizer.json"))
    texts = json.loads((arguments.folder / "prompts.json").read_text())
    version, sample = WORKERS[arguments.worker](arguments, [tokenizer.encode(text).ids for text in texts])
    send({"version": version, "threads": torch.get_num_threads()})
    seed = 0
    while wait_for_turn():
        started, cpu = time.perf_counter(), os.times()
        tokens = sample(seed)
        seconds, now = time.perf_counter() - started, os.times()
        wanted = arguments.completions * arguments.max_tokens
        if tokens != wanted:
            raise SystemExit(f"expected {wanted} tokens, found {tokens}")
        send({"seconds": seconds, "cpu": now.user + now.system - cpu.user - cpu.system, "tokens": tokens})
        seed += 1


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
