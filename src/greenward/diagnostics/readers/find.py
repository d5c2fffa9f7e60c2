"""Finds the logs of runs in a folder, and the format of a file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from greenward.diagnostics.readers.json_files import GREENWARD, HF_TRAINER, JSON, JSON_LINES
from greenward.diagnostics.readers.log import Format
from greenward.diagnostics.readers.stdout import STDOUT
from greenward.diagnostics.readers.tables import CSV, PARQUET, SB3
from greenward.diagnostics.readers.tensorboard import TENSORBOARD
from greenward.diagnostics.readers.trackio import TRACKIO
from greenward.diagnostics.readers.wandb_file import WANDB, run_id
from greenward.errors import DiagnosticsError
from greenward.user_files import MAX_LOG_BYTES, leads_out, open_file

# The best first: a folder of a run with files of several formats is read by the first of them.
FORMATS = (GREENWARD, HF_TRAINER, SB3, WANDB, TRACKIO, TENSORBOARD, JSON_LINES, CSV, PARQUET, STDOUT, JSON)
# Formats whose names are too common to be looked for in folders.
_BY_NAME_ONLY = (JSON, STDOUT)
_MOST_ENTRIES = 20_000
_DEPTH = 4
_SHOWN = 20
# Answers, predictions, reports and the like, which are no logs of steps.
_NO_LOGS = re.compile(
    r"(\d+|predictions|.*rollouts?|rollout_.*|.*traces|checkpoints|timing_spans|trace_events|.*summaries|alerts|"
    r"completions_\d+|.*samples(\.raw)?)\.\w+"
)


@dataclass(frozen=True)
class Found:
    """The files of one run, in the order in which they are read."""

    name: str
    format: Format
    files: tuple[Path, ...]


def find_log(path: Path, pick: str | None = None) -> Found:
    """The log at `path`, a file or a folder; `pick` names a run where there are several.

    Raises:
        DiagnosticsError: none, or several and none picked.
    """
    if not path.exists():
        raise DiagnosticsError(f"{path}: there is no such file or folder")
    found = _in_folder(path) if path.is_dir() else _in_file(path)
    if pick is not None:
        chosen = [one for one in found if one.name == pick]
        if not chosen:
            raise DiagnosticsError(f"{path} has no run {pick!r}", remedy=f"It has {_names(found)}.")
        return chosen[0]
    if not found:
        formats = ", ".join(dict.fromkeys(one.name for one in FORMATS))
        raise DiagnosticsError(
            f"{path} has no metrics.jsonl, nor another log that is known", remedy=f"Known: {formats}."
        )
    if len(found) > 1:
        raise DiagnosticsError(
            f"{path} has {len(found)} runs", remedy=f"Name one by --pick, or by its path: {_names(found)}"
        )
    return found[0]


def _names(found: list[Found]) -> str:
    names = [one.name for one in found]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _in_file(path: Path) -> list[Found]:
    real = path.resolve()  # a link that the user named may lead anywhere
    for form in FORMATS:
        if re.fullmatch(form.file_names, path.name) and _has_magic(path, form):
            return _runs(form, [real], path.name)
    with open_file(path, MAX_LOG_BYTES) as file:
        head = file.read(64)
    for form in FORMATS:
        if form.magic and head.startswith(form.magic):
            return _runs(form, [real], path.name)
    if re.fullmatch(r".*\.(db|sqlite3?|wandb|parquet)", path.name):
        raise DiagnosticsError(f"{path} is not what its name says: its first bytes are {head[:8]!r}")
    return _runs(JSON_LINES if head.lstrip().startswith(b"{") else STDOUT, [real], path.name)


def _in_folder(folder: Path) -> list[Found]:
    by_run: dict[tuple[int, str], list[Path]] = {}
    for path in _files(folder):
        for rank, form in enumerate(FORMATS):
            if (
                form not in _BY_NAME_ONLY
                and re.fullmatch(form.file_names, path.name)
                and not _NO_LOGS.fullmatch(path.name)
                and _has_magic(path, form)
            ):
                by_run.setdefault((rank, _run_of(path, form, folder)), []).append(path)
                break
    if not by_run:
        return []
    own = FORMATS.index(GREENWARD), "."
    if own in by_run:  # arms of a run are runs inside it
        by_run = {own: by_run[own]}
    # Of one folder the best format counts: trainer_state.json lies beside event files.
    best = min(rank for rank, _ in by_run)
    found = []
    for (rank, name), files in sorted(by_run.items()):
        if rank == best:
            found += _runs(FORMATS[rank], sorted(files, key=_order), name)
    return found


def _order(path: Path) -> tuple[list[int | str], str]:
    """Files of a resumed run in the order in which they were begun: numbers in names count as numbers."""
    parts = re.split(r"(\d+)", path.name)
    return [int(part) if part.isdigit() and len(part) < 30 else -1 for part in parts], str(path)


def _run_of(path: Path, form: Format, folder: Path) -> str:
    if form is WANDB:
        return run_id(path)
    place = path.parent if form.whole_folder else path
    if form is HF_TRAINER and place != folder and re.fullmatch(r"checkpoint-\d+", place.name):
        place = place.parent
    return place.relative_to(folder).as_posix()


def _runs(form: Format, files: list[Path], name: str) -> list[Found]:
    if form.runs is None:
        return [Found(name, form, tuple(files))]
    return [Found(run, form, tuple(files)) for file in files for run in form.runs(file)]


def _has_magic(path: Path, form: Format) -> bool:
    if not form.magic:
        return True
    try:
        with open_file(path, MAX_LOG_BYTES) as file:
            return file.read(len(form.magic)) == form.magic
    except OSError:
        return False


def _files(folder: Path) -> Iterator[Path]:
    """The files below `folder`, the nearest first; links that lead out of it are not followed."""
    level, seen = [folder], 0
    for _ in range(_DEPTH):
        inner: list[Path] = []
        for place in level:
            try:
                entries = sorted(os.scandir(place), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                seen += 1
                if seen > _MOST_ENTRIES:
                    return
                path = Path(entry.path)
                if entry.is_symlink() and leads_out(path, folder):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith("."):
                        inner.append(path)
                elif entry.is_file():
                    yield path
        level = inner
