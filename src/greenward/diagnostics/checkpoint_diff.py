"""How far the weights of two checkpoints are apart: L2, relative change and cosine of each tensor."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from greenward.errors import CheckpointError
from greenward.reports.document import Fact, Report, Table, section
from greenward.runs.files import to_json

_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "U8": "u1",
    "BOOL": "?",
}
_MOST_HEADER = 100 << 20
_SHOWN = 20


@dataclass(frozen=True)
class TensorChange:
    """The change of a tensor from A to B: norms, and the cosine of the angle between both."""

    name: str
    size: int
    norm: float
    change: float
    cosine: float

    @property
    def relative(self) -> float:
        return self.change / self.norm if self.norm else math.inf if self.change else 0.0


def read_weights(path: Path) -> Iterator[tuple[str, Any]]:
    """(name, values) of the floating tensors of a safetensors file, or of those in a folder.

    Raises:
        CheckpointError: there are none, or a file is not what it seems.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{path} holds no safetensors file")
    for file in files:
        try:
            with open(file, "rb") as opened:
                (size,) = struct.unpack("<Q", opened.read(8))
                if size > _MOST_HEADER:
                    raise ValueError("its header is too large")
                header = json.loads(opened.read(size))
            for name, entry in sorted(header.items()):
                if name == "__metadata__" or entry["dtype"] not in _TYPES:
                    continue
                first, last = entry["data_offsets"]
                kind = np.dtype(_TYPES[entry["dtype"]])
                count = (last - first) // kind.itemsize
                values = (
                    np.memmap(file, kind, "r", 8 + size + first, (count,)) if count else np.zeros(0, kind)
                )
                if entry["dtype"] == "BF16":
                    values = (values.astype(np.uint32) << 16).view(np.float32)
                yield name, values
        except (ValueError, KeyError, TypeError, struct.error, OSError) as error:
            raise CheckpointError(f"{file} is not a sound safetensors file: {str(error)[:200]}") from None


def diff_checkpoints(a: Path, b: Path) -> tuple[list[TensorChange], list[str]]:
    """(changes, the largest relative first; names that only one has, or that differ in size)."""
    other: Mapping[str, Any] = dict(read_weights(b))
    changes, unmatched, seen = [], [], set()
    for name, left in read_weights(a):
        seen.add(name)
        right = other.get(name)
        if right is None or right.shape != left.shape:
            unmatched.append(name)
            continue
        x, y = np.asarray(left, np.float64), np.asarray(right, np.float64)
        norms = float(np.linalg.norm(x)), float(np.linalg.norm(y))
        cosine = float(x @ y) / (norms[0] * norms[1]) if all(norms) else math.nan
        changes.append(TensorChange(name, x.size, norms[0], float(np.linalg.norm(y - x)), cosine))
    unmatched += [name for name in other if name not in seen]
    return sorted(changes, key=lambda one: -one.relative), unmatched


def checkpoint_report(a: Path, b: Path) -> Report:
    """The change of the whole and of the tensors that moved most."""
    changes, unmatched = diff_checkpoints(a, b)
    total = math.sqrt(sum(one.change**2 for one in changes))
    norm = math.sqrt(sum(one.norm**2 for one in changes))
    moved = sum(one.change > 0 for one in changes)
    share = total / norm if norm else 0.0
    headline = f"{moved} of {len(changes)} tensors moved; the whole by {share:.2%} of its norm."
    if not moved:
        headline = f"SAME: none of {len(changes)} tensors moved."
    rows = tuple(
        (one.name, f"{one.size:,}", f"{one.change:.3g}", f"{one.relative:.2%}", f"{one.cosine:.6f}")
        for one in changes[:_SHOWN]
    )
    return Report(
        kind="checkpoint diff",
        title=f"{a.name} to {b.name}",
        headline=headline,
        facts=(Fact("L2 of the change", f"{total:.4g}"), Fact("L2 of A", f"{norm:.4g}")),
        notes=(f"not in both, or of another size: {', '.join(unmatched[:_SHOWN])}",) if unmatched else (),
        sections=(section("Top movers", Table("", ("Tensor", "Values", "L2", "Relative", "Cosine"), rows)),),
        data=to_json(
            {"tensors": [{**vars(one), "relative": one.relative} for one in changes], "unmatched": unmatched}
        ),
    )
