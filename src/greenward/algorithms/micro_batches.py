"""Rows of one forward and backward pass as tensors.

Names carry shapes: B rows (one turn of one episode each), T completion positions, right-padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from greenward.algorithms.batching import Row
from greenward.policies.group_batch import GroupBatch


@dataclass(frozen=True)
class MicroBatch:
    """Rows, group-major, with all that the losses need of them.

    `values_BT` and `returns_BT` are the critic's before the update and what it learns.
    """

    groups: GroupBatch
    advantages_BT: Tensor
    mask_BT: Tensor
    sampler_logprobs_BT: Tensor
    old_logprobs_BT: Tensor | None = None
    ref_logprobs_BT: Tensor | None = None
    values_BT: Tensor | None = None
    returns_BT: Tensor | None = None

    @classmethod
    def build(cls, groups: Sequence[Sequence[Row]], *, pad_id: int, device: torch.device) -> MicroBatch:
        """From rows that share a prompt in each list; optional tensors only where all rows have them."""
        batch = GroupBatch.build(
            [rows[0].turn.prompt_ids for rows in groups],
            [[row.turn.completion_ids for row in rows] for rows in groups],
            pad_id=pad_id,
            device=device,
        )
        rows = [row for sharers in groups for row in sharers]
        width = batch.completion_mask_BT.shape[1]

        def padded(arrays_T: Sequence[np.ndarray], dtype: np.dtype[Any]) -> Tensor:
            values_BT = np.zeros((len(arrays_T), width), dtype=dtype)
            for row, values_T in zip(values_BT, arrays_T, strict=True):
                row[: len(values_T)] = values_T
            return torch.from_numpy(values_BT).to(device)

        def padded_if_there(arrays_T: Sequence[np.ndarray | None]) -> Tensor | None:
            there = [values_T for values_T in arrays_T if values_T is not None]
            return padded(there, np.dtype(np.float32)) if len(there) == len(arrays_T) else None

        return cls(
            groups=batch,
            advantages_BT=padded([row.advantages_T for row in rows], np.dtype(np.float32)),
            mask_BT=padded([row.trained_T for row in rows], np.dtype(np.bool_)),
            sampler_logprobs_BT=padded([row.turn.logprobs_T for row in rows], np.dtype(np.float32)),
            old_logprobs_BT=padded_if_there([row.old_logprobs_T for row in rows]),
            ref_logprobs_BT=padded_if_there([row.ref_logprobs_T for row in rows]),
            values_BT=padded_if_there([row.values_T for row in rows]),
            returns_BT=padded_if_there([row.returns_T for row in rows]),
        )
