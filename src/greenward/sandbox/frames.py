"""Frames on the socket between a pool and its worker: length, JSON header, newline, bytes.

A frame may carry one open descriptor along. The bytes of a frame exist once in memory, so that a
worker can erase them (`erasable`).

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

LENGTH = struct.Struct("!Q")


def send_frame(
    channel: socket.socket, header: dict[str, Any], *blobs: bytes | memoryview, descriptor: int | None = None
) -> None:
    """Sends one frame. Raises `OSError`."""
    first = json.dumps(header).encode("ascii") + b"\n"
    prefix = LENGTH.pack(len(first) + sum(map(len, blobs)))
    if descriptor is None:
        channel.sendall(prefix + first)
    else:
        socket.send_fds(channel, [prefix], [descriptor])  # eight bytes: never sent in parts
        channel.sendall(first)
    for blob in filter(len, blobs):
        channel.sendall(blob)


def receive_frame(channel: socket.socket) -> tuple[dict[str, Any], bytes] | None:
    """The next frame's header and bytes; None when the other side has closed."""
    header, blob, descriptor = receive_frame_with_descriptor(channel)
    assert descriptor is None
    return None if header is None else (header, bytes(blob))


def receive_frame_with_descriptor(
    channel: socket.socket,
) -> tuple[dict[str, Any] | None, memoryview, int | None]:
    """The next frame and the descriptor that came with it; header None when the other side has closed."""
    start, descriptors, _, _ = socket.recv_fds(channel, LENGTH.size, 1)
    descriptor = descriptors[0] if descriptors else None
    prefix = start and start + bytes(_receive_exactly(channel, LENGTH.size - len(start)))
    if len(prefix) < LENGTH.size:
        return None, memoryview(b""), descriptor
    (length,) = LENGTH.unpack(prefix)
    body = _receive_exactly(channel, length)
    if len(body) < length:
        return None, memoryview(b""), descriptor
    end = body.index(b"\n")
    return json.loads(body[:end]), memoryview(body)[end + 1 :], descriptor


def _receive_exactly(channel: socket.socket, count: int) -> bytearray:
    """`count` bytes, or none if the other side closes before."""
    received = bytearray(count)
    rest = memoryview(received)
    while rest:
        got = channel.recv_into(rest)
        if not got:
            return bytearray()
        rest = rest[got:]
    return received
