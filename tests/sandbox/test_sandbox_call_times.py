"""The worker's count of the calls that have ended, and the limits of each."""

from __future__ import annotations

import struct

import pytest

from greenward.sandbox.inside.supervisor import CallTimes

NONCE = b"0" * 32


def frame(text: str) -> bytes:
    return NONCE + struct.pack("!I", len(text)) + text.encode()


VALUE = frame('["value",0,1]')


def watched(*cpu_limits: float, wall: float = 10.0) -> CallTimes:
    return CallTimes({"call_seconds": list(cpu_limits), "call_wall_seconds": wall})


def test_each_call_has_the_time_since_the_one_before():
    progress = watched(1.0, 1.0, 2.0)
    written = VALUE
    progress.advance(memoryview(b""), 0.9, 0.9)
    assert progress.exceeded(1.0, 1.0) is None
    assert progress.exceeded(1.1, 1.1) == "cpu"
    progress.advance(memoryview(written[:-1]), 0.9, 0.9)
    assert progress.call_seconds == []
    progress.advance(memoryview(written), 0.9, 5.0)
    assert progress.call_seconds == [0.9]
    assert progress.exceeded(1.8, 15.0) is None
    assert progress.exceeded(1.8, 15.1) == "wall"
    progress.advance(memoryview(written + VALUE * 2), 1.5, 6.0)  # two at once: the first took the time
    assert progress.call_seconds == pytest.approx([0.9, 0.6, 0.0])
    assert progress.exceeded(99.0, 99.0) is None  # every call has ended


def test_without_limits_nothing_is_exceeded():
    progress = watched()
    progress.advance(memoryview(VALUE), 50.0, 50.0)
    assert progress.exceeded(99.0, 99.0) is None


@pytest.mark.parametrize("garbage", [b"x" * 5, b"\xff" * 500, NONCE + b"\xff\xff\xff\xff" + b"[]" * 100])
def test_garbage_ends_no_call_or_ends_it_harmlessly(garbage):
    progress = watched(1.0)
    progress.advance(memoryview(garbage), 0.5, 0.5)
    assert progress.call_seconds == []
    assert progress.exceeded(1.5, 1.5) == "cpu"
