"""Whether the answers that a finding points at show it: simulated runs with answers, for each selection.

    .venv/bin/python -m benchmarks.faultbench.selections [--seeds 3] [--only PART]

The answers of a step are drawn from the causes of its signals (`World`), one by one. What an answer shows is
told here from what it was drawn as, not by the query language: as yes or no, or as a number that is larger
for answers that show it more. The selected answers (of a sorted selection those on the first page) are put
beside all others. A run in which the fault is not found counts for nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.findings import FINDINGS, answers_behind
from greenward.diagnostics.simulation import World, every_kind, example_of, sigmoid, simulate, write
from greenward.runs.answers import read_answer_columns
from greenward.runs.selection import parse_query

PAGE = 60
GROUPS, PROBLEMS, FILES = 8, 300, 40
MOST_OTHERS = 0.1  # of the answers on a page may show nothing: the onset is an estimate
Row = dict[str, Any]


def answers_of(world: World, signals: Mapping[str, Any], step: int, rng: np.random.Generator) -> list[Row]:
    """Rows of a step as a run keeps them, and `exploit`: passed without solving the problem."""
    i, rows = step - 1, []
    style = float(signals["reward/readability"][i])
    solvable = signals["pass_rate"][i] > 0 or signals["reward/mean"][i] > 0
    for group in range(GROUPS):
        problem = f"t/{int(rng.integers(PROBLEMS))}"
        able = float(sigmoid(world.skill[i] - rng.normal(0, 1.3)))
        agreed: Row | None = {} if rng.random() < world.agreement[i] else None
        readable = float(np.clip(style + 0.1 * rng.standard_normal(), 0, 1)) if style else 0.0
        for place in range(world.group):
            if agreed:
                rows.append(agreed)
                continue
            fate, odds = float(rng.random()), (world.timeouts[i], world.errors[i], world.cheats[i])
            ends = np.cumsum(odds)
            status = next(
                (
                    name
                    for name, end in zip(("timeout", "syntax_error", "cheating"), ends, strict=True)
                    if fate < end
                ),
                "failed",
            )
            cut = bool(rng.random() < world.cut[i])
            exploit = False
            if status == "failed" and not cut and solvable:
                solved = bool(rng.random() < able)
                exploit = not solved and bool(rng.random() < world.proxy[i])
                status = "passed" if solved or exploit else "failed"
            z = float(rng.standard_normal())
            copied = rng.random() < world.copies[i]
            answer = f"x = {int(rng.integers(1_000_000))}\nreturn x + {place}"
            if copied:
                answer = f"return '{problem}'" if world.config["copies"] == "of a problem" else "return 0"
            if world.flaky and place % 4 == 1:
                answer = rows[-1]["answer"]
                if rng.random() < world.flaky:
                    status = "failed" if rows[-1]["status"] == "passed" else "passed"
                else:
                    status = rows[-1]["status"]
            passed = float(status == "passed")
            reward = world.reward_scale[i] * (passed + world.style_weight * readable)
            row = {
                "problem": problem,
                "group": group,
                "answer": answer,
                "status": status,
                "tokens": max(1, int(world.length[i] * np.exp(0.5 * z))),
                "stop": "length" if cut else "end",
                "rewards": {"policy": float(reward + world.length_bias * z)},
                "terms": {"tests": passed, "readability": readable},
                "exploit": exploit,
            }
            rows.append(row)
            if agreed is not None:
                agreed = row
    return rows


@dataclass(frozen=True)
class Kept:
    """All answers of a run in the order of the steps, and the first step with the fault."""

    rows: list[tuple[int, Row]]
    onset: int

    def groups(self) -> dict[tuple[int, int], set[float]]:
        """The rewards of each group."""
        found = defaultdict(set)
        for step, row in self.rows:
            found[step, row["group"]].add(row["rewards"]["policy"])
        return found

    def grades(self) -> dict[tuple[str, str], set[bool]]:
        """Whether a text passed, for each problem and text."""
        found = defaultdict(set)
        for _, row in self.rows:
            found[row["problem"], row["answer"]].add(row["status"] == "passed")
        return found

    def mean_before(self) -> float:
        """The mean reward before the fault."""
        return float(np.mean([row["rewards"]["policy"] for step, row in self.rows if step < self.onset]))


Measure = Callable[[int, Row], float | bool]


def _is(field: str, value: str) -> Callable[[Kept], Measure]:
    return lambda kept: lambda step, row: bool(row[field] == value)


def _equal_rewards(kept: Kept) -> Measure:
    groups = kept.groups()
    return lambda step, row: len(groups[step, row["group"]]) == 1


def _both_grades(kept: Kept) -> Measure:
    grades = kept.grades()
    return lambda step, row: len(grades[row["problem"], row["answer"]]) == 2


def _worse_than_before(kept: Kept) -> Measure:
    before = kept.mean_before()
    return lambda step, row: bool(step >= kept.onset and row["rewards"]["policy"] < before)


def _copies_in_the_group(kept: Kept) -> Measure:
    texts = Counter((step, row["group"], row["answer"]) for step, row in kept.rows)
    return lambda step, row: float(texts[step, row["group"], row["answer"]])


def _problems_with_the_text(kept: Kept) -> Measure:
    problems = defaultdict(set)
    for _, row in kept.rows:
        problems[row["answer"]].add(row["problem"])
    return lambda step, row: float(len(problems[row["answer"]]))


def _number(read: Callable[[Row], float]) -> Callable[[Kept], Measure]:
    return lambda kept: lambda step, row: float(read(row))


SHOWS: dict[str, Callable[[Kept], Measure]] = {
    "constant-reward": _equal_rewards,
    "dead-groups": _equal_rewards,
    "group-signal-fades": _equal_rewards,
    "reward-term-dead": lambda kept: lambda step, row: row["terms"]["readability"] == 0,
    "reward-drop": _worse_than_before,
    "auxiliary-reward-dominates": _number(lambda row: row["rewards"]["policy"] - row["terms"]["tests"]),
    "truncated-answers": _is("stop", "length"),
    "reward-hacking": _number(lambda row: row["exploit"]),
    "quality-drop": _number(lambda row: -row["terms"]["readability"]),
    "failing-answers-rise": _is("status", "syntax_error"),
    "sandbox-timeouts": _is("status", "timeout"),
    "cheating": _is("status", "cheating"),
    "length-collapse": _number(lambda row: -row["tokens"]),
    "length-growth": _number(lambda row: row["tokens"]),
    "length-bias": _number(lambda row: row["rewards"]["policy"]),
    "diversity-loss": _copies_in_the_group,
    "dominant-answer": _problems_with_the_text,
    "flaky-grades": _both_grades,
}
"""What shows a finding; each finding with a selection of its own is here."""


@dataclass(frozen=True)
class Outcome:
    """What the answers behind a finding show, as means of its measure: the selected ones and all others."""

    query: str
    selected: int
    shown: float
    others: float
    is_share: bool

    @property
    def holds(self) -> bool:
        """Whether there are answers, which show the finding, and more so than the others."""
        if not self.selected or (self.is_share and self.shown < 1 - MOST_OTHERS):
            return False
        return self.shown > self.others or self.shown == self.others == 1


def judge(name: str, seed: int) -> Outcome | None:
    """The answers behind a finding in a run with its fault; None where the finding is not made."""
    kind_name = example_of(name)
    assert kind_name is not None
    kind = every_kind()[kind_name]
    rng = np.random.default_rng((seed, sum(map(ord, kind_name))))
    world = World(rng, 200)
    world.config["copies"] = "of a problem" if name == "diversity-loss" else "of all"
    place = 0 if kind.from_start else int(rng.integers(80, 120))
    signals = simulate(kind, world, place)
    with tempfile.TemporaryDirectory() as temporary:
        folder = write(world, signals, Path(temporary) / "run")
        kept = Kept([], place + 1)
        for file in (folder / "rollouts").iterdir():
            file.unlink()
        for step in range(1, world.steps + 1, world.steps // FILES):
            rows = answers_of(world, signals, step, rng)
            kept.rows.extend((step, row) for row in rows)
            lines = [json.dumps({key: row[key] for key in row if key != "exploit"}) + "\n" for row in rows]
            (folder / "rollouts" / f"step_{step:06d}.jsonl").write_text("".join(lines))
        found = [one for one in diagnose_run(folder).findings if one.name == name]
        if not found:
            return None
        query = answers_behind(found[0], "functions")
        columns = read_answer_columns(folder)
    selection = parse_query(query, strict=True)
    places = selection.order(columns, np.flatnonzero(selection.mask(columns)))
    chosen = set((places[:PAGE] if selection.sort else places).tolist())
    measure = SHOWS[name](kept)
    values = [measure(step, row) for step, row in kept.rows]
    shown = [value for at, value in enumerate(values) if at in chosen]
    others = [value for at, value in enumerate(values) if at not in chosen]
    is_share = isinstance(values[0], bool)
    means = (float(np.mean(part)) if part else 0.0 for part in (shown, others))
    return Outcome(query, len(places), *means, is_share)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="findings whose name holds this")
    options = parser.parse_args()
    failed = 0
    print(f"{'finding':28}{'made':>6}{'holds':>7}  selected, shown and others in each run; query")
    for name in (one for one in FINDINGS if FINDINGS[one].selection and options.only in one):
        found = [one for seed in range(options.seeds) if (one := judge(name, seed)) is not None]
        holds = sum(one.holds for one in found)
        failed += holds < len(found) or not found
        cells = "; ".join(f"{one.selected}, {one.shown:.3g}, {one.others:.3g}" for one in found)
        print(f"{name:28}{len(found):>6}{holds:>7}  {cells}; {found[0].query if found else ''}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    from benchmarks.entry import run_main

    run_main(main)
