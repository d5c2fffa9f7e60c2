"""Makes the figures and tables of docs/dqn.md from runs of the recipe `dqn_code_generation`.

    .venv/bin/greenward train dqn_code_generation
    .venv/bin/python benchmarks/dqn_figures.py runs/dqn_code_generation

Several runs (one for each seed) are drawn together. The tables of CartPole and of unseen problems come from
`results/dqn_cartpole.json` and `dqn_unseen.json`, which the programs of these names write; they alone are
made anew where no run is given.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from figures import RESULTS, replaced
from greenward.common.statistics import paired_difference
from greenward.reports.document import Chart, Role, Series
from greenward.reports.svg import standalone
from greenward.runs.reading import read_metrics

DOCS = Path(__file__).parents[1] / "docs"
ROLES: tuple[Role, ...] = ("main", "second", "third", "fourth", "fifth")
FIGURES = {
    "dqn_td_error": ("TD error (mean of a batch)", {"td_error": ""}),
    "dqn_values": (
        "First token: value, and value less return",
        {"q/start": "Q", "q/overestimation": "Q − return"},
    ),
    "dqn_solved": ("Problems whose greedy program passes", {"problems/solved": ""}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    runs: list[Path] = parser.parse_args().runs
    (DOCS / "figures").mkdir(exist_ok=True)
    for name, (title, signals) in FIGURES.items() if runs else ():
        (DOCS / "figures" / f"{name}.svg").write_text(standalone(chart(runs, title, signals), 640, 320))
    page = DOCS / "dqn.md"
    text = page.read_text(encoding="utf-8")
    for block in (cartpole_block, unseen_block):
        name = block.__name__.removesuffix("_block")
        file = RESULTS / f"dqn_{name}.json"
        if file.is_file():
            text = replaced(text, name, block(json.loads(file.read_text(encoding="utf-8"))))
    page.write_text(text, encoding="utf-8")


def chart(runs: Sequence[Path], title: str, signals: dict[str, str]) -> Chart:
    """A line for each signal of the first run, or for each run of the only signal, over episodes."""
    series = []
    for number, run in enumerate(runs if len(signals) == 1 else runs[:1]):
        rows = read_metrics(run / "metrics.jsonl").rows
        for place, (signal, label) in enumerate(signals.items()):
            points = [(float(row["episodes"]), float(row[signal])) for row in rows if signal in row]
            step = max(1, len(points) // 150)
            means = [
                (points[i][0], statistics.fmean(value for _, value in points[i : i + step]))
                for i in range(0, len(points), step)
            ]
            name = label or (f"seed {number}" if len(runs) > 1 else "")
            series.append(Series(name, ROLES[(number + place) % len(ROLES)], tuple(means)))
    return Chart(title, "episodes", tuple(series))


def unseen_block(record: dict[str, Any]) -> str:
    """Solved greedily by each arm of `dqn_unseen.py`: mean and range over seeds."""
    reachable = [name for name, lacking in record["lacking"].items() if not lacking]
    classics = {name for name in record["lacking"] if "/" not in name}
    heads = ("", "seeds", "8 classics, trained on", f"{len(reachable)} unseen, reachable")
    heads += (
        "the recipe solves more of these",
        f"{len(record['lacking']) - len(reachable)} unseen, not reachable",
    )
    heads += (f"of all, the {len(classics)} classics",)
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for arm, runs in record["arms"].items():
        rows = list(runs.values())
        unseen = [set(row["unseen"]) for row in rows]
        cells = [
            spread([row["classics"] for row in rows]),
            spread([len(solved.intersection(reachable)) for solved in unseen]),
            "" if runs is record["arms"]["the recipe"] else advantage(record["arms"], arm, reachable),
            spread([len(solved.difference(reachable)) for solved in unseen]),
            spread([len(solved & classics) for solved in unseen]),
        ]
        lines.append(f"| {arm} | {', '.join(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def advantage(arms: dict[str, Any], arm: str, problems: Sequence[str]) -> str:
    """How many more of the problems the recipe solves than `arm`, with the same seeds; 95 % over problems."""
    seeds = [seed for seed in arms[arm] if seed in arms["the recipe"]]
    solved = {
        name: np.array([[problem in arms[name][seed]["unseen"] for problem in problems] for seed in seeds])
        for name in ("the recipe", arm)
    }
    shares_P = solved["the recipe"].mean(0) - solved[arm].mean(0)
    found = paired_difference(shares_P)
    value, low, high = (f"{len(problems) * one:+.1f}" for one in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"


def spread(values: Sequence[float]) -> str:
    """The mean and the range."""
    return f"{statistics.fmean(values):.1f} ({min(values):.0f} to {max(values):.0f})"


def cartpole_block(record: dict[str, Any]) -> str:
    lines = ["| | seeds that reach 475 | median environment steps | all |", "| --- | --- | --- | --- |"]
    for name, label in (("ours", "greenward"), ("peer", "stable-baselines3 2.9, tuned")):
        steps = [one["step"] for one in record.get(name, ())]
        reached = [step for step in steps if step is not None]
        median = statistics.median(step if step is not None else float("inf") for step in steps)
        shown = ", ".join(f"{step:,}" if step else "not reached" for step in steps)
        lines.append(f"| {label} | {len(reached)} of {len(steps)} | {median:,.0f} | {shown} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
