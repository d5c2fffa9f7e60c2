"""One GRPO step, greenward beside TRL's GRPOTrainer or an earlier greenward, in one run.

All load the same random checkpoint, answer the same prompts, score answers with the same function
and use the same number of threads. Each lives in a process of its own, waits while the other
works, and the steps alternate (A B A B …), so that a change of the machine's load meets both. A
round's ratio is the peer's time over greenward's; the table shows its minimum, median and maximum.
CPU seconds, of all threads, and the peak of the memory (VmHWM) stand below: CPU seconds mean more on a
machine that is busy otherwise. With `--model`, a real model answers questions in its chat format, no answer
ends before its last token, and a third process computes the matrix products of a step alone in each round:
what TRL takes beside them is the ratio that the limit allows.

    python benchmarks/grpo_vs_trl.py --trl-python PATH/TO/TRL/VENV/bin/python
    python benchmarks/grpo_vs_trl.py --earlier PATH/TO/CHECKOUT     # of another version of greenward
    python benchmarks/grpo_vs_trl.py --trl-python … --model MODEL --completions 32 --prompt-tokens 97

See benchmarks/README.md for how to make that environment. It measures speed, not learning.
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

from side_by_side import Worker, peak_mb, run_lengths, send, spread, wait_for_turn

PARTS = ("sampling", "grading", "update", "step")
CPU, PEAK = "step, CPU", "peak, MB"
NEVER = 10**6  # the id of no token


def parse_arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--trl-python", help="interpreter of an environment with trl==1.16.0")
    parser.add_argument("--earlier", type=Path, help="a checkout of another version of greenward")
    parser.add_argument("--model", type=Path, help="a model's folder, instead of random weights")
    parser.add_argument(
        "--questions", default="mbpp", help="the suite that its prompts are from, or its file"
    )
    parser.add_argument(
        "--lora", type=int, default=0, metavar="RANK", help="train an adapter, alpha 2 · RANK"
    )
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[64, 320])
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--completions", type=int, default=256, help="per step")
    parser.add_argument("--max-tokens", type=int, default=64, help="per completion")
    parser.add_argument("--rounds", type=int, default=7, help="measured steps of each")
    parser.add_argument("--warmup", type=int, default=2, help="steps of each before measuring")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--trl-dtype", choices=["float32", "bfloat16"], help="TRL's, if it is another")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--micro-batch", type=int, default=64, help="greenward's rows per forward/backward")
    parser.add_argument("--trl-micro-batch", type=int, default=64, help="TRL's rows, at most a step's")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--worker", choices=list(WORKERS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def reward_of(text: str) -> float:
    """Cheap, on text, and different within a group: the number of distinct characters."""
    return len(set(text)) / 64


# The orchestrator.


def main() -> None:
    arguments = parse_arguments()
    if arguments.worker:
        run_worker(arguments)
        return
    if arguments.trl_python is None and arguments.earlier is None:
        sys.exit("--trl-python or --earlier is needed: see benchmarks/README.md")
    run_lengths(arguments, compare, print_table)


def start(name: str, arguments: argparse.Namespace, folder: Path) -> Worker:
    """The trainer of that name, with the options of this command."""
    python, script, environment = sys.executable, Path(__file__), {}
    if name == "trl":
        python = arguments.trl_python
    elif name == "earlier":
        script = arguments.earlier / "benchmarks" / script.name
        environment["PYTHONPATH"] = str(arguments.earlier / "src")
    options = [] if arguments.earlier is None else ["--earlier", str(arguments.earlier)]
    given = [word for word in sys.argv[1:] if word not in options]
    kind = "greenward" if name == "earlier" else name
    return Worker(name, [python, str(script), *given, "--worker", kind, "--folder", str(folder)], environment)


def compare(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    given = {"trl": arguments.trl_python, "earlier": arguments.earlier, "limit": arguments.model}
    names = ["greenward", *(name for name, value in given.items() if value is not None)]
    workers: list[Worker] = []
    try:
        for name in names:
            workers.append(start(name, arguments, folder))
        rounds = [[worker.step() for worker in workers] for _ in range(arguments.warmup + arguments.rounds)]
        steps = dict(zip(names, zip(*rounds[arguments.warmup :], strict=True), strict=True))
        ratios = {
            name: {
                part: spread(
                    [peer[part] / our[part] for peer, our in zip(found, steps["greenward"], strict=True)]
                )
                for part in (*PARTS, CPU, PEAK)
                if part in found[0] and all(our[part] for our in steps["greenward"])
            }
            for name, found in steps.items()
            if name != "greenward"
        }
        versions = {name: worker.about for name, worker in zip(names, workers, strict=True)}
        allowed = {
            part: spread(
                [peer[part] / limit[part] for peer, limit in zip(steps["trl"], steps["limit"], strict=True)]
            )
            for part in ("sampling", "update", "step")
            if {"trl", "limit"} <= steps.keys()
        }
        return {**steps, "versions": versions, "ratios": ratios, "trl over limit": allowed}
    finally:
        for worker in workers:
            worker.close()


def print_table(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    print(
        f"\nprompts of about {result['prompt_tokens']} tokens, {arguments.completions} completions of "
        f"at most {arguments.max_tokens} tokens in groups of {arguments.group_size}, {arguments.dtype}, "
        f"{arguments.device}, {arguments.threads} threads, {arguments.rounds} rounds"
    )
    peers = list(result["ratios"])
    heads = ["greenward", *(head for peer in peers for head in (peer, f"{peer} / greenward"))]
    heads += ["trl / limit"] * bool(result["trl over limit"])
    print(f"{'':10}" + "".join(f"{head:>28}" for head in heads))
    for part in (*PARTS, CPU, PEAK):
        cells: list[dict[str, float] | None] = [spread([step[part] for step in result["greenward"]])]
        for peer in peers:
            cells.append(spread([step[part] for step in result[peer]]) if part in result[peer][0] else None)
            cells.append(result["ratios"][peer].get(part))
        cells.append(result["trl over limit"].get(part))
        texts = [
            f"{c['median']:,.{digits}f} [{c['min']:,.{digits}f}, {c['max']:,.{digits}f}]" if c else ""
            for c in cells
            for digits in [0 if c and c["max"] >= 1000 else 3]
        ]
        print(f"{part:10}" + "".join(f"{text:>28}" for text in texts).rstrip())


# The workers.


def run_worker(arguments: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(arguments.threads)
    prompts = json.loads((arguments.folder / "prompts.json").read_text())
    WORKERS[arguments.worker](arguments, prompts, torch)


def synchronise(torch: Any, device: str) -> Callable[[], None]:
    return torch.cuda.synchronize if device.startswith("cuda") else lambda: None


def run_greenward(arguments: argparse.Namespace, prompts: list[str], torch: Any) -> None:
    import greenward
    from greenward.config.sections import LoraConfig
    from greenward.models.policy import Policy
    from grpo_step import trainer_on_texts

    policy = Policy.from_folder(arguments.folder / "model", dtype=arguments.dtype, device=arguments.device)
    if arguments.lora:
        policy.add_adapter(LoraConfig(r=arguments.lora, alpha=2 * arguments.lora), seed=0)
    if arguments.model:
        policy.tokenizer.eos_ids = (NEVER,)
    settled = synchronise(torch, arguments.device)
    trainer = trainer_on_texts(
        policy,
        prompts,
        reward_of,
        group_size=arguments.group_size,
        max_tokens=arguments.max_tokens,
        micro_batch=arguments.micro_batch,
        settled=settled,
    )
    send({"greenward": greenward.__version__, "torch": torch.__version__})
    step = 0
    while wait_for_turn():
        started, started_cpu = time.perf_counter(), time.process_time()
        record = trainer.train_step(step)
        metrics = record.metrics
        settled()
        seconds = time.perf_counter() - started
        parts = {"sampling": metrics["time/sampling"], "grading": metrics["time/grading"], "step": seconds}
        parts |= {CPU: time.process_time() - started_cpu, PEAK: peak_mb()}
        tokens = sum(len(turn.completion_ids) for episode in record.episodes for turn in episode.turns)
        send(parts | {"update": seconds - parts["sampling"] - parts["grading"], "tokens": float(tokens)})
        step += 1


def run_trl(arguments: argparse.Namespace, prompts: list[str], torch: Any) -> None:
    import transformers
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    settled = synchronise(torch, arguments.device)
    seconds = dict.fromkeys(PARTS, 0.0)
    tokens = [0]

    def reward(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        tokens[0] += sum(map(len, completion_ids))
        return [reward_of(completion) for completion in completions]

    class OneStepATurn(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if not wait_for_turn():
                os._exit(0)
            seconds.update(dict.fromkeys(PARTS, 0.0))
            tokens[0] = 0
            self.started, self.started_cpu = time.perf_counter(), time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            settled()
            seconds["step"] = time.perf_counter() - self.started
            seconds[CPU] = time.process_time() - self.started_cpu
            seconds[PEAK] = peak_mb()
            seconds["update"] = seconds["step"] - seconds["sampling"] - seconds["grading"]
            send(seconds | {"tokens": float(tokens[0])})

    on_cpu = arguments.device == "cpu"
    dtype = arguments.trl_dtype or arguments.dtype
    rows = min(arguments.trl_micro_batch, arguments.completions)
    adapter = None
    if arguments.lora:
        from peft import LoraConfig

        adapter = LoraConfig(
            r=arguments.lora,
            lora_alpha=2 * arguments.lora,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
    config = GRPOConfig(
        output_dir=str(arguments.folder / "trl"),
        max_steps=10**6,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=arguments.completions // rows,
        # Weights that an adapter leaves as they are, are kept in the type of the arithmetic; as ours are.
        model_init_kwargs={"dtype": dtype if arguments.lora else "float32"},
        generation_kwargs={"eos_token_id": NEVER} if arguments.model else None,
        num_generations=arguments.group_size,
        max_completion_length=arguments.max_tokens,
        learning_rate=1e-6,
        loss_type="dapo",
        beta=0.0,
        temperature=1.0,
        top_k=0,
        gradient_checkpointing=False,
        use_cpu=on_cpu,
        bf16=dtype == "bfloat16",
        dataloader_pin_memory=not on_cpu,
        shuffle_dataset=False,
        report_to=[],
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=str(arguments.folder / "model"),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=AutoTokenizer.from_pretrained(arguments.folder / "model", padding_side="left"),
        callbacks=[OneStepATurn()],
        peft_config=adapter,
    )

    if arguments.model:
        trainer.eos_token_ids = [NEVER]

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            result = function(*args, **kwargs)
            settled()
            seconds[part] += time.perf_counter() - started
            return result

        return call

    trainer._generate = timed("sampling", trainer._generate)
    trainer._calculate_rewards = timed("grading", trainer._calculate_rewards)
    send({"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__})
    trainer.train()


def run_limit(arguments: argparse.Namespace, prompts: list[str], torch: Any) -> None:
    """The matrix products of a step alone: each prompt once for its group, each token once."""
    from tokenizers import Tokenizer

    from limits import Products, Shape

    tokenizer = Tokenizer.from_file(str(arguments.folder / "model" / "tokenizer.json"))
    prompt_tokens = sum(len(tokenizer.encode(prompt).ids) for prompt in prompts)
    shape, dtype = Shape.read(arguments.folder / "model"), getattr(torch, arguments.dtype)
    products = Products(shape, dtype, rank=arguments.lora, packed=True)
    rows, tokens = arguments.completions, arguments.max_tokens
    inputs = rows * (tokens - 1)  # from the last token nothing is predicted
    send({"torch": torch.__version__})
    while wait_for_turn():
        sampling = products.seconds(prompt_tokens, len(prompts))
        sampling += (tokens - 1) * products.seconds(rows, rows, repeats=5)
        update = products.seconds(prompt_tokens + inputs, len(prompts) + inputs, backward=True)
        send({"sampling": sampling, "update": update, "step": sampling + update})


WORKERS = {"greenward": run_greenward, "trl": run_trl, "limit": run_limit}


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
