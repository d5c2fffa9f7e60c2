"""Tests a compiled library apart, as it may crash: `python -m greenward.models.kernels.self_test LIBRARY`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from greenward.models.attention import SharedPrefixAttention
from greenward.models.decoder import Attention, Decoder, DecoderShape
from greenward.models.kernels.attention import KernelAttention, KernelDecodeAttention, KernelPrefill
from greenward.models.kernels.build import FASTER_PRODUCTS, SWITCH
from greenward.models.kernels.native import Kernels
from greenward.models.kernels.step import KernelStep
from greenward.models.scoring import GroupBatch

# The largest difference from float32 torch, beside the largest number: rounding, with room.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def differences(
    native: Kernels, dtype: torch.dtype, *, heads: int, kv_heads: int, head_dim: int
) -> dict[str, float]:
    """The relative difference of every kernel from torch in float32."""
    generator = torch.Generator().manual_seed(head_dim)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(dtype)

    found = {}
    x, grad, up, weight = random(300, 64), random(300, 64), random(300, 64), random(64)
    exact, w = (one.float().clone().requires_grad_() for one in (x, weight))
    F.rms_norm(exact, (64,), w, 1e-6).backward(grad.float())
    normed, scale = native.rms_norm(x, weight, 1e-6)
    grad_x, grad_w = native.rms_norm_backward(grad, x, weight, scale, with_weight=True)
    found["rms_norm"] = relative_error(normed, F.rms_norm(exact.detach(), (64,), w.detach(), 1e-6))
    found["rms_norm_backward"] = max(relative_error(grad_x, exact.grad), relative_error(grad_w, w.grad))
    gate, raised = (one.float().clone().requires_grad_() for one in (x, up))
    gated = F.silu(gate) * raised
    gated.backward(grad.float())
    gate_up = torch.cat([x, up], dim=1)
    found["swiglu"] = relative_error(native.swiglu(gate_up), gated.detach())
    grads = native.swiglu_backward(grad, gate_up).chunk(2, dim=1)
    found["swiglu_backward"] = max(map(relative_error, grads, (gate.grad, raised.grad)))
    logits, targets = random(50, 37), torch.arange(50) % 37
    free = logits.float().clone().requires_grad_()
    spread = torch.log_softmax(free * 0.7, dim=1)
    want = spread.gather(1, targets[:, None]).squeeze(1), -(spread.exp() * spread).sum(1)
    slopes = torch.linspace(-1, 1, 50), torch.linspace(2, -1, 50)
    torch.autograd.backward(want, slopes)
    logprobs, lse, entropy = torch.empty(3, 50)
    native.score(logits, targets, 0.7, logprobs, lse, entropy)
    found["score"] = max(relative_error(logprobs, want[0]), relative_error(entropy, want[1]))
    grad_logits = native.score_backward(logits, targets, 0.7, lse, entropy, *slopes)
    found["score_backward"] = relative_error(grad_logits, free.grad)
    drawn = torch.linspace(0, 0.999, 50)
    tokens, chances = native.choose(logits, 0.7, drawn)
    below = spread.detach().exp().cumsum(1).gather(1, tokens[:, None]).squeeze(1)
    found["choose"] = max(
        relative_error(chances, spread.gather(1, tokens[:, None]).squeeze(1)),
        float(torch.maximum(drawn - below, below - chances.exp() - drawn).max()),
    )
    tokens, chances = native.choose_most_likely(logits)
    likely = torch.log_softmax(logits.float(), dim=1).max(1)
    found["choose_most_likely"] = max(
        relative_error(chances, likely.values), float((tokens != logits.float().argmax(1)).any())
    )
    if dtype == torch.float32:
        a, b, add = random(61, 400), random(400, 45), random(61, 45)
        forms = (
            (native.product(a, b), a @ b),
            (native.product(a.t().contiguous().t(), b.t().contiguous().t(), add), a @ b + add),
        )
        found["product"] = max(relative_error(have, wanted) for have, wanted in forms)
    found |= _attention(native, dtype, heads, kv_heads, head_dim, random)
    return found | {"decode_steps": _steps(native, dtype, heads, kv_heads, head_dim, random)}


def _attention(
    native: Kernels,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    random: Callable[..., Tensor],
) -> dict[str, float]:
    """The relative errors of training and decoding attention."""
    shape = DecoderShape(16, 64, 1, heads, kv_heads, head_dim, 64, 256)
    exact, decoder = (Decoder(shape, compute_dtype=kind) for kind in (torch.float32, dtype))
    prompts = [[1] * 21, [2] * 37, [3]]
    lengths = [[1, 40, 7], [18], [3, 1]]
    batch = GroupBatch.build(prompts, [[[4] * n for n in group] for group in lengths])
    qkv = random(len(batch.token_ids_M), heads + 2 * kv_heads, head_dim)
    grad = random(len(qkv), heads * head_dim)

    want = attended(SharedPrefixAttention(exact, batch), qkv.float(), grad)
    have = attended(KernelAttention(decoder, batch, native), qkv, grad)
    found = dict(zip(("attention", "attention_backward"), map(relative_error, have, want), strict=True))
    # The tokens of each row, one after the other, get what they got side by side.
    size, steps = 3, 20
    rows = [[[4] * (steps + 1)] * size for _ in prompts]
    batch = GroupBatch.build(prompts, rows)
    qkv = random(len(batch.token_ids_M), heads + 2 * kv_heads, head_dim)
    side_by_side = KernelAttention(decoder, batch, native)(0, qkv.clone())
    prefilled = GroupBatch.of_prompts(prompts, [size] * len(prompts), torch.device("cpu"))
    prefill = KernelPrefill(decoder, prefilled, native)
    spans = [(bucket.prompts, bucket.owns) for bucket in batch.buckets]
    prefill(0, torch.cat([qkv[prompt.start : prompt.stop] for prompt, _ in spans]))
    places = size * len(prompts)
    numbers = KernelDecodeAttention.numbers(decoder, places, steps)
    memory = torch.full((numbers,), torch.nan, dtype=dtype)  # as earlier rows may have left it
    decode = KernelDecodeAttention(decoder, native, places, steps, memory)
    decode.join(prefill, [size] * len(prompts))
    worst = 0.0
    for step in range(steps):
        decode.advance()
        at = torch.cat([own.start + torch.arange(step, own.stop - own.start, steps) for _, own in spans])
        worst = max(worst, relative_error(decode(0, qkv[at].clone()), side_by_side[at].float()))
    return found | {"decode": worst}


def _steps(
    native: Kernels,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    random: Callable[..., Tensor],
) -> float:
    """The relative error of the logits behind tokens that a small decoder has drawn."""
    shape = DecoderShape(
        37, 64, 2, heads, kv_heads, head_dim, 96, 256, qk_norm=True, qkv_bias=True, tied_embeddings=False
    )
    exact, decoder = Decoder(shape), Decoder(shape, compute_dtype=dtype)
    with torch.inference_mode():
        for parameter in exact.parameters():
            parameter.copy_(random(*parameter.shape) * parameter.shape[-1] ** -0.5)
            if parameter.dim() == 1:
                parameter.add_(1)
        decoder.load_state_dict(exact.state_dict())
        decoder = decoder.in_compute_dtype()
        prompts, sizes, steps = [[3], [1] * 21, [2] * 37], [1, 9, 20], 20
        prefilled = GroupBatch.of_prompts(prompts, sizes, torch.device("cpu"))
        prefill = KernelPrefill(decoder, prefilled, native)
        decoder(prefilled.token_ids_M, prefill)
        memory = torch.full(
            (KernelDecodeAttention.numbers(decoder, sum(sizes), steps),), torch.nan, dtype=dtype
        )
        attention = KernelDecodeAttention(decoder, native, sum(sizes), steps, memory)
        attention.join(prefill, sizes)
        step, newest_B = KernelStep(decoder, native), torch.arange(sum(sizes)) % shape.vocab_size
        uniforms_SB = torch.linspace(0, 0.999, (steps - 1) * sum(sizes)).view(-1, steps - 1).t().contiguous()
        tokens_SB, _ = step.draw(newest_B, attention, 1.0, uniforms_SB)
        logits_BV = step.logits(tokens_SB[-1], attention)
        rows = torch.cat((newest_B[None], tokens_SB, newest_B[None])).t().tolist()  # the last one is not fed
        batch = GroupBatch.build(prompts, [rows[:1], rows[1:10], rows[10:]])
        hidden_ME = exact(batch.token_ids_M, SharedPrefixAttention(exact, batch))
        ends = batch.predicting_U[batch.scored_from_S].view(-1, steps + 1)[:, -1]
        return relative_error(logits_BV, hidden_ME[ends] @ exact.unembedding_VE.t())


def attended(attention: Attention, qkv: Tensor, grad: Tensor, *, differentiable: bool = True) -> list[Tensor]:
    """What an attention gives for `qkv` and, if `differentiable`, the gradient that `grad` becomes."""
    leaf = qkv.clone().requires_grad_(differentiable)
    out = attention(0, leaf * 1)
    return [out, *(torch.autograd.grad(out, leaf, grad.to(out.dtype)) if differentiable else ())]


def relative_error(have: Tensor | None, want: Tensor | None) -> float:
    """max |have - want| / max |want|; infinite where either is not finite."""
    assert have is not None and want is not None
    have, want = have.detach().float(), want.detach()
    difference = (have - want).abs().max() / want.abs().max()
    return float(difference) if difference.isfinite() else float("inf")


def products_are_faster(native: Kernels) -> bool:
    """Whether the products of a linear layer and of its gradients take at most 80 % of the time of torch."""
    torch.set_num_threads(1)
    x, weight, grad = torch.ones(2048, 128), torch.ones(384, 128), torch.ones(2048, 384)

    def seconds(product: Callable[[Tensor, Tensor], Tensor]) -> float:
        began = time.thread_time()
        for pair in ((x, weight.t()), (grad, weight), (grad.t(), x)):
            product(*pair)
        return time.thread_time() - began

    rounds = [(seconds(native.product), seconds(torch.mm)) for _ in range(8)]
    ours, theirs = map(min, zip(*rounds, strict=True))
    return ours < 0.8 * theirs


def main(library: str) -> int:
    """0 where every kernel agrees, else 1 and the differences on standard error.

    Prints FASTER_PRODUCTS where they are.
    """
    os.environ[SWITCH] = "off"  # a decoder would look for kernels, and so compile and test them
    native = Kernels(Path(library))
    for dtype, limit in TOLERANCE.items():
        for heads, kv_heads, head_dim in ((4, 4, 32), (4, 2, 16), (6, 2, 48), (2, 1, 64), (2, 2, 128)):
            found = differences(native, dtype, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
            if wrong := {name: value for name, value in found.items() if not value < limit}:
                print(f"{dtype}, heads of {head_dim}: {wrong}", file=sys.stderr)
                return 1
    if products_are_faster(native):
        print(FASTER_PRODUCTS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
