"""Reads a run, or a study of several seeds, into plain data for the report.

Reading is lenient where a run's own reader is strict: a report of a broken or half-finished run is
worth most of all, so whatever cannot be read is left out and named in `notes`. Arms of a run are
runs inside it: `warm_start/` (supervised training before) and those of `ARMS_BESIDE`, which trained from the
same start for the wall time that the main arm took. A study holds one such run per seed: `seed_0/`,
`seed_1/` ….
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from greenward.errors import RunError
from greenward.no_signal import Spell, spells
from greenward.user_text import parse_json_text, parse_yaml_text

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ARM_LABELS = {"grpo": "GRPO", "ppo": "PPO", "rejection": "Rejection sampling", "sft": "supervised"}
ARMS_BESIDE = ("grpo", "rejection", "control")
CONTROL = "Control"


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


def in_a_sentence(label: str) -> str:
    """The label of an arm as it is written in the middle of a sentence."""
    return label if label.isupper() else label.lower()


@dataclass(frozen=True)
class SeedRun:
    """One seed: the main arm, and the arms that are compared with it by their labels."""

    label: str
    main: Arm
    warm_start: Arm | None
    beside: Mapping[str, Arm]


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
    def labels_beside(self) -> tuple[str, ...]:
        """The arms that are compared with the main one, in the order of `ARMS_BESIDE`."""
        return tuple(dict.fromkeys(label for seed in self.seeds for label in seed.beside))

    def arms_beside(self, label: str) -> tuple[Arm, ...]:
        """The arms of this label, one for each seed that has it."""
        return tuple(seed.beside[label] for seed in self.seeds if label in seed.beside)

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
    warm_start = _read_arm(path / "warm_start", "warm start", notes) if _is_run(path / "warm_start") else None
    beside = [
        _read_arm(path / name, CONTROL if name == "control" else None, notes)
        for name in ARMS_BESIDE
        if _is_run(path / name)
    ]
    label = f"seed {main.config['seed']}" if "seed" in main.config else path.name
    return SeedRun(label, main, warm_start, {arm.label: arm for arm in beside})


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
        for arm in (seed.main, *seed.beside.values()):
            of_arm = prefix if arm is seed.main else f"{prefix}{arm.label}: "
            for texts in (
                _no_signal(arm),
                _lost(arm),
                _lost_answers(arm),
                _empty_rounds(arm),
                _non_finite(arm),
            ):
                notes += [f"{of_arm}{text}" for text in texts]
    if seeds[0].main.config.get("kind") in ("grpo", "ppo") and not any(
        CONTROL in seed.beside for seed in seeds
    ):
        notes.append(
            "There is no control arm, so this report cannot tell reinforcement learning from more training."
        )
    return notes


def _no_signal(arm: Arm) -> list[str]:
    longest: dict[str, Spell] = {}
    for spell in spells(arm.metrics, arm.config):
        known = longest.setdefault(spell.cause.brief, spell)
        if spell.steps > known.steps:
            longest[spell.cause.brief] = spell
    return [
        f"Steps {one.first_step} to {one.last_step} of {arm.steps}: {one.cause}" for one in longest.values()
    ]


def _lost(arm: Arm) -> list[str]:
    lost = sum(_count(row.get("episodes/infrastructure")) for row in arm.metrics)
    return [f"{lost:.0f} episodes were lost to the infrastructure and not trained on."] if lost else []


def _empty_rounds(arm: Arm) -> list[str]:
    empty = max((_count(row.get("rejection/empty_rounds")) for row in arm.metrics), default=0)
    return [f"{empty:.0f} of {arm.steps} rounds kept no answer and taught nothing new."] if empty else []


def max_lost_share(record: ReportRecord) -> float:
    """The largest share of answers that the infrastructure lost in any evaluation of the record."""
    arms = [arm for seed in record.seeds for arm in (seed.main, *seed.beside.values())]
    return max((share for arm in arms for _, _, share in _lost_shares(arm)), default=0.0)


def _lost_shares(arm: Arm) -> Iterator[tuple[str, int, float]]:
    """(what was evaluated, step, share) of each evaluation in which answers were lost."""
    for name, evaluations in (("held-out problems", arm.evaluations), *arm.suites.items()):
        for evaluation in evaluations:
            share = evaluation["rates"].get("infrastructure", {}).get("value", 0.0)
            if share:
                yield name, evaluation["step"], share


def _lost_answers(arm: Arm) -> list[str]:
    return [
        f"{share:.1%} of the answers to {name} at step {step} were lost to the infrastructure and count as "
        "not passed."
        for name, step, share in _lost_shares(arm)
    ]


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
