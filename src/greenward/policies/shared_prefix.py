"""Differentiable attention over a `GroupBatch`: prompts once per group, completions over both.

Shape suffixes as in `attention.py`; M tokens of the batch, X = H + 2K heads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from greenward.policies.attention import attend, attend_backward, merge, padding_mask
from greenward.policies.decoder import Decoder, DecoderShape, rotate_
from greenward.policies.group_batch import Bucket, GroupBatch


class _Heads(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor


class SharedPrefixAttention:
    """The `Attention` of training: rotates, then attends within each group."""

    def __init__(self, decoder: Decoder, batch: GroupBatch) -> None:
        self.shape: DecoderShape = decoder.shape
        self.buckets = batch.buckets
        dtype, device = decoder.compute_dtype, batch.token_ids_M.device
        self.cos, self.sin = decoder.rotary(batch.positions_M, batch.longest, dtype)
        self.masks = [padding_mask(b.prompts.lengths, b.prompts.width, dtype, device) for b in batch.buckets]

    def __call__(self, layer: int, qkv_MXD: Tensor) -> Tensor:
        return _Function.apply(qkv_MXD, self)

    def heads(self, padded: Tensor) -> _Heads:
        """(rows, width, X, D) to views (rows, heads, width, D) of queries, keys and values."""
        H, K = self.shape.heads, self.shape.kv_heads
        return _Heads(*padded.transpose(1, 2).split((H, K, K), dim=1))


def _by_group(own: Tensor, bucket: Bucket) -> Tensor:
    """(n · G, H, R, …) to (n, H, G · R, …): a group's completions as one row of queries."""
    by_group = own.transpose(1, 2).unflatten(0, (-1, bucket.group_size))
    return by_group.flatten(1, 2).transpose(1, 2)


def _by_row(grouped: Tensor, bucket: Bucket) -> Tensor:
    """The inverse of `_by_group`."""
    by_row = grouped.transpose(1, 2).unflatten(1, (bucket.group_size, -1))
    return by_row.flatten(0, 1).transpose(1, 2)


class _Function(torch.autograd.Function):
    """Rotates its input in place: the projection before it needs no output for its gradient."""

    @staticmethod
    def forward(ctx: Any, qkv_MXD: Tensor, layout: SharedPrefixAttention) -> Tensor:
        H, K = layout.shape.heads, layout.shape.kv_heads
        rotate_(qkv_MXD[:, : H + K], layout.cos, layout.sin)
        out_MHD = qkv_MXD.new_empty((len(qkv_MXD), H, layout.shape.head_dim))
        saved = [out_MHD]
        for bucket, mask in zip(layout.buckets, layout.masks, strict=True):
            padded = bucket.prompts.pad(qkv_MXD)
            prompt = layout.heads(padded)
            out, lse = attend(*prompt, causal=True)
            bucket.prompts.unpad_into(out.transpose(1, 2), out_MHD)
            saved += [padded, lse]
            if bucket.owns.width:
                padded = bucket.owns.pad(qkv_MXD)
                own = layout.heads(padded)
                over_own = attend(*own, causal=True)
                out, lse = attend(_by_group(own.query, bucket), prompt.key, prompt.value, mask_BS=mask)
                out, lse = merge(over_own, (_by_row(out, bucket), _by_row(lse, bucket)))
                bucket.owns.unpad_into(out.transpose(1, 2), out_MHD)
                saved += [padded, lse]
        ctx.layout = layout
        ctx.save_for_backward(*saved)
        return out_MHD.flatten(1)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None]:
        layout: SharedPrefixAttention = ctx.layout
        H, K = layout.shape.heads, layout.shape.kv_heads
        out_MHD, *rest = ctx.saved_tensors
        saved = iter(rest)
        grad_MHD = grad_out.view_as(out_MHD)
        grad_qkv_MXD = out_MHD.new_empty((len(out_MHD), H + 2 * K, layout.shape.head_dim))
        for bucket, mask in zip(layout.buckets, layout.masks, strict=True):
            prompt, lse = layout.heads(next(saved)), next(saved)
            grad, out = (bucket.prompts.pad(x).transpose(1, 2) for x in (grad_MHD, out_MHD))
            grads = _Heads(*attend_backward(grad, *prompt, out, lse, causal=True))
            if bucket.owns.width:
                own, lse = layout.heads(next(saved)), next(saved)
                grad, out = (bucket.owns.pad(x).transpose(1, 2) for x in (grad_MHD, out_MHD))
                own_grads = _Heads(*attend_backward(grad, *own, out, lse, causal=True))
                grad, query, out, lse = (_by_group(x, bucket) for x in (grad, own.query, out, lse))
                through_prompt = _Heads(
                    *attend_backward(grad, query, prompt.key, prompt.value, out, lse, mask_BS=mask)
                )
                grads.key.add_(through_prompt.key)
                grads.value.add_(through_prompt.value)
                own_grads.query.add_(_by_row(through_prompt.query, bucket))
                _join_into(own_grads, bucket.owns, grad_qkv_MXD)
            _join_into(grads, bucket.prompts, grad_qkv_MXD)
        rotate_(grad_qkv_MXD[:, : H + K], layout.cos, -layout.sin)
        return grad_qkv_MXD, None


def _join_into(heads: _Heads, span: Any, flat_MXD: Tensor) -> None:
    span.unpad_into(torch.cat([x.transpose(1, 2) for x in heads], dim=2), flat_MXD)
