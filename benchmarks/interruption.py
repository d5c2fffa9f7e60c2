"""Ctrl-C at random moments: how soon it is acknowledged, how soon all ends, and whether it resumes exactly.

    python benchmarks/interruption.py --what train --model FOLDER [--moments 30] [--seed 0] [--json FILE]

Each moment is a command of its own (`train`, `eval`, `grade` or `demo`) in a process group of its own. When
its imports are over, which its first line says, it runs for a random part of the time that the whole command
takes. Then the group gets SIGINT, as from a terminal. Measured are the seconds until "Stopping" is read and
until the process has ended; a command that was finishing then says nothing, and ends with exit code 0. The
same command goes on, and another random part later it gets SIGINT twice, 0.2 seconds apart: the seconds from
the second one to the end. It goes on once more, to its end, and what it has
written must equal what a command without interruption wrote. `demo`, whose arms beside GRPO train for a time
and not for a number of steps, is compared by its warm start and GRPO.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from greenward.runs.reading import read_metrics, without_timing

LIMITS = {"acknowledged": 0.3, "ended": 5.0, "second": 0.5}
BETWEEN = 0.2
MOST_SECONDS = 600.0  # of one command
PROBLEMS, ANSWERS, SLOWEST = 12, 10, 0.4
SHORT = (
    "model.device=cpu",
    "model.dtype=float32",
    "training.max_steps=3",
    "training.prompts_per_step=2",
    "training.num_generations=2",
    "training.checkpoint_interval_steps=2",
    "sampling.max_tokens=8",
    "evaluation={num_questions: 1, samples: 1, k: [1], greedy: false, eval_interval_steps: 3}",
    "sandbox={workers: 1}",
)
QUICK = ("warm_start.max_steps=12", "training.prompts_per_step=8", "evaluation.num_questions=4")


class Command:
    """A running `greenward` command, and when it wrote which line of standard error."""

    def __init__(self, arguments: list[str]) -> None:
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "greenward", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        self.lines: list[tuple[float, str]] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append((time.monotonic(), line.rstrip()))

    def wait_for_line(self) -> float:
        """When the first line came, or the process ended without one."""
        while not self.lines and self.process.poll() is None:
            self._demand_time()
            time.sleep(0.005)
        return self.lines[0][0] if self.lines else time.monotonic()

    def wait_until(self, moment: float) -> bool:
        """Whether it still runs at the moment."""
        while time.monotonic() < moment and self.process.poll() is None:
            time.sleep(0.002)
        return self.process.poll() is None

    def interrupt(self) -> float:
        now = time.monotonic()
        os.killpg(self.process.pid, signal.SIGINT)
        return now

    def wait(self) -> float:
        """When it ended."""
        while self.process.poll() is None:
            self._demand_time()
            time.sleep(0.002)
        now = time.monotonic()
        self._reading.join(5)
        return now

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    @property
    def said(self) -> str:
        return "\n".join(text for _, text in self.lines)

    def _demand_time(self) -> None:
        if time.monotonic() - self.began > MOST_SECONDS:
            self.kill()
            raise SystemExit(f"A command took more than {MOST_SECONDS:g} s. It wrote:\n{self.said}")


@dataclass
class Moment:
    """What was measured: seconds (None where the command had ended by then), and what went wrong."""

    after: float
    acknowledged: float | None = None
    ended: float | None = None
    second: float | None = None
    wrong: list[str] = field(default_factory=list)


@dataclass
class Work:
    """A command to interrupt. `arguments` begin it in a folder; going on takes `resume` as well."""

    arguments: list[str]
    resume: list[str]
    output: str

    def start(self, folder: Path, *, again: bool) -> Command:
        return Command([*self.arguments, *(self.resume if again else []), self.output, str(folder)])

    def finish(self, folder: Path, *, again: bool) -> tuple[float, float]:
        """Run to the end: when its first line came, and when it ended."""
        command = self.start(folder, again=again)
        try:
            first, ended = command.wait_for_line(), command.wait()
        finally:
            command.kill()
        if command.process.returncode:
            raise SystemExit(f"exit code {command.process.returncode}:\n{command.said}")
        return first, ended


def prepared(what: str, model: Path, folder: Path) -> Work:
    """The command to interrupt; what it reads is written to `folder`."""
    if what == "train":
        return Work(["train", "quickstart", f"model={model}", *SHORT], ["--resume"], "--output")
    if what == "demo":
        return Work(["demo", "--quick", "--seeds", "0", *QUICK], ["--resume"], "--output")
    rows, answers = [], []
    for number in range(PROBLEMS):
        name = f"after_{number}"
        start = f'def {name}(n):\n    """Return n + {number}."""\n'
        rows.append({"function_name": name, "docstring": f"Return n + {number}.", "starter_code": start,
                     "test_cases": [[1, 1 + number], [5, 5 + number]]})  # fmt: skip
        for answer in range(ANSWERS):
            pause = SLOWEST * (number * ANSWERS + answer) / (PROBLEMS * ANSWERS)
            body = f"    time.sleep({pause / 2})\n    return n + {number % (answer + 1)}\n"
            code = f"import time\ndef {name}(n):\n{body}"
            answers.append({"task_id": name, "solution": code})
    suite, samples = folder / "suite.json", folder / "answers.jsonl"
    suite.write_text(json.dumps(rows), encoding="utf-8")
    samples.write_text("".join(json.dumps(row) + "\n" for row in answers), encoding="utf-8")
    if what == "grade":
        return Work(["grade", str(samples), "--suite", str(suite)], [], "--out")
    drawn = ["--n", "4", "--max-tokens", "32", "--device", "cpu"]
    return Work(["eval", str(model), "--suite", str(suite), *drawn], [], "--out")


def difference(what: str, found: Path, expected: Path) -> str:
    """What differs between two folders of finished work, empty if nothing does."""
    if what == "train":
        return _run_difference(found, expected)
    if what == "demo":
        runs = ("seed_0/warm_start", "seed_0")
        return " ".join(filter(None, (_run_difference(found / run, expected / run) for run in runs)))
    files = {"samples.jsonl": ("completion", "code"), "results.jsonl": ("status",)}
    for name, keys in files.items():
        if _answers(found / name, keys) != _answers(expected / name, keys):
            return f"{name} differs"
    return ""


def _answers(file: Path, keys: Iterable[str]) -> list[Any]:
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return sorted([row["task_id"], row["sample"], *(str(row.get(key)) for key in keys)] for row in rows)


def _run_difference(found: Path, expected: Path) -> str:
    def rows(run: Path) -> list[dict[str, Any]]:
        return [without_timing(row) for row in read_metrics(run / "metrics.jsonl").rows]

    if rows(found) != rows(expected):
        return f"{found.name}/metrics.jsonl differs"
    for folder in ("rollouts", "evaluations"):
        names = [sorted(one.name for one in (run / folder).iterdir()) for run in (found, expected)]
        if names[0] != names[1]:
            return f"{found.name}/{folder} differs"
    states = [
        torch.load(run / "checkpoints/last/trainer.pt", weights_only=True, mmap=True)
        for run in (found, expected)
    ]
    for state in states:
        for name in ("training_seconds", "wall_seconds", "callbacks"):  # these measure time
            state.pop(name)
    if not _equal(*states):
        return f"{found.name}: the state of the trainer differs"
    weights = [load_file(run / "checkpoints/last/model.safetensors") for run in (found, expected)]
    return "" if _equal(*weights) else f"{found.name}: the weights differ"


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def measure(work: Work, folder: Path, seconds: float, rng: random.Random) -> Moment:
    """One moment: a Ctrl-C, a double one after going on, and the rest of the work."""
    moment = Moment(0.95 * rng.random() * seconds)
    command = work.start(folder, again=False)
    try:
        if command.wait_until(command.wait_for_line() + moment.after):
            asked = command.interrupt()
            ended = command.wait()
            said = [at for at, line in command.lines if line.startswith("Stopping") and at >= asked]
            moment.acknowledged, moment.ended = (said[0] if said else ended) - asked, ended - asked
            if said or command.process.returncode:
                _judge(command, moment)
                if len(said) != 1:
                    moment.wrong.append(f"acknowledged {len(said)} times")
    finally:
        command.kill()
    command = work.start(folder, again=True)
    try:
        if command.wait_until(command.wait_for_line() + rng.random() * (seconds - moment.after)):
            command.interrupt()
            if command.wait_until(time.monotonic() + BETWEEN):
                asked = command.interrupt()
                moment.second = command.wait() - asked
                _judge(command, moment)
    finally:
        command.kill()
    work.finish(folder, again=True)
    return moment


def _judge(command: Command, moment: Moment) -> None:
    ends_anyway = "all steps are finished" in command.said
    if command.process.returncode != 130 and not (ends_anyway and command.process.returncode == 0):
        moment.wrong.append(f"exit code {command.process.returncode}: {command.said[-1000:]}")
    if "Traceback" in command.said or "Exception ignored" in command.said:
        moment.wrong.append(command.said[-2000:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", choices=("train", "eval", "demo", "grade"), required=True)
    parser.add_argument("--model", type=Path, help="a folder with a model, for train and eval")
    parser.add_argument("--moments", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    options = parser.parse_args()
    if options.what in ("train", "eval") and options.model is None:
        parser.error(f"--what {options.what} needs a --model.")
    rng, moments = random.Random(options.seed), []
    with tempfile.TemporaryDirectory(prefix="interruption-") as name:
        place = Path(name)
        work = prepared(options.what, options.model, place)
        work.finish(place / "first", again=False)  # it fills caches
        first, ended = work.finish(place / "whole", again=False)
        print(f"{options.what}: {ended - first:.1f} s after the imports, without interruption")
        for number in range(options.moments):
            folder = place / f"moment_{number}"
            began = time.monotonic()
            moment = measure(work, folder, ended - first, rng)
            if wrong := difference(options.what, folder, place / "whole"):
                moment.wrong.append(wrong)
            moments.append(moment)
            shutil.rmtree(folder)
            took = time.monotonic() - began
            shown = " ".join(f"{name} {_shown(getattr(moment, name))}" for name in LIMITS)
            print(
                f"{number:3} at {moment.after:5.1f} s: {shown}  ({took:.0f} s)  {'; '.join(moment.wrong)}",
                flush=True,
            )
    record: dict[str, Any] = {"what": options.what, "moments": [vars(one) for one in moments]}
    for name, limit in LIMITS.items():
        found = [seconds for one in moments if (seconds := getattr(one, name)) is not None]
        worst, median = max(found, default=None), statistics.median(found) if found else None
        record[name] = {"worst": worst, "median": median, "limit": limit, "count": len(found)}
        print(
            f"{name:13} worst {_shown(worst)} median {_shown(median)} limit {limit:.1f} s, {len(found)} times"
        )
    record["wrong"] = sum(bool(one.wrong) for one in moments)
    print(f"{record['wrong']} of {len(moments)} moments went wrong or did not resume exactly")
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(bool(record["wrong"]))


def _shown(seconds: float | None) -> str:
    return "   -  " if seconds is None else f"{seconds:.2f} s"


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
