"""`greenward validate-model`: what it says of good, wrong and broken models, and its exit codes."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from greenward.cli.main import main
from greenward.models.policy import Policy
from greenward.recipes import validate as validation

pytest.importorskip("transformers")

HERE = ("sandbox.require=D", "sandbox.workers=1", "training.threads=1", "problems.families.limit=60")


def validate(model, capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["validate-model", str(model), *HERE, *arguments])
    captured = capsys.readouterr()
    return stop.value.code or 0, captured.out + captured.err


@pytest.mark.parametrize(
    ("family", "kind", "lora"),
    [
        ("qwen2", "greenward's decoder", ["model.lora={}"]),
        pytest.param("gpt2", "GPT2LMHeadModel", [], marks=pytest.mark.slow),
        pytest.param("llama", "greenward's decoder", [], marks=pytest.mark.slow),
        pytest.param("gpt2", "GPT2LMHeadModel", ["model.lora={}"], marks=pytest.mark.slow),
    ],
)
def test_a_model_of_transformers_passes(family, kind, lora, published, capsys):
    sizes = {"n_positions": 512} if family == "gpt2" else {"max_position_embeddings": 512}
    code, text = validate(published(family, **sizes), capsys, *lora)
    assert code == 0, text
    assert first_words(text) == ["passed", "passed", "passed", "Verdict:"]
    found = [line for line in text.splitlines() if line.startswith("found ")]
    assert "no chat template; answers end with <|endoftext|>; 512 positions; weights in float32" in found[0]
    assert "reverses a string. (at temperature 0.7)" in found[1]
    assert kind in text and "3 of 3 steps updated the weights" in text and "peak memory" in text


@pytest.mark.slow
def test_a_run_and_an_adapter_of_it_pass(published, tmp_path, capsys):
    run = tmp_path / "run"
    folder = published("qwen2", max_position_embeddings=512)
    assert validate(folder, capsys, "model.lora={}", "--output", str(run))[0] == 0
    for model in (run, run / "checkpoints" / "last" / "adapter"):
        code, text = validate(model, capsys)
        assert code == 0, text


def test_a_decoder_that_computes_something_else_fails(published, monkeypatch, capsys):
    read = Policy.from_folder

    def wrong(folder, **options):
        policy = read(folder, **options)
        with torch.no_grad():
            policy.model.final_norm *= 1.01
        return policy

    monkeypatch.setattr(Policy, "from_folder", wrong)
    monkeypatch.setattr(validation, "_train", lambda recipe, output: (True, "not trained"))
    code, text = validate(published("qwen2"), capsys)
    assert code == 1 and "CANNOT" in text
    assert first_words(text) == ["passed", "FAILED", "passed", "Verdict:"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "no such folder"),
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "expected a tokenizer"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"{}"), "the weights are cut short"),
        (lambda folder: change_config(folder, hidden_size=64), "of shape"),
        (lambda folder: change_config(folder, model_type="no_such"), "expected a causal language model"),
    ],
    ids=["missing", "no config", "no tokenizer", "cut weights", "other shape", "unknown architecture"],
)
def test_what_is_no_model_is_named_with_exit_code_2(spoil, message, published, tmp_path, capsys):
    folder = shutil.copytree(published("qwen2"), tmp_path / "model")
    spoil(folder)
    code, text = validate(folder, capsys)
    assert code == 2 and message in text


def test_a_tokenizer_of_another_model_is_named(published, tmp_path, capsys):
    folder = shutil.copytree(published("llama", vocab_size=260), tmp_path / "model")
    code, text = validate(folder, capsys)
    assert code == 2 and "below 260, the number of the model's embeddings" in text


def first_words(text):
    """Of the lines that the command prints; transformers shows its progress between them."""
    return [line.split()[0] for line in text.splitlines() if line.startswith(("passed", "FAILED", "Verdict"))]


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
