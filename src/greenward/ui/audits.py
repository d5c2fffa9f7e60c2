"""Audits of rewards as pages show them, of the JSON that `greenward audit --json` printed into a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from greenward.common.errors import RunError
from greenward.common.text import visible
from greenward.runs.answers import AnswerColumns, is_number, text_hash
from greenward.runs.files import from_json_number, read_json
from greenward.ui.catalog import Place, Stamp, stamp
from greenward.ui.columns import Store

MAX_BYTES = 16 << 20
MAX_TRIALS = 200
MAX_PAIRS = 500
MAX_TEXT = 16 << 10
_OUTCOMES = {
    "accepted": ("accepted", "poisoned"),
    "broken_by": ("raised", "killed", "hung"),
    "refused": ("refused", "poisoned", "raised", "killed", "hung"),
}


def audit(place: Place) -> dict[str, Any]:
    """What a file says: what kind of grader it is, and each answer that was judged wrongly with its text.

    Raises `RunError` for a file that is no audit, or one of another version.
    """
    from greenward.evaluation.audit_report import VERSION  # what it needs takes a third of the time to start

    record = _record(place)
    if "cheats" not in record or "findings" not in record:
        raise RunError(f"{place.name} is no audit: it has no cheats and findings.")
    if record.get("version") != VERSION:
        raise RunError(
            f"{place.name} has version {visible(repr(record.get('version')), 40)}; {VERSION} is read."
        )
    cheats, honest = _rows(record, "cheats"), _rows(record, "honest")
    spellings = [one for one in _rows(record, "spellings") if one.get("family") == "spelling"]
    accepted = _with(cheats, "accepted")
    pairs = _rows(record, "pairs")
    return {
        "id": place.id,
        "name": place.name,
        "sound": record.get("sound") is True,
        "says_nothing": record.get("says_nothing") is True,
        "told_apart": record.get("told_apart") is not False,
        "kinds": [_text(one, "kind", 200) for one in _rows(record, "findings")],
        "function": _text(record, "function", 500),
        "signature": _text(record, "signature", 200),
        "presentation": _text(record, "presentation", 500),
        "left_out": _text(record, "left_out", 500),
        "counts": [len(accepted), len(cheats), len(honest), len(spellings), len(pairs)],
        "findings": [_finding(one) for one in _rows(record, "findings")[:MAX_TRIALS]],
        "accepted": _trials(accepted),
        "broken_by": _trials(_with(cheats, "broken_by")),
        "false_refusals": _trials(_with(honest, "refused")),
        "refused_spellings": _trials(_with(spellings, "refused")),
        "pairs": [
            {
                **{name: _text(one, name, 500) for name in ("worse", "better")},
                **{name: _number(one, name) for name in ("worse_score", "better_score")},
            }
            for one in pairs[:MAX_PAIRS]
        ],
    }


def audit_in(store: Store, run: Place, place: Place) -> dict[str, Any]:
    """The same, and which answers of a run are found cheating or such a cheat."""
    found = store.answers(run)
    return {**audit(place), "in_run": _cheats_in(found.columns, place), "share": found.share}


def brief(place: Place) -> dict[str, Any]:
    """What the list shows of an audit."""
    return _brief(place, stamp(place.path))


@lru_cache(256)
def _brief(place: Place, _: Stamp) -> dict[str, Any]:
    try:
        found = audit(place)
    except RunError as error:
        return {"id": place.id, "name": place.name, "error": str(error)}
    return {key: found[key] for key in ("id", "name", "sound", "says_nothing", "kinds", "counts", "function")}


def _cheats_in(columns: AnswerColumns, place: Place) -> dict[str, Any]:
    """How many answers of a run were found cheating, and which have the very text of an accepted cheat."""
    record = _record(place)
    texts = {
        text_hash(one["text"]): _text(one, "answer", 200)
        for one in _with(_rows(record, "cheats"), "accepted")
        if isinstance(one.get("text"), str) and one["text"]
    }
    status = columns.codes["status"].get("cheating")
    same, counts = np.unique(
        columns.same[np.isin(columns.same, np.array(list(texts), np.uint64))], return_counts=True
    )
    return {
        "total": len(columns),
        "cheating": 0 if status is None else int((columns.names["status"] == status).sum()),
        "same": [
            [texts[int(one)], f"{int(one):016x}", int(times)] for one, times in zip(same, counts, strict=True)
        ],
    }


def _record(place: Place) -> dict[str, Any]:
    size = stamp(place.path)[1]
    if size > MAX_BYTES:
        raise RunError(f"{place.name} has {size} bytes; of an audit at most {MAX_BYTES} are read.")
    return read_json(place.path, within=place.root) or {}


def _rows(record: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = record.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _with(trials: Iterable[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    return [one for one in trials if one.get("outcome") in _OUTCOMES[what]]


def _trials(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Trials by family, with the reason of each family; `count` says how many there are in all."""
    families: dict[str, dict[str, Any]] = {}
    for one in trials[:MAX_TRIALS]:
        name = _text(one, "family", 200)
        family = families.setdefault(name, {"family": name, "why": _text(one, "why", 1000), "trials": []})
        text = one.get("text") if isinstance(one.get("text"), str) else ""
        family["trials"].append(
            {
                **{key: _text(one, key, 500) for key in ("answer", "task_id", "outcome", "detail")},
                "score": _number(one, "score"),
                "text": visible(text or "", MAX_TEXT),
                "rest": max(0, len(text or "") - MAX_TEXT),
            }
        )
    return {"count": len(trials), "families": list(families.values())}


def _finding(one: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {key: _number(one, key) for key in ("count", "of")}
    return {**{key: _text(one, key, 1000) for key in ("kind", "why", "example")}, **numbers}


def _text(record: Mapping[str, Any], key: str, most: int) -> str:
    value = record.get(key)
    return "" if value is None else visible(str(value), most)


def _number(record: Mapping[str, Any], key: str) -> float | None:
    value = from_json_number(record.get(key))
    return float(value) if is_number(value) and abs(value) < float("inf") else None
