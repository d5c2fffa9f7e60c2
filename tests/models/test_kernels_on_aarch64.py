"""The library for aarch64, compiled by a cross compiler and run under qemu, beside this machine's kernels.

The calls that the self-test makes here, where torch is the oracle, are recorded and repeated there.
"""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from greenward.models.kernels import compiling
from greenward.models.kernels.build import build, kernels
from greenward.models.kernels.native import Kernels
from greenward.models.kernels.self_test import TOLERANCE, differences

COMPILER, EMULATOR, ROOT = "aarch64-linux-gnu-gcc", "qemu-aarch64", "/usr/aarch64-linux-gnu"
INTEGER, BUFFER, FLOAT, STRUCT, NOTHING = range(5)
# Kernels that are given addresses, which mean nothing there.
ADDRESSED = ("cache_prompts", "decode", "decode_steps")
PANELS = {"pack_panels": (1,)}  # lie in memory as the width of registers wants it


@dataclass
class Buffer:
    """A buffer after a call: its type, what it holds, and whether the call changed it."""

    dtype: torch.dtype
    data: bytes
    changed: bool


class RecordedKernels(Kernels):
    """Kernels that write down each call with its data. What a call wrote and a later one reads is no data.

    So the later one gets there what was written there.
    """

    def __init__(self, library: Path) -> None:
        super().__init__(library)
        self.calls, self.outcomes = [], []
        self._written: dict[int, bytes] = {}  # by number of a buffer, what the newest call that wrote it left
        self._count = 0

    def _call(self, name, like, *arguments, threads_for):
        if name in ADDRESSED:
            super()._call(name, like, *arguments, threads_for=threads_for)
            return
        function = f"{name}_{'f32' if like.dtype == torch.float32 else 'bf16'}"
        used: dict[int, int] = {}
        parts = [function.encode().ljust(32, b"\0"), _integers(len(arguments) + 1)]
        parts += [self._argument(one, used) for one in arguments]
        self.calls.append(b"".join([*parts, _integers(INTEGER, 1)]))
        held = [
            (used[one.data_ptr()], one, _bytes(one)) for one in arguments if isinstance(one, torch.Tensor)
        ]
        super()._call(name, like, *arguments, threads_for=threads_for)
        found = [Buffer(one.dtype, _bytes(one), _bytes(one) != before) for _, one, before in held]
        for (number, *_), buffer in zip(held, found, strict=True):
            if buffer.changed or number in self._written:
                self._written[number] = buffer.data
        self.outcomes.append((name, found))

    def _argument(self, one, used):
        if one is None:
            return _integers(NOTHING)
        if isinstance(one, torch.Tensor):
            return _integers(BUFFER) + self._buffer(_bytes(one), one.data_ptr(), used)
        if isinstance(one, int):
            return _integers(INTEGER, one)
        if isinstance(one, float):
            return _integers(FLOAT) + struct.pack("<fi", one, 0)
        fields, arrays = one._obj._fields_, iter(one._obj._kept)
        parts = [
            _integers(INTEGER, getattr(one._obj, name))
            if kind is ctypes.c_int64
            else _integers(BUFFER) + self._buffer(next(arrays).tobytes(), None, {})
            for name, kind in fields
        ]
        return _integers(STRUCT, len(parts)) + b"".join(parts)

    def _buffer(self, data, address, used):
        known = (
            number for number, left in self._written.items() if left == data and number not in used.values()
        )
        number = None if address is None else next(known, None)
        is_new = number is None
        if is_new:
            number, self._count = self._count, self._count + 1
        used[address] = number
        return _integers(number, len(data), is_new) + (data if is_new else b"")


def _integers(*numbers):
    return np.array(numbers, np.int64).tobytes()


def _bytes(tensor):
    """What lies in memory from the first number of a tensor to its last one."""
    count = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return ctypes.string_at(tensor.data_ptr(), count * tensor.element_size())


def emulated(tmp_path: Path, native: RecordedKernels) -> bytes:
    """What the buffers of all calls hold after these calls on aarch64."""
    (level,) = compiling.LEVELS["aarch64"]
    library, program = tmp_path / f"{level}.so", tmp_path / "replay_kernels"
    for command in compiling.commands(COMPILER, level, library):
        subprocess.run(command, check=True)
    source = Path(__file__).with_name("replay_kernels.c")
    # The library takes its OpenMP runtime from the program, as it takes it from torch.
    linked = ("-Wl,--no-as-needed", "-lgomp", "-ldl")
    subprocess.run((COMPILER, "-O1", str(source), "-o", str(program), *linked), check=True)
    given = _integers(len(native.calls)) + b"".join(native.calls)
    done = subprocess.run((EMULATOR, "-L", ROOT, program, library), input=given, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(kernels() is None, reason="this machine has no kernels to compare with")
@pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
    reason="needs Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user",
)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 16), (6, 2, 48), (2, 1, 64)])
def test_aarch64_gives_what_this_machine_gives(dtype, heads, kv_heads, head_dim, tmp_path):
    native = RecordedKernels(build().library)
    differences(native, dtype, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    theirs, at, compared = emulated(tmp_path, native), 0, set()
    for name, buffers in native.outcomes:
        for place, buffer in enumerate(buffers):
            data = theirs[at : at + len(buffer.data)]
            at += len(buffer.data)
            if not buffer.changed or place in PANELS.get(name, ()):
                continue
            ours, others = (
                torch.frombuffer(bytearray(one), dtype=buffer.dtype) for one in (buffer.data, data)
            )
            if buffer.dtype == torch.int64:  # a token may be the next one where a sum is rounded
                assert (ours == others).float().mean() > 0.9, name
            else:
                assert (ours - others).abs().max() <= TOLERANCE[dtype] * ours.abs().max(), name
            compared.add(name)
    assert at == len(theirs)
    assert compared >= {"rms_norm", "swiglu_backward", "attention", "attention_backward", "choose"}
