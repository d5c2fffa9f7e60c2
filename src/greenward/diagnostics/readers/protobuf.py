"""A reader of the wire format of protocol buffers, which event files of TensorBoard and W&B hold."""

from __future__ import annotations

import struct
from collections.abc import Iterator

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
