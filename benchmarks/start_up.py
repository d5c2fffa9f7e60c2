"""How long commands take to start, in multiples of `python -c "import click, pydantic, numpy"`.

    .venv/bin/python benchmarks/start_up.py [--rounds 5] [--only WORD] [--json FILE]

Each round runs the import, `import torch` and every command in turn; the table has the least of all rounds,
which on an idle machine is what the start takes. A command is measured to its end, to its first line, or to
the first line that its work writes. A budget of work is 2 and what torch takes. Exit code 1 beyond a budget.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from greenward.diagnostics.change_points import simulate_autoregression

BASE, TORCH = "import click, pydantic, numpy", "import torch"
MOST_SECONDS = 120.0
# An installed program has its bytecode.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ENVIRONMENT["HF_HUB_OFFLINE"] = "1"
COMPLETION = {"_GREENWARD_COMPLETE": "bash_complete", "COMP_WORDS": "greenward tr", "COMP_CWORD": "1"}
ROWS, SIGNALS = 500, ("reward/mean", "grad_norm", "entropy", "kl", "completion/length", "loss")
ADD = {
    "function_name": "add",
    "docstring": "Return the sum of a and b.",
    "starter_code": 'def add(a, b):\n    """Return the sum of a and b."""\n',
    "test_cases": [[[1, 2], 3], [[2, 2], 4]],
}


@dataclass(frozen=True)
class Command:
    """`until` is None for the end of the command, or what the line holds whose time counts ("" = any)."""

    name: str
    arguments: tuple[str, ...]
    budget: float
    until: str | None = None
    needs_torch: bool = False


COMMANDS = (
    Command("--help", ("--help",), 0.6),
    Command("completion", (), 0.6),
    Command("diagnose, 500 rows", ("diagnose", "log"), 2),
    Command("compare", ("compare", "one", "two"), 2),
    Command("show", ("show", "add", "--in", "one"), 2),
    Command("rollouts", ("rollouts", "run"), 2),
    Command("grade: first line", ("grade", "answers.jsonl", "--suite", "suite.json", "--out", "OUT"), 2, ""),
    Command("train: first line", ("train", "quickstart", "--output", "OUT"), 2, ""),
    Command("demo: first line", ("demo", "--quick", "--output", "OUT"), 2, ""),
    Command("eval: first line", ("eval", "starter", "--suite", "suite.json", "--out", "OUT"), 2, ""),
    Command("play: first line", ("play", "tictactoe"), 2, ""),
    Command(
        "grade: work begins",
        ("grade", "answers.jsonl", "--suite", "suite.json", "--out", "OUT"),
        2,
        "judging",
    ),
    Command("train: work begins", ("train", "quickstart", "--output", "OUT"), 2, "reading problems", True),
    Command(
        "eval: work begins",
        ("eval", "starter", "--suite", "suite.json", "--out", "OUT"),
        2,
        "model: starter",
        True,
    ),
    Command("ui: listening", ("ui", ".", "--port", "7300", "--no-open"), 3, "http://"),
)


def seconds(command: list[str], until: str | None, **environment: str) -> float:
    """From the start of a process until it ends, or writes a line that holds the expression `until`."""
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**ENVIRONMENT, **environment},
    )
    assert process.stdout is not None
    said: list[str] = []
    try:
        for line in process.stdout:
            said.append(line)
            if until is not None and re.search(until, line):
                return time.monotonic() - began
            if time.monotonic() - began > MOST_SECONDS:
                break
        if until is None and process.wait(MOST_SECONDS) in (
            0,
            1,
        ):  # diagnose says by 1 that it found something
            return time.monotonic() - began
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    raise SystemExit(f"{' '.join(command)}: no line with {until!r}, or a failure. It wrote:\n{''.join(said)}")


def write_inputs(folder: Path) -> None:
    """A log, a suite with answers, two evaluations, a run with answers, and a tiny model."""
    (folder / "log").mkdir()
    columns = simulate_autoregression(np.random.default_rng(0), len(SIGNALS), ROWS, 0.5)
    with (folder / "log/metrics.jsonl").open("w", encoding="utf-8") as file:
        for step, values in enumerate(zip(*columns, strict=True), start=1):
            row = {name: 10 + float(value) for name, value in zip(SIGNALS, values, strict=True)}
            file.write(json.dumps({"step": step, **row}) + "\n")
    (folder / "suite.json").write_text(json.dumps([ADD]), encoding="utf-8")
    answers = [{"task_id": "add", "solution": f"def add(a, b):\n    return a + {end}\n"} for end in "b1"]
    (folder / "answers.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in answers), encoding="utf-8"
    )
    greenward = [sys.executable, "-m", "greenward"]
    tiny = ["model.shape={layers: 1, hidden_size: 32, heads: 2, kv_heads: 2, intermediate_size: 64}"]
    tiny += ["warm_start.max_steps=2", "training.max_steps=2", "evaluation.enabled=false"]
    for arguments in (
        ["grade", "answers.jsonl", "--suite", "suite.json", "--out", "one"],
        ["grade", "answers.jsonl", "--suite", "suite.json", "--out", "two"],
        ["train", "quickstart", *tiny, "--output", "run"],
    ):
        subprocess.run([*greenward, *arguments], cwd=folder, check=True, capture_output=True, env=ENVIRONMENT)
    (folder / "starter").symlink_to(folder / "run/checkpoints/last", target_is_directory=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="commands whose name holds this")
    parser.add_argument("--json", type=Path, help="keep all seconds here")
    options = parser.parse_args()
    chosen = [one for one in COMMANDS if options.only in one.name]
    found: dict[str, list[float]] = {name: [] for name in (BASE, TORCH, *(one.name for one in chosen))}
    with tempfile.TemporaryDirectory() as temporary:
        os.chdir(temporary)
        write_inputs(Path(temporary))
        for number in range(options.rounds):
            for code in (BASE, TORCH):
                found[code].append(seconds([sys.executable, "-c", code], None))
            for place, one in enumerate(chosen):
                output = f"out_{number}_{place}"
                arguments = [output if part == "OUT" else part for part in one.arguments]
                environment = {} if arguments else COMPLETION
                command = [str(Path(sys.executable).with_name("greenward")), *arguments]
                found[one.name].append(seconds(command, one.until, **environment))
    base, torch = (min(found[code]) for code in (BASE, TORCH))
    late = False
    print(f"| | multiples of {base:.2f} s | budget |\n|---|---|---|")
    for one in chosen:
        budget = one.budget + one.needs_torch * torch / base
        took = min(found[one.name]) / base
        late |= took > budget
        print(f"| {one.name} | {took:.2f} | {budget:.2g} |{' beyond' * (took > budget)}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    raise SystemExit(int(late))


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
