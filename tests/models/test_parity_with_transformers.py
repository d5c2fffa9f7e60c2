"""Our decoder, sampler and scoring against transformers on the same weights."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from greenward.models import checkpoint
from greenward.models.decoder import Decoder
from greenward.models.policy import Policy
from greenward.models.sampler import row_keys, uniforms
from greenward.models.scoring import GroupBatch
from greenward.rollouts.protocols import SamplingParams, StopReason

transformers = pytest.importorskip("transformers")
from transformers.generation.logits_process import (  # noqa: E402
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 5000.0,
}
SHAPES = {
    "qwen2.5, tied, grouped queries": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2.5, untied": ("qwen2", {"tie_word_embeddings": False, "num_key_value_heads": 4}),
    "qwen3, wide heads": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "llama, untied, one key head": ("llama", {"num_key_value_heads": 1}),
    "llama 3.1 rope": ("llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "gpt2 through the fallback": ("gpt2", {}),
}
PROMPTS = [[5, 7, 11, 13, 17], [3, 4], list(range(20, 49))]


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys(), scope="module")
def folder(request, published):
    family, overrides = request.param
    return published(family, **overrides)


def reference(folder, dtype=torch.float32):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def reference_scores(model, prompt, completion, temperature=1.0):
    """(T,) log-probabilities and (T,) entropies from one plain forward pass."""
    logits = model(torch.tensor([[*prompt, *completion]])).logits[0].float() / temperature
    logprobs = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
    chosen = logprobs.gather(1, torch.tensor(completion)[:, None]).squeeze(1)
    return chosen, -(logprobs.exp() * logprobs).sum(-1)


def ragged_completions():
    random = np.random.default_rng(0)
    return [
        [random.integers(2, 200, size=length).tolist() for length in lengths]
        for lengths in ([3, 9, 1], [6], [2, 2])
    ]


def flat(groups):
    return [(prompt, c) for prompt, group in zip(PROMPTS, groups, strict=True) for c in group]


def test_hidden_states_are_those_that_the_tokens_are_predicted_from(folder):
    completions = ragged_completions()
    policy = Policy.from_folder(folder, device="cpu")
    batch = GroupBatch.build(PROMPTS, completions)
    with torch.no_grad():
        alone = policy.completion_hidden(batch)
        with_scores = policy.completion_logprobs(batch, hidden=True).hidden_SE
        model = reference(folder)
        expected = [
            model(torch.tensor([[*prompt, *completion]]), output_hidden_states=True).hidden_states[-1][
                0, len(prompt) - 1 : -1
            ]
            for prompt, completion in flat(completions)
        ]
    assert alone.shape == (len(torch.cat(expected)), policy.hidden_size)
    torch.testing.assert_close(alone, torch.cat(expected), atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(with_scores, alone)


def test_scores_and_gradients_equal_the_plain_computation(folder):
    temperature = 0.7
    completions = ragged_completions()
    policy = Policy.from_folder(folder, device="cpu")
    batch = GroupBatch.build(PROMPTS, completions)
    scores = policy.completion_logprobs(batch, temperature=temperature, entropy=True)
    weights = torch.randn(scores.logprobs_BT.shape, generator=torch.Generator().manual_seed(1))
    weights = weights / batch.completion_mask_BT.sum()
    (scores.logprobs_BT * weights).sum().backward(retain_graph=True)
    (scores.entropy_BT * weights.flip(0)).sum().backward()

    model = reference(folder)
    loss = torch.tensor(0.0)
    for b, (prompt, completion) in enumerate(flat(completions)):
        T = len(completion)
        logprobs, entropy = reference_scores(model, prompt, completion, temperature)
        torch.testing.assert_close(scores.logprobs_BT[b, :T], logprobs, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(scores.entropy_BT[b, :T], entropy, atol=1e-5, rtol=1e-5)
        assert not scores.logprobs_BT[b, T:].any() and not scores.entropy_BT[b, T:].any()
        loss = loss + (logprobs * weights[b, :T]).sum() + (entropy * weights.flip(0)[b, :T]).sum()
    loss.backward()
    for name, expected in published_gradients(model).items():
        found = published_gradients_of_policy(policy)[name]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def published_gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def published_gradients_of_policy(policy):
    """Gradients under published names, by splitting a decoder whose weights are the gradients."""
    from greenward.models.checkpoint import published_tensors
    from greenward.models.decoder import Decoder

    if not isinstance(policy.model, Decoder):
        return published_gradients(policy.model)
    gradients = Decoder(policy.model.shape)
    with torch.no_grad():
        for target, source in zip(gradients.parameters(), policy.model.parameters(), strict=True):
            target.copy_(source.grad)
    return published_tensors(gradients)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`:FutureWarning")
def test_gradient_checkpointing_changes_no_gradient(folder):
    gradients = []
    for enabled in (False, True):
        policy = Policy.from_folder(folder, device="cpu", gradient_checkpointing=enabled)
        batch = GroupBatch.build(PROMPTS, ragged_completions())
        policy.completion_logprobs(batch).logprobs_BT.sum().backward()
        gradients.append([p.grad for p in policy.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed, atol=1e-6, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`:FutureWarning")
def test_gradient_checkpointing_changes_no_sample(folder):
    sampled = []
    for enabled in (False, True):
        policy = Policy.from_folder(folder, device="cpu", gradient_checkpointing=enabled)
        groups = policy.sample(PROMPTS, 3, SamplingParams(max_tokens=8), seed=1)
        sampled.append([completion.token_ids.tolist() for group in groups for completion in group])
    assert sampled[0] == sampled[1]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=24, temperature=1.0),
        SamplingParams(max_tokens=24, temperature=0.6),
    ],
    ids=["temperature 1", "temperature 0.6"],
)
def test_sampled_logprobs_equal_recomputed_ones(folder, params):
    policy = Policy.from_folder(folder, device="cpu")
    model = reference(folder)
    groups = policy.sample(PROMPTS, 3, params, seed=4)
    for prompt, completion in flat(groups):
        expected, _ = reference_scores(model, prompt, completion.token_ids.tolist(), params.temperature)
        np.testing.assert_allclose(completion.logprobs, expected.detach(), atol=1e-4)


@pytest.mark.parametrize("max_rows", [4, 512])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=20, temperature=0.7, top_k=9, top_p=0.8, stop_strings=("e", "re")),
        SamplingParams(max_tokens=12, temperature=1.5, stop_strings=("\n", " x")),
        SamplingParams(max_tokens=1, top_p=0.5),
    ],
    ids=["filtered", "hot", "one token"],
)
def test_tokens_are_those_that_the_same_random_numbers_draw_from_transformers(folder, params, max_rows):
    """Where rows wait for the places of others, too; a number at the edge of two tokens may draw either."""
    policy = Policy.from_folder(folder, device="cpu")
    policy.max_rows = max_rows
    model, tokenizer = reference(folder), policy.tokenizer
    sizes, edges, tokens = [9, 1, 4], 0, 0
    groups = policy.sample(PROMPTS, sizes, params, seed=5)
    for prompt, group, keys in zip(PROMPTS, groups, row_keys(PROMPTS, sizes, [5] * 3), strict=True):
        for completion, drawn in zip(group, uniforms(keys, params.max_tokens), strict=True):
            ids = completion.token_ids.tolist()
            with torch.inference_mode():
                logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].double()
            logits = TemperatureLogitsWarper(params.temperature)(None, logits)
            logits = TopKLogitsWarper(params.top_k)(None, logits) if params.top_k else logits
            logits = TopPLogitsWarper(params.top_p)(None, logits) if params.top_p < 1 else logits
            chances = torch.softmax(logits, -1)
            cdf, number = chances.cumsum(-1), torch.from_numpy(drawn[: len(ids)]).double()[:, None]
            is_edge = ((cdf - number).abs() < 1e-4).any(-1)
            expected = torch.searchsorted(cdf, number, right=True).squeeze(1)
            assert ((expected == torch.tensor(ids)) | is_edge).all()
            edges, tokens = edges + int(is_edge.sum()), tokens + len(ids)
            texts = [b"".join(tokenizer.token_bytes[i] for i in ids[:end]).decode(errors="replace")
                     for end in (-1, len(ids))]  # fmt: skip
            stopped = [any(stop in text for stop in params.stop_strings) for text in texts]
            ended = {
                StopReason.END: ids[-1] in tokenizer.eos_ids,
                StopReason.STOP_STRING: stopped[1],
                StopReason.LENGTH: len(ids) == params.max_tokens and not stopped[1],
            }
            assert ended[completion.stop_reason] and not stopped[0]
            assert not set(ids[:-1]) & set(tokenizer.eos_ids)
    assert edges < tokens / 4


def test_greedy_tokens_equal_generate(folder):
    policy = Policy.from_folder(folder, device="cpu")
    model = reference(folder)
    groups = policy.sample(PROMPTS, 1, SamplingParams(max_tokens=16, temperature=0.0), seed=0)
    for prompt, completion in flat(groups):
        generated = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=16,
            do_sample=False,
        )[0, len(prompt) :].tolist()
        assert completion.token_ids.tolist() == generated
        expected, _ = reference_scores(model, prompt, generated)
        np.testing.assert_allclose(completion.logprobs, expected.detach(), atol=1e-4)


@pytest.mark.parametrize("files", [1, 5])
def test_a_saved_folder_is_read_by_transformers_with_equal_logits(folder, tmp_path, monkeypatch, files):
    (whole,) = folder.glob("*.safetensors")
    if files > 1:
        monkeypatch.setattr(checkpoint, "_FILE_BYTES", whole.stat().st_size // files)
    policy = Policy.from_folder(folder, device="cpu")
    policy.save(tmp_path / "saved")
    written = list((tmp_path / "saved").glob("*.safetensors"))
    assert (len(written) > 1) == (files > 1 and isinstance(policy.model, Decoder))
    again = Policy.from_folder(tmp_path / "saved", device="cpu")
    assert all(map(torch.equal, again.parameters(), policy.parameters()))
    token_ids = torch.tensor([PROMPTS[2]])
    expected, found = reference(folder)(token_ids).logits, reference(tmp_path / "saved")(token_ids).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    before, after = (json.loads((f / "config.json").read_text()) for f in (folder, tmp_path / "saved"))
    assert before["architectures"] == after["architectures"]


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_bfloat16_checkpoints_load_and_agree(published, family):
    folder = published(family, dtype=torch.bfloat16)
    policy = Policy.from_folder(folder, dtype="bfloat16", device="cpu")
    assert all(p.dtype == torch.float32 for p in policy.parameters())
    exact, rounded = reference(folder), reference(folder, torch.bfloat16)
    completions = ragged_completions()
    scores = policy.completion_logprobs(GroupBatch.build(PROMPTS, completions)).logprobs_BT
    for b, (prompt, completion) in enumerate(flat(completions)):
        expected, _ = reference_scores(exact, prompt, completion)
        ours = (scores[b, : len(completion)] - expected).abs().max()
        theirs = (reference_scores(rounded, prompt, completion)[0] - expected).abs().max()
        assert ours < 2 * theirs + 0.05
    for group in policy.sample(PROMPTS, 2, SamplingParams(max_tokens=8), seed=0):
        assert all(c.stop_reason in (StopReason.LENGTH, StopReason.END) for c in group)


def test_sharded_checkpoints_load(published):
    whole, sharded = published("llama"), published("llama", shards="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    first, second = (Policy.from_folder(f, device="cpu").state_dict() for f in (whole, sharded))
    for name in first:
        assert torch.equal(first[name], second[name])
