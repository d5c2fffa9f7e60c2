"""A reader of the wire format of protocol buffers, which event files of TensorBoard and W&B hold."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from greenward.diagnostics.readers.log import Row

Value = int | float | bytes


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """(number, value) of each field: varints as int, fixed widths as float, the rest as bytes.

    Raises `ValueError` for what is no message.
    """
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
        elif wire == 2:
            size, at = _varint(message, at)
            if at + size > end:
                raise ValueError("a field is longer than its message")
            yield key >> 3, message[at : at + size]
            at += size
        elif wire in (1, 5):
            width, kind = (8, "<d") if wire == 1 else (4, "<f")
            if at + width > end:
                raise ValueError("a number is cut off")
            yield key >> 3, struct.unpack_from(kind, message, at)[0]
            at += width
        else:
            raise ValueError(f"wire type {wire} is not known")


def messages(message: bytes, number: int) -> list[bytes]:
    """The values of a field of bytes, which may be messages."""
    return [value for field, value in fields(message) if field == number and isinstance(value, bytes)]


def rows(
    files: list[Path],
    records: Callable[[Path, list[str]], Iterator[bytes]],
    parse: Callable[[bytes], Iterator[Row]],
    notes: list[str],
) -> Iterator[Row]:
    """The rows of the records of files; records that cannot be read are left out, which is noted."""
    for path in files:
        broken = 0
        for record in records(path, notes):
            try:
                yield from parse(record)
            except ValueError:
                broken += 1
        if broken:
            notes.append(f"{path.name}: {broken} record(s) cannot be read and were left out")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            # int64 is written as two's complement of 64 bits.
            return (value - (1 << 64) if value >= 1 << 63 else value), at
        shift += 7
    raise ValueError("a number is cut off")
