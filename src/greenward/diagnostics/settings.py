"""What two runs were set to that differs: their configs, versions and commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greenward.runs.files import read_json
from greenward.runs.reading import read_config

# Where a run lies and what it is called changes no number in it.
_WITHOUT_EFFECT = ("name", "output")
PROVENANCE = "provenance."  # begins the keys of what a run was made with, as its config does not say
# Planted faults are the truth that diagnostics are measured against: they must find it themselves.
_HIDDEN = "faults"


@dataclass(frozen=True)
class Setting:
    """A key with two values, as JSON data; None where a run does not have it."""

    key: str
    a: Any
    b: Any


def different_settings(a: Path, b: Path) -> tuple[list[Setting], list[str]]:
    """(settings that differ, notes on what could not be compared) of two run directories.

    Raises:
        RunError: a file that is there and cannot be read.
    """
    notes: list[str] = []
    settings: list[Setting] = []
    if (a / "config.yaml").is_file() and (b / "config.yaml").is_file():
        settings += _differences(read_config(a), read_config(b), "")
    else:
        notes.append("the configs were not compared: config.yaml is missing")
    session_a, session_b = _newest_session(a), _newest_session(b)
    if session_a and session_b:
        settings += _differences(session_a, session_b, PROVENANCE)
    else:
        notes.append("the versions were not compared: provenance.json is missing")
    return settings, notes


def _newest_session(path: Path) -> dict[str, Any]:
    record = read_json(path / "provenance.json") or {}
    sessions = record.get("sessions")
    if not isinstance(sessions, list) or not sessions or not isinstance(sessions[-1], dict):
        return {}
    return {key: value for key, value in sessions[-1].items() if key != "started_at"}


def _differences(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str) -> list[Setting]:
    before, after = dict(_flat(a)), dict(_flat(b))
    return [
        Setting(f"{prefix}{key}", before.get(key), after.get(key))
        for key in {**before, **after}
        if before.get(key) != after.get(key)
        and key not in _WITHOUT_EFFECT
        and key.partition(".")[0] != _HIDDEN
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
