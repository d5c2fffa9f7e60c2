"""Model folders of strangers: whatever is in a file, `CheckpointError` or a model, in bounded time and memory."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from jinja2 import TemplateError
from safetensors.torch import load_file, save_file

from greenward.common.errors import CheckpointError
from greenward.config.sections import ShapeConfig
from greenward.diagnostics.proof import diff_checkpoints
from greenward.models import chat_template
from greenward.models.catalog import FoundModel
from greenward.models.chat_template import render
from greenward.models.policy import Policy
from greenward.models.tokenizer import Tokenizer
from greenward.runs.checkpoints import checkpoint_step, verify

SHAPE = ShapeConfig(layers=1, hidden_size=16, heads=2, kv_heads=1, intermediate_size=16, max_positions=32)
WRONG = (None, "x", -1, 0, 2**61, 1e308, float("nan"), [], {}, [1], True, "x" * 10_000)


@pytest.fixture
def saved(tokenizer, tmp_path):
    Policy.random(SHAPE, tokenizer, seed=0, device="cpu").save(tmp_path / "model")
    return tmp_path / "model"


def loads(folder):
    """Whether there is a model in the folder; else there is one error."""
    try:
        policy = Policy.from_folder(folder, device="cpu")
        policy.tokenizer.encode("x = 1")
        assert FoundModel("m", folder, None, None).max_positions != 0
    except CheckpointError as error:
        assert len(str(error)) < 2000
        return False
    return True


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_no_value_in_a_config_raises_or_takes_memory(saved):
    path = saved / "config.json"
    sound = path.read_text()
    assert loads(saved)
    refused = 0
    for key in (
        "hidden_size",
        "num_hidden_layers",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
    ):
        for value in WRONG:
            edit(path, **{key: value})
            refused += not loads(saved)
            path.write_text(sound)
    assert refused > 50
    for place, key in enumerate(json.loads(sound)):  # some of them are read by transformers then, slowly
        edit(path, **{key: [] if place % 2 else 2**61})
        loads(saved)
        path.write_text(sound)
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    for wrong in ("x", [1], {"rope_type": []}, scaling, {**scaling, "original_max_position_embeddings": "x"}):
        edit(path, rope_scaling=wrong)
        assert not loads(saved)
    for text in (
        "[]",
        "{",
        "null",
        "[" * 10_000,
        '{"a": ' + "9" * 10_000 + "}",
        "\0",
        '{"model_type": "llama"}',
    ):
        path.write_text(text)
        assert not loads(saved)


def test_a_config_of_a_larger_model_than_the_weights_takes_no_memory(saved):
    edit(saved / "config.json", num_hidden_layers=9000, intermediate_size=1 << 20)
    with pytest.raises(CheckpointError, match="asks for"):
        Policy.from_folder(saved, device="cpu")


UP = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("load", [Policy.from_folder, Policy.for_inference])
def test_a_weight_that_is_not_finite_is_named(saved, value, load):
    tensors = load_file(saved / "model.safetensors")
    tensors[UP][3, 5] = tensors[UP][0, 0] = value
    save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=f"in 2 of the 256 numbers of {UP}\n") as error:
        load(saved, device="cpu")
    assert str(saved) in str(error.value)


def test_a_weight_that_is_not_finite_is_named_of_models_of_transformers(published, tmp_path):
    folder = shutil.copytree(published("gpt2"), tmp_path / "gpt2")
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("h.1.mlp.c_fc.bias"))
    tensors[name][0] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        CheckpointError, match=r"in 1 of the \d+ numbers of transformer\.h\.1\.mlp\.c_fc\.bias"
    ):
        Policy.from_folder(folder, device="cpu")


def test_finite_weights_whose_sum_is_not_are_loaded_but_for_types_that_end_before_them(saved):
    tensors = load_file(saved / "model.safetensors")
    tensors[UP][:] = 3e38
    save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
    assert Policy.from_folder(saved, device="cpu").model.layers[0].gate_up.max() == tensors[UP].max()
    with pytest.raises(CheckpointError, match=f"in 256 of the 256 numbers of {UP} as float16"):
        Policy.for_inference(saved, dtype="float16", device="cpu")


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
def test_no_value_beside_a_tokenizer_raises(saved, name):
    path = saved / name
    sound = path.read_text() if path.is_file() else "{}"
    for key in ("eos_token", "pad_token", "bos_token", "eos_token_id", "chat_template"):
        for value in (*WRONG, [{}], [{"name": [], "template": 1}], {"content": 5}, [[1]]):
            path.write_text(json.dumps(json.loads(sound) | {key: value}))
            try:
                found = Tokenizer.load(saved)
            except CheckpointError:
                continue
            assert all(isinstance(one, int) for one in found.eos_ids)
            assert isinstance(found.chat_template, str | None)


def test_no_value_in_a_tokenizer_raises(saved):
    path = saved / "tokenizer.json"
    sound = json.loads(path.read_text())
    for key in sound:
        for value in (None, "x", -1, [], {}, [{}], {"type": "x"}):
            path.write_text(json.dumps({**sound, key: value}))
            loads(saved)
    for text in ("", "[]", "{}", "\0" * 100, "[" * 100_000):
        path.write_text(text)
        assert not loads(saved)


def test_a_pattern_that_backtracks_without_end_is_an_error_of_the_model(saved, capfd):
    path = saved / "tokenizer.json"
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps({**json.loads(path.read_text()), "pre_tokenizer": split}))
    with pytest.raises(CheckpointError, match="cannot encode"):
        Tokenizer.load(saved).encode("a" * 40 + "b")


def replaced(pattern, content, times=1):
    return [{"type": "Replace", "pattern": pattern, "content": content}] * times


A = {"String": "a"}
GROWING = {
    "replacements": replaced(A, "aa", 40),
    "a long replacement": replaced(A, "a" * 2000),
    "a pattern that matches nothing": replaced({"Regex": ""}, "b" * 2000),
    "beginnings": [{"type": "Prepend", "prepend": "a" * 50}] * 2,
    "a compatible form again and again": [*replaced(A, "\ufdfa"), {"type": "NFKC"}] * 5,
}


@pytest.mark.parametrize("steps", GROWING.values(), ids=GROWING)
def test_steps_of_a_tokenizer_that_repeat_text_are_refused(saved, steps):
    edit(saved / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": steps})
    with pytest.raises(CheckpointError, match=r"tokenizer\.json can make a text .* times as long"):
        Tokenizer.load(saved)


def test_the_other_steps_of_a_tokenizer_are_bounded_too(saved):
    path = saved / "tokenizer.json"
    sound = path.read_text()
    space = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True}
    bytes_again = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    pair = [text, {"Sequence": {"id": "B", "type_id": 0}}]
    for part in (
        {"decoder": {"type": "Sequence", "decoders": replaced(A, "aa", 16)}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [space] * 20}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [bytes_again] * 20}},
        {
            "post_processor": {
                "type": "TemplateProcessing", "single": [text] * 2000, "pair": pair, "special_tokens": {},
            }
        },
    ):  # fmt: skip
        edit(path, **part)
        with pytest.raises(CheckpointError, match="times as long"):
            Tokenizer.load(saved)
        path.write_text(sound)


def test_the_steps_of_published_tokenizers_are_taken(saved):
    lower = [{"type": "NFC"}, *replaced({"Regex": r"\s+"}, " "), {"type": "Lowercase"}]  # CLIP
    llama = [{"type": "Prepend", "prepend": "\u2581"}, *replaced({"String": " "}, "\u2581")]
    albert = [
        *replaced({"String": "``"}, '"'),
        {"type": "NFKD"},
        {"type": "StripAccents"},
        {"type": "Lowercase"},
    ]
    for steps in (lower, llama, albert):
        edit(saved / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": steps})
        assert Tokenizer.load(saved).encode("x = 1")


def with_header(path, header, data=b"\0" * 64, size=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + data)


NAME = "model.embed_tokens.weight"
F32 = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}
HEADERS = {
    "a length beyond the file": ({NAME: F32}, 1 << 62),
    "a length of nothing": ({NAME: F32}, 0),
    "no JSON": (b"{", None),
    "deep": (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, None),
    "a list": ([], None),
    "an unknown dtype": ({NAME: {**F32, "dtype": "F33"}}, None),
    "a negative shape": ({NAME: {**F32, "shape": [-4, -4]}}, None),
    "a shape that overflows": ({NAME: {**F32, "shape": [2**62, 2**62]}}, None),
    "another shape": ({NAME: {**F32, "shape": [16]}}, None),
    "offsets beyond the file": ({NAME: {**F32, "data_offsets": [0, 1 << 40]}}, None),
    "offsets in reverse": ({NAME: {**F32, "data_offsets": [64, 0]}}, None),
    "overlapping tensors": ({NAME: F32, "b": F32}, None),
    "metadata that is no text": ({"__metadata__": {"a": 1}, NAME: F32}, None),
    "no offsets": ({NAME: {"dtype": "F32", "shape": [4, 4]}}, None),
    "another type": ({NAME: {**F32, "dtype": "BOOL", "shape": [64]}}, None),
}


@pytest.mark.parametrize(("header", "size"), HEADERS.values(), ids=HEADERS)
def test_headers_of_safetensors(saved, tmp_path, header, size):
    with_header(saved / "model.safetensors", header, size=size)
    assert not loads(saved)
    with suppress(CheckpointError):
        diff_checkpoints(saved, saved)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.complex64])
def test_weights_that_are_no_floating_point_numbers_are_refused(saved, dtype):
    tensors = load_file(saved / "model.safetensors")
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name].to(dtype)}, saved / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"floating-point numbers for {name} .* found {dtype}"):
        Policy.from_folder(saved, device="cpu")


def test_an_index_names_files_beside_it_only(saved, tmp_path):
    weights = saved / "model.safetensors"
    shutil.move(weights, tmp_path / "mine.safetensors")
    index = saved / "model.safetensors.index.json"
    mine = str(tmp_path / "mine.safetensors")
    for name in (
        "../mine.safetensors",
        mine,
        5,
        None,
        [],
        "a/../b",
        ".",
        "..",
        "",
        "é" * 128,
        "a\0b",
        "\ud800",
    ):
        index.write_text(json.dumps({"weight_map": {NAME: name}}))
        with pytest.raises(CheckpointError):
            Policy.from_folder(saved, device="cpu")
    for wrong in ([], "x", {"a": {}}):
        index.write_text(json.dumps({"weight_map": wrong}))
        assert not loads(saved)


def test_weights_may_be_links_to_safetensors_anywhere(saved, tmp_path):
    weights = saved / "model.safetensors"
    shutil.move(weights, tmp_path / "mine.safetensors")
    weights.symlink_to(tmp_path / "mine.safetensors")
    assert loads(saved)
    secret = "password of the host " * 100_000
    (tmp_path / "mine.safetensors").write_text(secret)
    with pytest.raises(CheckpointError, match="expected whole safetensors") as error:
        Policy.from_folder(saved, device="cpu")
    assert "password" not in str(error.value)


def test_a_pipe_in_a_model_folder_is_not_waited_for_when_it_is_hashed(saved):
    (saved / "model.safetensors").unlink()
    os.mkfifo(saved / "model.safetensors")
    with pytest.raises(OSError, match="no regular file"):
        FoundModel("m", saved, None, None).weights_hash  # noqa: B018


def test_links_and_special_files_in_a_model_folder(saved, tmp_path):
    (tmp_path / "secret").write_text("{{ 'mine' }}")
    (saved / "chat_template.jinja").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match=r"leads out.*copy the file, or name the folder"):
        Tokenizer.load(saved)
    (saved / "chat_template.jinja").unlink()
    for name in ("config.json", "tokenizer.json", "generation_config.json", "model.safetensors"):
        content = (saved / name).read_bytes()
        (saved / name).unlink()
        os.mkfifo(saved / name)
        loads(saved)  # does not wait
        (saved / name).unlink()
        (saved / name).write_bytes(content)
    assert loads(saved)


@pytest.fixture
def snapshot(saved, tmp_path):
    """A model in a cache of the Hub, whose files are links to blobs; once more in a folder of the snapshot."""
    cache = tmp_path / "models--o--n"
    snapshot = cache / "snapshots" / "1"
    (snapshot / "sub").mkdir(parents=True)
    (cache / "blobs").mkdir()
    for file in saved.iterdir():
        shutil.copy(file, cache / "blobs" / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
        (snapshot / "sub" / file.name).symlink_to(f"../../../blobs/{file.name}")
    return snapshot


def test_a_model_in_the_hubs_cache_is_read_under_any_name(snapshot, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(snapshot)
    for folder in (snapshot, snapshot / "sub", tmp_path / "link"):
        assert loads(folder)
    for place, name in ((snapshot, "."), (snapshot.parent, "1"), (snapshot.parent.parent, "snapshots/1")):
        monkeypatch.chdir(place)
        assert loads(Path(name))


def test_a_folder_that_is_only_named_like_the_hubs_cache_ends_at_itself(snapshot):
    blobs = snapshot.parent.parent / "blobs"
    blobs.rename(blobs.with_name("mine"))
    for file in snapshot.glob("*.json"):
        file.unlink()
        file.symlink_to(f"../../mine/{file.name}")
    with pytest.raises(CheckpointError, match="leads out"):
        Tokenizer.load(snapshot)


def test_manifests_of_checkpoints(tmp_path):
    (tmp_path / "mine").write_text("x")
    folder = tmp_path / "step_000001"
    folder.mkdir()
    entry = {"bytes": 1, "sha256": "0"}
    for manifest in (
        {},
        {"files": []},
        {"files": {"a": 1}},
        {"files": {"../mine": entry}},
        {"files": {"a": {"bytes": "x", "sha256": 1}}},
        {"step": [], "files": {"/etc/hostname": entry}},
    ):
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(CheckpointError):
            verify(folder)
        with pytest.raises(CheckpointError):
            checkpoint_step(folder)


BOMBS = {
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a list again and again": "{% set l = range(1000)|list %}{% for a in l %}{% for b in l %}{% for c in l %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    "{{ f(40) }}",
    "a loop in itself": "{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "a repeated text": "{{ 'x' * 10**9 }}",
    "a large number": "{{ 10 ** 1000000000 }}",
    "a wide text": "{{ 'x'|center(1000000000) }}{{ 'x'.ljust(1000000000) }}",
    "a wide format": "{{ '%1000000000d' % 1 }}",
    "a wide format of another kind": "{{ '{:1000000000}'.format(1) }}",
    "a text that doubles": "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "a list that doubles": "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "a block that doubles": "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set t %}{{ n.s }}{{ n.s }}"
    "{% endset %}{% set n.s = t %}{% endfor %}",
    "replacements": "{% set a = 'a' * 1000000 %}{{ a|replace('a', a) }}",
    "a list of itself": "{% set a = [1] %}" + "{% set a = [a, a] %}" * 25 + "{{ a }}",
    "a list of itself as JSON": "{% set a = [1] %}" + "{% set a = [a, a] %}" * 25 + "{{ a|tojson }}",
    "a tuple of itself as a key": "{% set a = (1,) %}" + "{% set a = (a, a) %}" * 40 + "{{ {a: 1} }}",
    "a table of itself": "{% set a = {} %}" + "{% set a = {'x': a, 'y': a} %}" * 40 + "{{ a == a }}",
    "views of a table": "{% set a = {} %}"
    + "{% set a = {'x': a.items(), 'y': a.items()} %}" * 40
    + "{{ a }}",
    "the arguments of a macro": "{% macro f(n) %}{% if n %}{{ f(n - 1, varargs, varargs) }}{% else %}"
    "{{ varargs }}{% endif %}{% endmacro %}{{ f(60, 1) }}",
    "batches of batches": "{% for b in [1]|batch(9999, [1]*99) %}{% for c in [b]|batch(9999, b) %}{{ c == c }}"
    "{% endfor %}{% endfor %}",
    "slices": "{% set l = [1] * 15000 %}{% set m = [" + "l[1:], " * 2000 + "] %}",
    "a search from the end": "{{ ('a' * 900000).rfind('b' ~ 'a' * 450000) }}",
    "a field again and again": "{% set a = 'a' * 900000 %}{{ ('%(a)s' * 100000) % {'a': a} }}",
    "a field of a list": "{{ ['%1000000000d']|format(1) }}",
    "many wide fields": "{{ ('%99999d' * 10000) % 1 }}",
    "a precision": "{{ 1.5|round(100000000, 'ceil') }}",
    "a width that is given": "{{ '{:{w[0]}}'.format('a', w=['999999999']) }}",
    "a wide indentation": "{{ ('a\n' * 100000)|indent(900000) }}",
    "a wide indentation of JSON": "{{ ([1] * 10000)|tojson(indent=900000) }}",
    "a long separator": "{{ (range(15000)|map('string'))|join('a' * 900000) }}",
    "a division": "{% set x = 2 ** 9000000 %}{{ x // (2 ** 4500001 + 1) > 1 }}",
    "a list that is printed": "{% set l = [1] * 5000 %}{% for i in range(9999) %}{{ l }}{% endfor %}",
    "a slow encoding": "{{ ('é' * 9000).encode('punycode') }}",
    "links in a text": "{{ ('(' * 90000)|urlize }}",
    "an error of Python": "{{ cycler() }}",
    "a long template": "{{ 1 }}" * 100_000,
    "the interpreter": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "another file": "{% include '/etc/hostname' %}",
    "division": "{{ 1 / 0 }}",
}


TO_THE_LIMIT = ("slices", "a macro that calls itself twice")  # of time, as "a list that is printed"


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(source, id=name, marks=pytest.mark.slow if name in TO_THE_LIMIT else ())
        for name, source in BOMBS.items()
    ],
)
def test_chat_templates_end(source):
    began = time.process_time()
    with pytest.raises(TemplateError):
        render(source, messages=[])
    assert time.process_time() - began < 20


def test_slow_operations_end_a_template(monkeypatch):
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.3)
    rounds = "{% for i in range(9999) %}{% for j in range(9999) %}"
    for slow in ("{% if 2 in l %}{% endif %}", "{{ l.count(2) }}", "{{ [2]|select('in', l)|list }}"):
        source = "{% set l = [1] * 15000 %}" + rounds + slow + "{% endfor %}{% endfor %}"
        with pytest.raises(TemplateError, match=r"more than 0\.3 seconds"):
            render(source)


def test_a_namespace_that_holds_itself_is_printed():
    assert render("{% set n = namespace() %}{% set n.a = [n, n] %}{{ n.a }}") == "[<Namespace>, <Namespace>]"


def test_large_numbers_are_rendered():
    source = (
        "{{ x|string }} {{ x is number }} {{ '%d' % x }} {{ '{}: {}'.format(x, t) }} {{ '%s'|format(t) }}"
    )
    assert render(source, x=1764290000, t="id 123456789") == (
        "1764290000 True 1764290000 1764290000: id 123456789 id 123456789"
    )


def test_long_conversations_are_rendered():
    source = (
        "{% for m in messages %}{% if loop.index0 == messages|length - 1 %}<last>{% endif %}"
        "{% set rest = messages[loop.index:] %}<|im_start|>{{ m.role + '\n' + m.content.replace('<|', '< |') }}"
        "{{ m.content.rsplit('</think>')[-1]|indent(4)|trim }}<|im_end|>\n{% endfor %}"
        "{{ messages|map(attribute='role')|join('-------') }}"
        "{% for t in tools %}{{ t|tojson(indent=4, separators=(',', ': ')) }}{% endfor %}"
    )
    messages = [{"role": "user", "content": f"{n}: some <|words|> of a talk.\n" * 100} for n in range(200)]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"x": {"type": "string"}}}}] * 100
    text = render(source, messages=messages, tools=tools)
    assert len(text) > 1_000_000 and text.count("< |words|>") == 20_000


def test_chat_templates_of_models_are_rendered_as_before():
    source = (
        "{{ bos_token }}{% set ns = namespace(count=0) %}"
        "{%- for m in messages if m.role != 'system' %}{% set ns.count = ns.count + 1 %}"
        "<|{{ m['role'] }}|>{{ m.content | trim }}{{ eos_token ~ '\n' if not loop.last else '' }}"
        "{%- if loop.first %}({{ loop.length }}){% endif %}{% else %}none{% endfor %}"
        "{{ '%s of %d' % ('a', 2 * 3) }} {{ 2 ** 40 }} {{ messages | map(attribute='role') | join(', ') }}"
        " {{ tools | tojson }} {{ 'a-b'.split('-')[-1].replace('b', 'cd') }} {{ ns.count }}"
        "{% for k, v in {'x': 1}.items() %}{% if v > 5 %}{% break %}{% endif %}{{ k }}={{ v }}{% endfor %}"
    )
    messages = [{"role": role, "content": f" {role}! "} for role in ("system", "user", "assistant")]
    assert render(source, messages=messages, bos_token="<s>", eos_token="</s>", tools=[{"é": 1}]) == (
        "<s><|user|>user!</s>\n(2)<|assistant|>assistant!a of 6 1099511627776 system, user, assistant"
        ' [{"é": 1}] cd 2x=1'
    )
