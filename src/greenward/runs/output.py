"""Makes the folders that greenward writes, which carry a mark, and changes nothing of anybody else's.

This holds for every option that names an output, for the folders that commands choose without one, and for
the Python API:

- A folder is greenward's or empty. A new folder is marked by `.greenward.json` with its kind (run,
  evaluation, model, reports …). A folder with anything in it but without the mark, and one of another kind,
  is refused and unchanged. Reports may be written into any marked folder. Folders of earlier versions, which
  have no mark, are known by their records.
- `--overwrite` (`train`, `demo`, `sweep`, `eval`, `grade`) deletes what greenward wrote in a folder of the
  same kind, and refuses one that holds anything else. Mined problems and `Policy.save` replace their own
  folder without the option.
- A file is new: none is replaced, and alarms are appended to a file of alarms only.
- Links are not followed. Devices, pipes, the home folder, mount points and folders that all users share are
  refused, too.

One process writes a run. Its lock is a POSIX record lock, because the kernel frees it when the process dies,
however it dies, and a forked worker does not inherit it: a lock of a dead process is never in the way. The
file's text only serves the message.
"""

from __future__ import annotations

import errno
import fcntl
import fnmatch
import os
import shutil
import stat
import struct
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from greenward.common.errors import RunError
from greenward.common.text import listed
from greenward.runs.files import TEMPORARY, json_object, write_json, writing
from greenward.runs.reading import ARMS, WARM_START, step_of

_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
LOCK = ".lock"
# struct flock, asking who has a write lock from the first byte to the end: macOS has the type last.
if sys.platform == "darwin":
    _FLOCK, _WHOLE_FILE, _TYPE = "qqihh", (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET), 3
else:
    _FLOCK, _WHOLE_FILE, _TYPE = "hhqqi4x", (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0), 0
# Record locks do not exclude a second opener in the same process, so this does.
_held_here: set[Path] = set()


class RunLock:
    """Held from construction to `release`.

    Raises `RunError` when another process, or another object in this one, writes the same run.
    """

    def __init__(self, folder: Path) -> None:
        self._path = Path(os.path.realpath(folder)) / LOCK
        if self._path in _held_here:
            raise RunError(f"{folder} is already open for writing in this process")
        self._descriptor = _open_own_file(self._path)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._descriptor, 100).decode(errors="replace").strip()
            os.close(self._descriptor)
            if error.errno not in _UNSUPPORTED:
                raise RunError(
                    f"{folder} is being written by another process ({holder or 'unknown'})",
                    remedy="Wait for it, stop it, or choose another directory.",
                ) from error
            warnings.warn(f"{folder}: this file system has no locks; keep to one writer", stacklevel=3)
            self._descriptor = -1
            return
        _held_here.add(self._path)
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"pid {os.getpid()}\n".encode())

    def release(self) -> None:
        """Give the run free. Calling it twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            _held_here.discard(self._path)


def is_being_written(folder: Path) -> bool:
    """Whether a process holds the lock of the run at `folder`; asking does not take it."""
    if _held_here and Path(os.path.realpath(folder)) / LOCK in _held_here:
        return True
    try:
        descriptor = os.open(f"{folder}/{LOCK}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        found = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(_FLOCK, *_WHOLE_FILE))
        return bool(struct.unpack(_FLOCK, found)[_TYPE] != fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _open_own_file(path: Path) -> int:
    """Opens the lock file, or makes it: a file of its own, since what it holds is overwritten.

    Raises `RunError` for a link, whose target may be anybody's file, and for what is no file at all.
    """
    with writing(str(path)):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
        else:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                return descriptor
            os.close(descriptor)
    raise RunError(
        f"{path}: expected a file of its own, found a link or no file at all",
        remedy="Remove it: the lock of a run is made anew when it is needed.",
    )


Kind = Literal["run", "runs", "evaluation", "problems", "report", "model", "logs"]

MARK = ".greenward.json"
OTHER_PAGES = "rollouts-[0-9].html", "rollouts-[0-9][0-9].html"
_REPORTS = ("report.html", "report.md", "report.json", "rollouts.html", *OTHER_PAGES)
_TRACKERS = ("tensorboard", "wandb", "mlruns", "mlartifacts", "mlflow.db")
_MANIFEST = "manifest.json"  # of a checkpoint: it names its files
_CHECKPOINTS, _TENSORBOARD = "checkpoints", "tensorboard"
_OF_STEPS: Mapping[str, tuple[str, ...]] = {
    "rollouts": (),
    "tokens": (),
    "evaluations": (),
    _CHECKPOINTS: ("last", ".last.writing", "pinned.json"),
    _TENSORBOARD: ("events.out.tfevents.*",),
}
_RUNS_OF_A_RUN = (WARM_START, *ARMS)
_FAILED_AT_ONCE: tuple[list[str], ...] = ([], ["failure.txt"])  # what a run has that failed before it began
_MOST_BYTES = 16 << 20  # of a record that tells the kind of a folder
_DEEPEST_RUN = 3  # folders between that of a sweep and one of its runs
_MOST_NAMES = 3  # of what a refused folder holds, in the message


class _Description(NamedTuple):
    """How a message calls a kind of folder, and the names that greenward writes in it."""

    words: str
    names: tuple[str, ...]


KINDS: Mapping[Kind, _Description] = MappingProxyType(
    {
        "run": _Description(
            "a run",
            (
                "config.yaml", "provenance.json", "metrics.jsonl", "predictions.jsonl", "prompts.jsonl",
                "alarms.jsonl", "faults.json", "progress.json", "summary.json", "failure.txt",
                "random_search.json", "replay.html", "own_loss.py", "own_advantage.py",
                "own_reward_*.py", "rollouts", "tokens", "evaluations", "checkpoints",
                *_RUNS_OF_A_RUN, *_TRACKERS,
            ),
        ),
        "runs": _Description("a demo, a sweep or a bisection", ()),
        "evaluation": _Description(
            "an evaluation",
            (
                "settings.json", "provenance.json", "prompts.jsonl", "samples.jsonl", "results.jsonl",
                "summary.json", "predictions.jsonl", "eval_results.json", "step_*.json",
            ),
        ),
        "problems": _Description(
            "mined problems", ("train.json", "held_out.json", "left_out.jsonl", "manifest.json")
        ),
        "report": _Description("reports", ()),
        "model": _Description(
            "a model",
            (
                "*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json",
                "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
                "chat_template.jinja", "adapter", "README.md", "trainer.pt", "manifest.json",
            ),
        ),
        "logs": _Description("logs of jobs", ("job_*",)),
    }
)  # fmt: skip


def claim_folder(path: Path, kind: Kind, *, overwrite: bool = False) -> None:
    """Make `path` a folder of greenward's of this kind, or go on with the one that is there.

    With `overwrite`, what greenward wrote in it is deleted. Reports may be written into any folder of
    greenward's. Raises `RunError` for every other place (`check_folder`), and with `overwrite` for a folder
    that holds more than greenward wrote, or that a process writes.
    """
    found = check_folder(path, kind)
    if found and overwrite:
        refuse_other_entries(path, kind)
        with writing(str(path)):
            for entry in list(os.scandir(path)):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                elif entry.name != MARK:
                    os.unlink(entry.path)
    with writing(str(path)):
        path.mkdir(parents=True, exist_ok=True)
    if not found or not os.path.lexists(path / MARK):
        write_json(path / MARK, {"kind": kind}, indent=None)


def check_folder(path: Path, *kinds: Kind) -> Kind | None:
    """The kind of the folder of greenward's at `path`, None where nothing is; changes nothing.

    Raises `RunError` for a folder of another kind or of somebody else, an empty one that is no place of its
    own (a mount point, the home folder, one that all users share), what is no folder, a link, a path that
    leads through somebody else's link, and what cannot be written.
    """
    if (status := _status(path)) is None:
        return None
    if not stat.S_ISDIR(status.st_mode):
        raise _refusal(path, f"expected a folder, found {_file_type(status.st_mode)}")
    with writing(str(path)):
        names = sorted(os.listdir(path))
    if not os.access(path, os.W_OK | os.X_OK):
        raise _refusal(path, "this user may not write to this folder")
    found = _kind_of(path)
    wanted = " or ".join(KINDS[kind].words for kind in kinds)
    if found is not None:
        if found not in kinds and not ("report" in kinds and _marked_kind(path)):
            raise _refusal(path, f"expected {wanted}, found {KINDS[found].words}")
        has_records = found not in ("run", "evaluation", "problems") or _kind_by_records(path, 0)
        if not has_records and not is_being_written(path):
            refuse_other_entries(path, found)  # a mark alone makes no folder ours
        _refuse_strange_entries(path)
        return found
    if names:
        raise _refusal(
            path,
            f"expected {wanted} of greenward's or an empty folder, found a folder with "
            f"{listed(names, _MOST_NAMES)}",
        )
    shared = stat.S_ISVTX | stat.S_IWOTH
    if os.path.ismount(path) or _is_home(path) or status.st_mode & shared == shared:
        raise RunError(
            f"{path} is a mount point, the home folder or a folder that all users share.",
            remedy=f"Choose a folder in it, such as {path / 'runs' / 'mine'}.",
        )
    return None


def check_file(path: Path, *, appended: str | None = None) -> None:
    """Raises `RunError` unless a file can be written to `path` where no other one is; changes nothing.

    With `appended`, the file may be there, if its first line is a JSON object with this key.
    """
    if (status := _status(path)) is None:
        if not path.parent.is_dir():
            raise _refusal(path, f"there is no folder {path.parent}")
        return
    if not stat.S_ISREG(status.st_mode):
        raise _refusal(path, f"expected a file, found {_file_type(status.st_mode)}")
    if not os.access(path, os.W_OK):
        raise _refusal(path, "this user may not write to this file")
    if appended is None:
        raise RunError(f"{path} exists already.", remedy="Choose another name, or delete it.")
    with writing(str(path)), open(path, "rb") as file:
        row = json_object(file.readline(_MOST_BYTES))
    if row is None or appended not in row:
        raise _refusal(path, f"expected a file of JSON lines with {appended!r}, found another one")


def refuse_other_entries(path: Path, kind: Kind) -> None:
    """Raises `RunError` where more lies in a folder of greenward's than it wrote, or a process writes it."""
    if others := [str(one.relative_to(path)) for one in _not_written_here(path, kind)]:
        raise RunError(
            f"{path} holds more than greenward wrote: {listed(sorted(others), _MOST_NAMES)}.",
            remedy="Move it elsewhere, or choose another folder; nothing in this one was changed.",
        )


def replace_folder(path: Path, kind: Kind, write: Callable[[Path], None]) -> None:
    """Let `write` fill a draft beside `path`, then put it in its place: whole or not at all.

    Raises `RunError` as `check_folder` does, and for a folder that holds more than greenward wrote.
    """
    if check_folder(path, kind):
        refuse_other_entries(path, kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{path.name[:40]}.", suffix=".tmp", dir=path.parent, ignore_cleanup_errors=True
    ) as beside:
        draft, old = Path(beside, "new"), Path(beside, "old")
        draft.mkdir()
        write_json(draft / MARK, {"kind": kind}, indent=None)
        write(draft)
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(draft, path)
        except OSError:
            if old.exists():
                os.replace(old, path)
            raise


def _not_written_here(path: Path, kind: Kind) -> Iterator[Path]:
    """What lies in a folder of greenward's and is not its own. Raises `RunError` if a process writes it."""
    if is_being_written(path):
        raise RunError(f"{path} is being written by another process.", remedy="Wait for it, or stop it.")
    own = (MARK, LOCK, TEMPORARY, *_REPORTS, *KINDS[kind].names)
    for entry in os.scandir(path):
        inner, is_folder = Path(entry.path), entry.is_dir(follow_symlinks=False)
        found = _kind_of(inner) if is_folder and kind in ("run", "runs") else None
        is_named = any(fnmatch.fnmatchcase(entry.name, name) for name in own)
        if found in ("run", "runs") and (is_named or kind == "runs"):
            yield from _not_written_here(inner, found)
        elif not is_named:
            yield inner
        elif is_folder and kind == "run" and entry.name in _OF_STEPS:
            yield from _not_of_steps(inner)
        elif is_folder and kind in ("run", "evaluation", "problems") and entry.name not in _TRACKERS:
            is_run_that_failed = entry.name in _RUNS_OF_A_RUN and os.listdir(inner) in _FAILED_AT_ONCE
            if not is_run_that_failed:  # a folder with the name of a file, or of a run
                yield inner


def _not_of_steps(folder: Path) -> Iterator[Path]:
    """What lies in a folder of a run that holds something for each step, and is not what a run writes."""
    for entry in os.scandir(folder):
        is_folder = entry.is_dir(follow_symlinks=False)
        is_named = any(fnmatch.fnmatchcase(entry.name, name) for name in (TEMPORARY, *_OF_STEPS[folder.name]))
        if folder.name != _TENSORBOARD:
            is_named = is_named or step_of(Path(entry.path)) is not None
        if not is_named or (is_folder and folder.name != _CHECKPOINTS):
            yield Path(entry.path)
        elif is_folder and not entry.name.startswith("."):  # not one that was being written
            files = _record(Path(entry.path, _MANIFEST)).get("files")
            written = {_MANIFEST, *(files if isinstance(files, dict) else ())}
            inner = (Path(root, name) for root, _, found in os.walk(entry.path) for name in found)
            yield from (one for one in inner if one.relative_to(entry.path).as_posix() not in written)


def _status(path: Path) -> os.stat_result | None:
    """What is at `path` itself; None: nothing, and a folder above it in which something can be made.

    Raises `RunError` for a link, and for a path that leads through a link which somebody else may have put
    there: one of another user, or one inside a folder of greenward's.
    """
    with writing(str(path)):
        whole = path.absolute()
        try:
            for above in whole.parents:
                if above.is_symlink():
                    owner = os.lstat(above).st_uid
                    is_in_ours = any(os.path.lexists(one / MARK) for one in above.parents)
                    if owner not in (os.geteuid(), 0) or is_in_ours:
                        raise _refusal(path, f"{above} is a link that leads elsewhere")
            status = os.lstat(whole)
        except ValueError as error:  # a null character
            raise _refusal(path, f"this is no path ({error})") from None
        except FileNotFoundError:
            existing = next(one for one in whole.parents if os.path.lexists(one))
            if not existing.is_dir():
                raise _refusal(path, f"{existing} is no folder") from None
            if not os.access(existing, os.W_OK | os.X_OK):
                raise _refusal(path, f"this user may not write to {existing}") from None
            for name in whole.relative_to(existing).parts:
                with suppress(FileNotFoundError):
                    os.lstat(existing / name)  # raises for a name that is too long
            return None
    if stat.S_ISLNK(status.st_mode):
        raise _refusal(path, "expected a folder or file of its own, found a link, which is not followed")
    return status


def _kind_of(path: Path, depth: int = 0) -> Kind | None:
    return _marked_kind(path) or _kind_by_records(path, depth)


def _marked_kind(path: Path) -> Kind | None:
    marked = _record(path / MARK).get("kind")
    return next((kind for kind in KINDS if kind == marked), None)


def _kind_by_records(path: Path, depth: int) -> Kind | None:
    """The kind of a folder that an earlier version wrote, without a mark, `depth` folders below the first."""
    if any(_has_sessions(_record(path / name)) for name in ("provenance.json", "summary.json")):
        if os.path.isfile(path / "config.yaml"):
            return "run"
        if {"command", "suite"} <= _record(path / "settings.json").keys():
            return "evaluation"
    if {"sources", "functions", "left_out", "provenance"} <= _record(path / "manifest.json").keys():
        return "problems"
    if depth < _DEEPEST_RUN and _are_runs(path, depth + 1):
        return "runs"
    return None


def _has_sessions(record: dict[str, Any]) -> bool:
    """Whether a record has what `collect_provenance` gives."""
    sessions = record.get("sessions")
    first = sessions[0] if isinstance(sessions, list) and sessions else None
    return isinstance(first, dict) and {"started_at", "packages", "cpu_count"} <= first.keys()


def _are_runs(path: Path, depth: int) -> bool:
    """Whether a folder holds runs, folders of runs and reports, and nothing else."""
    found = set()
    try:
        for entry in os.scandir(path):
            if any(fnmatch.fnmatchcase(entry.name, name) for name in (*_REPORTS, MARK, LOCK)):
                continue
            kind = _kind_of(Path(entry.path), depth) if entry.is_dir(follow_symlinks=False) else "file"
            if kind is None and os.listdir(entry.path) in _FAILED_AT_ONCE:
                continue
            found.add(kind)
            if not found <= {"run", "runs"}:
                return False
    except OSError:  # what cannot be read is not ours
        return False
    return bool(found)


def _refuse_strange_entries(path: Path) -> None:
    """Raises `RunError` for a link that leads out of the folder, and for what is no file at all."""
    root = os.path.realpath(path)
    folders = [root]
    while folders:
        entries: list[os.DirEntry[str]] = []
        with writing(str(path)), suppress(FileNotFoundError):  # of a run that is going on
            entries = list(os.scandir(folders.pop()))
        for entry in entries:
            if entry.is_symlink():
                if not os.path.realpath(entry.path).startswith(f"{root}{os.sep}"):
                    raise _refusal(path, f"it holds a link that leads out of it, {entry.path}")
            elif entry.is_dir():
                if entry.name not in _TRACKERS:
                    folders.append(entry.path)
            elif not entry.is_file():
                raise _refusal(path, f"it holds what is neither a file nor a folder, {entry.path}")


def _record(path: Path) -> dict[str, Any]:
    """The JSON object in a small regular file; empty where there is none. Links are not followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return {}
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        is_small_file = stat.S_ISREG(status.st_mode) and status.st_size <= _MOST_BYTES
        return (json_object(file.read()) or {}) if is_small_file else {}


def _is_home(path: Path) -> bool:
    try:
        return os.path.samefile(path, Path.home())
    except (OSError, RuntimeError):  # there is no home
        return False


def _file_type(mode: int) -> str:
    names = {
        stat.S_ISREG: "a file", stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a named pipe",
        stat.S_ISSOCK: "a socket",
    }  # fmt: skip
    return next((name for is_type, name in names.items() if is_type(mode)), "a device")


def _refusal(path: Path, found: str) -> RunError:
    return RunError(f"{path}: {found}.", remedy="Choose another place; nothing in this one was changed.")
