"""Finds the logs of runs, whatever trainer or tracker wrote them.

Their formats are in `trackers.py`, `tables.py` and `printed.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from greenward.common.errors import DiagnosticsError
from greenward.common.files import MAX_LOG_BYTES, leads_out, open_file
from greenward.common.text import visible
from greenward.diagnostics.readers.answers import OF_MANY_STEPS
from greenward.diagnostics.readers.rows import (
    STEP_KEYS,
    Format,
    Log,
    NoLogError,
    Row,
    as_number,
    encoding_of,
    plain_key,
    text_lines,
)
from greenward.diagnostics.readers.tables import CSV, HTML, NOTEBOOK, PARQUET, TABLE, is_d3rlpy
from greenward.diagnostics.readers.trackers import (
    GREENWARD,
    HF_TRAINER,
    JSON,
    JSON_LINES,
    MLFLOW,
    TENSORBOARD,
    TRACKIO,
    WANDB,
    run_id,
)


def _printed_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    from greenward.diagnostics.readers.printed import printed_rows  # whose many expressions take long

    return printed_rows(files, log)


STDOUT = Format("printed lines", r".*\.(log|out|txt|md|stdout|err)", _printed_rows, whole_folder=False)
# The best first: a folder of a run with files of several formats is read by the first of them.
FORMATS = (
    *(GREENWARD, HF_TRAINER, TABLE, WANDB, TRACKIO, TENSORBOARD, MLFLOW, JSON_LINES, CSV, PARQUET),
    *(STDOUT, JSON, NOTEBOOK, HTML),
)
# Formats whose names are too common to be looked for in folders, unless these hold nothing else.
_BY_NAME_ONLY = (STDOUT, JSON, NOTEBOOK, HTML)
# Of a text that its format does not read, the others of these are tried.
_TEXTS = (JSON_LINES, CSV, TABLE, STDOUT, JSON, HTML)
_MOST_ENTRIES = 20_000
_MOST_TRIED = 100  # files of such formats in a folder
_DEPTH = 6
# Answers, predictions, reports and the like, which are no logs of steps.
_NO_LOGS = re.compile(
    r"(\d+|predictions|.*rollouts?|rollout_.*|.*traces|checkpoints|timing_spans|trace_events|.*summaries|alerts|"
    rf"completions_\d+|.*samples(\.raw)?)\.\w+|{OF_MANY_STEPS.pattern}"
)


@dataclass(frozen=True)
class Found:
    """The files of one run, in the order in which they are read, and the formats that they may have."""

    name: str
    format: Format
    files: tuple[Path, ...]
    others: tuple[Format, ...] = ()

    def rows(self) -> tuple[Iterator[Row], Log, Format]:
        """The rows, by the first of the formats that gives any, what the files say beside, and that format.

        Raises:
            DiagnosticsError: no format gives a row.
        """
        refused = None
        for form in (self.format, *self.others):
            log = Log(form.name)
            head: list[Row] = []
            try:
                rows = form.rows(list(self.files), self.name, log)
                for row in rows:
                    head.append(row)
                    if any(as_number(cell) is not None for cell in row.values()):
                        return chain(head, rows), log, form
                    if len(head) > _WITHOUT_NUMBERS:
                        break
            except NoLogError:
                raise
            except DiagnosticsError as error:
                refused = refused or error
        if refused is not None and not self.others:
            raise refused
        raise DiagnosticsError(_without_rows(self.files[0]), remedy=_READABLE)


_WITHOUT_NUMBERS = 10_000  # rows, from which on no number is looked for
_READABLE = (
    "Readable are rows with a name for each number: JSON lines, tables, `step: 3, reward: 0.5`, what "
    "trainers print, and the files of trackers (docs/diagnostics.md)."
)


def _is_text(path: Path) -> bool:
    with open_file(path, MAX_LOG_BYTES) as file:
        head = file.read(4096)
    return encoding_of(head[:512]) != "utf-8-sig" or b"\0" not in head


def _without_rows(path: Path) -> str:
    """What was found in a file that has no rows."""
    if not _is_text(path):
        with open_file(path, MAX_LOG_BYTES) as file:
            return f"{path} is no text, and no file of a tracker: its first bytes are {file.read(8)!r}"
    count, first = 0, ""
    for line in text_lines(path):
        if line.strip():
            count, first = count + 1, first or line.strip()
    if not count:
        return f"{path} is empty: it has no row with a step"
    return (
        f"{path} has {count} line(s) of text, and no row with the name of a signal and its number; "
        f"the first is: {visible(first, 80)}"
    )


def find_logs(path: Path) -> list[Found]:
    """The logs at `path`, a file or a folder: one for each run that has files of its own.

    Raises:
        DiagnosticsError: there is none.
    """
    if not path.exists():
        raise DiagnosticsError(f"{path}: there is no such file or folder")
    found = _in_folder(path) if path.is_dir() else _in_file(path)
    if not found:
        names = sorted(one.name for one in islice(path.iterdir(), _MOST_ENTRIES))
        shown = ", ".join(visible(name, 60) for name in names[:_SHOWN]) or "nothing"
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise DiagnosticsError(
            f"{path} has no metrics.jsonl, nor another log that is known; it has {shown}{more}",
            remedy=f"Known: {', '.join(dict.fromkeys(one.name for one in FORMATS))}.",
        )
    return found


_SHOWN = 8  # names of files


def _in_file(path: Path) -> list[Found]:
    real = path.resolve()  # a link that the user named may lead anywhere
    with open_file(path, MAX_LOG_BYTES) as file:
        head = file.read(4096)
    for form in FORMATS:
        if form.magic and head.startswith(form.magic):
            return _runs(form, [real], path.name)
    if re.fullmatch(r".*\.(db|sqlite3?|wandb|parquet)", path.name):
        raise DiagnosticsError(f"{path} is not what its name says: its first bytes are {head[:8]!r}")
    if path.parent.name == MLFLOW.inside and re.fullmatch(MLFLOW.file_names, path.name):
        return _runs(MLFLOW, [real], path.name)
    named = [
        one for one in FORMATS if not one.magic and re.fullmatch(one.file_names, path.name) and not one.inside
    ]
    form = named[0] if named and named[0] is not STDOUT else _looks_like(head)
    return _runs(form, [real], path.name)


_FRACTION = re.compile(r"[-+]?\d{1,40}\.\d{1,40}(?:[eE][-+]?\d{1,5})?")  # no heading is one


def _looks_like(head: bytes) -> Format:
    """The format of a text whose name does not say it."""
    text = head.decode(encoding_of(head[:512]), "replace").lstrip("\ufeff \r\n\t")
    lines = [line for line in text.splitlines() if line.strip()][:3]
    if text.startswith(("{", "[")):
        return JSON_LINES if lines[0].startswith('{"') and lines[0].endswith("}") else JSON
    if re.search(r"<table\b", text, re.IGNORECASE):
        return HTML
    # A heading and a row with as many cells, and no cell that holds a name and a number.
    for delimiter in "\t;,":
        cells = {line.count(delimiter) for line in lines[:2]}
        if (
            len(lines) > 1
            and len(cells) == 1
            and cells != {0}
            and not re.search(r"[:={|]", lines[0] + lines[1])
            and not any(_FRACTION.fullmatch(cell.strip()) for cell in lines[0].split(delimiter))
        ):
            return CSV
    return STDOUT


def _in_folder(folder: Path) -> list[Found]:
    by_run, common = _by_run(_files(folder), folder)
    if not by_run:
        return _common(common, folder)
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


def _by_run(paths: Iterable[Path], folder: Path) -> tuple[dict[tuple[int, str], list[Path]], list[Path]]:
    """The files of logs by the rank of their format and the name of their run, and those of common names."""
    by_run: dict[tuple[int, str], list[Path]] = {}
    common: list[Path] = []
    for path in paths:
        for rank, form in enumerate(FORMATS):
            if not (re.fullmatch(form.file_names, path.name) and _lies_in(path, form)):
                continue
            if _NO_LOGS.fullmatch(path.name):
                break
            if form in _BY_NAME_ONLY:
                common.append(path)
                break
            if _has_magic(path, form):
                by_run.setdefault((rank, _run_of(path, form, folder)), []).append(path)
                break
    return by_run, common


_DOCUMENTS = (".md", ".htm", ".html")  # prose with tables, which are seldom the log of a run
_UNNAMED = re.compile(r"[^.]+|.*\.\d{1,9}")  # "stdout", "train.log.1"
_OF_TRACKERS = (HF_TRAINER, TABLE, WANDB, TRACKIO, TENSORBOARD, MLFLOW)
_TRACKER_NAME = re.compile("|".join(one.file_names for one in _OF_TRACKERS if not one.inside))
_LOG_NAME = re.compile("|".join(one.file_names for one in FORMATS if not one.inside))


def may_be_log(folder: Path, name: str) -> tuple[bool, bool]:
    """Whether a file may be a trainer's or tracker's log, by its name; and whether it may be any log."""
    within = (one for one in _OF_TRACKERS if one.inside in folder.parts)
    if any(re.fullmatch(one.file_names, name) for one in within) or _TRACKER_NAME.fullmatch(name):
        return True, True
    is_named = _LOG_NAME.fullmatch(name) or _UNNAMED.fullmatch(name)
    return False, bool(is_named) and not _NO_LOGS.fullmatch(name) and not name.endswith(_DOCUMENTS)


def is_exported_curve(name: str) -> bool:
    """Whether a file is one of those into which TensorBoard exports the curves of a run."""
    return _CURVE.fullmatch(name) is not None


# What the logger of Stable-Baselines3 and Baselines writes beside `progress.csv`.
_BESIDE_TABLE = frozenset({"log.txt", "progress.json"})


def repeats(of_trackers: Iterable[Path]) -> Callable[[Path], bool]:
    """Whether a file repeats one of those of trackers: the output in the folder of a run of W&B, or the same
    table in another form.
    """
    files = set(of_trackers)
    folders = {one.parent for one in files if one.suffix == ".wandb"}

    def repeated(path: Path) -> bool:
        is_beside = path.name in _BESIDE_TABLE and path.with_name("progress.csv") in files
        return is_beside or not folders.isdisjoint(path.parents)

    return repeated


def logs_of_trackers(paths: Iterable[Path], folder: Path) -> list[Found]:
    """The logs of trainers and trackers among some files below `folder`, each run by its best format.

    Formats that any data may have, as CSV, are left out; a file of several runs is one log.
    """
    by_run, _ = _by_run(paths, folder)
    ranks = {FORMATS.index(one) for one in _OF_TRACKERS}
    known = sorted(key for key in by_run if key[0] in ranks)
    return [
        Found(name, FORMATS[rank], tuple(sorted(by_run[rank, name], key=_order)))
        for rank, name in known
        if not any(better < rank and _lies_below(name, outer) for better, outer in known)
    ]


def _lies_below(name: str, outer: str) -> bool:
    return outer in (".", name) or name.startswith(f"{outer}/")


def _common(paths: list[Path], folder: Path) -> list[Found]:
    """The runs in files with names that much else has, too: those with the most that says so."""
    from greenward.diagnostics.readers.printed import is_metric

    found: list[tuple[bool, bool, Found]] = []
    for path in paths[:_MOST_TRIED]:
        try:
            for one in _in_file(path):
                rows, _, form = one.rows()
                first = list(islice(rows, _FEW))
                if not any(is_metric(name) or plain_key(name) in STEP_KEYS for row in first for name in row):
                    continue
                counts = any(plain_key(name) in STEP_KEYS for row in first for name in row)
                many = len(first) == _FEW and (counts or form is not JSON)
                named = Found(path.relative_to(folder).as_posix(), form, one.files)
                found.append((many, path.suffix in _LOGS, named))
        except (DiagnosticsError, OSError):
            continue
    best = max(((many, is_log) for many, is_log, _ in found), default=None)
    return [one for many, is_log, one in found if (many, is_log) == best]


_FEW = 3  # rows
_LOGS = (".log", ".out", ".txt", ".json", ".stdout", "")  # others hold reports


def _lies_in(path: Path, form: Format) -> bool:
    return not form.inside or any(
        one.name == form.inside and (one.parent / "meta.yaml").is_file() for one in path.parents
    )


def _order(path: Path) -> tuple[list[int | str], str]:
    """Files of a resumed run in the order in which they were begun: numbers in names count as numbers."""
    parts = re.split(r"(\d+)", path.name)
    return [int(part) if part.isdigit() and len(part) < 30 else -1 for part in parts], str(path)


_CURVE = re.compile(r"(run-.+)-tag-.+\.csv")  # one signal of a run, as TensorBoard exports it


def _run_of(path: Path, form: Format, folder: Path) -> str:
    if form is WANDB:
        return run_id(path)
    place = path.parent if form.whole_folder else path
    if form is CSV and (curve := _CURVE.fullmatch(path.name)):
        place = path.with_name(curve[1])
    if form is CSV and is_d3rlpy(path):
        place = path.parent
    if form.inside:
        place = next(one.parent for one in path.parents if one.name == form.inside)
    if form is HF_TRAINER and place != folder and re.fullmatch(r"checkpoint-\d+", place.name):
        place = place.parent
    return place.relative_to(folder).as_posix() if place.is_relative_to(folder) else place.name


def _runs(form: Format, files: list[Path], name: str) -> list[Found]:
    others = tuple(one for one in (JSON_LINES, JSON, STDOUT) if one is not form) if form in _TEXTS else ()
    names = [(run, file) for file in files for run in form.runs(file)] if form.runs else []
    return [Found(run, form, (file,), others) for run, file in names] or [
        Found(name, form, tuple(files), others)
    ]


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
