"""The runs below some folders: names, states and key numbers, by small files only.

Logs of other trainers are runs, too: those that a tracker's name tells, those that were named as files, and
other files in which the log of a training was recognized.

Identifiers are made here of relative paths and resolved by look-up, so that no path ever comes from a client.
Symbolic links are not followed while looking for runs, and no file is read through one that leads out of its
folder. Metrics are never parsed for the list: what it shows of them is in the last bytes of the file.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from greenward.common.errors import GreenwardError
from greenward.common.files import UNEXPECTED, open_file, read_file
from greenward.common.parsing import parse_json_text
from greenward.common.text import visible
from greenward.diagnostics.readers.answers import find_file_of_many_steps, find_rollouts
from greenward.diagnostics.readers.formats import is_exported_curve, logs_of_trackers, may_be_log, repeats
from greenward.diagnostics.readers.names import known_name
from greenward.runs.files import from_json_number, to_json
from greenward.runs.output import is_being_written
from greenward.runs.progress import PROGRESS
from greenward.runs.reading import (
    ARMS,
    CHECKPOINTS,
    CONFIG,
    EVALUATIONS,
    FAILURE,
    METRICS,
    ROLLOUTS,
    SUMMARY,
    TOKENS,
    WARM_START,
    algorithm_of,
    flattened,
    read_config,
    steps_in,
)
from greenward.ui.cache import Cache, Stamp, digest_of
from greenward.ui.recognized import Recognized

MAX_DEPTH = 4
NO_FILE: Stamp = (0, 0, 0)
MAX_ENTRIES = 20_000
MAX_LOGS = 1000  # of other trainers, in a folder
MAX_LOOKED_AT = 4000  # files below a folder that may be logs
MAX_AUDITS = 100
MAX_INNER = 200  # runs in one log
SECONDS_BETWEEN_SCANS = 3.0
SECONDS_UNTIL_SHOWN = 1.0  # after a log was recognized
SECONDS_UNTIL_SETTLED = 2.0  # after which a further change of a folder has another time
SECONDS_UNTIL_STALE = 600.0
_MAX_SMALL = 4 << 20
_TAIL_BYTES = 16 << 10
_INSIDE = frozenset({ROLLOUTS, TOKENS, EVALUATIONS, CHECKPOINTS})
_AUDIT = re.compile(r".*audit.*\.json", re.IGNORECASE)
_OF_LOGS = ("", ".log", ".out", ".jsonl", ".csv", ".tsv")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Place:
    """Where a run lies: its identifier, its path, the folder that no link may lead out of, its name there.

    The name is as it is shown, without hidden characters; files are found by the other fields.
    `logs` are the files of another trainer's log, empty for a run of greenward's; `inner` is its name there
    where the log has several runs, any text of that log.
    """

    id: str
    path: Path
    root: Path
    name: str
    parent: str = ""
    logs: tuple[Path, ...] = ()
    inner: str | None = None

    @property
    def key(self) -> Path:
        """What names the run among all that are kept."""
        return self.path if self.inner is None else self.path / f"#{self.inner}"


def stamp(path: Path | str) -> Stamp:
    """What tells whether a file has changed."""
    try:
        found = os.stat(path)
    except OSError:
        return NO_FILE
    return (found.st_ino, found.st_size, found.st_mtime_ns)


class _Listing(NamedTuple):
    """What lies in a folder: the number of its entries, and what may be looked at or shown."""

    entries: int
    own: frozenset[str]  # names that files of a run have
    folders: list[Path]
    logs: list[tuple[Path, bool]]
    audits: list[Path]


class Catalog:
    """The runs below `folders`. Raises nothing for what cannot be read: `problems` names it."""

    def __init__(
        self, folders: Sequence[Path], cache: Cache | None = None, recognized: Recognized | None = None
    ) -> None:
        """Without `recognized`, of logs only those of trackers are found in folders."""
        self._cache, self._recognized = cache or Cache(None), recognized
        self.folders = tuple(Path(os.path.realpath(folder)) for folder in folders)
        self.audits: dict[str, Place] = {}
        """Files with the JSON of an audit, by identifier; the name is that of the file."""
        self.inner: dict[str, list[str]] = {}
        """The names of the runs in a log, by its identifier, once it was found to have several."""
        self.problems: list[str] = []
        self._places: dict[str, Place] = {}
        self._listings: dict[Path, tuple[Stamp, _Listing]] = {}
        self._listings_before: dict[Path, tuple[Stamp, _Listing]] = {}
        self._candidates: dict[Path, tuple[Any, list[tuple[Path, str]]]] = {}
        self._cards: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._configs: dict[str, tuple[Stamp, dict[str, Any]]] = {}
        self._scanned = float("-inf")
        self._known = 0  # the revision of what was recognized, at the last scan
        self._lock = threading.Lock()

    def places(self) -> dict[str, Place]:
        """The runs by identifier; the folders are looked through again after some seconds."""
        with self._lock:
            known = 0 if self._recognized is None else self._recognized.revision
            wait = SECONDS_BETWEEN_SCANS if known == self._known else SECONDS_UNTIL_SHOWN
            if time.monotonic() - self._scanned > wait:
                self._known = known
                self._scan()
                self._scanned = time.monotonic()
            return self._places

    @property
    def waiting(self) -> int:
        """How many files are still to be looked at, whether they are logs, or were since the last scan."""
        found = self._recognized
        return 0 if found is None else found.waiting + (found.revision != self._known)

    def get(self, identifier: str) -> Place | None:
        """The run with an identifier, None for any other text."""
        found = self._places.get(identifier) or self.places().get(identifier)
        return found if found is not None and is_itself(found) else None

    def _scan(self) -> None:
        found: dict[str, Place] = {}
        audits: dict[str, Place] = {}
        self.problems = []
        self._listings_before, self._listings = self._listings, {}

        def add(place: Place) -> str:
            name = place.name
            if len(self.folders) > 1 and place.path not in self.folders:
                name = f"{place.root.name}/{name}"
            identifier = _identifier(name, place.key, found)
            found[identifier] = replace(place, id=identifier, name=visible(name))
            return identifier

        for folder in self.folders:
            if not folder.is_dir():
                self._add_log(add, Place("", folder, folder.parent, folder.name, logs=(folder,)))
                continue
            by_path: dict[Path, str] = {}
            audit_files: list[Path] = []
            logs: list[tuple[Path, bool]] = []
            for path, is_of_others in self._runs_below(folder, logs, audit_files):
                if is_of_others:
                    name = _name_in(path, folder)
                    self._add_log(add, Place("", path, folder, name, logs=(path / METRICS,)))
                    continue
                parent = by_path.get(path.parent, "") if path.name in (WARM_START, *ARMS) else ""
                by_path[path] = add(Place("", path, folder, _name_in(path, folder), parent))
            trackers = logs_of_trackers((path for path, is_trackers in logs if is_trackers), folder)
            for what, count, most in (
                ("logs", len(trackers), MAX_LOGS),
                ("audits", len(audit_files), MAX_AUDITS),
            ):
                if count > most:
                    self.problems.append(f"{folder} has {count:,} {what}; the first {most:,} are shown.")
            for one in trackers[:MAX_LOGS]:
                path = one.files[0] if not one.format.whole_folder else folder / one.name
                path = path if path.exists() else one.files[0].parent
                self._add_log(add, Place("", path, folder, _name_in(path, folder), logs=one.files))
            for files in self._recognized_in(folder, logs, [one.files for one in trackers]):
                path = files[0] if len(files) == 1 else files[0].parent
                self._add_log(add, Place("", path, folder, _name_in(path, folder), logs=files))
            for path in audit_files[:MAX_AUDITS]:
                name = path.relative_to(folder).as_posix()
                name = f"{folder.name}/{name}" if len(self.folders) > 1 else name
                identifier = _identifier(name, path, audits)
                audits[identifier] = Place(identifier, path, folder, visible(name))
        self._places, self.audits = found, audits

    def _candidates_in(
        self, folder: Path, logs: list[tuple[Path, bool]], of_trackers: Sequence[tuple[Path, ...]]
    ) -> list[tuple[Path, str]]:
        """Files that may be logs, and their names in `folder`: those with the names of logs before others.

        What repeats a tracker's log is left out. They are put in order again once there are others.
        """
        known = self._candidates.get(folder)
        if known is not None and known[0] == (
            logs,
            of_trackers,
        ):  # of the same objects, which is told at once
            return known[1]
        repeated = repeats(file for files in of_trackers for file in files)
        others = [path for path, is_tracker in logs if not is_tracker and not repeated(path)]
        others.sort(key=lambda one: (one.suffix not in _OF_LOGS, _natural(str(one))))
        found = [(path, path.relative_to(folder).as_posix()) for path in others]
        self._candidates[folder] = ((logs, of_trackers), found)
        return found

    def _recognized_in(
        self, folder: Path, logs: list[tuple[Path, bool]], of_trackers: Sequence[tuple[Path, ...]]
    ) -> list[tuple[Path, ...]]:
        """The files of each log that was recognized among some below `folder`, in their order.

        Curves that were exported one by one are of one log.
        """
        if self._recognized is None:
            return []
        candidates = self._candidates_in(folder, logs, of_trackers)
        if len(candidates) > MAX_LOOKED_AT:
            self.problems.append(
                f"{folder} has {len(candidates):,} files that may be logs; {MAX_LOOKED_AT:,} of them are "
                "looked at. Name a folder in it, or a log."
            )
        found: dict[Path, list[Path]] = {}
        for path, name in candidates[:MAX_LOOKED_AT]:
            if self._recognized.is_log(name, folder, stamp(path)):
                found.setdefault(path.parent if is_exported_curve(path.name) else path, []).append(path)
        if len(found) > MAX_LOGS:
            self.problems.append(f"{folder} has {len(found):,} other logs; the first {MAX_LOGS:,} are shown.")
        return [tuple(files) for files in found.values()][:MAX_LOGS]

    def _add_log(self, add: Callable[[Place], str], place: Place) -> None:
        identifier = add(place)
        for name in self.inner.get(identifier, ()):
            add(replace(place, name=f"{place.name}/{name}", inner=name))

    def _runs_below(
        self, folder: Path, logs: list[tuple[Path, bool]], audits: list[Path]
    ) -> Iterator[tuple[Path, bool]]:
        """Folders with the files of a run, the outer ones first, in the order of their names.

        With each comes whether another trainer wrote it: its answers do not have greenward's names.

        Into `logs` go files outside of them that may be logs, and whether their names are a tracker's; into
        `audits` all files whose names are those of audits.
        """
        entries = 0
        waiting = deque([(folder, 0, False, list[Path]())])
        while waiting:
            path, depth, inside, of_outer = waiting.popleft()
            found = self._listing(path, MAX_ENTRIES - entries)
            entries += found.entries
            audits += found.audits
            of_trackers = [file for file, is_trackers in found.logs if is_trackers]
            is_of_tracker = (
                not inside and found.own == {CONFIG} and (of_trackers or repeats(of_outer)(path / CONFIG))
            )
            is_run = bool(found.own) and not is_of_tracker
            if is_run:
                yield path, found.own == {METRICS} and _has_answers_of_others(path)
            elif not inside:
                logs += found.logs
            if entries > MAX_ENTRIES:
                self.problems.append(
                    f"More than {MAX_ENTRIES:,} entries: not all of {folder} was looked through."
                )
                return
            if depth < MAX_DEPTH:
                waiting.extend((one, depth + 1, inside or is_run, of_trackers) for one in found.folders)

    def _listing(self, path: Path, most: int) -> _Listing:
        """What lies in a folder, of at most so many entries, read again once the folder has changed."""
        now = stamp(path)
        known = self._listings_before.get(path)
        if known is not None and known[0] == now and known[1].entries <= most:
            self._listings[path] = known
            return known[1]
        folders: list[str] = []
        own: set[str] = set()
        logs: list[tuple[Path, bool]] = []
        audits: list[Path] = []
        entries = 0
        try:
            with os.scandir(path) as listing:
                for entry in listing:
                    entries += 1
                    if entries > most:
                        break
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in _INSIDE and not entry.name.startswith("."):
                            folders.append(entry.name)
                    elif entry.is_file(follow_symlinks=False):
                        if entry.name in (CONFIG, METRICS, PROGRESS):  # the last from the start of a run
                            own.add(entry.name)
                        elif _AUDIT.fullmatch(entry.name):
                            audits.append(path / entry.name)
                        else:
                            is_trackers, is_any = may_be_log(path, entry.name)
                            if is_any:
                                logs.append((path / entry.name, is_trackers))
        except OSError as error:
            self.problems.append(f"{path}: {error.strerror or error}")
            return _Listing(entries, frozenset(own), [], logs, audits)
        inner = [path / name for name in sorted(folders, key=_natural)]
        found = _Listing(entries, frozenset(own), inner, logs, audits)
        if entries <= most and time.time() - now[2] / 1e9 > SECONDS_UNTIL_SETTLED:
            self._listings[path] = (now, found)
        return found

    def audit(self, identifier: str) -> Place | None:
        """The file of an audit with an identifier, None for any other text."""
        self.places()
        return self.audits.get(identifier)

    def audits_of(self, place: Place) -> list[Place]:
        """The audits in the folder of a run, and then those in the folders that hold it."""
        found = (one for one in self.audits.values() if one.path.parent in (place.path, *place.path.parents))
        return sorted(found, key=lambda one: (-len(one.path.parts), one.name))

    def revision(self, place: Place) -> tuple[Any, ...]:
        """What changes when anything changes that a page of the run shows."""
        if place.logs:
            return (*(stamp(file) for file in place.logs), False)
        files = (METRICS, SUMMARY, PROGRESS, CONFIG, ROLLOUTS, EVALUATIONS, FAILURE)
        return (*(stamp(f"{place.path}/{name}") for name in files), is_being_written(place.path))

    def list_revision(self, place: Place) -> tuple[Any, ...]:
        """What changes when anything changes that the list shows of a run, at less cost than `revision`.

        Of a run of greenward's, files that are replaced as a whole change the time of their folder.
        """
        if place.logs:
            return self.revision(place)
        files = ("", METRICS, EVALUATIONS)
        return (*(stamp(f"{place.path}/{name}") for name in files), is_being_written(place.path))

    def card(self, place: Place, *, with_config: bool = True) -> dict[str, Any]:
        """What the list shows of a run, kept until a file of it changes."""
        revision = self.revision(place)
        known = self._cards.get(place.id)
        if known is not None and known[0] == (revision, with_config):
            card = known[1]
        else:
            try:
                card = _card_of_log(place) if place.logs else self._read_card(place, with_config)
            except UNEXPECTED as error:  # one strange file must not hide the other runs
                card = {**_EMPTY, "id": place.id, "name": place.name, "parent": place.parent}
                card["problems"] = [f"A file has another form than a run writes ({type(error).__name__})."]
            self._cards[place.id] = ((revision, with_config), card)
        state = "log" if place.logs else _state(card, revision[-1])
        return {**card, "state": state, "is_log": bool(place.logs)}

    def knows_config(self, place: Place) -> bool:
        """Whether the config is at hand: parsing one takes a hundred times as long as looking it up."""
        if place.logs:
            return True
        found = stamp(place.path / CONFIG)
        known = self._configs.get(place.id)
        if known is not None and known[0] == found:
            return True
        file = self._cache.file(place.path, "config")
        if file is None or not file.is_file():
            return False
        try:
            kept = parse_json_text(read_file(file, _MAX_SMALL))
            if tuple(kept["stamp"]) == found and isinstance(kept["config"], dict):
                self._configs[place.id] = (found, kept["config"])
                return True
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return False

    def config(self, place: Place) -> dict[str, Any]:
        """The config as JSON has it; empty where it cannot be read."""
        if place.logs:
            return {}
        file = place.path / CONFIG
        found = stamp(file)
        if self.knows_config(place):
            return self._configs[place.id][1]
        try:
            config = plain_value(read_config(place.path)) if is_itself(place) else {}
        except (GreenwardError, OSError, *UNEXPECTED):
            config = {}
        self._configs[place.id] = (found, config)
        kept = json.dumps({"stamp": found, "config": config}).encode()
        self._cache.write(self._cache.file(place.path, "config"), kept)
        return config

    def _read_card(self, place: Place, with_config: bool) -> dict[str, Any]:
        problems: list[str] = []
        summary = read_small(place, SUMMARY, problems)
        progress = read_small(place, PROGRESS, problems)
        config = self.config(place) if with_config else {}
        last = last_row(place, problems)
        flat = dict(flattened(config))
        stamps = [stamp(place.path / name) for name in (METRICS, SUMMARY, PROGRESS, CONFIG)]
        failure = ""
        if (place.path / FAILURE).is_file():
            try:
                failure = read_file(place.path / FAILURE, _MAX_SMALL, within=place.root).decode(
                    "utf-8", "replace"
                )[:2000]
            except OSError as error:
                problems.append(f"{FAILURE}: {error.strerror or error}")
        model = config.get("model")
        name = next(
            (
                str(model[key])
                for key in ("name", "path", "model")
                if isinstance(model, dict) and model.get(key)
            ),
            "",
        )
        step = last.get("step")
        is_recorded = stamps[3] == NO_FILE  # by a recorder, for another trainer
        if is_recorded:
            last = {**{known_name(name) or name: value for name, value in reversed(last.items())}, **last}
        return {
            "id": place.id,
            "name": place.name,
            "parent": place.parent,
            "is_recorded": is_recorded,
            "config_known": with_config,
            "recipe": str(config.get("name") or ""),
            "task": str(config.get("task") or ""),
            "algorithm": algorithm_of(config) or "",
            "model": name,
            "seed": plain_value(flat.get("seed", flat.get("training.seed"))),
            "step": step if type(step) is int else None,
            "max_steps": _whole(flat.get("training.max_steps")),
            "reward": _finite(last.get("reward/mean")),
            "pass_rate": _finite(last.get("pass_rate")),
            "before": _headline(summary.get("before")),
            "after": _headline(summary.get("after")),
            "status": str(summary.get("status") or ""),
            "failure": failure,
            "progress": {
                key: progress.get(key) for key in ("phase", "done", "total", "unit", "eta", "numbers", "at")
            },
            "changed": max(time_ns for _, _, time_ns in stamps) / 1e9,
            "bytes": stamps[0][1],
            "problems": problems,
            "wall_seconds": _finite(summary.get("wall_seconds")),
        }


_EMPTY: dict[str, Any] = {
    **dict.fromkeys(("recipe", "task", "algorithm", "model", "status", "failure"), ""),
    **dict.fromkeys(("seed", "step", "max_steps", "reward", "pass_rate", "before", "after", "wall_seconds")),
    "progress": {},
    "config_known": True,
    "is_recorded": False,
    "changed": 0.0,
    "bytes": 0,
}


def _has_answers_of_others(path: Path) -> bool:
    return not steps_in(path / ROLLOUTS) and bool(find_rollouts(path) or find_file_of_many_steps(path, path))


def _card_of_log(place: Place) -> dict[str, Any]:
    """What is known of another trainer's log before it is read."""
    stamps = [stamp(file) for file in place.logs]
    return {
        **_EMPTY,
        "id": place.id,
        "name": place.name,
        "parent": place.parent,
        "changed": max(time_ns for _, _, time_ns in stamps) / 1e9,
        "bytes": sum(size for _, size, _ in stamps),
        "problems": [],
    }


def _name_in(path: Path, folder: Path) -> str:
    relative = path.relative_to(folder)
    return relative.as_posix() if relative.parts else folder.name


def is_itself(place: Place) -> bool:
    """Whether the folder of a run still is no link, by which files elsewhere would be its own."""
    return os.path.realpath(place.path) == os.fspath(place.path)


def plain_value(value: Any) -> Any:
    """A value of a config as JSON has it; a date, which YAML knows, as text."""
    if isinstance(value, dict):
        return {str(key): plain_value(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain_value(one) for one in value]
    try:
        return to_json(value)
    except TypeError:
        return str(value)


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def _identifier(name: str, path: Path, taken: Container[str]) -> str:
    """What stands for `name` in addresses: with a hash of `path` where another thing has the same."""
    slug = _slug(name)
    return f"{slug}-{digest_of(path, 4)}" if slug in taken else slug


def _slug(name: str) -> str:
    parts = [_UNSAFE.sub("-", part).strip("-.") or "run" for part in name.split("/")]
    slug = "~".join(parts)
    if slug != name.replace("/", "~") or len(slug) > 120:
        slug = f"{slug[:100]}-{digest_of(name, 4)}"
    return slug


def _state(card: dict[str, Any], is_running: bool) -> str:
    if is_running:
        return "running" if card["step"] else "waiting"
    if card["failure"]:
        return "failed"
    if card["status"] in ("finished", "interrupted"):
        return "finished" if card["status"] == "finished" else "stopped"
    if time.time() - card["changed"] < SECONDS_UNTIL_STALE / 10:
        return "running"
    return "log" if card["is_recorded"] else "stale"


def _headline(metrics: Any) -> dict[str, Any] | None:
    """The first estimate of an evaluation that has finite bounds: pass@1 where it is there."""
    if not isinstance(metrics, dict):
        return None
    for name in ("pass@1", *metrics):
        found = metrics.get(name)
        if isinstance(found, dict):
            bounds = {key: _finite(found.get(key)) for key in ("value", "low", "high")}
            if all(value is not None for value in bounds.values()):
                return {"name": str(name), **bounds, "problems": _whole(found.get("problems"))}
    return None


def _finite(value: Any) -> float | None:
    value = from_json_number(value)
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 53 else None


def read_small(place: Place, name: str, problems: list[str]) -> dict[str, Any]:
    """A JSON object of a run; empty where there is none. What is wrong with the file goes into `problems`.

    A file that is just being written is not named: it will be whole when it is asked for again.
    """
    file = place.path / name
    try:
        if not file.is_file():
            return {}
        found = parse_json_text(read_file(file, _MAX_SMALL, within=place.root))
    except OSError as error:
        problems.append(f"{name}: {error.strerror or error}")
        return {}
    except (ValueError, RecursionError):
        if time.time() - os.stat(file).st_mtime > 10:
            problems.append(f"{name} is damaged: it is no JSON")
        return {}
    if not isinstance(found, dict):
        problems.append(f"{name} is damaged: it is no JSON object")
        return {}
    return found


def last_row(place: Place, problems: list[str]) -> dict[str, Any]:
    """The last whole row of the metrics, of the last bytes of the file."""
    file = place.path / METRICS
    try:
        if not file.is_file():
            return {}
        with open_file(file, 1 << 62, within=place.root) as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - _TAIL_BYTES))
            whole = opened.read(_TAIL_BYTES).rpartition(b"\n")[0]
    except OSError as error:
        problems.append(f"{METRICS}: {error.strerror or error}")
        return {}
    for line in reversed(whole.split(b"\n")):
        try:
            row = parse_json_text(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            return row
    return {}
