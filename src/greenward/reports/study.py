"""Reads a run with its arms, or a study of several seeds, for a report.

Arms of a run are runs inside it: `warm_start/` (supervised training before) and those of `ARMS_BESIDE`,
which trained from the same start for the time that the main arm took. A study holds one such run
per seed: `seed_0/`, `seed_1/` …
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from greenward.errors import RunError
from greenward.no_signal import Spell, spells
from greenward.runs.files import OVERFLOWED
from greenward.runs.reading import RecordedRun, is_run, read_failure, read_recorded_run
from greenward.text import MAX_MESSAGE_CHARS, visible

Evaluation = Mapping[str, Any]

ARMS_BESIDE = ("grpo", "similarity", "rejection", "control")
CONTROL = "Control"
_FOLDER_LABELS = {"control": CONTROL, "similarity": "Similarity reward"}
_ARM_LABELS = {
    "grpo": "GRPO",
    "ppo": "PPO",
    "rejection": "Rejection sampling",
    "sft": "supervised",
    "self_play": "Self-play",
    "dqn": "Q-learning",
}


@dataclass(frozen=True)
class Study:
    """The runs of a report by arm and seed.

    `arms` are by label, the main one first, each with one run for every seed (None where a seed lacks it).
    There is at least one seed, and the main arm has all.
    """

    title: str
    seeds: tuple[str, ...]
    main: str
    arms: Mapping[str, tuple[RecordedRun | None, ...]]
    warm_starts: tuple[RecordedRun, ...]
    notes: tuple[str, ...]

    def runs(self, label: str) -> tuple[RecordedRun, ...]:
        """The runs of an arm, of the seeds that have it."""
        return tuple(run for run in self.arms[label] if run is not None)

    @property
    def main_runs(self) -> tuple[RecordedRun, ...]:
        """The runs of the main arm, one for each seed."""
        return self.runs(self.main)

    @property
    def measured(self) -> str:
        """What evaluations ask: Q-learning the problems of its training, by tests that it never sees."""
        return "hidden-test" if self.main_runs[0].config.get("kind") == "dqn" else "held-out"


def in_a_sentence(label: str) -> str:
    """The label of an arm as it is written in the middle of a sentence."""
    return label if label.isupper() else label.lower()


def read_study(path: str | Path) -> Study:
    """The run directory or the study at `path`; what cannot be read is left out and noted.

    Raises `RunError` when there is neither.
    """
    path = Path(path)
    seeds = {folder: re.search(r"\d+$", folder.name) for folder in path.glob("seed_*") if is_run(folder)}
    in_order = sorted(seeds, key=lambda seed: (int(number[0]) if (number := seeds[seed]) else 0, seed.name))
    folders = [path] if is_run(path) else in_order
    if not folders:
        raise RunError(
            f"{path} holds neither a run (config.yaml) nor a study (seed_0/, seed_1/ …)",
            remedy="Give the folder that `greenward train` wrote to.",
        )
    notes = list(failures(path))
    main = [read_recorded_run(folder, notes) for folder in folders]
    label = _label(main[0])
    beside: dict[str, list[RecordedRun | None]] = {}
    for name in ARMS_BESIDE:
        for index, folder in enumerate(folders):
            if is_run(folder / name):
                run = read_recorded_run(folder / name, notes)
                arm = _FOLDER_LABELS.get(name) or _label(run)
                beside.setdefault(arm, [None] * len(folders))[index] = run
    warm = (folder / "warm_start" for folder in folders)
    study = Study(
        title=str(main[0].config.get("name") or path.resolve().name),
        seeds=tuple(f"seed {run.config['seed']}" if "seed" in run.config else run.path.name for run in main),
        main=label,
        arms={label: tuple(main)} | {arm: tuple(runs) for arm, runs in beside.items() if arm != label},
        warm_starts=tuple(read_recorded_run(folder, notes) for folder in warm if is_run(folder)),
        notes=(),
    )
    return replace(study, notes=(*notes, *_gaps(study)))


def failures(path: Path) -> Iterator[str]:
    """What the runs of the study at `path` said that failed as parts of a sweep, each with its folder."""
    for folder in (path, *sorted(path.glob("seed_*"))):
        if (said := read_failure(folder)) is not None:
            named = "" if folder == path else f"{folder.name} "
            yield visible(f"{named}failed: {' '.join(said.split())}", MAX_MESSAGE_CHARS)


def _label(run: RecordedRun) -> str:
    kind = str(run.config.get("kind", "training"))
    return _ARM_LABELS.get(kind, kind)


def max_lost_share(study: Study) -> float:
    """The largest share of answers that the infrastructure lost in any evaluation of the study."""
    runs = [run for label in study.arms for run in study.runs(label)]
    return max((share for run in runs for _, _, share in _lost_shares(run)), default=0.0)


def _gaps(study: Study) -> Iterator[str]:
    """What a reader must know of the runs before he reads a figure."""
    for seed, label in enumerate(study.seeds):
        prefix = f"{label}: " if len(study.seeds) > 1 else ""
        main = study.main_runs[seed]
        if main.summary.get("status") == "interrupted":
            yield f"{prefix}stopped after {main.steps} steps; go on with it by --resume."
        elif not main.summary:
            yield f"{prefix}not finished: {main.steps} steps so far."
        for arm, runs in study.arms.items():
            if (run := runs[seed]) is not None:
                of_arm = prefix if arm == study.main else f"{prefix}{arm}: "
                yield from (f"{of_arm}{text}" for text in _defects(run))
    if study.main_runs[0].config.get("kind") in ("grpo", "ppo") and CONTROL not in study.arms:
        yield "There is no control arm, so this report cannot tell reinforcement learning from more training."


def _defects(run: RecordedRun) -> Iterator[str]:
    longest: dict[str, Spell] = {}
    for spell in sorted(spells(run.metrics, run.config), key=lambda spell: -spell.steps):
        longest.setdefault(spell.cause.brief, spell)
    for one in sorted(longest.values(), key=lambda spell: spell.first_step):
        yield f"Steps {one.first_step} to {one.last_step} of {run.steps}: {one.cause}"
    lost = sum(finite_values(run.metrics, "episodes/infrastructure"))
    if lost:
        yield f"{lost:.0f} episodes were lost to the infrastructure and not trained on."
    for name, step, share in _lost_shares(run):
        yield (
            f"{share:.1%} of the answers to {name} at step {step} were lost to the infrastructure and count "
            "as not passed."
        )
    empty = max(finite_values(run.metrics, "rejection/empty_rounds"), default=0)
    if empty:
        yield f"{empty:.0f} of {run.steps} rounds kept no answer and taught nothing new."
    told = set()
    for row in run.metrics:
        for key, value in row.items():
            if isinstance(value, float) and not abs(value) <= OVERFLOWED and key not in told:
                told.add(key)
                yield f"{key} is not a finite number from step {row['step']} on, at times."


def _lost_shares(run: RecordedRun) -> Iterator[tuple[str, int, float]]:
    """(what was evaluated, step, share) of each evaluation in which answers were lost."""
    for name, evaluations in (("held-out problems", run.evaluations), *run.suites.items()):
        for evaluation in evaluations:
            if share := evaluation["rates"].get("infrastructure", {}).get("value", 0.0):
                yield name, evaluation["step"], share


def finite_points(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[tuple[float, float], ...]:
    """(step, value) of the rows of metrics in which `key` is a finite number."""
    return tuple(
        (float(row["step"]), float(row[key]))
        for row in rows
        if isinstance(row.get(key), (int, float)) and abs(row[key]) <= OVERFLOWED
    )


def finite_values(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    """The values of `key` that are finite numbers."""
    return [value for _, value in finite_points(rows, key)]
