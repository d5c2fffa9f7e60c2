"""Computes attention in two parts: over a prompt that many completions share, and over each one's own tokens.

A softmax over the union of two sets of keys is the mean of the softmaxes over each, weighted by the
log-sum-exps of their scores (Rabe & Staats 2021, §2). So the keys and values of a prompt are kept once for
its whole group, in training, in prefill and in decoding.
Shape suffixes: B rows, H query heads, K key/value heads, T queries, S keys, D head dimension, M tokens of a
`GroupBatch`, X = H + 2K heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from greenward.models.decoder import Decoder, DecoderShape, rotate_
from greenward.models.scoring import Bucket, GroupBatch, Span

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_FLASH_DEVICES = ("cpu",)  # on others, plain operations that keep all scores, where `flex.py` does not serve


def attend(
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    *,
    causal: bool = False,
    mask_B11S: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attended values (B, H, T, D) and the log-sum-exp of the scores (B, H, T).

    `mask_B11S` is added to the scores (0 or -inf). Query head h reads key head h // (H // K).
    `causal` needs T = S. Not differentiable: `attend_backward` is its gradient.
    """
    if query_BHTD.device.type in _FLASH_DEVICES:
        mask = None if mask_B11S is None else mask_B11S.expand(-1, 1, query_BHTD.shape[2], -1)
        return _flash(query_BHTD, key_BKSD, value_BKSD, is_causal=causal, attn_mask=mask)
    scores = _scores(query_BHTD, key_BKSD, causal, mask_B11S)
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse.unsqueeze(-1)).to(value_BKSD.dtype)
    out = (weights.flatten(2, 3) @ value_BKSD).unflatten(2, weights.shape[2:4])
    return out.flatten(1, 2), lse.flatten(1, 2)


def attend_backward(
    grad_BHTD: Tensor,
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    out_BHTD: Tensor,
    lse_BHT: Tensor,
    *,
    causal: bool = False,
    mask_B11S: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value.

    `out` and `lse` are those of the whole softmax, so that for keys attended in several parts the
    query's gradient is the sum over parts (FlashAttention, Dao et al. 2022, appendix B.2).
    """
    if query_BHTD.device.type in _FLASH_DEVICES:
        # PyTorch's bfloat16 backward takes four times as long as the float32 one on CPUs.
        float32 = (x.float() for x in (grad_BHTD, query_BHTD, key_BKSD, value_BKSD, out_BHTD))
        mask = None if mask_B11S is None else mask_B11S.float().expand(-1, 1, query_BHTD.shape[2], -1)
        grads = _flash_backward(*float32, lse_BHT, 0.0, causal, attn_mask=mask)
        query_grad, key_grad, value_grad = (x.to(query_BHTD.dtype) for x in grads)
        return query_grad, key_grad, value_grad
    groups = (key_BKSD.shape[1], -1)
    scores = _scores(query_BHTD, key_BKSD, causal, mask_B11S)
    weights = torch.exp(scores - lse_BHT.unflatten(1, groups).unsqueeze(-1))
    grad = grad_BHTD.unflatten(1, groups)
    delta = (grad_BHTD.float() * out_BHTD.float()).sum(-1).unflatten(1, groups).unsqueeze(-1)
    grad_scores = weights * ((grad @ value_BKSD.unsqueeze(2).transpose(-1, -2)).float() - delta)
    grad_scores = (grad_scores * query_BHTD.shape[-1] ** -0.5).to(grad.dtype)
    grad_query = (grad_scores @ key_BKSD.unsqueeze(2)).flatten(1, 2)
    grad_key = (grad_scores.transpose(-1, -2) @ query_BHTD.unflatten(1, groups)).sum(2)
    grad_value = (weights.to(grad.dtype).transpose(-1, -2) @ grad).sum(2)
    return grad_query, grad_key, grad_value


def merge(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The attention over two disjoint sets of keys from the (out, lse) over each."""
    (first_out, first_lse), (second_out, second_lse) = first, second
    lse = torch.logaddexp(first_lse, second_lse)
    share = torch.exp(second_lse - lse).unsqueeze(-1).to(first_out.dtype)
    return torch.lerp(first_out, second_out, share), lse


def padding_mask(
    lengths: Sequence[int] | np.ndarray, width: int, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """(B, 1, 1, width) additive mask that hides keys beyond each length; None when there are none."""
    if min(lengths) == width:
        return None
    hidden = torch.arange(width, device=device) >= torch.tensor(lengths, device=device).view(-1, 1, 1, 1)
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))


def _scores(query_BHTD: Tensor, key_BKSD: Tensor, causal: bool, mask_B11S: Tensor | None) -> Tensor:
    """Scaled scores in float32, (B, K, H/K, T, S)."""
    query = query_BHTD.unflatten(1, (key_BKSD.shape[1], -1)) * query_BHTD.shape[-1] ** -0.5
    scores = query.flatten(2, 3) @ key_BKSD.transpose(-1, -2)  # no copy of the keys for each query head
    scores = scores.unflatten(2, query.shape[2:4]).float()
    if mask_B11S is not None:
        scores = scores + mask_B11S.unsqueeze(1)
    if causal:
        T = scores.shape[-1]
        future = torch.ones(T, T, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores


class _Heads(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor


class Attend(torch.autograd.Function):
    """An attention by its methods `attend` and `backward`, of which the first rotates its input in place: the
    projection before it needs no output for its gradient.
    """

    @staticmethod
    def forward(ctx: Any, qkv_MXD: Tensor, attention: Any) -> Tensor:
        out_MHD, kept = attention.attend(qkv_MXD)
        ctx.attention = attention
        ctx.save_for_backward(out_MHD, *kept)
        return out_MHD.flatten(1)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None]:
        out_MHD, *kept = ctx.saved_tensors
        return ctx.attention.backward(grad_out.view_as(out_MHD), out_MHD, kept), None


class SharedPrefixAttention:
    """The `Attention` of training by torch: rotates, then attends within each group."""

    def __init__(self, decoder: Decoder, batch: GroupBatch) -> None:
        self.shape: DecoderShape = decoder.shape
        self.batch = batch
        dtype, device = decoder.compute_dtype, batch.token_ids_M.device
        self.cos, self.sin = decoder.rotary(batch.positions_M, batch.longest, dtype)
        self.masks = [padding_mask(b.prompts.lengths, b.prompts.width, dtype, device) for b in batch.buckets]

    def __call__(self, layer: int, qkv_MXD: Tensor) -> Tensor:
        return Attend.apply(qkv_MXD, self)

    def attend(self, qkv_MXD: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Attended values (M, H, D); for the prompts and completions of each bucket their padded queries,
        keys and values, (rows, width, X, D), and the log-sum-exps. Rotates its input in place.
        """
        H, K = self.shape.heads, self.shape.kv_heads
        rotate_(qkv_MXD[: len(self.cos), : H + K], self.cos, self.sin)
        out_MHD = qkv_MXD.new_zeros((len(qkv_MXD), H, self.shape.head_dim))
        kept: list[Tensor] = []
        for bucket, mask in zip(self.batch.buckets, self.masks, strict=True):
            padded = bucket.prompts.pad(qkv_MXD)
            prompt = self.heads(padded)
            out, lse = attend(*prompt, causal=True)
            bucket.prompts.unpad_into(out.transpose(1, 2), out_MHD)
            kept += [padded, lse]
            if bucket.owns.width:
                padded = bucket.owns.pad(qkv_MXD)
                own = self.heads(padded)
                over_own = attend(*own, causal=True)
                out, lse = attend(_by_group(own.query, bucket), prompt.key, prompt.value, mask_B11S=mask)
                out, lse = merge(over_own, (_by_row(out, bucket), _by_row(lse, bucket)))
                bucket.owns.unpad_into(out.transpose(1, 2), out_MHD)
                kept += [padded, lse]
        return out_MHD, kept

    def backward(self, grad_MHD: Tensor, out_MHD: Tensor, kept: Sequence[Tensor]) -> Tensor:
        """The gradient (M, X, D) of the input of `attend`, from what that gave."""
        H, K = self.shape.heads, self.shape.kv_heads
        saved = iter(kept)
        grad_qkv_MXD = out_MHD.new_zeros((len(out_MHD), H + 2 * K, self.shape.head_dim))
        for bucket, mask in zip(self.batch.buckets, self.masks, strict=True):
            prompt, lse = self.heads(next(saved)), next(saved)
            grad, out = (bucket.prompts.pad(x).transpose(1, 2) for x in (grad_MHD, out_MHD))
            grads = _Heads(*attend_backward(grad, *prompt, out, lse, causal=True))
            if bucket.owns.width:
                own, lse = self.heads(next(saved)), next(saved)
                grad, out = (bucket.owns.pad(x).transpose(1, 2) for x in (grad_MHD, out_MHD))
                own_grads = _Heads(*attend_backward(grad, *own, out, lse, causal=True))
                grad, query, out, lse = (_by_group(x, bucket) for x in (grad, own.query, out, lse))
                through_prompt = _Heads(
                    *attend_backward(grad, query, prompt.key, prompt.value, out, lse, mask_B11S=mask)
                )
                grads.key.add_(through_prompt.key)
                grads.value.add_(through_prompt.value)
                own_grads.query.add_(_by_row(through_prompt.query, bucket))
                _join_into(own_grads, bucket.owns, grad_qkv_MXD)
            _join_into(grads, bucket.prompts, grad_qkv_MXD)
        rotate_(grad_qkv_MXD[: len(self.cos), : H + K], self.cos, -self.sin)
        return grad_qkv_MXD

    def heads(self, padded: Tensor) -> _Heads:
        """(rows, width, X, D) to views (rows, heads, width, D) of queries, keys and values."""
        H, K = self.shape.heads, self.shape.kv_heads
        return _Heads(*padded.transpose(1, 2).split((H, K, K), dim=1))


def _by_group(own: Tensor, bucket: Bucket) -> Tensor:
    """(n · G, H, R, …) to (n, H, G · R, …): a group's completions as one row of queries."""
    return own.transpose(1, 2).unflatten(0, (-1, bucket.group_size)).flatten(1, 2).transpose(1, 2)


def _by_row(grouped: Tensor, bucket: Bucket) -> Tensor:
    """The inverse of `_by_group`."""
    return grouped.transpose(1, 2).unflatten(1, (bucket.group_size, -1)).flatten(0, 1).transpose(1, 2)


def _join_into(heads: _Heads, span: Span, flat_MXD: Tensor) -> None:
    span.unpad_into(torch.cat([x.transpose(1, 2) for x in heads], dim=2), flat_MXD)
