"""Frames: how the three streams of the sandbox are cut into messages.

- The socket between a pool and its worker: length, JSON header, newline, bytes; a frame may carry one
  open descriptor along. Its bytes exist once in memory, so that a worker can erase them.
- The pipe from an answer to its worker: the nonce of the run, length, JSON list (`harness`).
- The socket between an answer and its test programs: length, JSON list (`remote_calls`).
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

LENGTH = struct.Struct("!I")
NONCE_CHARS = 32

# Bound once: an answer's code can swap the names in `os`, not these.
_write, _readv = os.write, os.readv


def send_frame(
    channel: socket.socket, header: dict[str, Any], *blobs: bytes | memoryview, descriptor: int | None = None
) -> None:
    """Sends one frame to the other side of a pool and its worker. Raises `OSError`."""
    first = json.dumps(header).encode("ascii") + b"\n"
    prefix = LENGTH.pack(len(first) + sum(map(len, blobs)))
    parts = [prefix + first, *filter(len, blobs)]
    sent = socket.send_fds(channel, parts, [] if descriptor is None else [descriptor])
    for part in parts:
        if sent < len(part):
            channel.sendall(memoryview(part)[sent:])
        sent = max(0, sent - len(part))


def receive_frame(channel: socket.socket) -> tuple[dict[str, Any], bytes] | None:
    """The next frame's header and bytes; None when the other side has closed."""
    header, blob, _ = receive_frame_with_descriptor(channel)
    return None if header is None else (header, bytes(blob))


def receive_frame_with_descriptor(
    channel: socket.socket,
) -> tuple[dict[str, Any] | None, memoryview, int | None]:
    """The next frame and the descriptor that came with it; header None when the other side has closed."""
    start, descriptors, _, _ = socket.recv_fds(channel, LENGTH.size, 1)
    descriptor = descriptors[0] if descriptors else None
    prefix = start and start + _read_exactly(channel.recv_into, LENGTH.size - len(start))
    body = _read_exactly(channel.recv_into, LENGTH.unpack(prefix)[0]) if len(prefix) == LENGTH.size else b""
    if not body:
        return None, memoryview(b""), descriptor
    end = body.index(b"\n")
    return json.loads(body[:end]), memoryview(body)[end + 1 :], descriptor


def result_frame_end(data: bytes | memoryview, start: int) -> int | None:
    """Where the frame ends that an answer began at `start`; None if it is not complete."""
    body = start + NONCE_CHARS + LENGTH.size
    if len(data) < body:
        return None
    end = body + int(LENGTH.unpack_from(data, body - LENGTH.size)[0])
    return end if end <= len(data) else None


def framed(payload: bytes, nonce: bytes = b"") -> bytes:
    """The frame that `write_frame` writes."""
    return nonce + LENGTH.pack(len(payload)) + payload


def write_frame(descriptor: int, payload: bytes, *, nonce: bytes = b"") -> None:
    """Writes one frame to a descriptor of an answer or of test programs. Raises `OSError`."""
    frame = memoryview(framed(payload, nonce))
    while frame:
        frame = frame[_write(descriptor, frame) :]


def read_frame(descriptor: int, most_bytes: int) -> bytes | None:
    """The payload of the next frame; None when the other side has closed or announces more than allowed."""

    def read_into(rest: memoryview) -> int:
        return _readv(descriptor, [rest])

    prefix = _read_exactly(read_into, LENGTH.size)
    length = LENGTH.unpack(prefix)[0] if prefix else 0
    return bytes(_read_exactly(read_into, length)) or None if length <= most_bytes else None


def _read_exactly(read_into: Callable[[memoryview], int], count: int) -> bytearray:
    """`count` bytes, or none if the other side closes before."""
    received = bytearray(count)
    rest = memoryview(received)
    while rest:
        got = read_into(rest)
        if not got:
            return bytearray()
        rest = rest[got:]
    return received
