"""Reads a run, or a study of several seeds, into plain data for the report.

Reading is lenient where a run's own reader is strict: a report of a broken or half-finished run is
worth most of all, so whatever cannot be read is left out and named in `notes`. Arms of a run are
runs inside it: `warm_start/` (supervised training before) and `control/` (more of it, for the wall
time that the main arm took). A study holds one such run per seed: `seed_0/`, `seed_1/` ….
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from greenward.errors import RunError
from greenward.user_text import parse_json_text, parse_yaml_text

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ARM_LABELS = {"grpo": "GRPO", "ppo": "PPO", "sft": "supervised"}


@dataclass(frozen=True)
class Arm:
    """One run directory: its rows of metrics and its evaluations, oldest first.

    `evaluations` are on the held-out problems, `suites` those on public suites by name.
    """

    label: str
    config: Mapping[str, Any]
    metrics: tuple[Mapping[str, Any], ...]
    evaluations: tuple[Mapping[str, Any], ...]
    summary: Mapping[str, Any]
    sessions: tuple[Mapping[str, Any], ...]
    suites: Mapping[str, tuple[Mapping[str, Any], ...]]

    @property
    def steps(self) -> int:
        """Steps done so far."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0


@dataclass(frozen=True)
class SeedRun:
    """One seed: the main arm and what stands beside it."""

    label: str
    main: Arm
    warm_start: Arm | None
    control: Arm | None


@dataclass(frozen=True)
class ReportRecord:
    """All that a report says, before any view of it. There is at least one seed."""

    title: str
    seeds: tuple[SeedRun, ...]
    notes: tuple[str, ...]

    @property
    def main_arms(self) -> tuple[Arm, ...]:
        return tuple(seed.main for seed in self.seeds)

    @property
    def control_arms(self) -> tuple[Arm, ...]:
        return tuple(seed.control for seed in self.seeds if seed.control is not None)

    @property
    def warm_start_arms(self) -> tuple[Arm, ...]:
        return tuple(seed.warm_start for seed in self.seeds if seed.warm_start is not None)


def read_report(path: str | Path) -> ReportRecord:
    """Read the run directory or the study at `path`.

    Raises:
        RunError: there is neither.
    """
    path = Path(path)
    notes: list[str] = []
    if _is_run(path):
        seeds = [_read_seed(path, notes)]
    else:
        folders = sorted(path.glob("seed_*"), key=_natural) if path.is_dir() else []
        seeds = [_read_seed(folder, notes) for folder in folders if _is_run(folder)]
        if not seeds:
            raise RunError(
                f"{path} holds neither a run (config.yaml) nor a study (seed_0/, seed_1/ …)",
                remedy="Give the folder that `greenward train` wrote to.",
            )
    notes += _gaps(seeds)
    title = seeds[0].main.config.get("name") or path.resolve().name
    return ReportRecord(title=str(title), seeds=tuple(seeds), notes=tuple(notes))


def _is_run(path: Path) -> bool:
    return (path / "config.yaml").is_file() or (path / "metrics.jsonl").is_file()


def _natural(path: Path) -> tuple[int, str]:
    number = re.search(r"(\d+)$", path.name)
    return (int(number[1]) if number else 0, path.name)


def _read_seed(path: Path, notes: list[str]) -> SeedRun:
    main = _read_arm(path, None, notes)
    inner = {
        name: _read_arm(path / name, name.replace("_", " "), notes) if _is_run(path / name) else None
        for name in ("warm_start", "control")
    }
    label = f"seed {main.config['seed']}" if "seed" in main.config else path.name
    return SeedRun(label, main, inner["warm_start"], inner["control"])


def _read_arm(path: Path, label: str | None, notes: list[str]) -> Arm:
    config = _read_yaml(path / "config.yaml", notes)
    kind = str(config.get("kind", "training"))
    sessions = _read_json(path / "provenance.json", notes).get("sessions", [])
    by_suite: dict[str | None, list[Path]] = {None: []}
    for file in sorted((path / "evaluations").glob("step_*.json")):
        by_suite.setdefault(file.stem.partition(".")[2] or None, []).append(file)
    return Arm(
        label=label or _ARM_LABELS.get(kind, kind),
        config=config,
        metrics=_read_metrics(path / "metrics.jsonl", notes),
        evaluations=_read_evaluations(by_suite.pop(None), notes),
        summary=_read_json(path / "summary.json", notes),
        sessions=tuple(session for session in sessions if isinstance(session, dict)),
        suites={str(name): _read_evaluations(files, notes) for name, files in by_suite.items()},
    )


def _read_metrics(path: Path, notes: list[str]) -> tuple[Mapping[str, Any], ...]:
    if not path.is_file():
        return ()
    rows, broken = [], 0
    for line in path.read_text(errors="replace").splitlines():
        row = _json_object(line)
        if row is None or not isinstance(row.get("step"), int):
            broken += bool(line.strip())
            continue
        rows.append({key: _number(value) for key, value in row.items()})
    if broken:
        notes.append(f"{_name(path)}: {broken} line(s) cannot be read and were left out.")
    return tuple(rows)


def _read_evaluations(files: Iterable[Path], notes: list[str]) -> tuple[Mapping[str, Any], ...]:
    evaluations = []
    for path in files:
        record = _read_json(path, notes)
        metrics = record.get("metrics")
        if not isinstance(metrics, dict) or not isinstance(record.get("step"), int):
            if record:
                notes.append(f"{_name(path)}: not an evaluation (no metrics, or no step); left out.")
            continue
        rates = record.get("rates")
        estimates = {
            "metrics": _estimates(metrics),
            "rates": _estimates(rates if isinstance(rates, dict) else {}),
        }
        evaluations.append({**record, **estimates})
    return tuple(sorted(evaluations, key=lambda record: record["step"]))


def _estimates(metrics: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The metrics that are estimates with finite bounds."""
    kept = {}
    for name, estimate in metrics.items():
        if isinstance(estimate, dict):
            bounds = {key: _number(estimate.get(key)) for key in ("value", "low", "high")}
            if all(isinstance(bound, (int, float)) and math.isfinite(bound) for bound in bounds.values()):
                kept[name] = bounds
    return kept


def _gaps(seeds: Sequence[SeedRun]) -> list[str]:
    """What the run does not say of itself."""
    notes = []
    for seed in seeds:
        prefix = f"{seed.label}: " if len(seeds) > 1 else ""
        if seed.main.summary.get("status") == "interrupted":
            notes.append(f"{prefix}stopped after {seed.main.steps} steps; go on with it by --resume.")
        elif not seed.main.summary:
            notes.append(f"{prefix}not finished: {seed.main.steps} steps so far.")
        lost = sum(_count(row.get("episodes/infrastructure")) for row in seed.main.metrics)
        if lost:
            notes.append(f"{prefix}{lost:.0f} episodes were lost to the infrastructure and not trained on.")
        notes += [f"{prefix}{text}" for text in _non_finite(seed.main)]
    if seeds[0].main.config.get("kind") in ("grpo", "ppo") and all(seed.control is None for seed in seeds):
        notes.append(
            "There is no control arm, so this report cannot tell reinforcement learning from more training."
        )
    return notes


def _count(value: Any) -> float:
    return value if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


def _non_finite(arm: Arm) -> list[str]:
    first: dict[str, int] = {}
    for row in arm.metrics:
        for key, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                first.setdefault(key, row["step"])
    return [f"{key} is not a finite number from step {step} on, at times." for key, step in first.items()]


def _read_json(path: Path, notes: list[str]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    record = _json_object(path.read_text(errors="replace"))
    if record is None:
        notes.append(f"{_name(path)} cannot be read and was left out.")
    return record or {}


def _read_yaml(path: Path, notes: list[str]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = parse_yaml_text(path.read_text(errors="replace"))
    except yaml.YAMLError:
        value = None
    if not isinstance(value, dict):
        notes.append(f"{_name(path)} cannot be read and was left out.")
        return {}
    return value


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = parse_json_text(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _number(value: Any) -> Any:
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def _name(path: Path) -> str:
    return "/".join(path.parts[-3:])
