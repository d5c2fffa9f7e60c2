"""How far the weights of two checkpoints are apart: L2, relative change and cosine of each tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from greenward.errors import CheckpointError
from greenward.reports.document import Fact, Report, Table, section
from greenward.runs.files import to_json
from greenward.user_files import UNEXPECTED, leads_out

if TYPE_CHECKING:
    from torch import Tensor

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


def open_weights(path: Path) -> dict[str, Callable[[], Tensor]]:
    """What reads the values of each tensor of a safetensors file, or of those in a folder, by name.

    Raises:
        CheckpointError: there are none, a file is not what it seems, or a link that leads out of the folder.
    """
    from safetensors import SafetensorError, safe_open

    from greenward.policies.tokenizer import boundary

    files = [path] if path.is_file() else [one for one in sorted(path.glob("*.safetensors")) if one.is_file()]
    if not files:
        raise CheckpointError(f"{path} holds no safetensors file")
    found: dict[str, Callable[[], Tensor]] = {}
    for file in files:
        if file != path and leads_out(file, boundary(path)):
            raise CheckpointError(f"{file} is a link that leads out of {path}")
        try:
            opened = safe_open(file, framework="pt")
            found |= {name: partial(opened.get_tensor, name) for name in sorted(opened.keys())}
        except (SafetensorError, OSError, *UNEXPECTED) as error:
            raise CheckpointError(f"{file} is not a sound safetensors file: {str(error)[:200]}") from None
    return found


def diff_checkpoints(a: Path, b: Path) -> tuple[list[TensorChange], list[str]]:
    """(changes, the largest relative first; names that only one has, or that differ in size).

    Raises `CheckpointError`, also for values of a type that torch does not read or convert.
    """
    import torch
    from safetensors import SafetensorError

    first, second = open_weights(a), open_weights(b)
    changes, unmatched = [], sorted(first.keys() ^ second.keys())
    for name in first.keys() & second.keys():
        try:
            x, y = first[name](), second[name]()
            size = x.numel()
            if (size, x.is_complex()) != (y.numel(), y.is_complex()):
                unmatched.append(name)
                continue
            if x.is_complex():
                x, y = torch.view_as_real(x), torch.view_as_real(y)
            x, y = x.double().flatten(), y.double().flatten()
        except (SafetensorError, RuntimeError, *UNEXPECTED) as error:
            raise CheckpointError(f"the values of {name!r:.200} cannot be read: {str(error)[:200]}") from None
        norm, norms = float(x.norm()), float(x.norm() * y.norm())
        cosine = float(x @ y) / norms if norms else math.nan
        changes.append(TensorChange(name, size, norm, float((y - x).norm()), cosine))
    return sorted(changes, key=lambda one: (-one.relative, one.name)), unmatched


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
