"""A copy of a run up to one of its checkpoints, which is trained on with other settings."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from greenward.errors import RunError
from greenward.runs.files import JsonRows, read_json, write_atomically, write_json, write_rows, writing
from greenward.runs.metrics import PREDICTIONS
from greenward.runs.reading import CHECKPOINTS, CONFIG, METRICS, PROVENANCE, read_config, step_name


def fork_run(run: Path, step: int, target: Path, changes: Mapping[str, Any] = {}) -> Path:
    """Copy the run at `run` as it was after `step`, with `changes` of dotted keys of its config.

    `step` is that of a checkpoint, or 0: the run from its beginning. Checkpoints are linked and not copied.
    `greenward train TARGET/config.yaml --output TARGET --resume` goes on from there.

    Raises:
        RunError: no such checkpoint, `target` exists, a key that the config has not, or the file system
        refused.
    """
    if target.exists():
        raise RunError(f"{target} exists already", remedy="Choose another folder, or delete it.")
    config = read_config(run)
    for key, value in changes.items():
        *sections, last = key.split(".")
        place: Any = config
        for part in sections:
            place = place.get(part) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last not in place:
            raise RunError(f"{run / CONFIG} has no key {key!r}")
        place[last] = value
    checkpoint = run / CHECKPOINTS / step_name(step)
    if step and not checkpoint.is_dir():
        raise RunError(f"{run} has no checkpoint of step {step}")
    with writing(str(target)):
        target.mkdir(parents=True)
        write_atomically(
            target / CONFIG, yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode()
        )
        if step:
            shutil.copytree(checkpoint, target / CHECKPOINTS / checkpoint.name, copy_function=_link)
            for name in (METRICS, PREDICTIONS):
                rows = [
                    row for row in JsonRows(run / name, lenient=True) if row.get("step", step + 1) <= step
                ]
                if rows:
                    write_rows(target / name, rows)
            if (provenance := read_json(run / PROVENANCE)) is not None:
                write_json(target / PROVENANCE, provenance)
        if (run / "warm_start").is_dir():
            shutil.copytree(run / "warm_start", target / "warm_start", copy_function=_link, symlinks=True)
    return target


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
    return target
