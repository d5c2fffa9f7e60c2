"""GGUF files: what is read of them equals what `transformers`, `gguf` and llama.cpp read."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

from greenward import api
from greenward.cli.main import main
from greenward.common.errors import CheckpointError
from greenward.config.loading import load_recipe
from greenward.config.recipe import language_model
from greenward.models import checkpoint
from greenward.models.catalog import build_policy, find_model, write_gguf
from greenward.models.decoder import Decoder, DecoderShape, RopeScaling
from greenward.models.memory import model_shape
from greenward.models.policy import Policy
from greenward.models.scoring import GroupBatch
from greenward.models.tokenizer import Tokenizer
from greenward.problems.catalog import load_suite
from greenward.rollouts.protocols import SamplingParams
from greenward.runs.reading import read_sessions, read_summary

gguf = pytest.importorskip("gguf")
from gguf_files import END, IM_END, TEMPLATE, TOKENS, TYPES, logits, write  # noqa: E402

from greenward.models import gguf as ours  # noqa: E402

pytestmark = pytest.mark.usefixtures("kept_sandbox")

FIRST_LAYER, LAST = "blk.0.attn_q.weight", "output_norm.weight"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(ours, "_cache", lambda: tmp_path / "cache")  # and not that of the compiled kernels


KINDS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_quantisation_is_read_as_gguf_reads_it(tmp_path, kind):
    path = write(tmp_path / "m.gguf", "qwen2", kind)
    found = checkpoint.published_tensors(Policy.from_folder(find_model(str(path)).folder, device="cpu").model)
    tensors = {one.name: one for one in gguf.GGUFReader(path).tensors}
    assert len(tensors) == len(found)
    for published, weight in found.items():
        stored = tensors[ours.tensor_name(published)]
        expected = gguf.dequantize(stored.data, stored.tensor_type).reshape(weight.shape)
        assert torch.equal(weight, torch.from_numpy(np.array(expected)))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_transformers(tmp_path, family, tied):
    transformers = pytest.importorskip("transformers")
    head_dim = 32 if family == "qwen3" else 64  # heads that are not hidden size / number of heads
    path = write(tmp_path / "m.gguf", family, "Q8_0", tied=tied, head_dim=head_dim)
    folder = find_model(str(path)).folder
    policy = Policy.from_folder(folder, device="cpu")
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path,
        gguf_file="m.gguf",
        dtype=torch.float32,  # without our config, it takes all heads of Qwen3 for 128 numbers wide
        config=transformers.AutoConfig.from_pretrained(folder),
    )
    prompts = [[5, 7, 9, 11], [200, 3], list(range(40))]
    for prompt, found in zip(prompts, logits(policy, prompts), strict=True):
        with torch.no_grad():
            expected = reference(torch.tensor([prompt])).logits[0, -1]
        assert (found - expected).abs().max() < 1e-4 * max(1, expected.abs().max())


def test_the_scaling_of_llama_3_is_found_in_its_factors(tmp_path):
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        head_dim=64, hidden_size=256, num_attention_heads=4, rope_theta=5000.0, rope_scaling=dict(scaling)
    )
    stretched = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config).inv_freq
    factors = (5000.0 ** -(torch.arange(0, 64, 2) / 64) / stretched).numpy()
    path = write(tmp_path / "m.gguf", change={"rope_freqs.weight": factors})
    found = json.loads((checkpoint.resolve(str(path)) / "config.json").read_text())["rope_scaling"]
    assert found == scaling
    path = write(tmp_path / "other.gguf", change={"rope_freqs.weight": factors**2})
    with pytest.raises(CheckpointError, match=r"not those of Llama 3\.1"):
        checkpoint.resolve(str(path))


def test_a_scaling_that_the_decoder_does_not_compute_goes_through_transformers(tmp_path):
    extra = {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 4.0}
    extra["qwen2.rope.scaling.original_context_length"] = 32
    path = write(tmp_path / "m.gguf", "qwen2", extra=extra)
    policy = Policy.from_folder(find_model(str(path)).folder, device="cpu")
    assert policy.model.config.rope_parameters["rope_type"] == "yarn"
    policy.save(tmp_path / "saved")
    again = Policy.from_folder(tmp_path / "saved", device="cpu")
    assert torch.allclose(logits(policy, [[5, 6, 7]]), logits(again, [[5, 6, 7]]), atol=1e-5)


def test_the_tokenizer_and_the_ends_of_an_answer(tmp_path):
    path = write(tmp_path / "m.gguf", pre="smollm")
    tokenizer = find_model(str(path)).tokenizer
    text = "def  re 123\n <tool_call>é<|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
    pieces = [tokenizer._token(one) for one in tokenizer.encode(text)]
    assert pieces[-4:] == ["<tool_call>", "Ã", "©", "<|im_end|>"] and "123" not in pieces and "def" in pieces
    assert tokenizer.eos_ids == (IM_END, END) and tokenizer.pad_id == END
    assert tokenizer.vocab_size == len(TOKENS) - 1  # a row that only rounds up the embeddings is no token
    shown = tokenizer.decode(
        tokenizer.render_chat([{"role": "user", "content": "x"}]), skip_special_tokens=False
    )
    assert (
        shown == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant"
    )  # Jinja drops the last end of a line
    plain = find_model(str(write(tmp_path / "q.gguf", pre="llama-bpe"))).tokenizer
    assert "123" in [plain._token(one) for one in plain.encode(text)]


def test_a_base_model_without_a_template_and_a_text_that_begins_with_a_token(tmp_path):
    extra = {"tokenizer.ggml.bos_token_id": END, "tokenizer.ggml.add_bos_token": True}
    path = write(tmp_path / "m.gguf", extra=extra, without=("tokenizer.chat_template",))
    tokenizer = find_model(str(path)).tokenizer
    assert tokenizer.chat_template is None
    assert tokenizer.encode("de", add_special_tokens=True) == [END, *tokenizer.encode("de")]


@pytest.mark.parametrize("licence", ["apache-2.0", None])
def test_a_file_is_described_by_its_size_its_quantisation_and_its_licence(tmp_path, licence):
    path = write(tmp_path / "m.gguf", "qwen2", "Q8_0", extra={"general.license": licence} if licence else {})
    with path.open("ab") as file:
        file.write(bytes(3 << 20))  # llama.cpp reads a file with more behind its tensors, too
    found = find_model(str(path))
    assert found.licence == found.to_json()["licence"] == licence
    mib = path.stat().st_size // 2**20
    said = found.description()
    assert mib >= 3 and f"licence {licence or 'not stated'}" in said
    assert any(f" {size} MiB of weights in Q8_0" in said for size in (mib, mib + 1))


def test_a_file_is_named_in_every_way_and_recorded(tmp_path, monkeypatch):
    path = write(tmp_path / "m.gguf", "qwen2", "Q4_0", extra={"general.file_type": 15})
    found = find_model(str(path))
    assert found.quantization == "Q4_K_M" and found.to_json()["quantization"] == "Q4_K_M"
    assert find_model(str(tmp_path)).folder == found.folder  # the only GGUF file of the folder
    (tmp_path / "link").symlink_to(path)
    assert checkpoint.resolve(str(tmp_path / "link")) == found.folder
    recipe = language_model(load_recipe("quickstart", [f"model.id={path}", "warm_start=null"]))
    shape, native = model_shape(recipe)
    assert native and shape.qkv_bias and shape.max_positions == 128
    assert find_model(str(write(tmp_path / "n.gguf", kind="Q5_1"))).quantization == "Q5_1"
    with pytest.raises(CheckpointError, match=r"holds 2 GGUF files: m\.gguf, n\.gguf"):
        checkpoint.resolve(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="no such folder or file") as error:
        checkpoint.resolve("sub/m.gguf")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mm.gguf").touch()
    with pytest.raises(CheckpointError, match=r"Did you mean 'sub/mm\.gguf'"):
        checkpoint.resolve("sub/m.gguf")
    assert "hub" not in str(error.value)


@pytest.mark.slow
def test_runs_evaluations_and_reports_name_the_quantisation(tmp_path):
    suite = tmp_path / "suite.json"
    row = {"function_name": "same", "docstring": "Return n.", "test_cases": [[1, 1]]}
    suite.write_text(json.dumps([row | {"starter_code": "def same(n):\n"}]))
    extra = {"general.file_type": 15, "general.license": "apache-2.0", "llama.context_length": 1024}
    path = write(tmp_path / "m.gguf", kind="Q4_0", extra=extra)
    origin = {"name": str(path), "licence": "apache-2.0", "quantization": "Q4_K_M"}
    small = ["training.max_steps=1", "training.num_generations=2", f"problems.train={suite}"]
    off = ["warm_start=null", "evaluation.enabled=false", "training.threads=1", "sampling.max_tokens=3"]
    run = tmp_path / "run"
    api.train("quickstart", [f"model.id={path}", *small, *off, "sandbox.require=D"], output=run)
    assert read_sessions(run)[-1]["model"] == read_summary(run)["model"] == origin
    assert "m.gguf, Q4_K_M" in (run / "report.html").read_text()
    card = (run / "checkpoints" / "last" / "README.md").read_text()
    assert "/m.gguf` (Q4_K_M) | apache-2.0 |" in card and "license: apache-2.0" in card
    assert str(tmp_path) not in card
    for problems, output in ((str(suite), tmp_path / "evaluation"), (list(load_suite(str(suite))), None)):
        found = api.evaluate(str(path), problems, max_tokens=3, require="D", output=output).summary["model"]
        assert origin.items() <= found.items()
    assert "Q4_K_M" in (tmp_path / "evaluation" / "report.html").read_text()

    again = tmp_path / "again"
    api.train("quickstart", [f"model.id={run}", *small, *off, "sandbox.require=D"], output=again)
    for number, trained in enumerate((run, again)):
        output = tmp_path / f"of_{number}"
        summary = api.evaluate(str(trained), str(suite), max_tokens=3, require="D", output=output).summary
        assert summary["model"]["base"] == origin and "quantization" not in summary["model"]
        assert "trained from Q4_K_M" in (output / "report.html").read_text()
    assert "trained from Q4_K_M" in (again / "report.html").read_text()
    assert "(trained from Q4_K_M)" in (again / "checkpoints" / "last" / "README.md").read_text()


def test_the_hash_is_of_the_content_and_a_changed_file_is_looked_at_again(tmp_path):
    path = write(tmp_path / "m.gguf")
    before = find_model(str(path))
    digest = before.weights_hash
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="has changed"):
        Policy.from_folder(before.folder, device="cpu")
    after = find_model(str(path))
    assert after.folder != before.folder and after.weights_hash != digest
    Policy.from_folder(after.folder, device="cpu")


def test_a_record_elsewhere_than_in_the_cache_names_no_file(tmp_path):
    path = write(tmp_path / "m.gguf")
    folder = checkpoint.resolve(str(path))
    copied = tmp_path / "copied"
    copied.mkdir()
    for file in folder.iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    assert ours.source_of(folder) and ours.source_of(copied) is None


def test_an_adapter_names_the_file_as_its_base(tmp_path):
    pytest.importorskip("peft")
    path = write(tmp_path / "m.gguf", "llama", "Q8_0")
    overrides = [
        f"model.id={path}",
        "model.lora={}",
        "model.device=cpu",
        "model.dtype=float32",
        "warm_start=null",
    ]
    policy = build_policy(language_model(load_recipe("quickstart", overrides)), list)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    policy.save(tmp_path / "saved")
    adapter = tmp_path / "saved" / "adapter"
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == str(path)
    expected = logits(policy, [[5, 6, 7]])
    for folder in (adapter, tmp_path / "saved"):
        found = logits(Policy.from_folder(find_model(str(folder)).folder, device="cpu"), [[5, 6, 7]])
        assert torch.allclose(found, expected, atol=1e-4)


REFUSED = {
    "another pre-tokenizer": ({"extra": {"tokenizer.ggml.pre": "poro-chat"}}, "found 'poro-chat'"),
    "no pre-tokenizer": ({"without": ("tokenizer.ggml.pre",)}, "found 'none'"),
    "a part": ({"extra": {"split.count": 3, "split.no": 1}}, "part 2 of 3"),
    "an adapter": ({"extra": {"general.type": "adapter"}}, "an adapter"),
    "a projector": ({"extra": {"general.type": "mmproj"}}, "the projector"),
    "an embedding model": ({"extra": {"llama.pooling_type": 1}}, "an embedding model"),
    "another vocabulary": ({"extra": {"tokenizer.ggml.tokens": TOKENS[:-1], "tokenizer.ggml.token_type": TYPES[:-1]}}, "267 tokens .* found 268"),
    "a token twice": ({"extra": {"tokenizer.ggml.tokens": [*TOKENS[:-5], TOKENS[0], *TOKENS[-4:]]}}, "twice"),
    "an end that is no token": ({"extra": {"tokenizer.ggml.eos_token_id": 5000}}, "eos_token_id"),
    "no end": ({"without": ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.token_type")}, "no end-of-sequence"),
    "no length": ({"without": ("llama.context_length",)}, r"llama\.context_length"),
    "heads in a list": ({"extra": {"llama.attention.head_count": [4, 4]}}, "head_count"),
    "a sliding window": ({"extra": {"llama.attention.sliding_window": 16}}, "sliding windows"),
    "merges of nothing": ({"extra": {"tokenizer.ggml.merges": ["zz yy"]}}, "expected a tokenizer"),
    "a text where a list is expected": ({"extra": {"tokenizer.ggml.tokens": "x"}}, r"tokenizer\.ggml\.tokens"),
}  # fmt: skip


@pytest.mark.parametrize(("how", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_named(tmp_path, how, said):
    path = write(tmp_path / "m.gguf", **how)
    with pytest.raises(CheckpointError, match=said):
        find_model(str(path))


def test_tensors_that_are_missing_wrong_or_unknown_are_named(tmp_path):
    for number, (said, how) in enumerate(
        {
            "'blk.1.attn_k.weight' as well": {"extra": {"llama.block_count": 1}},
            "expected blk.0.ffn_down.weight of shape (256, 128)": {
                "extra": {"llama.feed_forward_length": 128}
            },
            "expected blk.0.attn_q_norm.weight of shape (64,) in": {"family": "qwen3", "only": "llama"},
            "'blk.0.attn_q.bias' as well": {"change": {"blk.0.attn_q.bias": np.zeros(256, np.float32)}},
            "asks for": {"extra": {"llama.block_count": 1 << 20}},
        }.items()
    ):
        folder = find_model(str(write(tmp_path / f"{number}.gguf", **how))).folder
        with pytest.raises(CheckpointError) as error:
            Policy.from_folder(folder, device="cpu")
        assert said in str(error.value)


def test_other_files_and_other_byte_orders(tmp_path):
    path = tmp_path / "m.gguf"
    content = write(path).read_bytes()
    cases = {
        b"": "does not begin",
        b"PK" + content[2:]: "does not begin",
        content[:4] + struct.pack(">I", 3) + content[8:]: "big-endian",
        content[:4] + struct.pack("<I", 1) + content[8:]: "version 2 or 3 of GGUF .* found 1",
        content[:-1000]: "ends 1,000 bytes before the end of its last tensor",
        content[:3000]: "inside of its header",
    }
    for broken, said in cases.items():
        path.write_bytes(broken)
        with pytest.raises(CheckpointError, match=said):
            checkpoint.resolve(str(path))
    with pytest.raises(CheckpointError):
        checkpoint.resolve("/dev/zero")


def header_size(content):
    """Where the tensors of a written file begin."""
    reader = gguf.GGUFReader(content)
    return int(min(one.data_offset for one in reader.tensors))


@pytest.mark.parametrize("count", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_headers_with_changed_bytes_are_read_or_refused(tmp_path, count):
    path = write(tmp_path / "m.gguf")
    sound = path.read_bytes()
    size = header_size(path)
    rng = random.Random(0)
    numbers = [0, 1, 0xFF, 1 << 31, (1 << 63) - 1, (1 << 64) - 1, 1 << 40, len(sound)]
    refused = 0
    began = time.process_time()
    for _ in range(count):
        content = bytearray(sound)
        if rng.random() < 0.1:
            content = content[: rng.randrange(size)]
        for _ in range(rng.choice([1, 1, 4])):
            place = rng.randrange(min(len(content), size) - 8) if len(content) > 40 else 0
            width = rng.choice([1, 4, 8])
            content[place : place + width] = rng.choice(numbers).to_bytes(8, "little")[:width]
        path.write_bytes(content)
        try:
            folder = checkpoint.resolve(str(path))
            if rng.random() < 0.2:
                Policy.from_folder(folder, device="cpu")
        except CheckpointError as error:
            assert len(str(error)) < 3000
            refused += 1
    assert refused > count // 4 and time.process_time() - began < 300


def test_lengths_in_a_header_take_no_memory(tmp_path):
    path = tmp_path / "m.gguf"
    begin = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
    key = struct.pack("<Q", 1) + b"a"
    for value in (
        struct.pack("<IQ", 8, 1 << 62),  # a text
        struct.pack("<IIQ", 9, 0, 1 << 62),  # a list of bytes
        struct.pack("<IIQ", 9, 8, 1 << 18) + bytes(8 << 18),  # many empty texts, and then nothing
        struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IIQ", 9, 9, 1) * 1000,  # lists in lists
        struct.pack("<I", 77),
    ):
        path.write_bytes(begin + key + value)
        with pytest.raises(CheckpointError, match="expected a whole GGUF file"):
            checkpoint.resolve(str(path))


def real(name):
    folder = os.environ.get("GREENWARD_MODELS")
    path = Path(folder or "") / f"{name}.gguf"
    if not folder or not path.is_file():
        pytest.skip(f"GREENWARD_MODELS names no folder with {name}.gguf (../shared/models/fetch.py makes it)")
    return path


@pytest.mark.parametrize("name", ["smollm2", "qwen", "gemma3"])
def test_real_models_are_read_as_transformers_reads_them(name, monkeypatch):
    path = real(name)
    transformers = pytest.importorskip("transformers")
    monkeypatch.undo()  # tokenizers of SentencePiece take a minute, once
    found = find_model(str(path))
    tokenizer = found.tokenizer
    assert found.quantization == {"smollm2": "Q4_1"}.get(name, "Q4_K_M")
    ends = {"smollm2": ["<|im_end|>", "<|endoftext|>"], "gemma3": ["<eos>", "<end_of_turn>"]}
    assert [tokenizer._token(one) for one in tokenizer.eos_ids] == ends.get(name, ends["smollm2"])
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    reference = transformers.AutoTokenizer.from_pretrained(**where)
    sources = sorted(Path(checkpoint.__file__).parent.glob("*.py"))
    texts = [file.read_text() for file in sources] + [
        "don't I'LL",
        "\n\n  \t",
        "日本語 한국어 é 🙂",
        "a<|im_end|>b",
    ]
    if name == "smollm2":  # transformers does not split its numbers into digits, which llama.cpp does
        texts = ["".join(char for char in text if not char.isdigit()) for text in texts]
    for text in texts:
        assert tokenizer.encode(text) == reference(text, add_special_tokens=False).input_ids
    if tokenizer.chat_template:
        messages = [
            {"role": role, "content": f"{role} says é"} for role in ("system", "user", "assistant", "user")
        ]
        shown = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert tokenizer.render_chat(messages) == shown
    prompts = [tokenizer.encode(text)[:60] for text in texts[:4]]
    policy = Policy.from_folder(found.folder, device="cpu")
    given = logits(policy, prompts)
    del policy
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    with torch.inference_mode():
        for prompt, one in zip(prompts, given, strict=True):
            assert (model(torch.tensor([prompt])).logits[0, -1] - one).abs().max() <= 1e-3


def saved(folder, *, family="llama", pre="qwen2", steps=0, **shape):
    """A model of ours with a tokenizer that llama.cpp has, trained for some steps on a few lines."""
    tokenizer = tokenizer_like(pre)
    sizes = {
        "hidden_size": 64,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
    }
    sizes |= {"max_positions": 128, "vocab_size": tokenizer.vocab_size + 3, "norm_eps": 1e-5}
    sizes |= {"qkv_bias": family == "qwen2", "qk_norm": family == "qwen3"}
    decoder = Decoder(DecoderShape(**sizes | shape))
    decoder.initialise(torch.Generator().manual_seed(0))
    policy = Policy(decoder, tokenizer, dtype=torch.float32)
    rows = [[*tokenizer.encode(text)[:40], tokenizer.eos_id] for text in LINES]
    batch = GroupBatch.build([row[:1] for row in rows], [[row[1:]] for row in rows])
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        (-policy.completion_logprobs(batch).logprobs_BT.sum() / 50).backward()
        optimizer.step()
    policy.save(folder)
    return folder


LINES = [
    "def add(a, b):\n    return a + b\n",
    "for i in range(1234):\n    print(i)\n",
    "x = [1, 22, 333]\nassert x\n",
]


def tokenizer_like(pre):
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=pre == "llama-bpe"))
    backend.pre_tokenizer = ours._PRE_TOKENIZERS[pre]()
    backend.decoder = tokenizers.decoders.ByteLevel()
    special = [
        tokenizers.AddedToken(one, special=True) for one in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    ]
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(LINES * 4, trainer)
    backend.add_tokens([tokenizers.AddedToken("<tool_call>", special=False, normalized=False)])
    return Tokenizer(backend, eos_ids=[2, 0], pad_id=0, bos_id=1, chat_template=TEMPLATE)


@pytest.mark.parametrize(
    ("family", "pre", "shape"),
    [
        ("llama", "smollm", {}),
        ("llama", "llama-bpe", {"rope_scaling": RopeScaling(8.0, 1.0, 4.0, 8192), "rope_theta": 500000.0}),
        ("qwen2", "qwen2", {"tied_embeddings": False}),
        ("qwen3", "deepseek-coder", {"head_dim": 32}),
    ],
)
def test_a_written_file_is_read_back_bit_for_bit(family, pre, shape, tmp_path):
    folder = saved(tmp_path / "model", family=family, pre=pre, **shape)
    assert write_gguf(find_model(str(folder)), tmp_path / "m.gguf") == "F32"
    first = Policy.from_folder(folder, device="cpu")
    found = find_model(str(tmp_path / "m.gguf"))
    second = Policy.from_folder(found.folder, device="cpu")
    assert found.quantization == "F32" and first.model.shape == second.model.shape
    expected, read = first.state_dict(), second.state_dict()
    assert expected.keys() == read.keys() and all(
        torch.equal(expected[name], read[name]) for name in expected
    )
    text = "".join(LINES) + "don't 12345 <tool_call><|im_end|>"
    assert first.tokenizer.encode(text) == second.tokenizer.encode(text)
    for name in ("eos_ids", "pad_id", "bos_id", "chat_template", "vocab_size"):
        assert getattr(first.tokenizer, name) == getattr(second.tokenizer, name)


def test_types_of_written_files(tmp_path):
    folder = saved(tmp_path / "model")
    expected = Policy.from_folder(folder, device="cpu").state_dict()
    for kind, dtype in (("BF16", torch.bfloat16), ("F16", torch.float16), ("Q8_0", None)):
        path = tmp_path / f"{kind}.gguf"
        write_gguf(find_model(str(folder)), path, kind=kind)
        found = find_model(str(path))
        assert found.quantization == kind
        read = Policy.from_folder(found.folder, device="cpu").state_dict()
        for name, tensor in expected.items():
            if tensor.ndim == 1:
                assert torch.equal(read[name], tensor)
            elif dtype:
                assert torch.equal(read[name], tensor.to(dtype).float())
            else:
                assert (read[name] - tensor).abs().max() <= tensor.abs().max() / 127


def test_an_adapter_is_written_merged(tmp_path):
    pytest.importorskip("peft")
    overrides = [
        f"model.id={saved(tmp_path / 'model')}",
        "model.lora={}",
        "model.device=cpu",
        "model.dtype=float32",
    ]
    policy = build_policy(language_model(load_recipe("quickstart", [*overrides, "warm_start=null"])), list)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(0.02)
    policy.save(tmp_path / "saved")
    expected = logits(policy, [[5, 6, 7]])
    for name, kind in (("saved/adapter", "F16"), ("saved", "F32")):
        path = tmp_path / f"{kind}.gguf"
        assert write_gguf(find_model(str(tmp_path / name)), path) == kind
        found = logits(Policy.from_folder(find_model(str(path)).folder, device="cpu"), [[5, 6, 7]])
        assert (found - expected).abs().max() < (2e-2 if kind == "F16" else 1e-4)


def test_what_is_there_is_not_replaced_and_what_llama_cpp_lacks_is_refused(tmp_path, published, capsys):
    folder = saved(tmp_path / "model")
    path = tmp_path / "m.gguf"
    given = ["export", str(folder), "--gguf", str(path)]
    assert command(given) == 0 and f"{path}: F32," in capsys.readouterr().out
    before = path.read_bytes()
    assert command(given) == 2 and "exists already" in capsys.readouterr().err
    assert command([*given, "--overwrite", "--type", "Q8_0"]) == 0 and path.read_bytes() != before
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    assert command(["export", str(folder), "--gguf", str(notes), "--overwrite"]) == 2
    assert notes.read_text() == "mine"
    for model, said in ((published("llama"), "in another way"), (published("gpt2"), "found 'gpt2'")):
        assert command(["export", str(model), "--gguf", str(tmp_path / "o.gguf")]) == 2
        assert said in capsys.readouterr().err
    assert sorted(one.name for one in tmp_path.glob("*.*")) == ["m.gguf", "notes.txt"]


def command(arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code or 0


LLAMA_CPP = """
import fs from "fs";
const {getLlama} = await import(process.argv[2] + "/node_modules/node-llama-cpp/dist/index.js");
const asked = JSON.parse(fs.readFileSync(0, "utf8"));
const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
const model = await llama.loadModel({modelPath: asked.model, gpuLayers: 0});
const texts = asked.texts.map((text) => Array.from(model.tokenize(text, true)));
const answers = [];
for (const prompt of asked.prompts) {
  const context = await model.createContext({contextSize: 128, threads: 1});
  const answer = [];
  for await (const token of context.getSequence().evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
    answer.push(token);
    if (answer.length >= asked.tokens || asked.ends.includes(token)) break;
  }
  answers.push(answer);
  await context.dispose();
}
console.log("\\n" + JSON.stringify({texts, answers}));
process.exit(0);
"""


@pytest.mark.parametrize("which", ["trained", "smollm2"])
def test_llama_cpp_answers_as_greenward(which, tmp_path):
    node, where = shutil.which("node"), os.environ.get("GREENWARD_LLAMA_CPP")
    if not node or not where:
        pytest.skip("GREENWARD_LLAMA_CPP names no folder in which `npm install node-llama-cpp` was run")
    folder = saved(tmp_path / "model", pre="smollm", steps=60) if which == "trained" else real("smollm2")
    path = tmp_path / "m.gguf"
    write_gguf(find_model(str(folder)), path, kind="F32")
    policy = Policy.from_folder(find_model(str(path)).folder, device="cpu")
    tokenizer = policy.tokenizer
    texts = [*LINES, "don't  stop 12345\n\n  é 日本 🙂<|im_end|>x"]
    prompts = [tokenizer.encode(line)[:4] for line in LINES]
    if which == "smollm2":
        prompts = [tokenizer.render_question("Write a Python function that reverses a string.")]
    expected = [group[0] for group in policy.sample(prompts, 1, SamplingParams(24, 0.0), seed=0)]
    asked = {"model": str(path), "texts": texts, "prompts": prompts, "tokens": 24, "ends": tokenizer.eos_ids}
    program = tmp_path / "ask.mjs"
    program.write_text(LLAMA_CPP)
    done = subprocess.run(
        [node, program, where], input=json.dumps(asked), capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["texts"] == [tokenizer.encode(text) for text in texts]
    assert found["answers"] == [one.token_ids.tolist() for one in expected]
