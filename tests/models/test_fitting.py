"""Refusals and warnings before a training that does not fit its machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from greenward.common.errors import ConfigError
from greenward.config.loading import load_recipe
from greenward.config.recipe import Recipe
from greenward.models import memory
from greenward.models.devices import check_training_dtype, slow_dtype
from greenward.models.memory import (
    check_disk,
    check_memory,
    check_sampling_memory,
    estimated_mb,
    model_shape,
    parameters,
)
from greenward.recipes.run import check_needs

QWEN = ("model=Qwen/Qwen2.5-Coder-0.5B", "preset=h100", "model.device=cpu")


def left(monkeypatch: pytest.MonkeyPatch, mib: float) -> None:
    monkeypatch.setattr(memory, "available_mb", lambda: mib)


def qwen(*overrides: str) -> Recipe:
    return load_recipe("quickstart", [*QWEN, *overrides])


def test_a_model_that_fits_is_described_and_nothing_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    left(monkeypatch, 1 << 20)
    lines, warned = check_memory(qwen())
    assert warned is None and "494.0 M parameters" in lines[0]
    assert any("optimizer: 3.7 GiB" in line for line in lines)


def sampling_memory(folder: Path, dtype: str = "float32", answers: int = 64) -> tuple[float | None, str]:
    return check_sampling_memory(
        folder,
        dtype=dtype,
        device=torch.device("cpu"),
        answers=answers,
        answers_per_prompt=4,
        prompt_tokens=[100, 300],
        completion_tokens=128,
    )


def test_sampling_takes_weights_caches_and_logits_and_no_gradients(
    monkeypatch: pytest.MonkeyPatch, published
) -> None:
    left(monkeypatch, 1 << 20)
    monkeypatch.setattr(memory, "resident_mb", lambda: 300.0)
    folder = published("qwen2")
    shape, _ = memory.shape_in(folder)  # type: ignore[misc]
    weights = 4 * parameters(shape)
    position = 2 * shape.layers * shape.kv_heads * shape.head_dim * 4  # keys and values of one token
    caches = position * (64 * 128 + 64 // 4 * 200)
    estimated, said = sampling_memory(folder)
    assert estimated is not None and said.endswith("1,024.0 GiB free")
    rest = (estimated - 300) * 2**20 - weights - caches
    assert rest > 2 * 64 * shape.vocab_size * 4  # logits and their probabilities
    assert estimated < (sampling_memory(folder, answers=128)[0] or 0)


def test_weights_that_do_not_fit_are_refused_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch, published
) -> None:
    folder = published("llama")
    left(monkeypatch, 0.01)
    with pytest.raises(ConfigError, match=r"The weights alone take(.|\n)*use a smaller model"):
        sampling_memory(folder)
    left(monkeypatch, 1.0)
    assert sampling_memory(folder)[1].endswith("it will hardly fit")


def test_the_estimate_of_a_training_counts_what_the_process_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "resident_mb", lambda: 0.0)
    without = estimated_mb(qwen())
    monkeypatch.setattr(memory, "resident_mb", lambda: 250.0)
    with_it = estimated_mb(qwen())
    assert without is not None and with_it == without + 250 and without > 4 * 4 * 494


def test_too_little_memory_is_answered_with_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = qwen("training.micro_batch_sequences=64", "model.gradient_checkpointing=false")
    left(monkeypatch, 14 << 10)
    _, warned = check_memory(recipe)
    assert warned is not None and "What fits: training.micro_batch_sequences=" in warned
    left(monkeypatch, 6 << 10)
    with pytest.raises(ConfigError, match=r"Weights, gradients and optimizer alone(.|\n)*model\.lora\.r=16"):
        check_memory(recipe)
    left(monkeypatch, 100)
    with pytest.raises(ConfigError, match="train a smaller model"):
        check_memory(recipe)


def test_processes_that_share_the_state_need_less_each(monkeypatch: pytest.MonkeyPatch) -> None:
    left(monkeypatch, 8 << 10)
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(ConfigError, match="alone take"):
        check_memory(qwen())
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert check_memory(qwen())[1] is None


def test_the_model_of_a_folder_is_that_of_its_config(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for config in (
        transformers.Qwen3Config(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                 num_attention_heads=4, num_key_value_heads=2, head_dim=16),
        transformers.MistralConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                   num_attention_heads=4, num_key_value_heads=2, head_dim=8),
    ):  # fmt: skip
        config.save_pretrained(tmp_path)
        known = model_shape(load_recipe("quickstart", [f"model={tmp_path}"]))
        model = transformers.AutoModelForCausalLM.from_config(config)
        assert known is not None
        assert known[1] == (config.model_type == "qwen3")
        assert parameters(known[0]) == model.num_parameters()
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    assert model_shape(load_recipe("quickstart", [f"model={tmp_path}"])) is None


def test_a_nearly_full_disk_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(free=20 << 30)
    monkeypatch.setattr(memory.shutil, "disk_usage", lambda folder: usage)
    warned = check_disk(qwen(), tmp_path / "new")
    assert warned is not None and "5 checkpoints take up to 36.8 GiB, and 20.0 GiB are free" in warned
    assert (
        check_disk(qwen("training.keep_checkpoints=1", "training.keep_spaced_checkpoints=0"), tmp_path)
        is None
    )


def test_numbers_that_the_device_does_not_train_with_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="float16, which trains on GPUs only"):
        check_training_dtype("float16", torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100-SXM2-32GB")
    with pytest.raises(ConfigError, match=r"V100-SXM2-32GB has no arithmetic for it(.|\n)*float16"):
        check_training_dtype("bfloat16", torch.device("cuda"))
    for allowed in ("float16", "float32", "auto"):
        check_training_dtype(allowed, torch.device("cuda"))


@pytest.mark.parametrize(("capable", "said"), [({}, True), ({"avx512_bf16": True}, False), (None, False)])
def test_emulated_numbers_are_named(
    monkeypatch: pytest.MonkeyPatch, capable: dict | None, said: bool
) -> None:
    if capable is None:  # an older torch, which cannot tell
        monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    else:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capable, raising=False)
    advice = slow_dtype("bfloat16", torch.device("cpu"))
    assert (advice is not None and "model.dtype=float32" in advice) is said
    assert slow_dtype("float32", torch.device("cpu")) is slow_dtype("auto", torch.device("cpu")) is None


def test_a_cache_that_cannot_be_written_is_refused_unless_offline(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = f"model.cache_dir={tmp_path / 'file' / 'models'}"
    with pytest.raises(ConfigError, match=r"cannot be written(.|\n)*model\.offline=true"):
        check_needs(qwen("model.dtype=float32", cache))
    check_needs(qwen("model.dtype=float32", cache, "model.offline=true"))


def test_a_model_that_is_not_in_an_offline_cache_says_how_to_get_it(tmp_path: Path) -> None:
    from greenward.common.errors import CheckpointError
    from greenward.models.policy import Policy

    pytest.importorskip("huggingface_hub")
    recipe = qwen("model.offline=true", f"model.cache_dir={tmp_path}")
    with pytest.raises(
        CheckpointError, match=r"model\.offline is set(.|\n)*hf download Qwen/Qwen2\.5-Coder-0\.5B"
    ):
        Policy.load(recipe.model)
