"""Writes simulated runs in the forms in which trainers log: files, and what is printed to a console."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from benchmarks.faultbench.families import Family

Row = dict[str, float]
_EVALUATED_EVERY = 20


def rows_of(family: Family, signals: dict[str, np.ndarray]) -> list[Row]:
    count = len(next(iter(signals.values())))
    keyed = {key: signals[name] for name, key in family.names.items() if name in signals}
    return [{key: float(values[i]) for key, values in keyed.items()} for i in range(count)]


def write(family: Family, signals: dict[str, np.ndarray], folder: Path) -> None:
    """Write the log of a run to a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    name, form = _FORMS[family.form]
    with open(folder / name, "w", encoding="utf-8", newline="") as file:
        file.write(form(rows_of(family, signals)))


def _state(rows: list[Row]) -> str:
    """transformers' trainer_state.json, with evaluations between the steps."""
    history: list[Row] = []
    for step, row in enumerate(rows, start=1):
        history.append({**row, "step": step})
        if step % _EVALUATED_EVERY == 0:
            window = [one["reward"] for one in rows[step - _EVALUATED_EVERY : step]]
            history.append({"eval_reward": float(np.mean(window)), "eval_runtime": 283.0, "step": step})
    state = {"global_step": len(rows), "logging_steps": 1, "max_steps": len(rows), "log_history": history}
    return json.dumps(state, indent=2)


def _printed(rows: list[Row]) -> str:
    """What transformers' Trainer prints, between the lines of a progress bar."""

    def lines() -> Iterator[str]:
        for step, row in enumerate(rows, start=1):
            yield str({key: f"{value:.4g}" for key, value in row.items()})
            if step % 25 == 0:
                yield f" {step / len(rows):4.0%}|███       | {step}/{len(rows)} [10:00<20:00, 33.5s/it]"
        yield str({"train_runtime": "6702", "train_loss": "0.0022", "epoch": "0.107"})

    return "\n".join(lines()) + "\n"


def _verl(rows: list[Row]) -> str:
    return "".join(
        f"\x1b[36m(TaskRunner pid=16623)\x1b[0m step:{step} - "
        + " - ".join(f"{key}:{value!r}" for key, value in row.items())
        + "\n"
        for step, row in enumerate(rows, start=1)
    )


def _lines(rows: list[Row]) -> str:
    return "".join(json.dumps({"step": step, **row}) + "\n" for step, row in enumerate(rows, start=1))


def _minimind(rows: list[Row]) -> str:
    return "".join(
        f"Epoch:[1/1]({step}/{len(rows)}), "
        + ", ".join(
            f"{key}: {value:.8f}" if key == "LR" else f"{key}: {value:.4f}" for key, value in row.items()
        )
        + "\n"
        for step, row in enumerate(rows, start=1)
    )


def _table(rows: list[Row]) -> str:
    """A CSV file. As in Stable-Baselines3's, the first row has no training yet."""
    lines = [",".join(rows[0])]
    for place, row in enumerate(rows):
        cells = ("" if place == 0 and key.startswith("train/") else repr(value) for key, value in row.items())
        lines.append(",".join(cells))
    assert all(len(line) == len(rows[0]) for line in csv.reader(lines))
    return "\n".join(lines) + "\n"


def _boxes(rows: list[Row]) -> str:
    """Tables of Stable-Baselines3, one for each row."""

    def box(place: int, row: Row) -> Iterator[str]:
        group = ""
        yield "-" * 45
        for key, value in sorted(row.items()):
            section, _, name = key.partition("/")
            if place == 0 and section == "train":
                continue
            if section != group:
                yield f"| {section + '/':24}|{'':16} |"
                group = section
            yield f"|    {name:21}| {value:<16.3g}|" if value < 1e6 else f"|    {name:21}| {value:<16.0f}|"
        yield "-" * 45

    return "\n".join(line for place, row in enumerate(rows) for line in box(place, row)) + "\n"


def _blocks(rows: list[Row]) -> str:
    """Blocks of rsl_rl, one for each iteration."""
    lines = []
    for step, row in enumerate(rows):
        lines += ["#" * 80, f"{f'Learning iteration {step}/{len(rows)}':^80}", ""]
        lines += [f"{key + ':':>36} {value:.4f}" for key, value in row.items()]
        lines += ["-" * 80]
    return "\n".join(lines) + "\n"


_FORMS: dict[str, tuple[str, Callable[[list[Row]], str]]] = {
    "state": ("trainer_state.json", _state),
    "printed": ("train.log", _printed),
    "verl": ("train.log", _verl),
    "lines": ("metrics.jsonl", _lines),
    "minimind": ("train.log", _minimind),
    "table": ("progress.csv", _table),
    "boxes": ("train.log", _boxes),
    "blocks": ("train.log", _blocks),
}
