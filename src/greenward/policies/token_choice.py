"""From logits to tokens: filtering, inverse-CDF draws, and the log-probability of each draw.

The random number behind a token depends only on (seed, prompt, sample, position), so that a
completion does not depend on what else is in the batch or on when other rows finish.

Shape suffixes: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from greenward.policies.protocol import SamplingParams

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's output function (Steele, Lea & Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def row_keys(prompts: Sequence[Sequence[int]], group_size: int, seed: int) -> np.ndarray:
    """(N, G) keys, one for each completion; a prompt that occurs again gets other keys."""
    seen: Counter[bytes] = Counter()
    keys = np.empty((len(prompts), group_size), dtype=np.uint64)
    samples = np.arange(1, group_size + 1, dtype=np.uint64)
    for n, prompt in enumerate(prompts):
        ids = np.asarray(prompt, dtype=np.int64).tobytes()
        digest = hashlib.blake2b(f"{seed}:{seen[ids]}:".encode() + ids, digest_size=8).digest()
        seen[ids] += 1
        keys[n] = _mix(np.uint64(int.from_bytes(digest, "little")) + samples * _GOLDEN)
    return keys


def uniforms(row_keys_B: np.ndarray, length: int) -> np.ndarray:
    """(B, T) float32 numbers in [0, 1), with 23 random bits: u · x < x holds in float32 for x > 0."""
    steps = np.arange(1, length + 1, dtype=np.uint64) * _GOLDEN
    bits = _mix(row_keys_B[:, None] + steps[None, :]) >> np.uint64(41)
    return bits.astype(np.float32) * np.float32(2.0**-23)


def choose_tokens(logits_BV: Tensor, params: SamplingParams, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """One token for each row and its log-probability, both (B,).

    At temperature 0 the most likely token and its log-probability at temperature 1; else a draw
    from the distribution after temperature, top-k and top-p (in this order), and its
    log-probability under that distribution.
    """
    logits_BV = logits_BV.float()
    if params.temperature == 0:
        chosen = logits_BV.argmax(-1, keepdim=True)
        return chosen.squeeze(1), (
            logits_BV.gather(1, chosen) - logits_BV.logsumexp(-1, keepdim=True)
        ).squeeze(1)
    if params.temperature != 1:
        logits_BV = logits_BV / params.temperature
    if params.top_k or params.top_p < 1:
        logits_BV = _filter(logits_BV, params)
    probs_BV = torch.softmax(logits_BV, dim=-1)
    cdf_BV = probs_BV.cumsum(dim=-1)
    chosen = torch.searchsorted(cdf_BV, uniforms_B[:, None] * cdf_BV[:, -1:], right=True)
    return chosen.squeeze(1), probs_BV.gather(1, chosen).log_().squeeze(1)


def _filter(logits_BV: Tensor, params: SamplingParams) -> Tensor:
    """-inf for every token outside the top k and outside the smallest set of probability top_p."""
    if params.top_k and params.top_k < logits_BV.shape[1]:
        lowest_kept = logits_BV.topk(params.top_k, dim=-1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < lowest_kept, float("-inf"))
    if params.top_p < 1:
        ordered, order = logits_BV.sort(dim=-1, descending=True)
        probs = torch.softmax(ordered, dim=-1)
        outside = probs.cumsum(-1) - probs >= params.top_p
        outside = torch.zeros_like(outside).scatter_(1, order, outside)
        logits_BV = logits_BV.masked_fill(outside, float("-inf"))
    return logits_BV
