"""Log-probabilities and entropies of chosen tokens without large [tokens, vocabulary] logits.

Shape suffixes: S scored tokens, E hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from greenward.interruption import check
from greenward.policies.kernels.native import LANES
from greenward.policies.products import product, products_for, serving

# Logits of one chunk take at most this many numbers (64 MB in float32).
CHUNK_NUMBERS = 16 * 1024 * 1024


@dataclass(frozen=True)
class TokenScores:
    """Per completion token, 0 in the padding: log-probability and, where asked for, entropy in nats.

    `hidden_SE`, where asked for, holds the hidden states that the tokens were predicted from, unpadded.
    """

    logprobs_BT: Tensor
    entropy_BT: Tensor | None
    hidden_SE: Tensor | None = None


class _ChunkedScores(torch.autograd.Function):
    """Scores the tokens in chunks; backward computes the logits again if there were several."""

    @staticmethod
    def forward(
        ctx: Any, hidden_SE: Tensor, unembedding_VE: Tensor, targets_S: Tensor, scale: float, entropy: bool
    ) -> tuple[Tensor, Tensor]:
        S = len(hidden_SE)
        scores_S, lse_S, entropy_S = hidden_SE.new_empty((3, S), dtype=torch.float32)
        chunks = _chunks(S, len(unembedding_VE))
        native = serving(hidden_SE, LANES)
        products = products_for(hidden_SE, unembedding_VE)
        for part in chunks:
            check()
            if native:
                last = product(products, hidden_SE[part], unembedding_VE.t())
                native.score(last, targets_S[part], scale, scores_S[part], lse_S[part], entropy_S[part])
                continue
            logits = _logits(hidden_SE[part], unembedding_VE, scale)
            lse_S[part] = lse = logits.logsumexp(-1)
            last = logprobs = logits.sub_(lse[:, None])
            scores_S[part] = logprobs.gather(-1, targets_S[part, None]).squeeze(-1)
            if entropy:
                entropy_S[part] = -(logprobs.exp() * logprobs).sum(-1)
        ctx.scale, ctx.native, ctx.products = scale, native, products
        ctx.set_materialize_grads(False)  # an entropy that is only reported costs nothing here
        kept = [last] if len(chunks) == 1 and any(ctx.needs_input_grad) else []
        ctx.save_for_backward(hidden_SE, unembedding_VE, targets_S, lse_S, entropy_S, *kept)
        return scores_S, entropy_S

    @staticmethod
    def backward(ctx: Any, grad_scores_S: Tensor | None, grad_entropy_S: Tensor | None) -> tuple[Any, ...]:
        hidden_SE, unembedding_VE, targets_S, lse_S, entropy_S, *kept = ctx.saved_tensors
        if grad_scores_S is None:
            grad_scores_S = torch.zeros_like(lse_S)
        grad_hidden_SE = torch.empty_like(hidden_SE)
        grad_unembedding_VE = None
        if ctx.needs_input_grad[1]:
            grad_unembedding_VE = torch.zeros_like(unembedding_VE, dtype=torch.float32)
        for part in _chunks(len(hidden_SE), len(unembedding_VE)):
            check()
            above = (grad_scores_S[part], None if grad_entropy_S is None else grad_entropy_S[part])
            if ctx.native:
                logits = kept[0] if kept else product(ctx.products, hidden_SE[part], unembedding_VE.t())
                slopes = (one if one is None else one.contiguous() for one in above)
                sums = (lse_S[part], entropy_S[part])
                grad = ctx.native.score_backward(logits, targets_S[part], ctx.scale, *sums, *slopes)
            else:
                logprobs = kept[0] if kept else _logits(hidden_SE[part], unembedding_VE, ctx.scale)
                if not kept:
                    logprobs.sub_(lse_S[part, None])
                slope = grad_S1 = above[0][:, None]
                if above[1] is not None:  # d entropy / d logit_i = -p_i (log p_i + entropy)
                    slope = (logprobs + entropy_S[part, None]).mul_(above[1][:, None]).add_(grad_S1)
                grad = logprobs.exp().mul_(slope).neg_()
                grad.scatter_add_(1, targets_S[part, None], grad_S1)
                grad = grad.mul_(ctx.scale).to(hidden_SE.dtype)
            grad_hidden_SE[part] = product(ctx.products, grad, unembedding_VE)
            if grad_unembedding_VE is not None:
                grad_unembedding_VE += product(ctx.products, grad.t(), hidden_SE[part])
        if grad_unembedding_VE is not None:
            grad_unembedding_VE = grad_unembedding_VE.to(unembedding_VE.dtype)
        return grad_hidden_SE, grad_unembedding_VE, None, None, None


def score_tokens(
    hidden_SE: Tensor, unembedding_VE: Tensor, targets_S: Tensor, *, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target, and entropy, under softmax(hidden · unembeddingᵀ / temperature)."""
    logprobs_S, entropy_S = _ChunkedScores.apply(
        hidden_SE, unembedding_VE, targets_S, 1.0 / temperature, entropy
    )
    return logprobs_S, entropy_S if entropy else None


def score_logits(
    logits_SV: Tensor, targets_S: Tensor, *, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """The same from logits that exist already."""
    logprobs_SV = torch.log_softmax(logits_SV.float() / temperature, dim=-1)
    logprobs_S = logprobs_SV.gather(1, targets_S[:, None]).squeeze(1)
    return logprobs_S, -(logprobs_SV.exp() * logprobs_SV).sum(-1) if entropy else None


def _logits(hidden: Tensor, unembedding_VE: Tensor, scale: float) -> Tensor:
    logits = (hidden @ unembedding_VE.t()).float()
    return logits if scale == 1.0 else logits.mul_(scale)


def _chunks(tokens: int, vocab: int) -> list[slice]:
    size = max(1, CHUNK_NUMBERS // vocab)
    return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]
