"""Attention in two parts: a prompt that many completions share, and each completion's own tokens.

A softmax over the union of two sets of keys is the mean of the softmaxes over each, weighted by the
log-sum-exps of their scores (Rabe & Staats 2021, §2). So the keys and values of a prompt are kept
once for its whole group, in training, in prefill and in decoding.

Shape suffixes: B rows, H query heads, K key/value heads, T queries, S keys, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend(
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    *,
    causal: bool = False,
    mask_BS: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attended values (B, H, T, D) and the log-sum-exp of the scores (B, H, T).

    `mask_BS` is added to the scores (0 or -inf). Query head h reads key head h // (H // K).
    `causal` needs T = S. Not differentiable: `attend_backward` is its gradient.
    """
    if query_BHTD.device.type == "cpu":
        mask = _expand(mask_BS, query_BHTD)
        return _flash(query_BHTD, key_BKSD, value_BKSD, is_causal=causal, attn_mask=mask)
    return explicit(query_BHTD, key_BKSD, value_BKSD, causal, mask_BS)


def attend_backward(
    grad_BHTD: Tensor,
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    out_BHTD: Tensor,
    lse_BHT: Tensor,
    *,
    causal: bool = False,
    mask_BS: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value.

    `out` and `lse` are those of the whole softmax, so that for keys attended in several parts the
    query's gradient is the sum over parts (FlashAttention, Dao et al. 2022, appendix B.2).
    """
    if query_BHTD.device.type == "cpu":
        # PyTorch's bfloat16 backward takes four times as long as the float32 one on CPUs.
        float32 = (x.float() for x in (grad_BHTD, query_BHTD, key_BKSD, value_BKSD, out_BHTD))
        mask = _expand(None if mask_BS is None else mask_BS.float(), query_BHTD)
        grads = _flash_backward(*float32, lse_BHT, 0.0, causal, attn_mask=mask)
        query_grad, key_grad, value_grad = (x.to(query_BHTD.dtype) for x in grads)
        return query_grad, key_grad, value_grad
    return explicit_backward(grad_BHTD, query_BHTD, key_BKSD, value_BKSD, out_BHTD, lse_BHT, causal, mask_BS)


def explicit(
    query_BHTD: Tensor, key_BKSD: Tensor, value_BKSD: Tensor, causal: bool, mask_BS: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`attend` from plain operations, on any device; keeps all scores."""
    scores = _scores(query_BHTD, key_BKSD, causal, mask_BS)
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse.unsqueeze(-1)).to(value_BKSD.dtype)
    out = weights @ value_BKSD.unsqueeze(2)
    return out.flatten(1, 2), lse.flatten(1, 2)


def explicit_backward(
    grad_BHTD: Tensor,
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    out_BHTD: Tensor,
    lse_BHT: Tensor,
    causal: bool,
    mask_BS: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`attend_backward` from plain operations, on any device; keeps all scores."""
    groups = (key_BKSD.shape[1], -1)
    scores = _scores(query_BHTD, key_BKSD, causal, mask_BS)
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
    lengths: Sequence[int], width: int, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """(B, width) additive mask that hides keys beyond each length; None when there are none."""
    if min(lengths) == width:
        return None
    lengths_B1 = torch.tensor(lengths, device=device).unsqueeze(1)
    hidden = torch.arange(width, device=device).unsqueeze(0) >= lengths_B1
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))


def _expand(mask_BS: Tensor | None, query_BHTD: Tensor) -> Tensor | None:
    if mask_BS is None:
        return None
    return mask_BS[:, None, None, :].expand(-1, 1, query_BHTD.shape[2], -1)


def _scores(query_BHTD: Tensor, key_BKSD: Tensor, causal: bool, mask_BS: Tensor | None) -> Tensor:
    """Scaled scores in float32, (B, K, H/K, T, S)."""
    query = query_BHTD.unflatten(1, (key_BKSD.shape[1], -1)) * query_BHTD.shape[-1] ** -0.5
    scores = (query @ key_BKSD.unsqueeze(2).transpose(-1, -2)).float()
    if mask_BS is not None:
        scores = scores + mask_BS[:, None, None, None, :]
    if causal:
        T = scores.shape[-1]
        future = torch.ones(T, T, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores
