"""Calls the compiled kernels as functions of tensors.

Shape suffixes: M tokens, E hidden size, H query heads, K key/value heads, X = H + 2K, D head dimension, B
rows being decoded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

LANES = 16
_TYPES = {torch.float32: "f32", torch.bfloat16: "bf16"}
_SMALL = 1 << 15  # numbers below which a second thread costs more than it saves


class _Struct(ctypes.Structure):
    """Arrays and numbers of int64; keeps the arrays alive."""

    def __init__(self, *values: int | np.ndarray) -> None:
        self._kept = [np.ascontiguousarray(v, dtype=np.int64) for v in values if isinstance(v, np.ndarray)]
        arrays = iter(self._kept)
        super().__init__(*(next(arrays).ctypes.data if isinstance(v, np.ndarray) else v for v in values))


def _declared(names: str) -> list[tuple[str, Any]]:
    """Fields as C declares them: a name with a * is an array."""
    return [
        (name.removeprefix("*"), ctypes.c_void_p if name.startswith("*") else ctypes.c_int64)
        for name in names.split()
    ]


class Layout(_Struct):
    """Groups of a batch, as `kernels.c` declares them; `count` is the number of their tokens."""

    count: int

    _fields_ = _declared("groups *prompt_start *prompt_length *first_row *row_start *row_length longest")


class Rows(_Struct):
    """Rows that are decoded, `count` of them, as `kernels.c` declares them."""

    count: int

    _fields_ = _declared("blocks *block_row *slot *position *stored *prompt_length capacity longest ahead")


class Weights(_Struct):
    """Those of a small decoder, as `step.h` declares them."""

    _fields_ = _declared("layers E H K D F V *layer embedding final_norm head")


class Kernels:
    """The functions of one compiled library; `products` says whether its products are to be used."""

    def __init__(self, path: Path, *, products: bool = True) -> None:
        self.products = products
        root = Path(torch.__file__).parent
        for runtime in [*root.glob("lib/libgomp*"), *root.parent.glob("torch.libs/libgomp*")][:1]:
            ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)  # whose threads the kernels share
        self._library = ctypes.CDLL(str(path))
        self._functions: dict[tuple[str, torch.dtype], Any] = {}

    @staticmethod
    def serve(x: Tensor, size: int | None = None) -> bool:
        """Whether rows of `size` numbers (those of x's last dimension) can be computed here."""
        size = x.shape[-1] if size is None else size
        return x.device.type == "cpu" and x.dtype in _TYPES and size % LANES == 0 and x.is_contiguous()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """The normalised x, and 1 / rms(x) in float32."""
        out, size = torch.empty_like(x), x.shape[-1]
        scale = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
        arguments = (x, weight.contiguous(), out, scale, x.numel() // size, size, float(eps))
        self._call("rms_norm", x, *arguments, threads_for=x.numel())
        return out, scale

    def rms_norm_backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, scale: Tensor, *, with_weight: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The gradients of x and of the weight, the latter in float32."""
        grad_x, size = torch.empty_like(x), x.shape[-1]
        grad_weight = x.new_empty(size, dtype=torch.float32) if with_weight else None
        arguments = (grad.contiguous(), x, weight.contiguous(), scale, grad_x, grad_weight)
        self._call("rms_norm_backward", x, *arguments, x.numel() // size, size, threads_for=x.numel())
        return grad_x, grad_weight

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up, (M, F), for rows (M, 2F) of gate and up."""
        M, F = len(gate_up), gate_up.shape[1] // 2
        out = gate_up.new_empty((M, F))
        self._call("swiglu", gate_up, gate_up, out, M, F, threads_for=M * F)
        return out

    def swiglu_backward(self, grad: Tensor, gate_up: Tensor) -> Tensor:
        """The gradient (M, 2F) of gate and up."""
        M, F = grad.shape
        grad_gate_up = torch.empty_like(gate_up)
        arguments = (grad.contiguous(), gate_up, grad_gate_up, M, F)
        self._call("swiglu_backward", gate_up, *arguments, threads_for=M * F)
        return grad_gate_up

    def score(
        self,
        logits_SV: Tensor,
        targets_S: Tensor,
        scale: float,
        logprobs_S: Tensor,
        lse_S: Tensor,
        entropy_S: Tensor,
    ) -> None:
        """Fill in the log-probability of each target, log-sum-exp and entropy of softmax(scale · logits)."""
        S, V = logits_SV.shape
        arguments = (logits_SV, targets_S, float(scale), logprobs_S, lse_S, entropy_S, S, V)
        self._call("score", logits_SV, *arguments, threads_for=S * V)

    def choose(self, logits_BV: Tensor, scale: float, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens (B,) that numbers in [0, 1) draw from softmax(scale · logits), and log-probabilities."""
        B, V = logits_BV.shape
        tokens_B, logprobs_B = uniforms_B.new_empty(B, dtype=torch.int64), torch.empty_like(uniforms_B)
        arguments = (logits_BV, float(scale), uniforms_B, tokens_B, logprobs_B, B, V)
        self._call("choose", logits_BV, *arguments, threads_for=B * V)
        return tokens_B, logprobs_B

    def choose_most_likely(self, logits_BV: Tensor) -> tuple[Tensor, Tensor]:
        """The most likely tokens (B,), the first of several, and log-probabilities."""
        B, V = logits_BV.shape
        tokens_B = logits_BV.new_empty(B, dtype=torch.int64)
        logprobs_B = logits_BV.new_empty(B, dtype=torch.float32)
        arguments = (logits_BV, tokens_B, logprobs_B, B, V)
        self._call("choose_most_likely", logits_BV, *arguments, threads_for=B * V)
        return tokens_B, logprobs_B

    def score_backward(
        self,
        logits_SV: Tensor,
        targets_S: Tensor,
        scale: float,
        lse_S: Tensor,
        entropy_S: Tensor,
        grad_S: Tensor,
        grad_entropy_S: Tensor | None,
    ) -> Tensor:
        S, V = logits_SV.shape
        grad_logits = torch.empty_like(logits_SV)
        given = (lse_S, entropy_S, grad_S, grad_entropy_S, grad_logits)
        arguments = (logits_SV, targets_S, float(scale), *given, S, V)
        self._call("score_backward", logits_SV, *arguments, threads_for=S * V)
        return grad_logits

    def product(self, a_ME: Tensor, b_EN: Tensor, add: Tensor | None = None) -> Tensor:
        """a · b of float32 and `add`, of shape (N,) or (M, N); every size is at least 1."""
        a_ME = a_ME if 1 in a_ME.stride() else a_ME.contiguous()
        (M, E), N = a_ME.shape, b_EN.shape[1]
        out_MN = a_ME.new_empty((M, N))
        added = None if add is None else add.expand(M, N).contiguous()
        arguments = (a_ME, *a_ME.stride(), b_EN, *b_EN.stride(), added, out_MN, M, N, E)
        self._call("product", a_ME, *arguments, threads_for=M * N)
        return out_MN

    def rotate_(
        self, tokens_MXD: Tensor, positions_M: Tensor, table: Tensor, heads: int, sign: float
    ) -> None:
        """Rotate the first `heads` heads in place by the angles of `RotaryTable`; back with sign -1."""
        M, X, D = tokens_MXD.shape
        arguments = (tokens_MXD, positions_M, table, len(positions_M), X, heads, D, float(sign))
        self._call("rotate", tokens_MXD, *arguments, threads_for=M * X * D)

    def attention(self, qkv_MXD: Tensor, heads: int, kv_heads: int, layout: Layout) -> tuple[Tensor, Tensor]:
        """Attended values (M, H, D) and log-sum-exps (M, H) of rotated heads; 0 for tokens of no group."""
        M, _, D = qkv_MXD.shape
        out_MHD = qkv_MXD.new_empty((M, heads, D))
        lse_MH = qkv_MXD.new_empty((M, heads), dtype=torch.float32)
        out_MHD[layout.count :] = lse_MH[layout.count :] = 0
        arguments = (qkv_MXD, heads, kv_heads, D, ctypes.byref(layout), out_MHD, lse_MH)
        self._call("attention", qkv_MXD, *arguments, threads_for=qkv_MXD.numel())
        return out_MHD, lse_MH

    def attention_backward(
        self,
        grad_MHD: Tensor,
        qkv_MXD: Tensor,
        out_MHD: Tensor,
        lse_MH: Tensor,
        kv_heads: int,
        layout: Layout,
    ) -> Tensor:
        """The gradient (M, X, D) of the rotated heads."""
        _, heads, D = out_MHD.shape
        grad_qkv = torch.empty_like(qkv_MXD)
        grad_qkv[layout.count :] = 0
        inputs = (grad_MHD.contiguous(), qkv_MXD, out_MHD, lse_MH)
        arguments = (*inputs, heads, kv_heads, D, ctypes.byref(layout), grad_qkv)
        self._call("attention_backward", qkv_MXD, *arguments, threads_for=qkv_MXD.numel())
        return grad_qkv

    def cache_prompts(
        self,
        qkv_MXD: Tensor,
        heads: int,
        kv_heads: int,
        layout: Layout,
        offsets: np.ndarray,
        keys: Tensor,
        values: Tensor,
    ) -> None:
        """Lay out keys and values of rotated prompts for `decode`; group g begins at token `offsets[g]`."""
        D = qkv_MXD.shape[-1]
        arguments = (qkv_MXD, heads, kv_heads, D, ctypes.byref(layout), offsets.ctypes.data, keys, values)
        self._call("cache_prompts", qkv_MXD, *arguments, threads_for=qkv_MXD.numel())

    def decode(
        self, qkv_BXD: Tensor, heads: int, kv_heads: int, table: Tensor, rows: Rows, caches: Sequence[int]
    ) -> Tensor:
        """Attended values (B, H, D) of each row's newest token; 0 for tokens behind the rows.

        `caches` are addresses: of two arrays with the addresses of each row's keys and values of its prompt,
        and of the keys and values of the rows' own tokens, which those of the newest join.
        """
        B, _, D = qkv_BXD.shape
        out_BHD = qkv_BXD.new_empty((B, heads, D))
        if rows.count < B:
            out_BHD[rows.count :] = 0
        arguments = (qkv_BXD, heads, kv_heads, D, table, ctypes.byref(rows), *caches, out_BHD)
        self._call("decode", qkv_BXD, *arguments, threads_for=_SMALL)
        return out_BHD

    def pack_panels(self, matrix_NK: Tensor, panels: Tensor) -> None:
        """Lay out a matrix for `decode_steps`: `panels` has memory for whole panels of float32."""
        arguments = (matrix_NK, panels, *matrix_NK.shape)
        self._call("pack_panels", matrix_NK, *arguments, threads_for=matrix_NK.numel())

    def decode_steps(
        self,
        token_ids_B: Tensor,
        weights: Weights,
        eps: float,
        table: Tensor,
        rows: Rows,
        caches: np.ndarray,
        logits_BV: Tensor,
        draws: tuple[float, Tensor | None, Tensor, Tensor] | None = None,
    ) -> None:
        """Fill in the logits behind the newest tokens; `caches` (layers, 4) are those of `decode`.

        `draws` has a scale, numbers in [0, 1), and room for tokens and their log-probabilities, all (S, B).
        S tokens are then drawn one after the other as by `choose`, without numbers as by
        `choose_most_likely`, and the logits are those of the last.
        """
        scale, *drawn = draws or (0.0, None, None, None)
        steps = 1 if draws is None else len(draws[2])
        structs = (ctypes.byref(weights), float(eps), table, ctypes.byref(rows), caches.ctypes.data)
        arguments = (token_ids_B, *structs, logits_BV, steps, float(scale), *drawn)
        self._call("decode_steps", logits_BV, *arguments, threads_for=_SMALL)

    def _call(self, name: str, like: Tensor, *arguments: Any, threads_for: int) -> None:
        """Tensors are passed by address and integers as int64; the number of threads comes last."""
        function = self._functions.get((name, like.dtype))
        if function is None:
            function = getattr(self._library, f"{name}_{_TYPES[like.dtype]}")
            function.argtypes = [*map(_type_of, arguments), ctypes.c_int]
            function.restype = None
            self._functions[name, like.dtype] = function
        threads = torch.get_num_threads() if threads_for >= _SMALL else 1
        function(*[one.data_ptr() if isinstance(one, Tensor) else one for one in arguments], threads)


def _type_of(argument: object) -> Any:
    """As C has it; None is a null pointer."""
    if isinstance(argument, int):
        return ctypes.c_int64
    return ctypes.c_float if isinstance(argument, float) else ctypes.c_void_p
