"""Frames on the socket between a pool and its worker: length, JSON header, newline, bytes.

A frame may carry one open descriptor along.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

LENGTH = struct.Struct("!Q")


def send_frame(
    channel: socket.socket, header: dict[str, Any], *blobs: bytes, descriptor: int | None = None
) -> None:
    """Sends one frame. Raises `OSError`."""
    body = b"".join((json.dumps(header).encode("ascii"), b"\n", *blobs))
    prefix = LENGTH.pack(len(body))
    if descriptor is None:
        channel.sendall(prefix + body)
    else:
        socket.send_fds(channel, [prefix], [descriptor])  # eight bytes: never sent in parts
        channel.sendall(body)


def receive_frame(channel: socket.socket) -> tuple[dict[str, Any], bytes] | None:
    """The next frame's header and bytes; None when the other side has closed."""
    header, blob, descriptor = receive_frame_with_descriptor(channel)
    assert descriptor is None
    return None if header is None else (header, blob)


def receive_frame_with_descriptor(
    channel: socket.socket,
) -> tuple[dict[str, Any] | None, bytes, int | None]:
    """The next frame and the descriptor that came with it; header None when the other side has closed."""
    start, descriptors, _, _ = socket.recv_fds(channel, LENGTH.size, 1)
    descriptor = descriptors[0] if descriptors else None
    prefix = start and start + _receive_exactly(channel, LENGTH.size - len(start))
    if len(prefix) < LENGTH.size:
        return None, b"", descriptor
    (length,) = LENGTH.unpack(prefix)
    body = _receive_exactly(channel, length)
    if len(body) < length:
        return None, b"", descriptor
    header, _, blob = body.partition(b"\n")
    return json.loads(header), blob, descriptor


def _receive_exactly(channel: socket.socket, count: int) -> bytes:
    """`count` bytes, or fewer if the other side closes before."""
    received = bytearray()
    while len(received) < count:
        chunk = channel.recv(min(count - len(received), 1 << 20))
        if not chunk:
            break
        received += chunk
    return bytes(received)
