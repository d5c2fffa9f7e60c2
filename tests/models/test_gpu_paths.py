"""What GPUs compute by, on the CPU: flex attention, seldom checks of ended rows, and captured steps."""

from __future__ import annotations

import os
import shutil
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch._dynamo  # which takes seconds; an optimizer does it, too
from torch.nn.attention import flex_attention as torch_flex
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from greenward.config.sections import ShapeConfig
from greenward.models import attention, flex, sampler
from greenward.models.attention import SharedPrefixAttention
from greenward.models.decoder import Decoder, DecoderShape
from greenward.models.kernels.build import SWITCH, kernels
from greenward.models.kernels.self_test import TOLERANCE, relative_error
from greenward.models.policy import Policy
from greenward.models.scoring import GroupBatch
from greenward.rollouts.protocols import SamplingParams, StopReason

PROMPTS = [[5, 6, 7], [9] * 12, [4, 8, 15, 16, 23, 42], [30, 31]]
SHAPE = ShapeConfig(layers=2, hidden_size=32, heads=4, kv_heads=2, intermediate_size=48, max_positions=64)


@pytest.fixture
def by_torch(monkeypatch):
    """Without the compiled kernels, which CPUs have."""
    kernels.cache_clear()
    monkeypatch.setenv(SWITCH, "off")
    yield
    kernels.cache_clear()


@pytest.fixture
def gradients_on_cpus(monkeypatch):
    """The compiled kernels for CPUs have no gradient, so torch refuses it; its plain operations have one."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.fixture
def policy(tokenizer):
    """A random policy whose completions end early about as often as not."""
    policy = Policy.random(SHAPE, tokenizer, seed=1, device="cpu")
    with torch.no_grad():
        policy.model.embedding.mul_(8)
        policy.model.embedding[tokenizer.eos_id].mul_(4)
    return policy


def assert_same(first, second):
    for one, other in zip(chain(*first), chain(*second), strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.stop_reason == other.stop_reason
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


@pytest.mark.usefixtures("gradients_on_cpus")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [
        *((1, 1, 16), (6, 2, 48)),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in ((4, 4, 32), (14, 2, 64), (2, 1, 80), (2, 2, 128))
        ),
    ],
)
def test_flex_attention_gives_the_values_and_gradients_of_padded_rows(dtype, heads, kv_heads, head_dim):
    about = (torch.device("cpu"), dtype, heads, kv_heads, head_dim)
    assert flex.difference(*about, differentiable=True) < TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("prompts", "lengths"),
    [
        ([1], [[1]]),
        ([1, 130], [[2], [3, 1, 200]]),
        ([40, 50, 300], [[128, 5], [1, 1], [90] * 4]),
        ([256], [[129, 129]]),
    ],
)
def test_a_token_sees_its_own_run_and_the_prompt_of_its_group(prompts, lengths):
    """A token's id says whose it is: 1,000 for each group and 1 for each of its completions."""
    batch = GroupBatch.build(
        [[1000 * (group + 1)] * length for group, length in enumerate(prompts)],
        [
            [[1000 * (group + 1) + 1 + row] * length for row, length in enumerate(own)]
            for group, own in enumerate(lengths)
        ],
    )
    ids, positions = batch.token_ids_M, batch.positions_M
    group, row = ids // 1000, ids % 1000
    sees = (
        (group[:, None] == group) & ((row == 0) | (row[:, None] == row)) & (positions[:, None] >= positions)
    )
    found = flex.block_mask(batch, len(ids))
    size = found.seq_lengths[0]
    assert size % flex.BLOCK == 0 and len(ids) <= size < len(ids) + 2 * flex.BLOCK
    expected = torch.eye(size, dtype=torch.bool)
    expected[: len(ids), : len(ids)] = sees
    mask = torch_flex.create_mask(found.mask_mod, None, None, size, size, device="cpu")
    assert torch.equal(mask[0, 0], expected)
    made = torch_flex.create_block_mask(
        lambda b, h, query, key: expected[query, key], None, None, size, size, device="cpu"
    )
    for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "full_q_indices"):  # fmt: skip
        assert torch.equal(getattr(found, name), getattr(made, name)), name


@pytest.mark.usefixtures("by_torch", "gradients_on_cpus")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_policy_scores_and_samples_by_flex_attention_as_without(policy, monkeypatch, checkpointing):
    policy.set_gradient_checkpointing(checkpointing)
    params = SamplingParams(max_tokens=20)

    def sample_and_score():
        found = policy.sample(PROMPTS, [3, 1, 6, 2], params, seed=3)
        batch = GroupBatch.build(PROMPTS, [[one.token_ids for one in group] for group in found])
        policy.model.zero_grad()
        scores = policy.completion_logprobs(batch, entropy=True)
        (scores.logprobs_BT.sum() + scores.entropy_BT.sum()).backward()
        return found, scores, [parameter.grad.clone() for parameter in policy.parameters()]

    expected, plain, gradients = sample_and_score()
    used = []
    for module in (flex, sampler):
        monkeypatch.setattr(module, "flex_serves", lambda decoder: used.append(decoder) or True)
    found, scores, ours = sample_and_score()
    assert len(used) == 2
    assert_same(found, expected)
    torch.testing.assert_close(scores.logprobs_BT, plain.logprobs_BT, atol=1e-4, rtol=1e-4)
    for one, other in zip(ours, gradients, strict=True):
        assert relative_error(one, other) < 1e-4


def test_flex_attention_serves_on_gpus_after_it_agreed(monkeypatch):
    shape = DecoderShape(1, 1, 0, 2, 1, 16, 1, 64)
    assert not flex.flex_serves(Decoder(shape))
    on_gpu = SimpleNamespace(
        shape=shape, compute_dtype=torch.float32, embedding=SimpleNamespace(device=torch.device("cuda"))
    )
    monkeypatch.delenv(SWITCH, raising=False)
    for given, message in (
        (lambda *_, **__: 1e-6, None),
        (lambda *_, **__: 0.5, r"not used on cuda; .* differs from .* by 5.0e-01"),
        (lambda *_, **__: float("nan"), "differs"),
        (lambda *_, **__: 1 / 0, "ZeroDivisionError: division by zero"),
    ):
        flex._agrees.cache_clear()
        monkeypatch.setattr(flex, "difference", given)
        if message is None:
            assert flex.flex_serves(on_gpu)
            continue
        with pytest.warns(UserWarning, match=message):
            assert not flex.flex_serves(on_gpu)
        assert not flex.flex_serves(on_gpu)  # and does not try again
    flex._agrees.cache_clear()
    monkeypatch.setenv(SWITCH, "off")
    assert not flex.flex_serves(on_gpu)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler")
def test_compiled_flex_attention_serves_batches_of_all_lengths():
    """On a CPU, for which torch compiles values only. That kernel reads the blocks of the mask."""
    decoder = Decoder(DecoderShape(1, 1, 0, 4, 2, 32, 1, 2048))
    generator = torch.Generator().manual_seed(0)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for lengths in ([150, 1, 40], [300, 7], [900, 20, 33], [5], [1000, 90]):
        answers = [[[0] * (length // 2 + 2), [0], [0] * 30] for length in lengths]
        batch = GroupBatch.build([[0] * length for length in lengths], answers)
        qkv = torch.randn(len(batch.token_ids_M), 8, 32, generator=generator)
        with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
            want = SharedPrefixAttention(decoder, batch)(0, qkv.clone())
            patch.setattr(flex, "flex_attention", flex._compiled())
            assert relative_error(flex.FlexAttention(decoder, batch)(0, qkv), want) < 1e-5
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("every", [2, 7, 100])
@pytest.mark.parametrize("stop_strings", [(), ("e",)])
def test_rows_whose_end_is_seen_late_are_the_same(policy, monkeypatch, every, stop_strings):
    params = SamplingParams(max_tokens=20, stop_strings=stop_strings)
    expected = policy.sample(PROMPTS, [3, 9, 1, 40], params, seed=5)
    reasons = {one.stop_reason for group in expected for one in group}
    assert reasons >= {StopReason.END, StopReason.STOP_STRING if stop_strings else StopReason.LENGTH}
    draw, counts, handed = sampler.NativeDecoding.draw, [], []
    monkeypatch.setattr(sampler, "_CHECKED_EVERY", {"cpu": every})
    monkeypatch.setattr(
        sampler.NativeDecoding, "draw", lambda self, *given: counts.append(len(given[-1])) or draw(self, *given)
    )  # fmt: skip
    found = policy.sample(PROMPTS, [3, 9, 1, 40], params, seed=5, on_group=lambda n, _: handed.append(n))
    assert_same(found, expected)
    assert sorted(handed) == list(range(len(PROMPTS)))
    assert counts[:-1] == [every] * (len(counts) - 1) and counts[-1] <= every


class Recorded(TorchDispatchMode):
    """What a CUDA graph is: operations with their memory, which a replay runs again and nothing else.

    Recording leaves memory as it was. What a graph cannot hold is refused: reading a number on the host,
    memory that the host fills.
    """

    REFUSED = ("_local_scalar_dense", "nonzero", "lift_fresh", "masked_select", "is_nonzero")

    def __init__(self):
        super().__init__()
        self.calls, self.before = [], {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        assert function._schema.name.removeprefix("aten::") not in self.REFUSED, function
        given = dict(zip((a.name for a in function._schema.arguments), args, strict=False)) | kwargs
        written = [
            given[a.name] for a in function._schema.arguments if a.alias_info and a.alias_info.is_write and a.name in given
        ]  # fmt: skip
        for tensor in tree_leaves(written):
            storage = tensor.untyped_storage()
            self.before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        out = function(*args, **kwargs)
        places = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if torch.is_tensor(x)}
        results = [x for x in tree_leaves(out) if torch.is_tensor(x)]
        is_view = any(x.untyped_storage().data_ptr() in places for x in results)
        if written or not is_view:
            self.calls.append((function, args, kwargs, [] if written else results))
        return out

    def replay(self):
        for function, args, kwargs, results in self.calls:
            again = [x for x in tree_leaves(function(*args, **kwargs)) if torch.is_tensor(x)]
            for place, result in zip(results, again, strict=False):
                place.copy_(result)


class Capture:
    """Stands in for `sampler.capture`."""

    def __init__(self, policy):
        self.policy, self.captures, self.replays = policy, 0, 0

    def __call__(self, step, device):
        self.captures += 1
        counters, recording = self.policy._decoding._attention.counters, Recorded()
        torch._foreach_sub_(counters, 1)  # the operations run here, where the next place may not be there yet
        with recording:
            out = step()
        for storage, before in recording.before.values():
            storage.copy_(before)
        torch._foreach_add_(counters, 1)

        def replay():
            self.replays += 1
            recording.replay()
            return out

        return replay


@pytest.fixture
def capture(by_torch, policy, monkeypatch):
    """The operations of GPUs, and steps that are captured."""
    monkeypatch.setattr(attention, "_FLASH_DEVICES", ())
    monkeypatch.setattr(policy._decoding._graph, "_captures", True)
    monkeypatch.setattr(sampler, "captures", lambda device: policy._decoding._graph._captures)
    capture = Capture(policy)
    monkeypatch.setattr(sampler, "capture", capture)
    return capture


@pytest.mark.parametrize("growth", [(16, 8), (3, 1)])
@pytest.mark.parametrize("every", [1, 8])
def test_replayed_steps_give_what_computed_steps_give(policy, capture, monkeypatch, growth, every):
    params, sizes = SamplingParams(max_tokens=40), [3, 20, 1, 40]
    monkeypatch.setattr(policy._decoding._graph, "_captures", False)
    expected = policy.sample(PROMPTS, sizes, params, seed=5)
    monkeypatch.setattr(policy._decoding._graph, "_captures", True)
    monkeypatch.setattr(sampler, "_CAPTURED_GROWTH", growth)
    monkeypatch.setattr(sampler, "_CHECKED_EVERY", {"cpu": every})
    assert_same(policy.sample(PROMPTS, sizes, params, seed=5), expected)
    assert capture.captures > 2 and capture.replays > capture.captures


@pytest.mark.parametrize("failure", ["refused", "wrong"])
def test_without_a_graph_that_agrees_sampling_goes_on_by_the_operations(
    policy, capture, monkeypatch, failure
):
    def refused(step, device):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    def wrong(step, device):
        replay = capture(step, device)
        return lambda: replay() + 1

    params = SamplingParams(max_tokens=20)
    monkeypatch.setattr(sampler, "capture", {"refused": refused, "wrong": wrong}[failure])
    message = {"refused": "without CUDA graphs.*: CUDA error.*capturing$", "wrong": "logits differ by"}[
        failure
    ]
    with pytest.warns(UserWarning, match=message) as warned:
        found = policy.sample(PROMPTS, 6, params, seed=5)
    assert len(warned) == 1 and not policy._decoding._graph._captures
    assert_same(found, policy.sample(PROMPTS, 6, params, seed=5))


def test_a_capture_that_runs_out_of_memory_goes_on_with_fewer_rows(policy, capture, monkeypatch):
    params, calls = SamplingParams(max_tokens=20), []

    def full_once(step, device):
        calls.append(device)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return capture(step, device)

    expected = policy.sample(PROMPTS, 6, params, seed=5)
    monkeypatch.setattr(sampler, "capture", full_once)
    with pytest.warns(UserWarning, match="now at most 12 answers at once"):
        assert_same(policy.sample(PROMPTS, 6, params, seed=5), expected)
    assert policy._decoding._graph._captures
