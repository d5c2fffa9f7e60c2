"""Lists the runs in a folder: state, steps, newest figures, size, what may be deleted. It deletes nothing.

Folders may be anybody's. No link is followed, so that nothing outside is read or counted, and what cannot be
read is left out and said.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from greenward.common.errors import RunError
from greenward.common.files import MAX_LOG_BYTES, UNEXPECTED, open_file
from greenward.runs.checkpoints import LAST, best_checkpoint, pinned_checkpoints
from greenward.runs.directory import has_steps
from greenward.runs.files import OVERFLOWED, TEMPORARY, from_json_number, json_object, read_json
from greenward.runs.output import is_being_written
from greenward.runs.reading import (
    CHECKPOINTS,
    EVALUATIONS,
    FAILURE,
    METRICS,
    evaluation_files,
    is_run,
    is_step,
    read_config,
    read_summary,
    sound_evaluation,
    step_of,
)

State = Literal["running", "finished", "interrupted", "failed", "unreadable"]

_DEEPEST = 4  # folders below the one that is listed: a sweep has COMBINATION/seed_0
_MOST_FOLDERS = 20_000  # that are looked into for runs
_TAIL_BYTES = 1 << 20
_NEEDED_BY_NOTHING = "neither the newest, nor the best, nor pinned; a resume needs the newest alone"


@dataclass(frozen=True)
class Deletable:
    """Something in a run, by its path in the listed folder, that a resume and a report can do without."""

    path: str
    bytes: int
    why: str


@dataclass(frozen=True)
class ListedRun:
    """A run by its path in the listed folder. `bytes` are those of its files, arms included.

    `steps` of `planned` are done. `reward` is the newest one in training; `score` the value of the first
    metric (`metric`) of the newest evaluation on held-out problems. What is not known is None. `failure` says
    why a run failed or cannot be read.
    """

    path: str
    state: State
    recipe: str | None
    steps: int
    planned: int | None
    reward: float | None
    metric: str | None
    score: float | None
    bytes: int
    deletable: tuple[Deletable, ...]
    failure: str = ""


def list_runs(folder: Path) -> tuple[list[ListedRun], list[str]]:
    """The runs in `folder`, or itself if it is one, by their paths; and what was left out, a sentence each.

    Raises `RunError` for what is no folder.
    """
    if not folder.is_dir():
        raise RunError(f"{folder}: there is no such folder.", remedy="Give the folder that holds the runs.")
    notes: list[str] = []
    found = [_listed(path, folder) for path in _runs_in(folder, notes)]
    return sorted(found, key=lambda one: one.path), notes


def _runs_in(folder: Path, notes: list[str]) -> Iterator[Path]:
    looked, links, unread = 0, 0, 0
    waiting = [(folder, 0)]
    while waiting:
        path, depth = waiting.pop()
        looked += 1
        if looked > _MOST_FOLDERS:
            notes.append(f"{folder} has more than {_MOST_FOLDERS:,} folders; the rest was not looked into.")
            break
        try:
            if is_run(path):
                yield path
                continue
            entries = list(os.scandir(path)) if depth < _DEEPEST else []
        except OSError:
            unread += 1
            continue
        links += sum(entry.is_symlink() for entry in entries)
        waiting += [(Path(one.path), depth + 1) for one in entries if one.is_dir(follow_symlinks=False)]
    if links:
        notes.append(f"{links} link(s) were not followed.")
    if unread:
        notes.append(f"{unread} folder(s) cannot be read and were left out.")


def _listed(path: Path, folder: Path) -> ListedRun:
    name = os.path.relpath(path, folder)
    size = _bytes_of(path)
    facts: dict[str, Any] = {"steps": 0, "planned": None, "recipe": None}
    facts |= {"reward": None, "metric": None, "score": None}
    try:
        state, failure = _state(path)
        facts |= _facts(path)
        deletable = () if state == "running" else tuple(_deletable(path, folder))
    except (RunError, OSError, *UNEXPECTED) as error:
        said = " ".join(str(error).split())
        return ListedRun(path=name, state="unreadable", bytes=size, deletable=(), failure=said, **facts)
    return ListedRun(path=name, state=state, bytes=size, deletable=deletable, failure=failure, **facts)


def _state(path: Path) -> tuple[State, str]:
    if is_being_written(path):
        return "running", ""
    file = path / FAILURE
    if file.is_file():
        with open_file(file, MAX_LOG_BYTES, within=path) as opened:
            return "failed", " ".join(opened.read(_TAIL_BYTES).decode("utf-8", "replace").split())
    is_finished = (read_summary(path) or {}).get("status") == "finished"
    return ("finished" if is_finished else "interrupted"), ""


def _facts(path: Path) -> dict[str, Any]:
    config = read_config(path) if (path / "config.yaml").is_file() else {}
    training = config.get("training")
    planned = training.get("max_steps") if isinstance(training, Mapping) else None
    newest = _newest_row(path / METRICS)
    reward = from_json_number(newest.get("reward/mean"))
    metric, score = _newest_score(path)
    return {
        "recipe": name if isinstance(name := config.get("name"), str) else None,
        "steps": newest.get("step", 0),
        "planned": planned if is_step(planned) else None,
        "reward": reward if type(reward) in (int, float) and abs(reward) <= OVERFLOWED else None,
        "metric": metric,
        "score": score,
    }


def _newest_row(file: Path) -> Mapping[str, Any]:
    """The last row of metrics that can be read and has a step; empty where there is none."""
    if not file.is_file():
        return {}
    with open_file(file, MAX_LOG_BYTES, within=file.parent) as opened:
        opened.seek(max(0, os.fstat(opened.fileno()).st_size - _TAIL_BYTES))
        lines = opened.read(_TAIL_BYTES).split(b"\n")
    for line in reversed(lines):
        row = json_object(line)
        if row is not None and is_step(row.get("step")):
            return row
    return {}


def _newest_score(path: Path) -> tuple[str | None, float | None]:
    files = [file for _, suite, file in evaluation_files(path) if suite is None]
    record = read_json(files[-1], within=path) if files else None
    found = sound_evaluation(record) if record else None
    for name, estimate in (found or {"metrics": {}})["metrics"].items():
        return name, float(estimate["value"])
    return None, None


def _deletable(path: Path, folder: Path) -> Iterator[Deletable]:
    def one(place: Path, why: str) -> Deletable:
        return Deletable(os.path.relpath(place, folder), _bytes_of(place), why)

    if not has_steps(path) and not any((path / EVALUATIONS).glob("*")):
        yield one(path, "it ended before its first step")
        return
    checkpoints = path / CHECKPOINTS
    if checkpoints.is_symlink() or not checkpoints.is_dir():
        return
    entries = sorted(os.scandir(checkpoints), key=lambda entry: entry.name)
    steps = {step: Path(one.path) for one in entries if (step := step_of(Path(one.path))) is not None}
    newest = {os.path.basename(os.path.realpath(checkpoints / LAST)), steps[max(steps)].name if steps else ""}
    kept = {*newest, best_checkpoint(path)}
    pinned = pinned_checkpoints(path)
    for step, place in sorted(steps.items()):
        if step not in pinned and place.name not in kept and not place.is_symlink():
            yield one(place, _NEEDED_BY_NOTHING)
    for entry in entries:
        if fnmatch.fnmatchcase(entry.name, TEMPORARY) and not entry.is_symlink():
            yield one(Path(entry.path), "half written when the run was killed")


def _bytes_of(path: Path) -> int:
    """The sizes of the files at and below a path, without following links; what cannot be read has none."""
    total, waiting = 0, [os.fspath(path)]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size
            except OSError:
                continue
    return total
