"""Computes attention of training and prefill on GPUs by one call of torch's `flex_attention` per flat row.

The kernels that Triton compiles for it pad no rows, leave out blocks of keys that no query of a block sees,
and keep log-sum-exps where the operations in `attention.py` keep the scores of a layer. They are used after
they gave what those operations give, on the device, in the number type and for the heads at hand.
`GREENWARD_KERNELS=off` leaves them aside.
Shape suffixes: M tokens of a batch, L those and padding to whole blocks, C blocks, H query heads, K
key/value heads, X = H + 2K, D head dimension.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from greenward.models.attention import SharedPrefixAttention
from greenward.models.decoder import Decoder, DecoderShape, pad_to_bucket
from greenward.models.kernels.build import are_switched_off
from greenward.models.kernels.self_test import TOLERANCE, attended, relative_error
from greenward.models.scoring import GroupBatch

BLOCK = 128  # queries and keys of a block, torch's own choice


def flex_serves(decoder: Decoder) -> bool:
    """Whether `FlexAttention` computes for this decoder; the first call compiles and compares."""
    device, shape = decoder.embedding.device, decoder.shape
    if device.type != "cuda" or are_switched_off():
        return False
    about = (decoder.compute_dtype, shape.heads, shape.kv_heads, shape.head_dim)
    return _agrees(device, *about, differentiable=torch.is_grad_enabled())


class FlexAttention(SharedPrefixAttention):
    """The `Attention` of training by `flex_attention`."""

    def __init__(self, decoder: Decoder, batch: GroupBatch) -> None:
        super().__init__(decoder, batch)
        self.blocks = block_mask(batch, len(pad_to_bucket(batch.token_ids_M, decoder.compute_dtype)))

    def __call__(self, layer: int, qkv_MXD: Tensor) -> Tensor:
        return self.over(self.rotated(qkv_MXD))[: len(qkv_MXD)]

    def rotated(self, qkv_MXD: Tensor) -> Tensor:
        """(M, X, D) to (L, X, D), queries and keys rotated, zeros in the padding."""
        H, K = self.shape.heads, self.shape.kv_heads
        turned, value = qkv_MXD[: len(self.cos)].split((H + K, K), dim=1)
        first, second = turned.chunk(2, dim=-1)
        real = torch.addcmul(first * self.cos, second, self.sin, value=-1)  # rounded as by `rotate_`
        imaginary = second * self.cos + first * self.sin
        rotated = torch.cat((torch.cat((real, imaginary), dim=-1), value), dim=1)
        return F.pad(rotated, (0, 0, 0, 0, 0, self.blocks.seq_lengths[0] - len(rotated)))

    def over(self, rotated_LXD: Tensor) -> Tensor:
        """Attended values (L, H·D), 0 in the padding."""
        H, K = self.shape.heads, self.shape.kv_heads
        heads = (x.transpose(0, 1).unsqueeze(0) for x in rotated_LXD.split((H, K, K), dim=1))
        attend: Any = flex_attention if rotated_LXD.device.type == "cpu" else _compiled()
        out_1HLD: Tensor = attend(*heads, block_mask=self.blocks, enable_gqa=H != K)
        return out_1HLD.squeeze(0).transpose(0, 1).flatten(1)


def block_mask(batch: GroupBatch, tokens: int) -> BlockMask:
    """Which of at least `tokens` flat tokens attend to which, and the blocks in which any do.

    A token attends to its run up to itself and, if it is of a completion, to the whole prompt; one behind
    those of the batch attends to itself. There are two blocks or more, all whole: for one, and for a length
    that is no multiple, torch would compile other kernels.
    """
    device = batch.token_ids_M.device
    bounds = _bounds(batch, max(2, -(-tokens // BLOCK)) * BLOCK)
    run_L, prompt_L, end_L = (torch.from_numpy(part).to(device) for part in bounds)

    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own = (run_L[query] <= key) & (key <= query)
        return own | ((prompt_L[query] <= key) & (key < end_L[query]))

    first_C = torch.arange(0, len(run_L), BLOCK, device=device, dtype=torch.int32)

    def keys(start_L: Tensor, stop_L: Tensor) -> Tensor:
        """How many of the keys from `start` to `stop` are in each block (L, C)."""
        stop_LC = torch.minimum(stop_L[:, None], first_C + BLOCK)
        return (stop_LC - torch.maximum(start_L[:, None], first_C)).clamp_(min=0)

    after_L = torch.arange(1, len(run_L) + 1, device=device, dtype=torch.int32)
    pairs_CC = (keys(run_L, after_L) + keys(prompt_L, end_L)).unflatten(0, (-1, BLOCK)).sum(1)
    whole = pairs_CC == BLOCK**2
    parts = (*_ordered((pairs_CC > 0) & ~whole), *_ordered(whole))
    return BlockMask.from_kv_blocks(*parts, BLOCK_SIZE=BLOCK, mask_mod=sees)


def _bounds(batch: GroupBatch, size: int) -> np.ndarray:
    """Of each token the first of its run, and the first of its prompt and behind it: (3, L); an empty range
    where there is no prompt before the run.
    """
    parts = []
    for bucket in batch.buckets:
        prompts, rows = bucket.prompts.lengths, bucket.owns.lengths
        starts, runs = bucket.prompts.row_starts(), bucket.owns.row_starts()
        first, behind = np.repeat((starts, starts + prompts), bucket.group_size, axis=1)
        parts.append(np.repeat((starts,) * 3, prompts, axis=1))
        parts.append(np.repeat((runs, first, behind), rows, axis=1))
    parts.append(np.tile(np.arange(len(batch.token_ids_M), size), (3, 1)))
    return np.concatenate(parts, axis=1).astype(np.int32)


def _ordered(is_there_CC: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys each block of queries has (1, 1, C), and these first, in order (1, 1, C, C)."""
    numbers = is_there_CC.int()[None, None]
    return numbers.sum(-1, dtype=torch.int32), numbers.argsort(dim=-1, descending=True, stable=True).int()


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=True)


@functools.cache
def _agrees(device: torch.device, *about: Any, differentiable: bool) -> bool:
    tolerance = TOLERANCE.get(about[0], TOLERANCE[torch.bfloat16])
    try:
        found = difference(device, *about, differentiable=differentiable)
        reason = f"it differs from torch's other operations by {found:.1e} of the largest number"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of Triton, of its compiler, or of a device that they do not know
        found, reason = float("inf"), f"{type(error).__name__}: {error}".partition("\n")[0]
    if not found < tolerance:
        warnings.warn(
            f"flex_attention is not used on {device}; attention takes more memory and time: {reason}",
            stacklevel=2,
        )
    return found < tolerance


def difference(
    device: torch.device,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    differentiable: bool,
) -> float:
    """The relative difference from the operations of `attention.py` in float32: values and, if
    `differentiable`, gradients of groups that take several blocks.
    """
    shape = DecoderShape(1, 1, 0, heads, kv_heads, head_dim, 1, 512)
    exact, decoder = (Decoder(shape, compute_dtype=kind).to(device) for kind in (torch.float32, dtype))
    batch = GroupBatch.build(
        [[0] * 150, [0], [0] * 40], [[[0] * 200, [0], [0] * 30], [[0] * 3], [[0] * 20] * 4], device
    )
    generator = torch.Generator().manual_seed(head_dim)
    size = (len(batch.token_ids_M), heads + 2 * kv_heads, head_dim)
    qkv = torch.randn(size, generator=generator).to(device, dtype)
    grad = torch.randn((len(qkv), heads * head_dim), generator=generator).to(device, dtype)

    want = attended(SharedPrefixAttention(exact, batch), qkv.float(), grad, differentiable=differentiable)
    have = attended(FlexAttention(decoder, batch), qkv, grad, differentiable=differentiable)
    return max(map(relative_error, have, want))
