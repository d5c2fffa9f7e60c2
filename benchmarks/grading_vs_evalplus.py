"""The references of MBPP+ graded here and by EvalPlus 0.3.1, on two cores, in turns, in one run.

    .venv/bin/python benchmarks/grading_vs_evalplus.py --peers-python PATH/TO/EVALPLUS/VENV/bin/python

Each turn is a process of its own, which reads the problems, starts its workers, grades all 378
references and ends its workers; imports are not counted. EvalPlus does it by its own `evaluate`,
as its command line calls it. Both have the expected values in a cache that was filled before, once,
in this run: what that took is shown apart. All processes run on the same two processors.

The last line says for each target whether it was reached.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evalplus_runs import SIDES, EvalPlus, run_side

SUITE = "mbpp+"
WORKERS = 2
MOST_SECONDS, MOST_MEMORY_BYTES = 15.0, 500_000_000  # targets of ours: wall, memory of the grading parent
DATA = Path(__file__).parents[2] / "shared" / "data" / "evalplus"


def main() -> None:
    arguments = parse_arguments()
    processors = sorted(os.sched_getaffinity(0))[:WORKERS]
    os.sched_setaffinity(0, processors)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        evalplus = EvalPlus(arguments.peers_python, arguments.data.resolve(), Path(folder))
        settings = {"GREENWARD_DATA": str(arguments.data.resolve()), "GREENWARD_CACHE": folder}
        answers = references(arguments.data)

        def ours(task: str) -> dict[str, Any]:
            script = str(SIDES / "run_greenward.py")
            return run_side([sys.executable, script, task, SUITE, str(WORKERS)], settings)

        def theirs() -> dict[str, Any]:
            statuses, took = evalplus.evaluate(SUITE, answers, WORKERS)
            failed = {
                task_id: f"base {one.base}, plus {one.plus}"
                for (task_id, _), one in zip(answers, statuses, strict=True)
                if not one.passed
            }
            return {**took, "failed": failed}

        expected = {"greenward": ours("expected"), "EvalPlus": evalplus.expected_values(SUITE)}
        sides = {"greenward": lambda: ours("evaluate"), "EvalPlus": theirs}
        rounds = [play(sides, number) for number in range(arguments.rounds)]
    record = {
        "suite": SUITE,
        "answers": len(answers),
        "machine": {
            "processors": len(processors),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "load_before": load_before,
            "load_after": os.getloadavg()[0],
        },
        "expected_values": expected,
        "rounds": rounds,
    }
    print_record(record)
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--peers-python", required=True, help="interpreter of an environment with EvalPlus")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with MbppPlus.jsonl.gz")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all numbers here")
    return parser.parse_args()


def references(data: Path) -> list[tuple[str, str]]:
    """(task id, program) of every problem, from the file itself."""
    from greenward.problems.catalog import load_file

    return [(problem.task_id, problem.reference) for problem in load_file(data / "MbppPlus.jsonl.gz")]


def play(sides: dict[str, Callable[[], dict[str, Any]]], number: int) -> dict[str, dict[str, Any]]:
    """One turn of each side; who begins changes from round to round."""
    names = list(sides) if number % 2 == 0 else list(reversed(sides))
    return {name: sides[name]() for name in names}


def print_record(record: dict[str, Any]) -> None:
    about, rounds = record["machine"], record["rounds"]
    print(
        f"{record['answers']} references of {record['suite']}; {about['processors']} processors, load "
        f"{about['load_before']:.1f} before and {about['load_after']:.1f} after, Python {about['python']}, "
        f"Linux {about['kernel']}; {len(rounds)} rounds, median [min, max]"
    )
    heads = ("seconds", "CPU s", "command, s", "parent's peak MB", "expected values, s")
    print(f"\n{'':12}" + "".join(f"{head:>22}" for head in heads))
    for name in ("greenward", "EvalPlus"):
        cells = [
            show([one[name]["seconds"] for one in rounds]),
            show([one[name]["cpu_seconds"] for one in rounds]),
            show([one[name]["command_seconds"] for one in rounds]),
            f"{peak(record, name) / 1e6:.0f}",
            f"{record['expected_values'][name]['seconds']:.1f}",
        ]
        print(f"{name:12}" + "".join(f"{cell:>22}" for cell in cells))
    ratios = [one["EvalPlus"]["seconds"] / one["greenward"]["seconds"] for one in rounds]
    print(f"{'ratio':12}{show(ratios):>22}")
    print("\nexpected values: computed once, first of all; the other columns found them in the cache")
    task_id, longest = rounds[-1]["greenward"]["longest"]
    own = [one["greenward"]["answers_cpu_seconds"] for one in rounds]
    print(f"CPU seconds of the references in our sandbox: {show(own)}; {task_id} alone {longest:.1f}")
    for name in ("greenward", "EvalPlus"):
        failed = rounds[-1][name]["failed"]
        what = "; ".join(f"{task_id} ({status})" for task_id, status in failed.items()) or "none"
        print(f"references that {name} fails: {what}")
    print()
    seconds = statistics.median(one["greenward"]["seconds"] for one in rounds)
    say(seconds <= MOST_SECONDS, f"at most {MOST_SECONDS:.0f} s", f"{seconds:.1f} s")
    memory = peak(record, "greenward")
    say(memory < MOST_MEMORY_BYTES, "the grading parent stays under 500 MB", f"{memory / 1e6:.0f} MB")


def peak(record: dict[str, Any], name: str) -> float:
    """The most memory of a side's parent, in bytes; with that of computing the expected values."""
    turns = [record["expected_values"][name], *(one[name] for one in record["rounds"])]
    return float(max(turn["peak_memory_bytes"] for turn in turns))


def show(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} [{min(values):.1f}, {max(values):.1f}]"


def say(reached: bool, target: str, found: str) -> None:
    print(f"{'reached' if reached else 'MISSED '}  {target}: {found}")


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
