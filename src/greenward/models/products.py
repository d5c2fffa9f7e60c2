"""Computes matrix products by torch or a faster kernel. Shape suffixes: M rows, E inner size, N columns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from greenward.models.kernels.build import kernels
from greenward.models.kernels.native import Kernels

# Weights are packed for every product, which takes longer than the product with few rows and a large weight.
_LARGEST_WEIGHT = 1 << 20


def serving(x: Tensor, size: int | None = None) -> Kernels | None:
    """The kernels, where they serve rows of `size` numbers (those of x's last dimension)."""
    return kernels() if Kernels.serve(x, size) else None


def products_for(x: Tensor, weight: Tensor) -> Kernels | None:
    """The kernels, where they serve products of x and of gradients with this weight; of the weight alone it
    depends, and not on the rows of x, so that a row is computed alike in every batch.
    """
    if x.dtype != torch.float32 or x.device.type != "cpu" or not 0 < weight.numel() <= _LARGEST_WEIGHT:
        return None
    native = kernels()
    return native if native and native.products and len(x) else None


def product(native: Kernels | None, a_ME: Tensor, b_EN: Tensor) -> Tensor:
    """a · b, where `native` comes from `products_for`."""
    return native.product(a_ME, b_EN) if native else a_ME @ b_EN


def linear(x_ME: Tensor, weight_NE: Tensor, add: Tensor | None = None) -> Tensor:
    """x · weightᵀ and `add`, of shape (N,) or (M, N); differentiable."""
    if (native := products_for(x_ME, weight_NE)) is None:
        return F.linear(x_ME, weight_NE) if add is None else torch.addmm(add, x_ME, weight_NE.t())
    if torch.is_grad_enabled():
        return _Linear.apply(x_ME, weight_NE, add, native)
    return native.product(x_ME, weight_NE.t(), add)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ME: Tensor, weight_NE: Tensor, add: Tensor | None, native: Kernels) -> Tensor:
        ctx.save_for_backward(x_ME, weight_NE)
        ctx.native, ctx.add_shape = native, None if add is None else add.shape
        return native.product(x_ME, weight_NE.t(), add)

    @staticmethod
    def backward(ctx: Any, grad_MN: Tensor) -> tuple[Tensor | None, ...]:
        x_ME, weight_NE = ctx.saved_tensors
        of_x, of_weight, of_add, _ = ctx.needs_input_grad
        return (
            ctx.native.product(grad_MN, weight_NE) if of_x else None,
            ctx.native.product(grad_MN.t(), x_ME) if of_weight else None,
            grad_MN.sum_to_size(ctx.add_shape) if of_add else None,
            None,
        )
