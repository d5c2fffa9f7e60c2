"""A hash of what problems say, so that results can name the data that they were got with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def data_hash(values: Iterable[Any]) -> str:
    """SHA-256, in hex, of plain data and records in their order.

    Equal values of equal types give equal hashes in every process, on every machine.
    """
    digest = hashlib.sha256()
    for value in values:
        digest.update(_canonical(value).encode("utf-8", errors="surrogatepass"))
        digest.update(b"\n")
    return digest.hexdigest()


def _canonical(value: Any) -> str:
    """A text that tells values and their types apart; sets sorted, fields at their default left out.

    Fields that do not count when records are compared do not count here.
    """
    if type(value) is int:
        return hex(value)  # decimal text has a limit of digits
    if type(value) is str or type(value) is float:
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        # A field that a later version adds leaves the hashes of today's data as they are.
        told = (
            f"{field.name}={_canonical(getattr(value, field.name))}"
            for field in fields(value)
            if field.compare and getattr(value, field.name) != field.default
        )
        return f"{type(value).__name__}({','.join(told)})"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_canonical(key)}:{_canonical(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ",".join(sorted(_canonical(element) for element in value)) + "}"
    if isinstance(value, (list, tuple)):
        opening, closing = "[]" if isinstance(value, list) else "()"
        return opening + ",".join(map(_canonical, value)) + closing
    return repr(value)
