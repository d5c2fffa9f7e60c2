"""Models in several GGUF files: the parts, made by `gguf`, are the whole, and those that are not are named."""

from __future__ import annotations

import json
import shutil
import struct

import pytest
import torch

from greenward import api
from greenward.common.errors import CheckpointError
from greenward.models import checkpoint
from greenward.models.catalog import find_model
from greenward.models.policy import Policy

gguf = pytest.importorskip("gguf")
from gguf_files import logits, write  # noqa: E402

from greenward.models import gguf as ours  # noqa: E402

FIRST = "m-00001-of-00003.gguf"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(ours, "_cache", lambda: tmp_path / "cache")


@pytest.fixture
def parts(tmp_path):
    """`parts(**how)`: a folder with a model in three files; `how` is that of `write`."""

    def make(folder="parts", **how):
        made = tmp_path / folder
        made.mkdir()
        write(made / "m.gguf", **{"family": "qwen2", "kind": "Q4_0", "per_part": 10, **how})
        assert len(list(made.iterdir())) == 3
        return made

    return make


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_parts_are_read_as_the_whole_file_is(tmp_path, parts, family):
    per_part = 8 if family == "llama" else 10
    folder = parts(family=family, per_part=per_part, extra={"general.file_type": 15})
    whole = find_model(str(write(tmp_path / "whole.gguf", family, "Q4_0", extra={"general.file_type": 15})))
    found = find_model(str(folder / FIRST))
    assert found.quantization == "Q4_K_M"
    expected, weights = (
        checkpoint.published_tensors(Policy.from_folder(one.folder, device="cpu").model)
        for one in (whole, found)
    )
    assert expected.keys() == weights.keys()
    assert all(torch.equal(weight, weights[name]) for name, weight in expected.items())
    assert find_model(str(folder)).folder == found.folder  # the only model of the folder
    sizes = sum(one.stat().st_size for one in folder.iterdir())
    assert f" {sizes / 2**20:,.0f} MiB of weights in Q4_K_M" in found.description()


def test_a_link_as_caches_make_them_leads_to_the_parts_beside_it(tmp_path, parts):
    folder, blobs = parts(), tmp_path / "blobs"
    blobs.mkdir()
    for number, one in enumerate(sorted(folder.iterdir())):
        one.rename(blobs / str(number))
        one.symlink_to(blobs / str(number))
    Policy.from_folder(find_model(str(folder / FIRST)).folder, device="cpu")
    (tmp_path / "link.gguf").symlink_to(folder / FIRST)
    with pytest.raises(CheckpointError, match=r"expected a name that ends in -00001-of-00003\.gguf"):
        find_model(str(tmp_path / "link.gguf"))  # which ends at a blob that names no parts


def test_the_hash_covers_all_parts_and_a_changed_part_is_noticed(parts):
    folder = parts()
    before = find_model(str(folder / FIRST))
    digest, last = before.weights_hash, folder / FIRST.replace("00001", "00003", 1)
    content = bytearray(last.read_bytes())
    content[-5] ^= 1
    last.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"00003-of-00003\.gguf has changed"):
        Policy.from_folder(before.folder, device="cpu")
    after = find_model(str(folder / FIRST))
    assert after.folder != before.folder and after.weights_hash != digest


def test_an_adapter_of_parts_is_loaded(tmp_path, parts):
    pytest.importorskip("peft")
    folder = parts(extra={"qwen2.context_length": 1024})
    overrides = [f"model.id={folder / FIRST}", "model.lora={}", "model.dtype=float32", "warm_start=null"]
    small = ["training.max_steps=1", "training.num_generations=2", "evaluation.enabled=false"]
    limits = ["training.threads=1", "sampling.max_tokens=3", "sandbox.require=D"]
    api.train("quickstart", [*overrides, *small, *limits], output=tmp_path / "run")
    adapter = tmp_path / "run" / "checkpoints" / "last" / "adapter"
    named = json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert named == str(folder / FIRST)
    merged, added = (
        logits(Policy.from_folder(find_model(str(one)).folder, device="cpu"), [[5, 6, 7]])
        for one in (adapter.parent, adapter)
    )
    assert torch.allclose(merged, added, atol=1e-4)


def rename(folder, old, new):
    (folder / f"m-0000{old}-of-00003.gguf").rename(folder / new)


def rewrite(folder, number, change):
    """Change a whole number in the metadata of a part."""
    path = folder / f"m-0000{number}-of-00003.gguf"
    key, old, new = change
    content, name = path.read_bytes(), struct.pack("<Q", len(key)) + key.encode()
    form = {"split.tensors.count": "<Ii"}.get(key, "<IH")
    kind = 5 if form == "<Ii" else 2
    assert content.count(name + struct.pack(form, kind, old)) == 1
    path.write_bytes(
        content.replace(name + struct.pack(form, kind, old), name + struct.pack(form, kind, new))
    )


BROKEN = {
    "one is missing": (lambda one: (one / FIRST.replace("1", "2", 1)).unlink(), r"expected 3 parts .* found no m-00002-of-00003\.gguf"),
    "two are missing": (lambda one: [(one / FIRST.replace("1", n, 1)).unlink() for n in "23"], r"no m-00002-of-00003\.gguf, m-00003-of"),
    "one too many": (lambda one: (one / "m-00004-of-00003.gguf").write_bytes(b"x"), r"found m-00004-of-00003\.gguf as well"),
    "part nought": (lambda one: (one / "m-00000-of-00003.gguf").write_bytes(b"x"), r"found m-00000-of-00003\.gguf as well"),
    "exchanged": (lambda one: [rename(one, 2, "x"), rename(one, 3, "m-00002-of-00003.gguf"), (one / "x").rename(one / "m-00003-of-00003.gguf")], "expected part 2 of 3 in .* found part 3 of 3"),
    "another count": (lambda one: rewrite(one, 2, ("split.count", 3, 4)), "expected part 2 of 3 in .* found part 2 of 4"),
    "another number of tensors": (lambda one: [rewrite(one, n, ("split.tensors.count", 27, 26)) for n in (1, 2, 3)], "expected 26 tensors in the parts of .* found 27"),
    "of another model": (lambda one: rewrite(one, 3, ("split.tensors.count", 27, 28)), "found another 'split.tensors.count'"),
    "no part": (lambda one: write(one / "m-00002-of-00003.gguf", "qwen2"), "found a file that is no part"),
    "the first again": (lambda one: (one / "m-00002-of-00003.gguf").write_bytes((one / FIRST).read_bytes()), "expected part 2 of 3 in .* found part 1 of 3"),
    "the first under another number": (lambda one: [(one / "m-00002-of-00003.gguf").write_bytes((one / FIRST).read_bytes()), rewrite(one, 2, ("split.no", 0, 1))], "expected each tensor in one part"),
    "one is cut short": (lambda one: (one / "m-00003-of-00003.gguf").write_bytes((one / "m-00003-of-00003.gguf").read_bytes()[:-40]), r"m-00003-of-00003\.gguf, found .* bytes before the end"),
    "one is empty": (lambda one: (one / "m-00002-of-00003.gguf").write_bytes(b""), r"expected a GGUF file in .*m-00002"),
    "one is a folder": (lambda one: [(one / "m-00002-of-00003.gguf").unlink(), (one / "m-00002-of-00003.gguf").mkdir()], r"m-00002-of-00003\.gguf cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "said"), BROKEN.values(), ids=BROKEN)
def test_parts_that_are_not_one_model_are_named(parts, damage, said):
    folder = parts()
    damage(folder)
    with pytest.raises(CheckpointError, match=said):
        find_model(str(folder / FIRST))


def test_another_part_or_another_name_leads_to_the_first(parts):
    folder = parts()
    with pytest.raises(
        CheckpointError, match=r"found part 2 of 3.*\s.*Name the first part, m-00001-of-00003"
    ):
        find_model(str(folder / "m-00002-of-00003.gguf"))
    rename(folder, 2, "second.gguf")
    with pytest.raises(
        CheckpointError, match=r"part 2 of 3.*\s.*the file that ends in -00001-of-00003\.gguf"
    ):
        find_model(str(folder / "second.gguf"))
    rename(folder, 1, "m-00001-of-00002.gguf")
    for name in ("m-00001-of-00002.gguf", "first.gguf"):
        if name == "first.gguf":
            (folder / "m-00001-of-00002.gguf").rename(folder / name)
        with pytest.raises(CheckpointError, match="ends in -00001-of-00003") as error:
            find_model(str(folder / name))
        assert "names that they were published under" in str(error.value)


def test_a_whole_file_may_have_the_name_of_a_part(tmp_path):
    for name in ("m-00001-of-00001.gguf", "n-00002-of-00003.gguf", "n-00001-of-00003.gguf"):
        assert find_model(str(write(tmp_path / name))).quantization == "F32"


@pytest.mark.parametrize("bound", ["bytes", "tensors"])  # lists of values are in the first part alone
def test_bounds_of_headers_hold_over_all_parts_together(parts, tmp_path, monkeypatch, bound):
    folder, room = parts(), ours._Room
    readers = [gguf.GGUFReader(path) for path in sorted(folder.iterdir())]
    sizes = [one.data_offset if bound == "bytes" else len(one.tensors) for one in readers]
    monkeypatch.setattr(ours, "_Room", lambda: room(**{bound: sum(sizes)}))
    find_model(str(folder / FIRST))
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr(ours, "_Room", lambda: room(**{bound: max(sizes)}))
    with pytest.raises(
        CheckpointError, match=r"expected a whole GGUF file in .*00[23]-of-00003\.gguf, found"
    ):
        find_model(str(folder / FIRST))


def test_architectures_that_transformers_reads_need_one_file(parts):
    folder = parts(family="gemma2", only="qwen2")
    with pytest.raises(
        CheckpointError, match=r"split into parts, found gemma2.*\s.*llama-gguf-split --merge"
    ):
        find_model(str(folder / FIRST))
    extra = {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 4.0}
    extra["qwen2.rope.scaling.original_context_length"] = 32
    folder = parts("stretched", extra=extra)
    with pytest.raises(CheckpointError, match=r"reads no file in parts\s.*llama-gguf-split --merge"):
        Policy.from_folder(find_model(str(folder / FIRST)).folder, device="cpu")
