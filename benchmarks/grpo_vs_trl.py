"""One GRPO step, greenward beside TRL's GRPOTrainer or an earlier greenward, in one run.

All load the same random checkpoint, answer the same prompts, score answers with the same function
and use the same number of threads. Each lives in a process of its own, waits while the other
works, and the steps alternate (A B A B …), so that a change of the machine's load meets both. A
round's ratio is the peer's time over greenward's; the table shows its minimum, median and maximum.
CPU seconds, of all threads, stand below: they mean more on a machine that is busy otherwise.

    python benchmarks/grpo_vs_trl.py --trl-python PATH/TO/TRL/VENV/bin/python
    python benchmarks/grpo_vs_trl.py --earlier PATH/TO/CHECKOUT     # of another version of greenward

See benchmarks/README.md for how to make that environment. It measures speed, not learning.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from side_by_side import Worker, run_lengths, send, spread, wait_for_turn

PARTS = ("sampling", "grading", "update", "step")
CPU = "step, CPU"


def parse_arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--trl-python", help="interpreter of an environment with trl==1.16.0")
    parser.add_argument("--earlier", type=Path, help="a checkout of another version of greenward")
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
    parser.add_argument("--trl-micro-batch", type=int, default=64, help="TRL's per_device_train_batch_size")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--worker", choices=["greenward", "trl"], help=argparse.SUPPRESS)
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
    kind = "trl" if name == "trl" else "greenward"
    return Worker(name, [python, str(script), *given, "--worker", kind, "--folder", str(folder)], environment)


def compare(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    given = {"trl": arguments.trl_python, "earlier": arguments.earlier}
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
                for part in (*PARTS, CPU)
                if all(our[part] for our in steps["greenward"])
            }
            for name, found in steps.items()
            if name != "greenward"
        }
        versions = {name: worker.about for name, worker in zip(names, workers, strict=True)}
        return {**steps, "versions": versions, "ratios": ratios}
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
    heads = ["greenward s", *(head for peer in peers for head in (f"{peer} s", f"{peer} / greenward"))]
    print(f"{'':10}" + "".join(f"{head:>24}" for head in heads))
    for part in (*PARTS, CPU):
        cells = [spread([step[part] for step in result["greenward"]])]
        for peer in peers:
            cells += [spread([step[part] for step in result[peer]]), result["ratios"][peer][part]]
        texts = [f"{c['median']:.3f} [{c['min']:.3f}, {c['max']:.3f}]" for c in cells]
        print(f"{part:10}" + "".join(f"{text:>24}" for text in texts))


# The workers.


def run_worker(arguments: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(arguments.threads)
    prompts = json.loads((arguments.folder / "prompts.json").read_text())
    run = run_greenward if arguments.worker == "greenward" else run_trl
    run(arguments, prompts, torch)


def synchronise(torch: Any, device: str) -> Callable[[], None]:
    return torch.cuda.synchronize if device.startswith("cuda") else lambda: None


def run_greenward(arguments: argparse.Namespace, prompts: list[str], torch: Any) -> None:
    import numpy as np

    import greenward
    from greenward.common.seeding import shuffled_index
    from greenward.config.sections import GRPOAlgorithmConfig, TrainingConfig
    from greenward.models.policy import Policy
    from greenward.rollouts.protocols import POLICY, Collection, Episode, RolloutEngine, SamplingParams, Turn
    from greenward.training.advantages import ESTIMATORS
    from greenward.training.collector import Collector
    from greenward.training.trainer import RLTrainer

    policy = Policy.from_folder(arguments.folder / "model", dtype=arguments.dtype, device=arguments.device)
    sampling = SamplingParams(max_tokens=arguments.max_tokens)
    settled = synchronise(torch, arguments.device)

    class TextReward:
        """An environment that rewards the text itself."""

        def collect(
            self, players: Mapping[str, RolloutEngine], groups: range, *, seed: int, step: int = 0
        ) -> Collection:
            started = time.perf_counter()
            asked = [prompts[shuffled_index(len(prompts), group, seed=0)] for group in groups]
            prompt_ids = [tuple(policy.tokenizer.encode(prompt)) for prompt in asked]
            sampled_groups = players[POLICY].sample(prompt_ids, arguments.group_size, sampling, seed=seed)
            settled()
            sampled = time.perf_counter()
            episodes = []
            for group_id, ids, group in zip(groups, prompt_ids, sampled_groups, strict=True):
                for completion in group:
                    turn = Turn(
                        "writer",
                        ids,
                        completion.token_ids,
                        completion.logprobs,
                        np.ones(len(completion.token_ids), dtype=bool),
                        completion.stop_reason,
                        completion.policy_version,
                    )
                    text = policy.tokenizer.decode(completion.token_ids)
                    rewards = {"writer": reward_of(text)}
                    episodes.append(
                        Episode((turn,), rewards, group_id, str(group_id), "written", answer=text)
                    )
            return Collection(episodes, sampled - started, time.perf_counter() - sampled)

    training = TrainingConfig(
        max_steps=10**6,
        prompts_per_step=len(prompts),
        num_generations=arguments.group_size,
        micro_batch_sequences=arguments.micro_batch,
        learning_rate=1e-6,
    )
    collector = Collector(TextReward(), {POLICY: policy}, groups_per_step=len(prompts), seed=0)
    trainer = RLTrainer(
        policy,
        collector,
        ESTIMATORS["grpo"],
        GRPOAlgorithmConfig(),
        training,
        max_completion_tokens=arguments.max_tokens,
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
        parts[CPU] = time.process_time() - started_cpu
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
            seconds["update"] = seconds["step"] - seconds["sampling"] - seconds["grading"]
            send(seconds | {"tokens": float(tokens[0])})

    on_cpu = arguments.device == "cpu"
    config = GRPOConfig(
        output_dir=str(arguments.folder / "trl"),
        max_steps=10**6,
        per_device_train_batch_size=arguments.trl_micro_batch,
        gradient_accumulation_steps=arguments.completions // arguments.trl_micro_batch,
        num_generations=arguments.group_size,
        max_completion_length=arguments.max_tokens,
        learning_rate=1e-6,
        loss_type="dapo",
        beta=0.0,
        temperature=1.0,
        top_k=0,
        gradient_checkpointing=False,
        use_cpu=on_cpu,
        bf16=(arguments.trl_dtype or arguments.dtype) == "bfloat16",
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
    )

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


if __name__ == "__main__":
    main()
