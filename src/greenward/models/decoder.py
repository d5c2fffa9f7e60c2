"""Implements one decoder for the Llama/Qwen family, which runs over flat tokens.

Every linear layer computes real tokens only: the sequences of a batch follow each other in one matrix
without padding. The caller decides which tokens attend to which: it passes an `Attention`, which gets the
queries, keys and values of all tokens of a layer. Training, prefill and decoding each have one.
Weights are kept in float32 and cast to `compute_dtype` where they are used, so that small updates are not
rounded away in bfloat16. The projections of queries, keys and values are one matrix, and so are those of the
MLP's gate and up; `checkpoint.py` splits them into the names Hugging Face uses.
Shape suffixes: M tokens of the whole batch, U those from which others are predicted, E hidden size, H query
heads, K key/value heads, X = H + 2K, D head dimension, F intermediate size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from greenward.common.interruption import check
from greenward.models.products import (
    Int8Weight,
    linear,
    packed,
    packs,
    product,
    products_for,
    serving,
    weight_gradient,
)

if TYPE_CHECKING:
    from greenward.models.lora import LowRank

Attention = Callable[[int, Tensor], Tensor]
"""(layer, qkv_MXD before rotation) -> attended values (M, H·D), 0 for tokens behind those that it knows."""


MATRICES = ("qkv", "attention_out", "gate_up", "down")
"""The matrices of a layer."""


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's stretching of the rotary frequencies (`rope_type: llama3`), as config.json names it."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class DecoderShape:
    """Everything that fixes a decoder of the family, apart from its weights."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    max_positions: int
    norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    qk_norm: bool = False
    qkv_bias: bool = False
    tied_embeddings: bool = True

    @property
    def family(self) -> str:
        """The `model_type` of the published architecture that has this shape."""
        return "qwen3" if self.qk_norm else "qwen2" if self.qkv_bias else "llama"


class RotaryTable(nn.Module):
    """Cosines and sines of the rotary embedding (Su et al. 2021, eq. 15), grown as needed."""

    frequencies: Tensor
    table: Tensor  # (positions, 2, D/2)

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        frequencies = 1.0 / shape.rope_theta**exponents
        if (scaling := shape.rope_scaling) is not None:
            # Divide low frequencies by `factor`, keep high ones, blend in between (Llama 3.1).
            turns = scaling.original_max_position_embeddings / (2 * math.pi / frequencies)
            blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
            blend = blend.clamp(0, 1)
            frequencies = frequencies * (blend + (1 - blend) / scaling.factor)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("table", torch.empty(0, 2, 0), persistent=False)

    def forward(self, positions_M: Tensor, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each (M, 1, D/2), at positions below `length`."""
        cos, sin = self.grown(length).index_select(0, positions_M).to(dtype).split(1, dim=1)
        return cos, sin

    def grown(self, length: int) -> Tensor:
        """The table, (positions, 2, D/2), with `length` positions or more."""
        if len(self.table) < length:
            size = max(64, 1 << (length - 1).bit_length())
            # Grown while sampling, the table must still serve training.
            with torch.inference_mode(False):
                steps = torch.arange(size, device=self.frequencies.device, dtype=torch.float32)
                angles = torch.outer(steps, self.frequencies)
                self.table = torch.stack((angles.cos(), angles.sin()), dim=1)
        return self.table


def rotate_(heads_MHD: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate the half-split pairs of every head in place; a negated `sin` rotates back."""
    first, second = heads_MHD.chunk(2, dim=-1)
    first_sin = first * sin
    first.mul_(cos).addcmul_(second, sin, value=-1)
    second.mul_(cos).add_(first_sin)


class _Casting(nn.Module):
    """Weights that are cast at every use, or once inside of `Decoder.casting_once`."""

    casts: dict[str, Tensor] | None = None  # by the name of the weight

    def cast(self, name: str, dtype: torch.dtype) -> Tensor:
        weight: Tensor = getattr(self, name)
        if self.casts is None or not torch.is_grad_enabled():
            return weight.to(dtype)
        if name not in self.casts:
            self.casts[name] = weight.to(dtype)
        return self.casts[name]


class DecoderLayer(_Casting):
    """One transformer block: pre-norm attention and SwiGLU, each added to the residual stream."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        E, D = shape.hidden_size, shape.head_dim
        self.shape = shape
        qkv_size = (shape.heads + 2 * shape.kv_heads) * D
        self.attention_norm = nn.Parameter(torch.ones(E))
        self.qkv = nn.Parameter(torch.empty(qkv_size, E))
        self.qkv_bias = nn.Parameter(torch.zeros(qkv_size)) if shape.qkv_bias else None
        self.query_norm = nn.Parameter(torch.ones(D)) if shape.qk_norm else None
        self.key_norm = nn.Parameter(torch.ones(D)) if shape.qk_norm else None
        self.attention_out = nn.Parameter(torch.empty(E, shape.heads * D))
        self.mlp_norm = nn.Parameter(torch.ones(E))
        self.gate_up = nn.Parameter(torch.empty(2 * shape.intermediate_size, E))
        self.down = nn.Parameter(torch.empty(E, shape.intermediate_size))
        self.low_rank: dict[str, LowRank] = {}  # what an adapter adds to a matrix, by its name here

    def forward(
        self, x_ME: Tensor, index: int, attention: Attention, predicting_U: Tensor | None = None
    ) -> Tensor:
        """The residual stream after this layer, of all tokens or of `predicting_U` only (U, E)."""
        bias = None if self.qkv_bias is None else self.cast("qkv_bias", x_ME.dtype)
        qkv = self._linear("qkv", self._norm("attention_norm", x_ME), bias)
        qkv_MXD = qkv.view(len(x_ME), -1, self.shape.head_dim)
        if self.query_norm is not None:
            H, K = self.shape.heads, self.shape.kv_heads
            query, key, value = qkv_MXD.split((H, K, K), dim=1)
            query, key = self._norm("query_norm", query), self._norm("key_norm", key)
            qkv_MXD = torch.cat((query, key, value), dim=1)
        attended = attention(index, qkv_MXD)
        if predicting_U is not None:
            x_ME, attended = x_ME.index_select(0, predicting_U), attended.index_select(0, predicting_U)
        x_ME = self._linear("attention_out", attended, x_ME)
        normed_ME = self._norm("mlp_norm", x_ME)
        if "gate_up" in self.low_rank:
            activated_MF = gated(self._linear("gate_up", normed_ME))
        else:
            activated_MF = swiglu(normed_ME, self.cast("gate_up", x_ME.dtype))
        return self._linear("down", activated_MF, x_ME)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return rms_norm(x, self.cast(name, x.dtype), self.shape.norm_eps)

    def _linear(self, name: str, inputs: Tensor, add: Tensor | None = None) -> Tensor:
        """The product with the matrix `name`, `add`, and what an adapter of the matrix adds to both."""
        out = linear(inputs, self.cast(name, inputs.dtype), add)
        return self.low_rank[name](out, inputs) if name in self.low_rank else out


class Decoder(_Casting):
    """A causal language model: flat token ids to final hidden states; `unembedding` scores them."""

    def __init__(self, shape: DecoderShape, *, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.shape = shape
        self.compute_dtype = compute_dtype
        self.gradient_checkpointing = False
        self.embedding = nn.Parameter(torch.empty(shape.vocab_size, shape.hidden_size))
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.layers))
        self.final_norm = nn.Parameter(torch.ones(shape.hidden_size))
        self.lm_head = None if shape.tied_embeddings else nn.Parameter(torch.empty_like(self.embedding))
        self.rotary = RotaryTable(shape)
        self.adapter: nn.Module | None = None  # see `lora.py`
        self.is_packed = self.is_quantised = False
        self.packed_head: Any = None

    @property
    def unembedding_VE(self) -> Any:
        if self.packed_head is not None:
            return self.packed_head
        return self.cast("embedding" if self.lm_head is None else "lm_head", self.compute_dtype)

    def forward(
        self,
        token_ids_M: Tensor,
        attention: Attention,
        read: Callable[[Tensor, Tensor], Any] | None = None,
        predicting_U: Tensor | None = None,
    ) -> Any:
        """What `read` returns for the final hidden states (M, E) and the unembedding (V, E).

        With `predicting_U`, the hidden states are those of these tokens (U, E), and the last layer computes
        no others. Without `read`, the hidden states, after the last norm. All parameters are read inside
        this call, where a sharded module has gathered them.
        """
        tokens = len(token_ids_M)
        if predicting_U is not None:
            tokens = len(predicting_U)
            token_ids_M, predicting_U = (
                pad_to_bucket(index, self.compute_dtype, packed=self.is_packed)
                for index in (token_ids_M, predicting_U)
            )
        x_ME = F.embedding(token_ids_M, self.embedding).to(self.compute_dtype)
        for index, layer in enumerate(self.layers):
            check()
            if x_ME.requires_grad:
                x_ME.register_hook(lambda _: check())
            outputs = predicting_U if index == len(self.layers) - 1 else None
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x_ME = checkpoint(layer, x_ME, index, attention, outputs, use_reentrant=False)
            else:
                x_ME = layer(x_ME, index, attention, outputs)
        hidden_ME = rms_norm(x_ME, self.cast("final_norm", x_ME.dtype), self.shape.norm_eps)[:tokens]
        return hidden_ME if read is None else read(hidden_ME, self.unembedding_VE)

    @contextmanager
    def casting_once(self) -> Iterator[None]:
        """Inside, a weight is cast at its first use with a gradient and not again; it must not change.

        The graph of a cast keeps no tensor, so that it serves the backward passes of all micro-batches. With
        gradient checkpointing nothing changes: the casts of all layers at once take memory.
        """
        parts = [] if self.gradient_checkpointing else [self, *self.layers]
        for part in parts:
            part.casts = {}
        try:
            yield
        finally:
            for part in parts:
                part.casts = None

    @classmethod
    def frozen(cls, shape: DecoderShape, *, compute_dtype: torch.dtype) -> Decoder:
        """A decoder whose weights, which are to be filled in, are kept in `compute_dtype` and not trained."""
        with torch.device("meta"):
            decoder = cls(shape, compute_dtype=compute_dtype)
        decoder = decoder.to(compute_dtype).to_empty(device="cpu")
        decoder.rotary = RotaryTable(shape)
        return decoder.requires_grad_(False)

    @torch.no_grad()
    def pack(self, source: Decoder | None = None, *, quantised: bool = False) -> None:
        """Replace the matrices by packed ones, or by those of 8 bits, of `source` or of its own.

        They serve without gradients. What is packed is neither trained, nor moved, nor saved.
        """
        source = source or self

        def replaced(weight: Tensor) -> Any:
            weight = weight.detach().to(self.compute_dtype)
            return Int8Weight.of(weight) if quantised else packed(weight)

        for ours, theirs in zip(self.layers, source.layers, strict=True):
            for name in MATRICES:
                matrix = replaced(getattr(theirs, name))
                ours._parameters.pop(name, None)
                setattr(ours, name, matrix)
        self.packed_head = replaced(source.embedding if source.lm_head is None else source.lm_head)
        if self.lm_head is not None:
            self.lm_head = None
        self.is_packed, self.is_quantised = True, quantised

    def unpack(self) -> None:
        """Give back the matrices that `pack` put in, which has to be called before the next use."""
        for layer in self.layers:
            for name in MATRICES:
                setattr(layer, name, None)
        self.packed_head = None

    @property
    def packs(self) -> bool:
        """Whether its matrices are multiplied with few rows faster when they are packed."""
        layer: Any = self.layers[0]
        return any(packs(getattr(layer, name), self.compute_dtype) for name in MATRICES)

    def packing_twin(self) -> Decoder:
        """A frozen copy that has no matrices until `pack` fills them in. What is of the type is shared."""
        with torch.device("meta"):
            twin = Decoder(self.shape, compute_dtype=self.compute_dtype)
        weights = {
            name: p.detach().to(self.compute_dtype) for name, p in self.named_parameters() if p.dim() == 1
        }
        weights["embedding"] = self.embedding.detach().to(self.compute_dtype)
        twin.load_state_dict(weights, assign=True, strict=False)
        twin.rotary = self.rotary
        return twin.requires_grad_(False)

    def in_compute_dtype(self) -> Decoder:
        """A frozen copy whose weights are cast once, not at every use."""
        with torch.device("meta"):
            twin = Decoder(self.shape, compute_dtype=self.compute_dtype)
        weights = {n: p.detach().to(self.compute_dtype, copy=True) for n, p in self.named_parameters()}
        twin.load_state_dict(weights, assign=True)
        twin.rotary = self.rotary
        return twin.requires_grad_(False)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Random weights: fan-in scaled projections, residual outputs damped by depth (GPT-2 §2.3)."""
        for name, parameter in self.named_parameters():
            if name.endswith(("norm", "bias")):
                parameter.fill_(1.0 if name.endswith("norm") else 0.0)
                continue
            scale = 0.02 if name in ("embedding", "lm_head") else parameter.shape[1] ** -0.5
            if name.endswith(("attention_out", "down")):
                scale /= math.sqrt(2 * self.shape.layers)
            parameter.normal_(0.0, scale, generator=generator)


def pad_to_bucket(index_M: Tensor, dtype: torch.dtype, *, packed: bool = False) -> Tensor:
    """Pad `index_M` with zeros to one of a few bucketed lengths, about 1.5 % more rows.

    oneDNN generates a new kernel for each row count of a matrix product, of bfloat16 and by packed weights.
    Generating it takes longer than computing the padded rows.
    """
    rows = len(index_M)
    if not (packed or dtype == torch.bfloat16) or index_M.device.type != "cpu":
        return index_M
    step = max(16, 1 << max(0, rows.bit_length() - 6))
    return F.pad(index_M, (0, -rows % step))


# Small models spend as much time in passes over memory as in matrix products: the hand-written gradients
# below make fewer passes and keep fewer intermediate tensors than those of autograd.


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension (Zhang & Sennrich 2019, eq. 4)."""
    if x.device.type == "cpu":
        x = x.contiguous()  # the heads of one token are so, those of more are not: all go to the same kernel
    return _RMSNorm.apply(x, weight, eps) if torch.is_grad_enabled() else _normalise(x, weight, eps)[0]


def swiglu(x_ME: Tensor, weight: Any) -> Tensor:
    """silu(x · gateᵀ) * (x · upᵀ), (M, F), for `weight` (2F, E) = gate over up (Shazeer 2020, eq. 6)."""
    return _SwiGLU.apply(x_ME, weight) if torch.is_grad_enabled() else _gate(x_ME, weight)[0]


def gated(gate_up_MG: Tensor) -> Tensor:
    """silu(gate) * up, (M, F), for rows of gate and, behind it, up."""
    if serving(gate_up_MG, gate_up_MG.shape[1] // 2) is None:
        gate, up = gate_up_MG.chunk(2, dim=1)
        return F.silu(gate) * up
    return _Gated.apply(gate_up_MG)


def _normalise(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised x and 1 / rms(x)."""
    if native := serving(x):
        return native.rms_norm(x, weight, eps)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return torch.mul(x, scale).to(x.dtype).mul_(weight), scale


def _gate(x_ME: Tensor, weight: Tensor | Int8Weight) -> tuple[Tensor, Tensor]:
    """The gated values (M, F), and gate and up before gating: (M, 2F) with kernels, else (2, M, F).

    For the operations of torch gate and up are kept apart: side by side in one row, every element-wise
    pass over either half takes twice as long.
    """
    if native := serving(x_ME, weight.shape[0] // 2):
        gate_up = linear(x_ME, weight)
        return native.swiglu(gate_up), gate_up
    if isinstance(weight, Int8Weight) or weight.is_mkldnn:
        gate_up = linear(x_ME, weight)
        gate, up = gate_up.chunk(2, dim=1)
        return F.silu(gate).mul_(up), gate_up
    gate, up = gate_up = x_ME.new_empty((2, len(x_ME), len(weight) // 2))
    gate_weight, up_weight = weight.chunk(2)
    torch.mm(x_ME, gate_weight.t(), out=gate)
    torch.mm(x_ME, up_weight.t(), out=up)
    return F.silu(gate).mul_(up), gate_up


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed, scale = _normalise(x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        return normed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        # With s = scale, y = x s w:  dx = s g w - x s³ mean(g w x),  dw = Σ s g x.
        x, weight, scale = ctx.saved_tensors
        if native := serving(x):
            wanted = ctx.needs_input_grad[1]
            grad_x, grad_weight = native.rms_norm_backward(grad, x, weight, scale, with_weight=wanted)
            return grad_x, None if grad_weight is None else grad_weight.to(weight.dtype), None
        size = x.shape[-1]
        g_ME, x_ME, w = grad.reshape(-1, size).float(), x.reshape(-1, size).float(), weight.float()
        s_M1 = scale.reshape(-1, 1)
        grad_x = g_ME * x_ME
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = torch.mv(grad_x.t(), s_M1.squeeze(1)).to(weight.dtype)
        slope = torch.mv(grad_x, w).unsqueeze(1).mul_(s_M1.pow(3)).div_(size)
        torch.mul(g_ME, w, out=grad_x).mul_(s_M1).addcmul_(x_ME, slope, value=-1)
        return grad_x.to(x.dtype).view(x.shape), grad_weight, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up_MG: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up_MG)
        ctx.native = serving(gate_up_MG, gate_up_MG.shape[1] // 2)
        return ctx.native.swiglu(gate_up_MG)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return ctx.native.swiglu_backward(grad, *ctx.saved_tensors)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ME: Tensor, weight: Tensor) -> Tensor:
        activated, gate_up = _gate(x_ME, weight)
        ctx.save_for_backward(x_ME, weight, gate_up)
        return activated

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        x_ME, weight, gate_up = ctx.saved_tensors
        if native := serving(x_ME, weight.shape[0] // 2):
            grads, products = native.swiglu_backward(grad, gate_up), products_for(x_ME, weight)
            wanted = ctx.needs_input_grad[1]
            grad_weight = weight_gradient(products, grads, x_ME, weight) if wanted else None
            return product(products, grads, weight), grad_weight
        gate, up = gate_up
        gate_weight, up_weight = weight.chunk(2)
        grad_gate, grad_up = torch.empty_like(gate_up)
        torch.mul(F.silu(gate), grad, out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=grad_gate)
        grad_x = torch.mm(grad_gate, gate_weight).addmm_(grad_up, up_weight)
        if not ctx.needs_input_grad[1]:
            return grad_x, None
        grad_weight = torch.empty_like(weight)
        torch.mm(grad_gate.t(), x_ME, out=grad_weight[: len(gate_weight)])
        torch.mm(grad_up.t(), x_ME, out=grad_weight[len(gate_weight) :])
        return grad_x, grad_weight


def is_adapted(model: nn.Module) -> bool:
    """Whether `model`, of any kind, has an adapter, which is then all that is trained and saved of it."""
    return hasattr(model.adapter if isinstance(model, Decoder) else model, "peft_config")  # which PEFT sets
