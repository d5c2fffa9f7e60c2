"""Reads a run as aligned signals under greenward's names. No reader needs the package of the tracker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from greenward.common.errors import DiagnosticsError
from greenward.common.files import expects
from greenward.common.text import visible
from greenward.diagnostics.readers.formats import GREENWARD, Log, find_log, find_rollouts, numbered
from greenward.diagnostics.readers.names import Columns, renamed
from greenward.diagnostics.signals import RunSignals

_CHECKPOINT = re.compile(r"(?:checkpoint-|global_step_?|step_)(\d{1,15})")
_SHOWN = 12


@expects("the log of a run", DiagnosticsError)
def read_run_signals(
    run: str | Path, *, mapping: Mapping[str, str] | None = None, pick: str | None = None
) -> RunSignals:
    """Read the run at `run`: a folder or a file of any known format (docs/diagnostics.md).

    `mapping` gives greenward's names for names of the log; `pick` chooses one of several runs.

    Raises:
        DiagnosticsError: there is no log, there are several runs, or a file is not what it seems.
        RunError: a file of a run directory that cannot be read.
    """
    path = Path(run)
    try:
        found = find_log(path, pick)
        log = Log(found.format.name)
        rows = found.format.rows(list(found.files), found.name, log)
        columns = Columns.of(rows, found.format.step_keys)
    except OSError as error:
        raise DiagnosticsError(f"{path} cannot be read: {error.strerror or error}") from None
    if not len(columns.steps):
        raise DiagnosticsError(f"{found.files[0]} has no row with a step")
    names, unknown = renamed(columns.values, mapping or {})
    values, recorded = {}, {}
    for theirs, (ours, scale, shift) in names.items():
        column = columns.values[theirs]
        values[ours] = column if (scale, shift) == (1, 0) else scale * column + shift
        recorded[ours] = columns.recorded[theirs]
    # A share of a status is logged where an answer has it: at other steps with a status none has.
    statuses = [name for name in values if name.startswith("status/")]
    judged = np.any([recorded[name] for name in statuses], axis=0)
    for name in statuses:
        values[name] = np.where(judged & ~recorded[name], 0.0, values[name])
    notes = [*log.notes, *columns.notes]
    own = found.format is GREENWARD and log.config is not None
    if unknown and not own:
        shown = ", ".join(visible(name, 60) for name in unknown[:_SHOWN])
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        notes.append(f"{len(unknown)} name(s) are not known and no check uses them: {shown}{more} (--map)")
    folder = found.files[0].parent
    if _CHECKPOINT.fullmatch(folder.name):  # trainer_state.json lies in checkpoints, too
        folder = folder.parent
    places = (folder, folder / "checkpoints")
    checkpoints = (one for place in places for one in numbered(place, _CHECKPOINT) if one[1].is_dir())
    return RunSignals(
        folder if own else path,
        columns.steps.astype(np.int64),
        values,
        recorded,
        tuple(notes),
        log.config,
        log.session,
        log.format,
        found.files[0].name,
        {ours: theirs for theirs, (ours, _, _) in names.items() if ours != theirs},
        tuple(sorted(checkpoints)),
        find_rollouts(folder),
    )


__all__ = ["read_run_signals"]
