"""Packed weights and those of 8 bits compute what plain ones do, and rows that join change no answer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from greenward.common.errors import ConfigError, GreenwardError
from greenward.config.sections import LoraConfig, ShapeConfig
from greenward.models import products, sampler
from greenward.models.lora import shared_copy
from greenward.models.policy import Policy, release_sampling
from greenward.models.products import Int8Weight, linear, packed, packs
from greenward.models.scoring import GroupBatch
from greenward.rollouts.protocols import SamplingParams

SHAPE = ShapeConfig(layers=2, hidden_size=256, heads=4, kv_heads=2, intermediate_size=512, max_positions=160)
PROMPTS = [[5, 6, 7], [9] * 12, [4, 8, 15, 16, 23, 42], [30, 31], [7] * 40]
TYPES = [torch.float32, torch.bfloat16]

needs_packing = pytest.mark.skipif(
    not packs(torch.empty(1024, 1024), torch.float32), reason="torch has no packed products here"
)


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of the size of tests are packed, too, and greenward's own products serve none of them."""
    monkeypatch.setattr(products, "SMALLEST_PACKED", 1)
    monkeypatch.setattr(products, "LARGEST_WEIGHT", 1)


@pytest.fixture
def folder(tokenizer, tmp_path: Path) -> Path:
    policy = Policy.random(SHAPE, tokenizer, seed=1, device="cpu")
    with torch.no_grad():
        policy.model.embedding.mul_(8)
        policy.model.embedding[tokenizer.eos_id].mul_(3)
    policy.save(tmp_path / "model")
    return tmp_path / "model"


@needs_packing
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 2, 5, 16, 33, 200])
def test_products_of_packed_weights_are_those_of_plain_ones(dtype: torch.dtype, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, weight = (torch.randn(n, 96, generator=generator).to(dtype) for n in (rows, 130))
    if not packs(weight, dtype):
        pytest.skip(f"no packed products of {dtype} here")
    bias, rest = (torch.randn(size, generator=generator).to(dtype) for size in ((130,), (rows, 130)))
    with torch.no_grad():
        for add in (None, bias, rest):
            want = x.double() @ weight.double().t() + (0 if add is None else add.double())
            found = linear(x, packed(weight), add).double()
            assert (found - want).abs().max() < (1e-4 if dtype == torch.float32 else 0.15)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 4, 9])
def test_weights_of_8_bits_are_as_near_as_rounding_allows(dtype: torch.dtype, rows: int) -> None:
    """Each number is off by at most half a step of its row, |w|max / 127, and the sums by as much."""
    generator = torch.Generator().manual_seed(rows)
    x, weight = (torch.randn(n, 64, generator=generator).to(dtype) for n in (rows, 48))
    add = torch.randn(rows, 48, generator=generator).to(dtype)
    with torch.no_grad():
        found = linear(x, Int8Weight.of(weight), add).double()
    want = x.double() @ weight.double().t() + add.double()
    half_steps = weight.double().abs().amax(1) / 254
    bound = x.double().abs().sum(1, keepdim=True) * half_steps
    rounding = 1e-5 if dtype == torch.float32 else 2**-7
    scale = x.double().abs() @ weight.double().abs().t() + add.double().abs()
    assert ((found - want).abs() <= bound + rounding * scale).all()
    assert (found - want).abs().max() > 0  # it is quantised


def answers(policy: Policy, temperature: float = 0.0, number: int = 1) -> list[list[list[int]]]:
    params = SamplingParams(max_tokens=30, temperature=temperature)
    return [[c.token_ids.tolist() for c in group] for group in policy.sample(PROMPTS, number, params, seed=3)]


@needs_packing
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_policy_for_inference_samples_as_one_that_is_trained_and_holds_its_weights_once(
    folder: Path, dtype: str
) -> None:
    trained, served = (
        make(folder, dtype=dtype, device="cpu") for make in (Policy.from_folder, Policy.for_inference)
    )
    assert served.model.is_packed or not served.model.packs
    held = {p.dtype for p in served.parameters()}
    assert held == {getattr(torch, dtype)} and not any(p.requires_grad for p in served.parameters())
    batch = GroupBatch.build(PROMPTS, [[[3, 4, 5]]] * len(PROMPTS))
    with torch.no_grad():
        scores = [one.completion_logprobs(batch).logprobs_BT for one in (trained, served)]
    torch.testing.assert_close(*scores, atol=1e-4 if dtype == "float32" else 0.2, rtol=0)
    if dtype == "float32":
        assert answers(served) == answers(trained)
        assert answers(served, 1.0, 3) == answers(trained, 1.0, 3)


@needs_packing
def test_packed_copies_follow_the_weights(folder: Path) -> None:
    policy = Policy.from_folder(folder, device="cpu")
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.5)
    before = answers(policy)
    batch = GroupBatch.build(PROMPTS, [[[3, 4, 5]]] * len(PROMPTS))
    policy.completion_logprobs(batch).logprobs_BT.sum().backward()
    optimizer.step()
    after = answers(policy)
    assert policy._decoding.decoder.is_packed  # type: ignore[attr-defined]
    fresh = shared_copy(policy.model)
    assert after != before and after == answers(Policy(fresh, policy.tokenizer, dtype=policy.dtype))


@needs_packing
def test_an_adapter_is_sampled_over_packed_weights(folder: Path) -> None:
    policy = Policy.from_folder(folder, device="cpu")
    plain = answers(policy)
    policy = Policy.from_folder(folder, device="cpu", frozen=True)
    policy.add_adapter(LoraConfig(r=4, alpha=8), seed=0)
    assert answers(policy) == plain
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))
    found = answers(policy)
    batch = GroupBatch.build(PROMPTS, [[ids] for (ids,) in found])
    with torch.no_grad():
        scores = policy.completion_logprobs(batch).logprobs_BT
    drawn = policy.sample(PROMPTS, 1, SamplingParams(max_tokens=30, temperature=0.0), seed=3)
    for row, (one,) in zip(scores, drawn, strict=True):
        torch.testing.assert_close(
            row[: len(one.logprobs)], torch.from_numpy(one.logprobs), atol=1e-4, rtol=1e-4
        )
    assert found != plain


def test_int8_is_for_inference_on_cpus_by_our_decoder(folder: Path) -> None:
    policy = Policy.for_inference(folder, dtype="int8", device="cpu")
    assert policy.computed_in == policy.frozen_copy().computed_in == "int8"
    assert all(len(one) for (one,) in answers(policy))
    scored = policy.sample(PROMPTS, 1, SamplingParams(max_tokens=1, temperature=0.0), seed=0)
    plain = Policy.from_folder(folder, device="cpu")
    batch = GroupBatch.build(PROMPTS, [[one.token_ids] for (one,) in scored])
    with torch.no_grad():
        logprobs = plain.completion_logprobs(batch).logprobs_BT[:, 0]
    for near, (one,) in zip(logprobs.tolist(), scored, strict=True):
        assert abs(near - float(one.logprobs[0])) < 0.5


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_what_is_for_inference_is_neither_trained_nor_saved(folder: Path, tmp_path: Path, dtype: str) -> None:
    policy = Policy.for_inference(folder, dtype=dtype, device="cpu")
    if not policy.model.is_packed:
        pytest.skip("nothing is packed here")
    assert answers(policy.frozen_copy()) == answers(policy)
    for refused in (policy.trainable_copy, policy.state_dict, lambda: policy.save(tmp_path / "saved")):
        with pytest.raises(GreenwardError, match="for inference"):
            refused()
    assert not (tmp_path / "saved").exists()


def test_int8_of_another_architecture_is_refused(tmp_path: Path, tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": tokenizer.vocab_size, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    with pytest.raises(ConfigError, match=r"8 bits .* found another architecture"):
        Policy.for_inference(tmp_path, dtype="int8", device="cpu")


@pytest.mark.parametrize("dtype", ["int8", "int4", "float64", ""])
def test_what_is_no_type_of_arithmetic_is_refused_by_name(folder: Path, dtype: str) -> None:
    with pytest.raises(ConfigError, match=f"expected one of auto, float32.* found '{dtype}'"):
        Policy.from_folder(folder, dtype=dtype, device="cpu")


def test_places_of_rows_that_end_are_taken_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 4 places, steps compute 4 rows as long as answers wait, and their number is that of a full batch."""
    policy = Policy.from_folder(folder, device="cpu")
    if not policy._decoding.joins:
        pytest.skip("rows join where kernels serve")
    params = SamplingParams(max_tokens=60)
    together = policy.sample(PROMPTS, 6, params, seed=2)
    lengths = [len(one.token_ids) for group in together for one in group]
    assert len(set(lengths)) > 3
    rows: Counter[int] = Counter()
    step = sampler.NativeDecoding.step

    def counted(self: sampler.NativeDecoding, token_ids_B: torch.Tensor) -> torch.Tensor:
        rows[len(token_ids_B)] += 1
        return step(self, token_ids_B)

    monkeypatch.setattr(sampler.NativeDecoding, "step", counted)
    monkeypatch.setattr(policy, "max_rows", 4)
    few = policy.sample(PROMPTS, [1] * len(PROMPTS), params, seed=2)
    assert [one.token_ids.tolist() for (one,) in few] == [group[0].token_ids.tolist() for group in together]
    rows.clear()
    prompts = [[3 + n % 40, 4 + n] for n in range(60)]
    drawn = policy.sample(prompts, 1, params, seed=2)
    tokens = sum(len(one.token_ids) for (one,) in drawn) - len(prompts)  # the first comes with the prompt
    assert sum(number * count for number, count in rows.items()) == tokens
    assert sum(rows.values()) <= tokens / 4 + params.max_tokens
    assert rows[4] >= 0.8 * sum(rows.values())


def test_memory_of_places_is_free_again(folder: Path) -> None:
    policy = Policy.from_folder(folder, device="cpu")
    if not policy._decoding.joins:
        pytest.skip("rows join where kernels serve")
    policy.sample(PROMPTS, 3, SamplingParams(max_tokens=20), seed=0)
    attention = policy._decoding._attention  # type: ignore[attr-defined]
    assert sorted(attention.free.tolist()) == list(range(3 * len(PROMPTS)))
    assert attention.prefill_B == []


@needs_packing
@pytest.mark.parametrize("adapted", [False, True])
def test_released_weights_are_packed_again_for_the_next_batch(folder: Path, adapted: bool) -> None:
    policy = Policy.from_folder(folder, device="cpu", frozen=adapted)
    if adapted:
        policy.add_adapter(LoraConfig(r=4, alpha=8), seed=0)
    release_sampling(policy)  # which has not sampled yet
    before = answers(policy)
    decoder = policy._decoding.decoder  # type: ignore[attr-defined]
    for _ in range(2):
        release_sampling(policy)
        assert (
            decoder.packed_head is None
            and decoder.layers[0].qkv is None
            and policy.model.layers[0].qkv is not None
        )
        batch = GroupBatch.build(PROMPTS, [[[3, 4, 5]]] * len(PROMPTS))
        assert policy.completion_logprobs(batch).logprobs_BT.isfinite().all()
        assert answers(policy) == before and decoder.packed_head is not None
    served = Policy.for_inference(folder, device="cpu")
    found = answers(served)
    release_sampling(served)  # whose packed weights are the only ones
    assert answers(served) == found
