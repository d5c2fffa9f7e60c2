"""Tiny published-style checkpoints made on the spot by transformers, a trained tokenizer, and a browser."""

from __future__ import annotations

import gc
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from greenward.sandbox.pool import LocalExecutor

# What is imported until the tests begin keeps its bytecode even where the environment forbids that: otherwise pytest
# rewrites the assertions of all files in each process, and each process that a test starts compiles what it imports.
# Modules and tests live to the end: no collection of garbage need look through them, neither now nor later.
_WRITES_NO_BYTECODE, sys.dont_write_bytecode = sys.dont_write_bytecode, False
gc.disable()


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = _WRITES_NO_BYTECODE
    gc.collect()
    gc.freeze()
    gc.enable()


SNIPPETS = [
    "def add(a, b):\n    return a + b\n",
    "def total(xs):\n    result = 0\n    for x in xs:\n        result += x\n    return result\n",
    "def is_even(n):\n    if n % 2 == 0:\n        return True\n    return False\n",
]


@pytest.fixture(scope="session")
def tokenizer():
    from greenward.models.tokenizer import train_tokenizer

    return train_tokenizer(SNIPPETS * 5, 300)


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory, tokenizer) -> Callable[..., Path]:
    """`published(family, **config)`: a folder written by transformers, with the tokenizer beside it."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    families = {"qwen2": "Qwen2", "qwen3": "Qwen3", "llama": "Llama", "gpt2": "GPT2"}

    def make(family: str, *, dtype: Any = None, shards: str = "1GB", **overrides: Any) -> Path:
        shape = {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 48,
            "max_position_embeddings": 128,
            "rope_theta": 5000.0,
        }
        if family == "gpt2":
            shape = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
        ids = {"vocab_size": tokenizer.vocab_size, "eos_token_id": tokenizer.eos_id, "bos_token_id": None}
        config = getattr(transformers, f"{families[family]}Config")(
            **shape | ids | {"pad_token_id": tokenizer.pad_id, "initializer_range": 0.2} | overrides
        )
        torch.manual_seed(0)
        name = "GPT2LMHeadModel" if family == "gpt2" else f"{families[family]}ForCausalLM"
        model = getattr(transformers, name)(config).to(dtype or torch.float32)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if "norm" in parameter_name or parameter_name.endswith("bias"):
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        folder = tmp_path_factory.mktemp(family)
        model.save_pretrained(folder, max_shard_size=shards)
        tokenizer.save(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def sandboxes() -> Iterator[Callable[..., LocalExecutor]]:
    """`sandboxes(workers, **options)`: a sandbox with these options, started once and kept to the end."""
    from greenward.sandbox.pool import LocalExecutor

    class Kept(LocalExecutor):
        def close(self) -> None:
            pass

    started: dict[str, Kept] = {}

    def find(workers: int, *, packages: Sequence[str] = (), **options: Any) -> Kept:
        key = f"{workers} {list(packages)} {options}"
        if key not in started:
            started[key] = Kept(workers, packages=packages, **options)
        return started[key]

    yield find
    for one in started.values():
        LocalExecutor.close(one)


@pytest.fixture
def kept_sandbox(sandboxes: Callable[..., LocalExecutor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are graded in a sandbox that is started once: its start takes longer than most gradings."""
    for module in ("grading.judge", "sandbox.pool"):
        monkeypatch.setattr(f"greenward.{module}.LocalExecutor", sandboxes)


DATA = Path(__file__).parents[1] / "../shared/data"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One for all tests of a process: a second one cannot be opened beside it."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `dev`)")
    if (found := shutil.which("chromium") or shutil.which("google-chrome")) is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    with api.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=found, args=flags)
        yield opened
        opened.close()


@pytest.fixture
def public() -> Callable[[str], Path]:
    """`public("mbpp/mbpp.jsonl")`: a file of the public suites, where this machine has them."""

    def find(path: str) -> Path:
        if not (DATA / path).exists():
            pytest.skip(f"needs {DATA / path}")
        return DATA / path

    return find
