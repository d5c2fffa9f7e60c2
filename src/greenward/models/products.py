"""Computes matrix products by torch or a faster kernel. Shape suffixes: M rows, E inner size, N columns.

The weights of sampling are packed: in oneDNN's own layout a few rows are multiplied faster.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from greenward.models.kernels.build import kernels
from greenward.models.kernels.native import Kernels

# Weights are packed for every product, which takes longer than the product with few rows and a large weight.
LARGEST_WEIGHT = 1 << 20
SMALLEST_PACKED = 1 << 17  # numbers; smaller ones stay in the caches, and a call takes longer
_PACKED_FOR = 32  # rows
_FEW_ROWS = 4  # for which weights of 8 bits are faster than packed ones


def serving(x: Tensor, size: int | None = None) -> Kernels | None:
    """The kernels, where they serve rows of `size` numbers (those of x's last dimension)."""
    return kernels() if Kernels.serve(x, size) else None


def products_for(x: Tensor, weight: Tensor) -> Kernels | None:
    """The kernels, where they serve products of x and of gradients with this weight; of the weight alone it
    depends, and not on the rows of x, so that a row is computed alike in every batch.
    """
    if x.dtype != torch.float32 or x.device.type != "cpu" or not 0 < weight.numel() <= LARGEST_WEIGHT:
        return None
    native = kernels()
    return native if native and native.products and len(x) else None


def product(native: Kernels | None, a_ME: Tensor, b_EN: Tensor) -> Tensor:
    """a · b, where `native` comes from `products_for`."""
    return native.product(a_ME, b_EN) if native else a_ME @ b_EN


@dataclass(frozen=True, eq=False)
class Int8Weight:
    """A weight (N, E) of 8 bits, with a scale for each of its rows: round(w / scale), within ±127."""

    numbers_NE: Tensor
    scale_N: Tensor

    @classmethod
    def of(cls, weight_NE: Tensor) -> Int8Weight:
        scale_N1 = weight_NE.float().abs().amax(1, keepdim=True).clamp_(min=1e-12) / 127
        numbers = (weight_NE.float() / scale_N1).round_().to(torch.int8)
        return cls(numbers, scale_N1.squeeze(1).to(weight_NE.dtype))

    @property
    def shape(self) -> torch.Size:
        return self.numbers_NE.shape

    def to(self, _: torch.dtype) -> Int8Weight:
        return self

    def product(self, x_ME: Tensor) -> Tensor:
        if len(x_ME) <= _FEW_ROWS:
            return torch._weight_int8pack_mm(x_ME, self.numbers_NE, self.scale_N)
        return x_ME @ self.numbers_NE.to(x_ME.dtype).mul_(self.scale_N[:, None]).t()


def packs(weight_NE: Tensor, dtype: torch.dtype) -> bool:
    """Whether a packed weight of this type is faster than a plain one."""
    if weight_NE.device.type != "cpu" or weight_NE.numel() < SMALLEST_PACKED or not _packs(dtype):
        return False
    return products_for(weight_NE.new_empty(1, dtype=dtype), weight_NE) is None


def packed(weight_NE: Tensor) -> Tensor:
    """The weight in the layout in which few rows are multiplied fastest, which serves `linear` without a
    gradient; the weight as it is where that is no faster.
    """
    if not packs(weight_NE, weight_NE.dtype):
        return weight_NE
    return torch.ops.mkldnn._reorder_linear_weight(weight_NE, _PACKED_FOR)


@functools.cache
def _packs(dtype: torch.dtype) -> bool:
    """Whether torch has packed products of this type here that agree with plain ones."""
    try:
        weight, x = torch.linspace(-1, 1, 64 * 48).view(64, 48).to(dtype), torch.ones(3, 48, dtype=dtype)
        with torch.no_grad():
            packed_weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR)
            found = linear(x, packed_weight, x.new_ones(3, 64)) + linear(x, packed_weight, x.new_ones(64))
        return bool(torch.allclose(found.float(), 2 * (x.float() @ weight.float().t() + 1), atol=0.5))
    except (AttributeError, RuntimeError):  # another version of torch, or a build without oneDNN
        return False


def linear(x_ME: Tensor, weight_NE: Tensor | Int8Weight, add: Tensor | None = None) -> Tensor:
    """x · weightᵀ and `add`, of shape (N,) or (M, N); differentiable unless the weight is packed."""
    if isinstance(weight_NE, Int8Weight):
        return weight_NE.product(x_ME) if add is None else weight_NE.product(x_ME) + add
    if weight_NE.is_mkldnn:
        if add is not None and add.dim() == 2:
            return torch.ops.mkldnn._linear_pointwise.binary(x_ME, add, weight_NE, None, "add")
        return torch.ops.mkldnn._linear_pointwise.default(x_ME, weight_NE, add, "none", [], "")
    native = products_for(x_ME, weight_NE)
    if torch.is_grad_enabled() and (native or _is_small(x_ME, weight_NE)):
        return _Linear.apply(x_ME, weight_NE, add, native)
    return _linear(native, x_ME, weight_NE, add)


def _linear(native: Kernels | None, x_ME: Tensor, weight_NE: Tensor, add: Tensor | None) -> Tensor:
    if native is not None:
        return native.product(x_ME, weight_NE.t(), add)
    return F.linear(x_ME, weight_NE) if add is None else torch.addmm(add, x_ME, weight_NE.t())


def _is_small(x: Tensor, weight: Tensor) -> bool:
    """Whether the order of the factors matters for the gradient of a weight."""
    return x.dtype == torch.bfloat16 and x.device.type == "cpu" and weight.numel() < SMALLEST_PACKED


def weight_gradient(native: Kernels | None, grad_MN: Tensor, x_ME: Tensor, weight_NE: Tensor) -> Tensor:
    """gradᵀ · x, where `native` comes from `products_for`.

    oneDNN computes it up to an eighth faster where the second factor is the wider one, and the weight small.
    """
    if native is None and _is_small(x_ME, weight_NE) and grad_MN.shape[1] > x_ME.shape[1]:
        return (x_ME.t() @ grad_MN).t()
    return product(native, grad_MN.t(), x_ME)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_ME: Tensor, weight_NE: Tensor, add: Tensor | None, native: Kernels | None
    ) -> Tensor:
        ctx.save_for_backward(x_ME, weight_NE)
        ctx.native, ctx.add_shape = native, None if add is None else add.shape
        return _linear(native, x_ME, weight_NE, add)

    @staticmethod
    def backward(ctx: Any, grad_MN: Tensor) -> tuple[Tensor | None, ...]:
        x_ME, weight_NE = ctx.saved_tensors
        of_x, of_weight, of_add, _ = ctx.needs_input_grad
        return (
            product(ctx.native, grad_MN, weight_NE) if of_x else None,
            weight_gradient(ctx.native, grad_MN, x_ME, weight_NE) if of_weight else None,
            grad_MN.sum_to_size(ctx.add_shape) if of_add else None,
            None,
        )
