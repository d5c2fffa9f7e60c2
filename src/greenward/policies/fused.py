"""Element-wise operations of the decoder with hand-written gradients.

Small models spend as much time in passes over memory as in matrix products; these functions make
fewer passes and keep fewer intermediate tensors than their autograd compositions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension (Zhang & Sennrich 2019, eq. 4)."""
    return _RMSNorm.apply(x, weight, eps) if torch.is_grad_enabled() else _normalise(x, weight, eps)[0]


def swiglu(x_ME: Tensor, weight: Tensor) -> Tensor:
    """silu(x · gateᵀ) * (x · upᵀ), (M, F), for `weight` (2F, E) = gate over up (Shazeer 2020, eq. 6)."""
    return _SwiGLU.apply(x_ME, weight) if torch.is_grad_enabled() else _gate(x_ME, weight)[0]


def _normalise(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised x and 1 / rms(x)."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return torch.mul(x, scale).to(x.dtype).mul_(weight), scale


def _gate(x_ME: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The gated values (M, F), and gate and up before gating (2, M, F).

    Gate and up are kept apart: side by side in one row, every element-wise pass over either half
    takes twice as long.
    """
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
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        # With s = scale, y = x s w:  dx = s g w - x s³ mean(g w x),  dw = Σ s g x.
        x, weight, scale = ctx.saved_tensors
        size = x.shape[-1]
        g_ME, x_ME, w = grad.reshape(-1, size).float(), x.reshape(-1, size).float(), weight.float()
        s_M1 = scale.reshape(-1, 1)
        grad_x = g_ME * x_ME
        grad_weight = torch.mv(grad_x.t(), s_M1.squeeze(1))
        slope = torch.mv(grad_x, w).unsqueeze(1).mul_(s_M1.pow(3)).div_(size)
        torch.mul(g_ME, w, out=grad_x).mul_(s_M1).addcmul_(x_ME, slope, value=-1)
        return grad_x.to(x.dtype).view(x.shape), grad_weight.to(weight.dtype), None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ME: Tensor, weight: Tensor) -> Tensor:
        activated, gate_up = _gate(x_ME, weight)
        ctx.save_for_backward(x_ME, weight, gate_up)
        return activated

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x_ME, weight, gate_up = ctx.saved_tensors
        gate, up = gate_up
        gate_weight, up_weight = weight.chunk(2)
        grad_gate, grad_up = torch.empty_like(gate_up)
        torch.mul(F.silu(gate), grad, out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=grad_gate)
        grad_x = torch.mm(grad_gate, gate_weight).addmm_(grad_up, up_weight)
        grad_weight = torch.empty_like(weight)
        torch.mm(grad_gate.t(), x_ME, out=grad_weight[: len(gate_weight)])
        torch.mm(grad_up.t(), x_ME, out=grad_weight[len(gate_weight) :])
        return grad_x, grad_weight
