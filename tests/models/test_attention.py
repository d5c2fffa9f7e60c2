from __future__ import annotations

import pytest
import torch

from greenward.models import attention, scoring
from greenward.models.attention import attend, attend_backward, merge, padding_mask


def tensors(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def plain(query, key, value, hidden):
    """Softmax attention from its definition; `hidden` is True where a key may not be seen."""
    repeat = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    scores = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).masked_fill(hidden, float("-inf"))
    return torch.softmax(scores, -1) @ value, scores.logsumexp(-1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("flash", [True, False])
def test_attention_and_its_gradient_follow_the_definition(monkeypatch, flash, causal, masked):
    if not flash:
        monkeypatch.setattr(attention, "_FLASH_DEVICES", ())
    query, key, value, grad = tensors((2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8), (2, 4, 5, 8))
    mask = padding_mask([5, 3], 5, torch.float32, torch.device("cpu")) if masked else None
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else torch.zeros(5, 5, dtype=torch.bool)
    if mask is not None:
        hidden = hidden | torch.isinf(mask)
    inputs = [x.requires_grad_() for x in (query, key, value)]
    expected, expected_lse = plain(*inputs, hidden)
    expected.backward(grad)
    with torch.no_grad():
        out, lse = attend(*inputs, causal=causal, mask_B11S=mask)
        grads = attend_backward(grad, *inputs, out, lse, causal=causal, mask_B11S=mask)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse, expected_lse, atol=1e-5, rtol=1e-5)
    for found, tensor in zip(grads, inputs, strict=True):
        torch.testing.assert_close(found, tensor.grad, atol=1e-5, rtol=1e-5)


def test_two_sets_of_keys_merge_into_one_softmax():
    query, key, value, grad = tensors((1, 2, 3, 4), (1, 2, 9, 4), (1, 2, 9, 4), (1, 2, 3, 4))
    parts = [(key[:, :, :6], value[:, :, :6]), (key[:, :, 6:], value[:, :, 6:])]
    expected, expected_lse = attend(query, key, value)
    out, lse = merge(*(attend(query, *part) for part in parts))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)
    whole = attend_backward(grad, query, key, value, expected, expected_lse)
    first, second = (attend_backward(grad, query, *part, out, lse) for part in parts)
    torch.testing.assert_close(first[0] + second[0], whole[0])
    torch.testing.assert_close(torch.cat((first[1], second[1]), 2), whole[1])
    torch.testing.assert_close(torch.cat((first[2], second[2]), 2), whole[2])


@pytest.mark.parametrize("size", [6, 16], ids=["torch", "kernels, where there are any"])
@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kept", [0, 10_000])
@pytest.mark.parametrize("numbers", [1, 50, 10_000])
def test_scores_do_not_depend_on_the_chunks_and_on_what_is_kept(
    monkeypatch, numbers, kept, frozen, with_entropy, size
):
    monkeypatch.setattr(scoring, "CHUNK_NUMBERS", numbers)
    monkeypatch.setattr(scoring, "KEPT_NUMBERS", kept)
    hidden, unembedding, weights = tensors((13, size), (11, size), (2, 13))
    targets = torch.arange(13) % 11
    results = []
    for score in (chunked, from_logits):
        inputs = [hidden.clone().requires_grad_(), unembedding.clone().requires_grad_(not frozen)]
        logprobs, entropy = score(*inputs, targets)
        (logprobs * weights[0] + (entropy * weights[1] if with_entropy else 0)).sum().backward()
        results.append((logprobs, entropy, *(x.grad for x in inputs if x.requires_grad)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def chunked(hidden, unembedding, targets):
    return scoring.score_tokens(hidden, unembedding, targets, temperature=0.7, entropy=True)


def from_logits(hidden, unembedding, targets):
    return scoring.score_logits(hidden @ unembedding.t(), targets, temperature=0.7, entropy=True)


def test_an_entropy_that_is_only_reported_changes_no_gradient():
    hidden, unembedding = (x.requires_grad_() for x in tensors((5, 6), (11, 6)))
    grads = []
    for entropy in (False, True):
        logprobs, _ = scoring.score_tokens(
            hidden, unembedding, torch.arange(5), temperature=1.0, entropy=entropy
        )
        grads.append(torch.autograd.grad(logprobs.sum(), (hidden, unembedding)))
    for plain_grad, with_entropy in zip(*grads, strict=True):
        assert torch.equal(plain_grad, with_entropy)
