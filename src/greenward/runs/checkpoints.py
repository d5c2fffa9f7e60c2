"""Writes and reads checkpoints, which are whole or absent. What one holds, `training.loop` decides.

A checkpoint is a folder `checkpoints/step_000020` with a `manifest.json` of every file's size and SHA-256.
It is written beside its place, forced to disk, and renamed; `checkpoints/last` is a relative link to the
newest, usable as a plain model folder.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from greenward.common import interruption
from greenward.common.errors import CheckpointError, RunError
from greenward.common.files import expecting, expects
from greenward.runs.directory import RunDirectory
from greenward.runs.files import force, read_json, remove_tree, sha256_of, temporary_name, write_json, writing
from greenward.runs.reading import (
    CHECKPOINTS,
    EVALUATIONS,
    read_evaluations,
    sound_evaluation,
    step_name,
    steps_in,
)

MANIFEST = "manifest.json"
PINNED = "pinned.json"
LAST, BEST = "last", "best"
_FULL_BELOW_BYTES = 1 << 20
_DAMAGED = "Use an earlier checkpoint, or restore this one from a copy."


def save_checkpoint(
    run: RunDirectory,
    step: int,
    write: Callable[[Path], None],
    keep: int = 2,
    spaced: int = 0,
    *,
    keep_best: bool = False,
) -> Path:
    """Save a checkpoint, which `write` puts into an empty folder, and keep the newest `keep` ones.

    Those that are pinned are kept as well, and `spaced` older ones at logarithmic distances. With
    `keep_best`, the one that `find_checkpoint` calls the best stays, too.

    The rows of the steps so far (metrics, predictions, prompts) are forced to disk first, so that a
    checkpoint never stands without them. Once a stop was asked for, nothing is forced to disk, and the
    checkpoint before is kept in any case: should the power fail, the manifest tells a damaged one. Raises
    `RunError` when the file system refuses; earlier checkpoints are untouched.
    """
    run.sync()
    final = run.checkpoints / step_name(step)
    temporary = run.checkpoints / temporary_name(final)
    for leftover in run.checkpoints.glob(".step_*"):  # half written or half deleted when a run was killed
        shutil.rmtree(leftover, ignore_errors=True)
    with writing(str(final)):
        try:
            temporary.mkdir()
            write(temporary)
            _seal(temporary, step)
            if final.exists():
                remove_tree(final)
            os.replace(temporary, final)
        except Exception as error:
            disk_is_full = shutil.disk_usage(run.checkpoints).free < _FULL_BELOW_BYTES
            shutil.rmtree(temporary, ignore_errors=True)
            # Serialisers report a full disk as errors of their own kind.
            if disk_is_full and not isinstance(error, OSError):
                raise RunError(
                    f"cannot write {final}: the disk is full",
                    remedy="Free some space and go on with --resume; earlier checkpoints are intact.",
                ) from error
            raise
        link = run.checkpoints / ".last.writing"
        link.unlink(missing_ok=True)
        link.symlink_to(final.name)
        os.replace(link, run.checkpoints / LAST)
        force([run.checkpoints])
    best = best_checkpoint(run.path) if keep_best else None
    older = steps_in(run.checkpoints)[: -max(keep, 2 if interruption.requested() else 1)]
    kept = {*pinned_checkpoints(run.path), *_spaced([one for one, _ in older], step, spaced)}
    for one, path in older:
        if one not in kept and path.name != best:
            remove_tree(path)
    return final


def best_checkpoint(run: Path) -> str | None:
    """The kept checkpoint with the highest pass@1 on the held-out problems, None where none was evaluated."""
    kept = {step: path.name for step, path in steps_in(run / CHECKPOINTS)}
    with expecting("the evaluations of a run", run / EVALUATIONS, RunError):
        rates = {
            record["step"]: record["metrics"]["pass@1"]["value"]
            for record in filter(None, map(sound_evaluation, read_evaluations(run)))
            if "pass@1" in record["metrics"] and record["step"] in kept
        }
    return kept[max(rates, key=lambda step: (rates[step], step))] if rates else None


def _spaced(steps: list[int], newest: int, most: int) -> list[int]:
    """The oldest step of each doubling of the age, of `most` such groups, the youngest ones."""
    unit = min((newest - step for step in steps), default=1)
    groups: dict[int, int] = {}
    for step in sorted(steps, reverse=True):
        groups[max((newest - step) // max(unit, 1), 1).bit_length()] = step
    return [groups[age] for age in sorted(groups)[:most]]


def pinned_checkpoints(run: Path) -> list[int]:
    """The steps of the checkpoints that are not to be deleted."""
    found = (read_json(run / CHECKPOINTS / PINNED) or {}).get("steps")
    return [step for step in found if isinstance(step, int)] if isinstance(found, list) else []


def pin_checkpoint_before(run: RunDirectory, step: int) -> int | None:
    """Pin the last checkpoint from before `step`, so that it is kept; None: there is none."""
    earlier = [one for one, _ in steps_in(run.checkpoints) if one < step]
    if not earlier:
        return None
    write_json(run.checkpoints / PINNED, {"steps": sorted({*pinned_checkpoints(run.path), earlier[-1]})})
    return earlier[-1]


def latest_checkpoint(run: RunDirectory | Path) -> Path | None:
    """The newest whole checkpoint, None when none was ever saved. Damaged ones are left out with a warning.

    Raises `CheckpointError` when there are checkpoints and all are damaged.
    """
    folder = run.checkpoints if isinstance(run, RunDirectory) else Path(run) / CHECKPOINTS
    damage: CheckpointError | None = None
    for _, path in reversed(steps_in(folder)):
        try:
            verify(path)
        except CheckpointError as error:
            warnings.warn(f"passing over a damaged checkpoint: {error.message}", stacklevel=2)
            damage = damage or error
        else:
            return path
    if damage is not None:
        raise CheckpointError(
            f"every checkpoint in {folder} is damaged; the newest: {damage.message}",
            remedy="Restore one from a copy, or start again in another directory.",
        )
    return None


def find_checkpoint(run: Path, which: str) -> Path:
    """The checkpoint of the run at `run` that is meant by "last", "best" or a name such as step_000020.

    The best is the one with the highest pass@1 on the held-out problems among those that are kept and
    were evaluated; of equals the newest. Raises `CheckpointError` when there is none, or it is damaged.
    """
    if which == LAST:
        if (newest := latest_checkpoint(run)) is None:
            raise CheckpointError(f"{run} is a run without a checkpoint yet.")
        return newest
    kept = {path.name: step for step, path in steps_in(run / CHECKPOINTS)}
    if which == BEST:
        if (best := best_checkpoint(run)) is None:
            raise CheckpointError(
                f"{run}: no checkpoint that is kept was evaluated on the held-out problems.",
                remedy=f"Evaluate at the steps of checkpoints, keep more of them, or use {LAST}.",
            )
        which = best
    if which not in kept:
        raise CheckpointError(
            f"{run} has no checkpoint {which!r}.",
            remedy=f"It keeps {', '.join(kept) or 'none'}; {LAST} and {BEST} are known, too.",
        )
    verify(run / CHECKPOINTS / which)
    return run / CHECKPOINTS / which


@expects("a checkpoint", CheckpointError)
def verify(path: str | Path) -> None:
    """Check every file of a checkpoint against its manifest.

    Raises `CheckpointError` naming a file that is missing, cut short or changed.
    """
    files = {
        Path(path) / name: (int(one["bytes"]), str(one["sha256"]))
        for name, one in _manifest(Path(path))["files"].items()
    }
    for file, (bytes_saved, digest) in files.items():
        if not file.is_relative_to(path) or ".." in file.parts[len(Path(path).parts) :]:
            raise CheckpointError(f"{file} is outside of the checkpoint")
        if not file.is_file():
            raise CheckpointError(f"{file} is missing; the checkpoint is not whole")
        size = file.stat().st_size
        if size != bytes_saved:
            found = f"expected {bytes_saved:,} bytes, found {size:,}; it was cut short or changed"
            raise CheckpointError(f"{file}: {found}", remedy=_DAMAGED)
        if sha256_of([file]) != digest:
            found = f"its content is not what was saved (SHA-256 differs from {MANIFEST})"
            raise CheckpointError(f"{file}: {found}", remedy=_DAMAGED)


def checkpoint_step(path: str | Path) -> int:
    """The step after which `path` was saved. Raises `CheckpointError` without a readable manifest."""
    with expecting("the manifest of a checkpoint", Path(path) / MANIFEST, CheckpointError):
        return int(_manifest(Path(path))["step"])


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = read_json(path / MANIFEST)
    except RunError as error:
        raise CheckpointError(f"{path / MANIFEST} is damaged: {error.message}") from error
    if manifest is None:
        raise CheckpointError(f"{path} has no {MANIFEST}: not a checkpoint, or not a whole one")
    return manifest


def _seal(folder: Path, step: int) -> None:
    """Write the manifest, once every file was forced to disk."""
    entries = sorted(folder.rglob("*"))
    files = [path for path in entries if path.is_file()]

    def described(file: Path) -> dict[str, Any]:
        return {"bytes": file.stat().st_size, "sha256": sha256_of([file])}

    with ThreadPoolExecutor(3) as threads:
        forced = threads.submit(force, files)
        names = [file.relative_to(folder).as_posix() for file in files]
        manifest = {"step": step, "files": dict(zip(names, threads.map(described, files), strict=True))}
        forced.result()
    write_json(folder / MANIFEST, manifest, indent=1)
    force([path for path in entries if path.is_dir()])
