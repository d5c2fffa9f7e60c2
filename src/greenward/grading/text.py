"""A plain value as text for messages, bounded whatever its size."""

from __future__ import annotations

from collections import deque
from typing import Any

from greenward.sandbox.codec import PlainDict, PlainSet
from greenward.text import visible

MAX_VALUE_CHARS = 120


def show(value: Any, max_chars: int = MAX_VALUE_CHARS) -> str:
    """A plain value, flat or not, as Python would write it, bounded whatever its size."""
    return visible(_written(value, max_chars), max_chars)


def _written(value: Any, budget: int) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 400:
        return f"<an int of {value.bit_length()} bits>"
    if isinstance(value, (str, bytes, bytearray)):
        return repr(value[: max(0, budget)])
    if isinstance(value, (PlainDict, dict)):
        entries = value.items() if isinstance(value, dict) else value.entries
        return "{" + _joined(entries, budget, _entry) + "}"
    if isinstance(value, (PlainSet, set, frozenset)):
        elements = value.elements if isinstance(value, PlainSet) else value
        return "{" + _joined(elements, budget, _written) + "}" if elements else "set()"
    if isinstance(value, list):
        return "[" + _joined(value, budget, _written) + "]"
    if isinstance(value, deque):
        return "deque([" + _joined(value, budget, _written) + "])"
    if isinstance(value, range):
        return "range(" + _joined((value.start, value.stop, value.step), budget, _written) + ")"
    if isinstance(value, tuple):
        return "(" + _joined(value, budget, _written) + (",)" if len(value) == 1 else ")")
    return repr(value)


def _joined(values: Any, budget: int, write: Any) -> str:
    parts: list[str] = []
    for value in values:
        if budget <= 0:
            parts.append("…")
            break
        parts.append(write(value, budget))
        budget -= len(parts[-1]) + 2
    return ", ".join(parts)


def _entry(entry: Any, budget: int) -> str:
    key = _written(entry[0], budget)
    return f"{key}: {_written(entry[1], budget - len(key))}"
