"""Decodes with small decoders: steps through all layers are one call of the compiled kernels.

A decoder is small if none of its matrices is packed for oneDNN (`products.py`). With larger ones a few rows
take as long as reading the weights, which all threads have to share.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from greenward.models.decoder import MATRICES, Decoder, is_adapted
from greenward.models.kernels.attention import KernelDecodeAttention, kernels_for
from greenward.models.kernels.native import LANES, Kernels, Weights
from greenward.models.products import SMALLEST_PACKED

_PANEL = 2 * LANES  # rows, which is a multiple of what the kernels take
# The order of `Layer` in step.h.
_FIELDS = (
    "attention_norm",
    "qkv",
    "qkv_bias",
    "query_norm",
    "key_norm",
    "attention_out",
    "mlp_norm",
    "gate_up",
    "down",
)


class KernelStep:
    """Steps of decoding of a small decoder, with its weights as they are now."""

    def __init__(self, decoder: Decoder, kernels: Kernels) -> None:
        self._decoder, self._kernels = decoder, kernels
        self._kept: list[Tensor] = []  # whose memory the kernels read
        shape = decoder.shape
        addresses = [[self._field(layer, name) for name in _FIELDS] for layer in decoder.layers]
        self._weights = Weights(
            shape.layers,
            shape.hidden_size,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.intermediate_size,
            shape.vocab_size,
            np.array(addresses),
            self._address(decoder.embedding),
            self._address(decoder.final_norm),
            self._address(self._panels(decoder.unembedding_VE)),
        )

    @staticmethod
    def of(decoder: Decoder) -> KernelStep | None:
        """That of a small decoder without adapter or packed weights; None for others."""
        shape, kernels = decoder.shape, kernels_for(decoder)
        if kernels is None or decoder.is_packed or is_adapted(decoder):
            return None
        if shape.hidden_size % LANES or shape.intermediate_size % LANES:
            return None
        if any(getattr(decoder.layers[0], name).numel() >= SMALLEST_PACKED for name in MATRICES):
            return None
        return KernelStep(decoder, kernels)

    def logits(self, token_ids_B: Tensor, attention: KernelDecodeAttention) -> Tensor:
        """The logits (B, V) behind the newest tokens."""
        attention.advance()
        return self._decoded(token_ids_B, attention)

    def draw(
        self,
        token_ids_B: Tensor,
        attention: KernelDecodeAttention,
        temperature: float,
        uniforms_SB: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The next tokens, as `choose_tokens` draws them without a filter, and log-probabilities: (S, B)."""
        attention.advance(len(uniforms_SB))
        tokens_SB, logprobs_SB = (
            torch.empty_like(uniforms_SB, dtype=torch.int64),
            torch.empty_like(uniforms_SB),
        )
        chances = (1 / temperature, uniforms_SB) if temperature else (1.0, None)
        self._decoded(token_ids_B, attention, (*chances, tokens_SB, logprobs_SB))
        return tokens_SB, logprobs_SB

    def _decoded(
        self,
        token_ids_B: Tensor,
        attention: KernelDecodeAttention,
        draws: tuple[float, Tensor | None, Tensor, Tensor] | None = None,
    ) -> Tensor:
        shape, embedding = self._decoder.shape, self._decoder.embedding
        logits_BV = embedding.new_empty((len(token_ids_B), shape.vocab_size))
        about = (attention.table, attention.rows, attention.caches_L4)
        self._kernels.decode_steps(token_ids_B, self._weights, shape.norm_eps, *about, logits_BV, draws)
        return logits_BV

    def _field(self, layer: nn.Module, name: str) -> int:
        weight = getattr(layer, name)
        if weight is None:
            return 0
        return self._address(self._panels(weight) if name in MATRICES else weight)

    def _panels(self, matrix_NK: Tensor) -> Tensor:
        rows = -(-len(matrix_NK) // _PANEL) * _PANEL
        panels = matrix_NK.new_empty((rows, matrix_NK.shape[1]), dtype=torch.float32)
        self._kernels.pack_panels(matrix_NK.contiguous(), panels)
        return panels

    def _address(self, weight: Tensor) -> int:
        """Where the numbers lie, also after a parameter was given others."""
        self._kept.append(weight.detach().contiguous())
        return self._kept[-1].data_ptr()
