"""Programs side by side, each in a process of its own, on the same model and prompts; they take turns."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

SHAPE = {"layers": 4, "hidden_size": 128, "heads": 4, "kv_heads": 4, "intermediate_size": 384}
VOCAB_SIZE = 300
WORDS = ["def", "return", "for", "in", "range", "if", "else", "not", "(", ")", ":", "=", "+", "-", "*"]


def run_lengths(
    arguments: argparse.Namespace,
    compare: Callable[[Path, argparse.Namespace], dict[str, Any]],
    print_table: Callable[[dict[str, Any], argparse.Namespace], None],
) -> None:
    """Compares at each of `--prompt-tokens`, prints a table for each, and writes `--json`."""
    model = getattr(arguments, "model", None)
    results = []
    for prompt_tokens in arguments.prompt_tokens:
        with tempfile.TemporaryDirectory() as folder:
            if model is None:
                make_inputs(Path(folder), arguments, prompt_tokens)
            else:
                take_inputs(Path(folder), arguments, prompt_tokens)
            result = compare(Path(folder), arguments) | {"prompt_tokens": prompt_tokens}
        results.append(result)
        print_table(result, arguments)
    if arguments.json:
        left_out = ("json", "folder", "worker", "trl_python", "vllm_python", "earlier", "model")
        record = {
            "settings": {name: value for name, value in vars(arguments).items() if name not in left_out},
            "model": SHAPE if model is None else model.name,
            "machine": machine(getattr(arguments, "device", "cpu")),
            "results": results,
        }
        arguments.json.write_text(json.dumps(record, indent=2, default=str) + "\n")


def make_inputs(folder: Path, arguments: argparse.Namespace, prompt_tokens: int) -> None:
    """The checkpoint that both load and the prompts that both answer."""
    from greenward.config.sections import ShapeConfig
    from greenward.models.policy import Policy
    from greenward.models.tokenizer import train_tokenizer

    rng = random.Random(0)
    tokenizer = train_tokenizer([" ".join(rng.choices(WORDS, k=50)) for _ in range(200)], VOCAB_SIZE)
    shape = ShapeConfig(**SHAPE, max_positions=max(512, prompt_tokens * 2 + arguments.max_tokens))
    Policy.random(shape, tokenizer, seed=0, device="cpu").save(folder / "model")
    prompts = []
    for _ in range(arguments.completions // arguments.group_size):
        length = round(prompt_tokens * rng.uniform(0.85, 1.15))
        text = ""
        while len(tokenizer.encode(text)) < length:
            text += " " + rng.choice(WORDS)
        prompts.append(text)
    (folder / "prompts.json").write_text(json.dumps(prompts))


def take_inputs(folder: Path, arguments: argparse.Namespace, prompt_tokens: int) -> None:
    """The same from a real model: its folder, and questions of `--questions` in its chat format."""
    from greenward.models.tokenizer import Tokenizer

    (folder / "model").symlink_to(arguments.model.resolve())
    count = arguments.completions // arguments.group_size
    prompts = real_prompts(arguments.model, arguments.questions, count, prompt_tokens)
    tokenizer = Tokenizer.load(arguments.model)
    texts = [tokenizer.decode(prompt, skip_special_tokens=False) for prompt in prompts]
    (folder / "prompts.json").write_text(json.dumps(texts))


def real_prompts(model: Path, suite: str, count: int, prompt_tokens: int) -> list[list[int]]:
    """The questions of a suite whose prompts for this model are nearest to that length."""
    from greenward import load_problems
    from greenward.environments.prompts import PromptRenderer
    from greenward.models.tokenizer import Tokenizer

    renderer = PromptRenderer(Tokenizer.load(model))
    prompts = [list(renderer.prompt_ids(problem)) for problem in load_problems(suite)]
    if len(prompts) < count:
        sys.exit(f"{suite} has {len(prompts)} problems; {count} prompts are needed")
    return sorted(prompts, key=lambda prompt: abs(len(prompt) - prompt_tokens))[:count]


def environment_of(threads: int) -> dict[str, str]:
    """What lets each side compute with so many threads, vLLM in the process itself."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }


class Worker:
    """A program in a process of its own: takes one step for each line it is sent."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **quiet, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._name = name
        self.about = self._receive()

    def step(self, what: str = "step") -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._receive()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("RESULT "):
                message: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
                return message
        _, errors = self._process.communicate()
        sys.exit(f"the {self._name} worker ended early:\n{errors[-3000:]}")


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def machine(device: str) -> dict[str, Any]:
    import torch

    on_gpu = device.startswith("cuda")
    return {
        "device": torch.cuda.get_device_name() if on_gpu else platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def wait_for_turn() -> str:
    """What the next step shall be; empty at the end."""
    return sys.stdin.readline().strip()


def peak_mb() -> float:
    """The largest resident memory that this process has had (VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def send(message: dict[str, Any]) -> None:
    print("RESULT " + json.dumps(message), flush=True)
