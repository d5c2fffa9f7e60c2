"""The compiled kernels against the operations of torch: values, gradients, edge cases, and being left aside."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from itertools import chain
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from greenward.config.sections import ShapeConfig
from greenward.models import sampler
from greenward.models.attention import SharedPrefixAttention
from greenward.models.decoder import Decoder, DecoderShape
from greenward.models.devices import resolve_dtype
from greenward.models.kernels import build as building
from greenward.models.kernels import compiling, native
from greenward.models.kernels.attention import KernelAttention
from greenward.models.kernels.build import build, is_to_be_built, kernels
from greenward.models.kernels.compiling import compiler
from greenward.models.kernels.self_test import TOLERANCE, differences, relative_error
from greenward.models.policy import Policy
from greenward.models.products import linear
from greenward.models.sampler import choose_tokens
from greenward.models.scoring import GroupBatch
from greenward.rollouts.protocols import SamplingParams

SOURCE = Path(building.__file__).parent / "kernels.c"

needs_kernels = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {build().reason}")


@needs_kernels
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(1, 1, 16), (4, 4, 32), (6, 2, 48), (14, 2, 64), (2, 1, 80), (9, 1, 32), (2, 2, 128)],
)
def test_every_kernel_gives_what_float32_torch_gives(dtype, heads, kv_heads, head_dim):
    found = differences(kernels(), dtype, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    products = {"product"} if dtype == torch.float32 else set()
    assert set(found) == products | {
        "rms_norm", "rms_norm_backward", "swiglu", "swiglu_backward", "choose", "choose_most_likely", "score", "score_backward", "attention", "attention_backward", "decode", "decode_steps",
    }  # fmt: skip
    assert all(value < TOLERANCE[dtype] for value in found.values()), found


def attended(attention, qkv, grad):
    leaf = qkv.clone().requires_grad_()
    out = attention(0, leaf * 1)
    out.backward(grad)
    return out.detach(), leaf.grad


def decoder(dtype=torch.float32, heads=2, kv_heads=1, head_dim=32, positions=4096):
    return Decoder(DecoderShape(16, 64, 1, heads, kv_heads, head_dim, 64, positions), compute_dtype=dtype)


@needs_kernels
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("vocabulary", [1, 5, 16, 31, 300])
def test_tokens_are_drawn_by_the_running_sum_of_their_chances(vocabulary, dtype):
    generator = torch.Generator().manual_seed(vocabulary)
    logits = (3 * torch.randn(2_000, vocabulary, generator=generator)).to(dtype)
    logits[:, ::3] = -float("inf") if vocabulary > 1 else 0.0
    logits[:, 1::4] -= 200  # a chance that rounds to 0
    drawn = torch.rand(2_000, generator=generator)
    drawn[:100], drawn[100:200] = 0.0, 1 - 2.0**-23
    params = SamplingParams(temperature=0.8)
    tokens, logprobs = choose_tokens(logits, params, drawn)
    chances = torch.softmax(logits.double() / 0.8, dim=1)
    chosen = chances.gather(1, tokens[:, None]).squeeze(1)
    upto = chances.cumsum(1).gather(1, tokens[:, None]).squeeze(1)
    assert (chosen > 1e-30).all()
    assert ((upto - chosen - 1e-6 < drawn) & (drawn < upto + 1e-6)).all()
    assert (logprobs - chosen.log()).abs().max() < 1e-5


@needs_kernels
def test_tokens_of_logits_that_are_no_numbers_have_no_log_probability():
    logits = torch.zeros(3, 40)
    logits[1, 7] = float("nan")
    tokens, logprobs = choose_tokens(logits, SamplingParams(), torch.tensor([0.3, 0.3, 0.999]))
    assert tokens[[0, 2]].tolist() == [12, 39] and 0 <= tokens[1] < 40
    assert logprobs.isnan().tolist() == [False, True, False]


@needs_kernels
@pytest.mark.parametrize("rows", [1, 3, 11, 12, 29])
@pytest.mark.parametrize("columns", [1, 16, 31, 33, 96])
@pytest.mark.parametrize("inner", [1, 7, 384, 900])
def test_products_of_any_size_and_order_in_memory(rows, columns, inner):
    generator = torch.Generator().manual_seed(rows + columns + inner)
    a, b, add = (
        torch.randn(size, generator=generator) for size in ((rows, inner), (inner, columns), (rows, columns))
    )
    want = a.double() @ b.double()
    error = 1e-6 * (a.abs().double() @ b.abs().double() + 1)
    for left in (a, a.t().contiguous().t(), a.repeat_interleave(2, 1)[:, ::2]):
        for right in (b, b.t().contiguous().t()):
            for more in (None, add, add[0]):
                found = kernels().product(left, right, more) - (0 if more is None else more.double())
                assert ((found - want).abs() < error).all()


@needs_kernels
def test_a_row_of_a_product_is_the_same_in_every_batch_and_keeps_what_is_not_finite_to_itself():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(301, 128, generator=generator), torch.randn(128, 50, generator=generator)
    whole = kernels().product(a, b)
    for first, last in ((0, 1), (5, 8), (7, 36), (100, 301)):
        assert torch.equal(kernels().product(a[first:last], b), whole[first:last])
    a[17, 3], a[18, 4] = float("nan"), float("inf")
    lost = ~kernels().product(a, b).isfinite().all(1)
    assert lost.nonzero().flatten().tolist() == [17, 18]


@needs_kernels
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [16, 48])
@pytest.mark.parametrize("add", ["nothing", "a bias", "a matrix"])
def test_the_gradients_of_a_linear_layer(add, columns, dtype, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    sizes = [(70, 32), (columns, 32), *{"a bias": [(columns,)], "a matrix": [(70, columns)]}.get(add, [])]
    given = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    ours = [one.clone().requires_grad_() for one in given]
    theirs = [one.float().requires_grad_() for one in given]
    slope = torch.randn(70, columns, generator=generator).to(dtype)
    monkeypatch.setattr(kernels(), "products", True)
    out = linear(*ours)
    out.backward(slope)
    want = theirs[0] @ theirs[1].t() + sum(theirs[2:])
    want.backward(slope.float())
    limit = 1e-5 if dtype == torch.float32 else 1e-2
    assert relative_error(out, want) < limit
    for one, other in zip(ours, theirs, strict=True):
        assert relative_error(one.grad, other.grad) < limit


@needs_kernels
@pytest.mark.parametrize("prompt", [1, 15, 16, 33, 2048])
@pytest.mark.parametrize("own", [0, 1, 31, 32, 500])
def test_lengths_around_the_width_of_registers(prompt, own):
    batch = GroupBatch.build([[1] * prompt, [2]], [[[3] * (own + 1), [4]], [[5] * 3]])
    generator = torch.Generator().manual_seed(prompt + own)
    qkv = torch.randn(len(batch.token_ids_M), 4, 32, generator=generator)
    grad = torch.randn(len(qkv), 64, generator=generator)
    model = decoder()
    have = attended(KernelAttention(model, batch, kernels()), qkv, grad)
    want = attended(SharedPrefixAttention(model, batch), qkv, grad)
    assert max(map(relative_error, have, want)) < 1e-4


@needs_kernels
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("head", [0, 2, 3], ids=["query", "key", "value"])
def test_what_is_not_finite_reaches_all_that_attend_to_it_and_no_other_group(bad, head):
    batch = GroupBatch.build([[1] * 20, [2] * 60], [[[3] * 8, [4] * 5], [[5] * 4]])
    qkv = torch.randn(len(batch.token_ids_M), 4, 32, generator=torch.Generator().manual_seed(0))
    qkv[5, head, 7] = bad  # heads are two queries, a key and a value
    first = {*range(20), *range(20, 31)}  # the first bucket: its prompt, and 7 and 4 inputs
    out, grad = attended(KernelAttention(decoder(), batch, kernels()), qkv, torch.ones(len(qkv), 64))
    for found in (out, grad.flatten(1)):
        lost = set((~found.isfinite().all(1)).nonzero().flatten().tolist())
        assert lost <= first and 5 in lost
        if head == 3 or (head == 2 and bad != bad):  # an infinite key may get no weight
            assert first - set(range(5)) <= lost
    normed, _ = kernels().rms_norm(qkv, torch.ones(32), 1e-6)
    exact = torch.nn.functional.rms_norm(qkv, (32,), eps=1e-6)
    assert torch.equal(normed.isfinite().all(-1), exact.isfinite().all(-1))


@needs_kernels
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
def test_results_do_not_depend_on_the_number_of_threads(dtype, monkeypatch):
    monkeypatch.setattr(native, "_SMALL", 1)
    batch = GroupBatch.build([[1] * 30] * 5, [[[3] * 40] * 4] * 5)
    qkv = torch.randn(len(batch.token_ids_M), 4, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    grad = torch.randn(len(qkv), 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            x, w = qkv.flatten(1), torch.ones(128, dtype=dtype)
            _, scale = kernels().rms_norm(x, w, 1e-6)
            norms = kernels().rms_norm_backward(x, x, w, scale, with_weight=True)
            products = (
                kernels().product(x.float(), x.float().t()),
                kernels().product(x.float().t(), x.float()),
            )
            attention = KernelAttention(decoder(dtype), batch, kernels())
            found.append((*attended(attention, qkv, grad), *norms, *products))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@needs_kernels
@pytest.mark.parametrize("qwen", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_answers_do_not_depend_on_threads_nor_on_how_many_rows_and_steps_are_computed_at_once(
    dtype, qwen, tokenizer, monkeypatch
):
    monkeypatch.setattr(kernels(), "products", True)  # torch's products of float32 depend on their sizes
    shape = DecoderShape(
        tokenizer.vocab_size, 64, 2, 2, 1, 32, 96, 64, qk_norm=qwen, qkv_bias=qwen, tied_embeddings=not qwen
    )
    decoder = Decoder(shape, compute_dtype=resolve_dtype(dtype, torch.device("cpu")))
    decoder.initialise(torch.Generator().manual_seed(1))
    policy = Policy(decoder, tokenizer, dtype=decoder.compute_dtype)
    prompts = [[5, 6, 7], [8] * 20, [9, 5], [4] * 40, *([n] for n in range(3, 11))]
    sizes = [3, 17, 1, 9] + [1] * 8
    before, found = torch.get_num_threads(), []
    try:
        for threads, steps, rows in ((1, 1, 64), (2, 3, 64), (3, 8, 18), (1, 24, 7), (1, 5, 1)):
            torch.set_num_threads(threads)
            monkeypatch.setattr(sampler, "_STEPS_OF_KERNELS", steps)
            policy.max_rows = rows
            for temperature in (0.0, 0.8):
                params = SamplingParams(max_tokens=24, temperature=temperature)
                found.append(
                    [
                        (*one.token_ids, *one.logprobs)
                        for group in policy.sample(prompts, sizes, params, seed=3)
                        for one in group
                    ]
                )
    finally:
        torch.set_num_threads(before)
    assert all(found[i] == found[i % 2] for i in range(len(found)))


@needs_kernels
def test_memory_of_weights_that_are_replaced_while_answers_are_drawn_is_read_no_more(tokenizer):
    shape = ShapeConfig(layers=2, hidden_size=64, heads=2, kv_heads=1, intermediate_size=96)
    policy = Policy.random(shape, tokenizer, seed=1, device="cpu")
    with torch.no_grad():
        policy.model.embedding[tokenizer.eos_id].mul_(40)
    params = SamplingParams(max_tokens=64)
    expected = list(policy.as_they_end([[5, 6]], 20, params, seed=3))
    drawn = policy.as_they_end([[5, 6]], 20, params, seed=3)
    found = [next(drawn)]
    for parameter in policy.parameters():
        parameter.data = torch.zeros_like(parameter)
    others = [torch.full((len(policy.model.embedding), 64), torch.nan) for _ in range(20)]
    found += drawn
    assert [(row, *one.token_ids, *one.logprobs) for row, one in found] == [
        (row, *one.token_ids, *one.logprobs) for row, one in expected
    ]
    assert len(others) == 20 and len({len(one.token_ids) for _, one in expected}) > 1


@pytest.fixture
def without_kernels():
    kernels.cache_clear()
    os.environ[building.SWITCH] = "off"
    yield
    del os.environ[building.SWITCH]
    kernels.cache_clear()


@needs_kernels
@pytest.mark.parametrize(
    ("kv_heads", "products", "how"),
    [(1, True, {}), (2, True, {"temperature": 0.0}), (2, False, {"top_k": 50, "top_p": 0.9})],
)
def test_a_policy_samples_and_scores_as_it_does_by_torch(
    kv_heads, products, how, tokenizer, request, monkeypatch
):
    monkeypatch.setattr(kernels(), "products", products)
    shape = ShapeConfig(
        layers=2, hidden_size=64, heads=2, kv_heads=kv_heads, intermediate_size=96, max_positions=128
    )
    policy = Policy.random(shape, tokenizer, seed=1, device="cpu")
    prompts = [[5, 6, 7], [8] * 20, [9, 5]]
    params = SamplingParams(max_tokens=24, **how)

    def sample_and_score():
        found = policy.sample(prompts, [3, 9, 1], params, seed=3)
        batch = GroupBatch.build(prompts, [[one.token_ids for one in group] for group in found])
        policy.model.zero_grad()
        scores = policy.completion_logprobs(batch, entropy=True)
        scores.logprobs_BT.sum().backward()
        return found, scores, policy.model.embedding.grad.clone()

    ours, our_scores, our_grad = sample_and_score()
    request.getfixturevalue("without_kernels")
    assert kernels() is None
    theirs, their_scores, their_grad = sample_and_score()
    for one, other in zip(chain(*ours), chain(*theirs), strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
    torch.testing.assert_close(our_scores.logprobs_BT, their_scores.logprobs_BT, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(our_scores.entropy_BT, their_scores.entropy_BT, atol=1e-4, rtol=1e-4)
    assert relative_error(our_grad, their_grad) < 1e-4


@pytest.mark.parametrize("path", ["kernels", "torch"])
def test_what_an_earlier_batch_has_left_in_the_cache_does_not_count(path, tokenizer, request):
    """A batch of a model that diverged leaves numbers that are not finite."""
    if path == "torch":
        request.getfixturevalue("without_kernels")
    elif kernels() is None:
        pytest.skip("no kernels")
    shape = ShapeConfig(layers=2, hidden_size=64, heads=2, kv_heads=1, intermediate_size=96)
    policy = Policy.random(shape, tokenizer, seed=1, device="cpu")

    def sample():
        found = policy.sample([[5, 6, 7], [8] * 20], [3, 2], SamplingParams(max_tokens=24), seed=3)
        return [(*one.token_ids, *one.logprobs) for group in found for one in group]

    first = sample()
    with torch.inference_mode():
        policy._decoding._memory.fill_(torch.nan)
    assert sample() == first


def test_without_a_compiler_torch_computes_and_the_reason_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert compiler() is None
    assert build().library is None and "no C compiler" in build().reason


def compiler_that_links(folder: Path, code: str) -> str:
    """A compiler that makes a library of `code`, whatever it is given: cc -shared PART -o WHOLE -lm."""
    (folder / "other.c").write_text(code)
    script = folder / "cc"
    link = f'{compiler()} -shared -fPIC {folder}/other.c -o "$4"'
    script.write_text(f'#!/bin/sh\ncase "$1" in -shared) exec {link};; esac\n')
    script.chmod(0o755)
    return str(script)


@needs_kernels
@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param("int nothing;", "self-test failed", id="lacks functions", marks=pytest.mark.slow),
        pytest.param(
            "#include <stdlib.h>\n__attribute__((constructor)) void begin(void) { abort(); }",
            "self-test failed",
            id="crashes",
        ),
    ],
)
def test_a_library_that_fails_its_test_is_left_aside(code, said, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", compiler_that_links(tmp_path, code))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    built = build()
    assert built.library is None and said in built.reason
    assert build() == built  # it is not tried again


@pytest.mark.slow
@needs_kernels
@pytest.mark.parametrize("damage", ["cut", "replaced", "removed"])
def test_a_library_that_changed_since_its_test_is_made_anew(damage, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = build().library
    whole = library.read_bytes()
    library.unlink()
    if damage != "removed":
        library.write_bytes(whole[:3000] if damage == "cut" else b"no library")
    assert is_to_be_built()
    assert build().library == library
    assert library.read_bytes()[:4] == whole[:4] and len(library.read_bytes()) > 3000


def test_a_user_without_a_home_needs_no_kernels(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("Could not determine home directory.")))
    if compiler() is None:
        pytest.skip("this machine has no C compiler")
    assert "XDG_CACHE_HOME" in build().reason
    assert not is_to_be_built()


def test_an_unwritable_cache_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    if compiler() is not None:
        assert "cannot be used" in build().reason


@pytest.mark.slow
@needs_kernels
@pytest.mark.skipif(platform.machine() != "x86_64", reason="AVX is x86's")
@pytest.mark.parametrize("march", ["x86-64", *compiling.LEVELS["x86_64"]])
def test_kernels_for_other_processors(march, tmp_path):
    library = compiled(march, tmp_path)
    if march == "x86-64-v4" and "avx512vl" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX-512")
    command = (sys.executable, "-m", "greenward.models.kernels.self_test", str(library))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@needs_kernels
def test_without_a_compiler_the_best_library_of_the_wheel_that_passes_its_test_is_taken(
    monkeypatch, tmp_path
):
    works, fails = compiled("native", tmp_path), tmp_path / "newest.so"
    fails.write_bytes(b"no library")
    monkeypatch.setattr(building, "prebuilt", lambda: [fails, works])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert is_to_be_built()
    assert build().library == works and build().reason.startswith("prebuilt for kernels")
    assert not is_to_be_built()
    works.write_bytes(b"no library either")
    assert build().library is None and "prebuilt for kernels: the self-test failed" in build().reason


def compiled(march: str, folder: Path) -> Path:
    for command in compiling.commands(compiler(), march, folder / "kernels.so"):
        subprocess.run(command, check=True)
    return folder / "kernels.so"


@pytest.mark.slow
@needs_kernels
def test_no_access_outside_of_memory_and_no_undefined_behaviour(tmp_path):
    real = compiler()
    runtime = subprocess.run(
        (real, "-print-file-name=libasan.so"), capture_output=True, text=True
    ).stdout.strip()
    if not os.path.isabs(runtime):
        pytest.skip("the compiler has no AddressSanitizer")
    library = tmp_path / "kernels.so"
    flags = (
        "-std=gnu11",
        "-O1",
        "-g",
        "-march=native",
        "-fPIC",
        "-Wno-psabi",
        "-fsanitize=address,undefined",
    )
    subprocess.run(
        (real, *flags, "-fno-sanitize-recover=all", "-shared", str(SOURCE), "-o", str(library), "-lm"),
        check=True,
    )
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",
        building.SWITCH: "off",
    }
    done = subprocess.run(
        (sys.executable, "-m", "greenward.models.kernels.self_test", str(library)),
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
