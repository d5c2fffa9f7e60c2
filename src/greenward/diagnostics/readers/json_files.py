"""Logs of JSON: greenward's own, trainer_state.json, and rows in lines.

Rows may be flat (prime-rl, Tinker cookbook), nested (verl's `{"step": 1, "data": {…}}`) or events
(`{"step": 1, "name": "kl", "value": 0.1}`). Sources of the formats: transformers/trainer_callback.py
(TrainerState), verl/utils/tracking.py (FileLogger), tinker_cookbook/utils/ml_log.py (JsonLogger),
prime_rl/utils/monitor, verifiers/utils/save_utils.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from greenward.diagnostics.readers.log import STEP_KEYS, Format, Log, Row, flat
from greenward.errors import DiagnosticsError, RunError
from greenward.runs.files import JsonRows, read_json
from greenward.runs.reading import CONFIG, METRICS, read_config, read_sessions
from greenward.user_files import read_file
from greenward.user_text import parse_json_text

# Planted faults are the truth that diagnostics are measured against: they must find it themselves.
_HIDDEN = "faults"
_STATE = "trainer_state.json"


def _greenward_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    folder = files[0].parent
    config = read_config(folder) if (folder / CONFIG).is_file() else None
    if config is not None:
        config.pop(_HIDDEN, None)
    sessions = read_sessions(folder)
    rows = _line_rows(files, run, log)
    log.config, log.session = config, sessions[-1] if sessions else {}
    return rows


def _line_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    if (beside := files[0].parent / "config.json").is_file():
        try:
            log.config = read_json(beside)
        except RunError:
            log.notes.append("config.json cannot be read and was left out")
    return _lines(files, log.notes)


def _lines(files: list[Path], notes: list[str]) -> Iterator[Row]:
    for path in files:
        source = JsonRows(path.resolve(), lenient=True)  # links are checked where logs are found
        for row in source:
            row = flat(row)
            if "name" in row and "value" in row:
                row = {**{key: row[key] for key in STEP_KEYS if key in row}, str(row["name"]): row["value"]}
            yield row
        broken = source.broken - (source.torn is not None)
        if broken:
            notes.append(f"{path.name}: {broken} line(s) cannot be read and were left out")
        if source.torn is not None:
            notes.append("the last line is torn and was left out")


def _document_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    """One JSON document: the newest trainer_state.json of a run, a list of rows, or rows under a key."""
    states = [(path, _document(path, log.notes)) for path in files]
    found = [(path, state) for path, state in states if state is not None]
    if not found:
        raise DiagnosticsError(f"{files[0]} is not a JSON document that can be read")
    # Each checkpoint holds the whole history up to it.
    path, newest = max(found, key=lambda one: _global_step(one[1]))
    settings = newest if isinstance(newest, dict) else {}
    candidates = (newest, *map(settings.get, ("log_history", "history", "metrics", "rows", "logs")))
    rows = next((one for one in candidates if isinstance(one, list)), None)
    if rows is None:
        raise DiagnosticsError(f"{path} holds no list of rows, such as log_history")
    log.format = "HF trainer" if "log_history" in settings else "JSON"
    config = {key: value for key, value in settings.items() if isinstance(value, (int, float, str))}
    log.config = config or None
    return (flat(row) for row in rows if isinstance(row, dict) and "train_runtime" not in row)


def _document(path: Path, notes: list[str]) -> Any:
    try:
        return parse_json_text(read_file(path))
    except (OSError, ValueError):
        notes.append(f"{path.parent.name}/{path.name} cannot be read and was left out")
        return None


def _global_step(state: Any) -> float:
    step = state.get("global_step", 0) if isinstance(state, dict) else 0
    return step if isinstance(step, (int, float)) else 0


GREENWARD = Format("greenward", METRICS.replace(".", r"\."), _greenward_rows)
HF_TRAINER = Format("HF trainer", _STATE.replace(".", r"\."), _document_rows)
JSON_LINES = Format("JSON lines", r".*\.(jsonl|ndjson)", _line_rows, whole_folder=False)
JSON = Format("JSON", r".*\.json", _document_rows, whole_folder=False)
