from __future__ import annotations

import json
import os
import shutil

import pytest
import torch

from greenward.api import evaluate, train
from greenward.common.errors import CheckpointError, RunError
from greenward.config.sections import LoraConfig, ModelConfig, ShapeConfig, SupervisedConfig
from greenward.models import checkpoint
from greenward.models.catalog import find_model
from greenward.models.policy import Policy
from greenward.models.scoring import GroupBatch
from greenward.rollouts.protocols import SamplingParams
from greenward.training.protocols import Example
from greenward.training.sft import SFTTrainer

SHAPE = ShapeConfig(layers=2, hidden_size=32, heads=4, kv_heads=2, intermediate_size=48, max_positions=64)


@pytest.fixture
def saved(tokenizer, tmp_path):
    Policy.random(SHAPE, tokenizer, seed=0, device="cpu").save(tmp_path / "model")
    return tmp_path / "model"


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_saved_policy_comes_back_bit_for_bit(tokenizer, saved):
    expected = Policy.random(SHAPE, tokenizer, seed=0, device="cpu").state_dict()
    found = Policy.load(ModelConfig(id=str(saved), device="cpu")).state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_weights_in_the_type_of_the_arithmetic_are_exact_only_in_float32(tokenizer, tmp_path):
    for seed, dtype in enumerate(("float32", "bfloat16")):
        policy = Policy.random(SHAPE, tokenizer, seed=seed, dtype=dtype, device="cpu")
        policy.save(tmp_path / dtype)
        other = Policy.random(SHAPE, tokenizer, seed=2, dtype=dtype, device="cpu")
        other.load_weights(tmp_path / dtype)
        expected, found = policy.state_dict(), other.state_dict()
        is_exact = all(torch.equal(expected[name], found[name]) for name in expected)
        assert expected.keys() == found.keys() and is_exact == policy.saves_exactly == (dtype == "float32")
    policy = Policy.random(SHAPE, tokenizer, seed=0, device="cpu")
    policy.add_adapter(LoraConfig(), seed=0)
    assert not policy.saves_exactly


def test_a_run_directory_stands_for_its_last_checkpoint(saved, tmp_path):
    last = tmp_path / "run" / "checkpoints" / "last"
    last.parent.mkdir(parents=True)
    last.symlink_to(saved)
    assert checkpoint.resolve(str(tmp_path / "run")) == last
    assert Policy.load(ModelConfig(id=str(tmp_path / "run"), device="cpu")).tokenizer.vocab_size


def test_saving_again_replaces_the_whole_folder(tokenizer, saved):
    (saved / "model-00001-of-00002.safetensors").write_text("from before")
    Policy.random(SHAPE, tokenizer, seed=1, device="cpu").save(saved)
    assert sorted(p.name for p in saved.iterdir()) == [
        ".greenward.json",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert [p.name for p in saved.parent.iterdir()] == ["model"]


def test_saving_replaces_nothing_that_was_not_saved_like_this(tokenizer, saved):
    policy = Policy.random(SHAPE, tokenizer, seed=1, device="cpu")
    (saved / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="notes"):
        policy.save(saved)
    (saved / "notes.txt").unlink()
    (saved / ".greenward.json").unlink()  # a model from elsewhere
    with pytest.raises(RunError, match="expected a model"):
        policy.save(saved)
    assert len(list(saved.iterdir())) == 5


def test_a_failed_save_leaves_the_old_folder(tokenizer, saved, monkeypatch):
    before = (saved / "model.safetensors").read_bytes()

    def full_disk(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full_disk)
    with pytest.raises(CheckpointError, match=r"model.*No space left"):
        Policy.random(SHAPE, tokenizer, seed=1, device="cpu").save(saved)
    assert (saved / "model.safetensors").read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == ["model"]


def test_weights_cut_short_are_named(saved):
    path = saved / "model.safetensors"
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(CheckpointError, match=r"model\.safetensors, found \d+ bytes"):
        Policy.from_folder(saved, device="cpu")


def test_missing_weights_are_named(saved):
    (saved / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*found neither"):
        Policy.from_folder(saved, device="cpu")


def test_a_missing_shard_is_named(published):
    folder = published("llama", shards="20KB")
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=shard.name):
        Policy.from_folder(folder, device="cpu")


def test_weights_of_another_shape_are_named(saved):
    edit_config(saved, intermediate_size=64)
    with pytest.raises(CheckpointError, match=r"down_proj.* \(32, 64\) .* found \(32, 48\)"):
        Policy.from_folder(saved, device="cpu")
    edit_config(saved, intermediate_size=48, num_hidden_layers=3)
    with pytest.raises(CheckpointError, match=r"expected 29 tensors .* found 20; .* model\.layers\.2"):
        Policy.from_folder(saved, device="cpu")


def test_a_config_without_a_needed_key_or_with_bad_json_is_named(saved):
    config = json.loads((saved / "config.json").read_text())
    del config["hidden_size"]
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"'hidden_size' in .*config\.json"):
        Policy.from_folder(saved, device="cpu")
    (saved / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Policy.from_folder(saved, device="cpu")


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "gemma"},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"attention_bias": True},
        {"use_sliding_window": True},
    ],
)
def test_what_the_decoder_does_not_compute_is_left_to_transformers(saved, changes):
    assert checkpoint.read_shape(saved) is not None
    edit_config(saved, **changes)
    assert checkpoint.read_shape(saved) is None


def test_an_id_that_is_no_folder_and_not_on_the_hub_is_refused(monkeypatch, tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        Policy.load(ModelConfig(id=str(tmp_path / "nowhere")))
    huggingface_hub = pytest.importorskip("huggingface_hub")

    def offline(*args, **kwargs):
        raise huggingface_hub.errors.LocalEntryNotFoundError("not in the cache, and offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(CheckpointError, match=r"'owner/name' could not be fetched.*offline"):
        checkpoint.resolve("owner/name", str(tmp_path))


def test_what_is_no_model_is_named(saved, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nowhere.gguf")
    (tmp_path / "circle.gguf").symlink_to(tmp_path / "circle.gguf")
    (tmp_path / "empty").mkdir()
    for name, said in {
        "pipe": "which is neither a folder nor a regular file",
        "gone.gguf": "which is a link that leads nowhere",
        "circle.gguf": "which is a link that leads nowhere",
        "empty": r"expected a model in .*empty, found no config\.json",
        "model/model.safetensors": r"does not begin as one\s.*the folder, and no file in it",
    }.items():
        path = str(tmp_path / name)
        for use in (find_model, checkpoint.resolve, evaluate):
            with pytest.raises(CheckpointError, match=said):
                use(path)
        with pytest.raises(CheckpointError, match=said):
            train("grpo_code_execution", [f"model={path}"], dry_run=True)


def test_weights_that_transformers_would_draw_at_random_are_named(published, tmp_path):
    folder = shutil.copytree(published("llama"), tmp_path / "model")
    edit_config(folder, attention_bias=True)  # so that transformers loads it
    with pytest.raises(CheckpointError, match=r"missing, first model\.layers\.0\.self_attn\.k_proj\.bias"):
        Policy.from_folder(folder, device="cpu")


def test_an_encoder_is_no_causal_language_model(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=tokenizer.vocab_size, **sizes)
    transformers.BertLMHeadModel(config).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    policy = Policy.from_folder(tmp_path, device="cpu")
    with pytest.raises(CheckpointError, match="found BertLMHeadModel, which gives none"):
        policy.sample([[1, 2]], 1, SamplingParams(max_tokens=2), seed=0)


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq"])
def test_a_package_that_quantised_weights_need_is_named(published, tmp_path, method):
    folder = shutil.copytree(published("llama"), tmp_path / "model")
    edit_config(folder, quantization_config={"quant_method": method, "bits": 4, "load_in_4bit": True})
    with pytest.raises(CheckpointError) as error:
        Policy.from_folder(folder, device="cpu")
    assert "transformers, which is not installed" not in str(error.value)


def test_tokens_without_an_embedding_are_named_before_they_are_computed(saved, published):
    """The tokenizer of a larger model, as beside weights that were converted without it."""
    for policy in (
        Policy.from_folder(saved, device="cpu"),
        Policy.from_folder(published("gpt2"), device="cpu"),
    ):
        rows = policy.embeddings
        policy.sample([[rows - 1]], 1, SamplingParams(max_tokens=1), seed=0)
        said = f"below {rows:,}.* found {rows:,}: the tokenizer is of another model"
        with pytest.raises(CheckpointError, match=said):
            policy.sample([[1, 2], [rows, 3]], 1, SamplingParams(max_tokens=1), seed=0)
        for example in (Example((1, rows), (2,)), Example((1,), (2, rows))):
            with pytest.raises(CheckpointError, match=said):
                SFTTrainer(policy, [Example((1,), (2,)), example], SupervisedConfig(), seed=0)


def test_hub_ids_resolve_to_the_cached_snapshot(monkeypatch, tmp_path):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    asked = {}

    def cached(repo_id, **kwargs):
        asked.update(kwargs, repo_id=repo_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    assert checkpoint.resolve("owner/name", "/cache") == tmp_path
    assert asked["repo_id"] == "owner/name" and asked["cache_dir"] == "/cache"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_reference_policy_does_not_follow_training(tokenizer, dtype):
    policy = Policy.random(SHAPE, tokenizer, seed=0, dtype=dtype, device="cpu")
    reference = policy.frozen_copy()
    before = reference.state_dict()["embedding"].clone()
    batch = GroupBatch.build([[3, 4]], [[[5, 6]]])
    scores = (p.completion_logprobs(batch).logprobs_BT for p in (policy, reference))
    assert torch.equal(*scores)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    assert torch.equal(reference.state_dict()["embedding"], before)
    assert not any(p.requires_grad for p in reference.parameters())


def test_saved_weights_of_another_shape_are_refused(tokenizer):
    policy = Policy.random(SHAPE, tokenizer, seed=0, device="cpu")
    other = Policy.random(SHAPE.model_copy(update={"layers": 1}), tokenizer, seed=0, device="cpu")
    with pytest.raises(CheckpointError, match="shape"):
        policy.load_state_dict(other.state_dict())
