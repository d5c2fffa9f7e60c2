"""Finds models by what a user calls them (run, checkpoint, folder, Hugging Face id) and builds policies."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from greenward.common.errors import CheckpointError
from greenward.common.files import read_file
from greenward.common.text import visible
from greenward.config.loading import load_recipe, names_code
from greenward.config.recipe import ModelRecipe, language_model
from greenward.models import checkpoint, gguf
from greenward.models.checkpoint import local_folder
from greenward.models.memory import checkpoints_here, parameters, shape_in
from greenward.models.policy import Policy
from greenward.models.tokenizer import Tokenizer, read_json, train_tokenizer
from greenward.runs.checkpoints import LAST, MANIFEST, checkpoint_step, find_checkpoint
from greenward.runs.files import sha256_of
from greenward.runs.reading import base_model, is_run, read_config, read_sessions

_WEIGHTS = (
    "*.safetensors", "config.json", "adapter_config.json", "generation_config.json", "tokenizer*.json",
    "chat_template.jinja",
)  # fmt: skip
_MOST_OF_CARD = 1 << 20
_MOST_NAME = 80  # characters
_MOST_RECORDED = 1000


@dataclass(frozen=True)
class FoundModel:
    """A model on disk. `recipe` is that of the run which trained it, if it comes from one.

    A run of a task of somebody's own counts as none: its recipe could not be read without running that code.
    """

    name: str
    folder: Path
    recipe: ModelRecipe | None
    step: int | None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(checkpoint.holding("tokenizer.json", self.folder))

    @cached_property
    def weights_hash(self) -> str:
        """SHA-256, in hex, of all files that decide what the model answers."""
        files = sorted({path for pattern in _WEIGHTS for path in self.folder.glob(pattern)})
        if source := gguf.source_of(self.folder):
            files.extend(source.files)
        return sha256_of(files, named=True)

    @property
    def quantization(self) -> str | None:
        """How the weights of a GGUF file are stored, such as Q4_K_M; None for weights of other files."""
        return self._source.quantization if self._source else None

    @cached_property
    def _source(self) -> gguf.Source | None:
        return gguf.source_of(checkpoint.holding("config.json", self.folder))

    @property
    def max_positions(self) -> int | None:
        """The longest prompt and answer together, in tokens, where the model's config says it."""
        config = self._config
        inner = config.get("text_config")
        config = inner if isinstance(inner, dict) and inner else config
        given = (config.get(key) for key in ("max_position_embeddings", "n_positions", "n_ctx"))
        return next((number for number in given if type(number) is int and number > 0), None)

    def to_json(self) -> dict[str, Any]:
        """What a result says of its model."""
        return {**self.origin, "step": self.step, "weights": self.weights_hash}

    @property
    def origin(self) -> dict[str, Any]:
        """Name, licence and, of a GGUF file, the quantisation: what a run says of what it trains.

        Of a run's checkpoint they are followed by the same of its `base`, the model that training began from.
        """
        stored = {"quantization": self.quantization} if self.quantization else {}
        base = {"base": self._base} if self._base else {}
        return {"name": self.name, "licence": self.licence, **stored, **base}

    @cached_property
    def _base(self) -> dict[str, str]:
        """What the run of a checkpoint recorded of its model; of one that had a base itself, of that base."""
        run = _run_of(self.folder)
        recorded = base_model(read_sessions(run)) if run else {}
        first = recorded.get("base")
        return {
            key: visible(value, _MOST_RECORDED)
            for key, value in (first if isinstance(first, dict) else recorded).items()
            if key in ("name", "licence", "quantization") and isinstance(value, str)
        }

    @cached_property
    def licence(self) -> str | None:
        """The licence that the model's GGUF file, its config or its card names."""
        named = self._source.licence if self._source else self._config.get("license")
        if named is None and (card := self.folder / "README.md").is_file():
            with suppress(OSError):
                head = read_file(card, _MOST_OF_CARD).decode("utf-8", "replace").partition("\n---")[0]
                found = re.search(r"^license:[ \t]*(\S.*)$", head, re.MULTILINE)
                named = found[1] if found and head.startswith("---") else None
        return visible(named.strip("'\" "), _MOST_NAME) if isinstance(named, str) else None

    def description(self) -> str:
        """Name, architecture, size and licence, in words; no weights are read."""
        folder = checkpoint.holding("config.json", self.folder)
        known = shape_in(self.folder)
        files = self._source.files if self._source else folder.glob("*.safetensors")
        size = sum(path.stat().st_size for path in files)
        quantised = self._config.get("quantization_config")
        texts = (self._config.get("dtype", self._config.get("torch_dtype")), self._config.get("model_type"))
        dtype, kind = (visible(text, _MOST_NAME) if isinstance(text, str) else "" for text in texts)
        dtype = self.quantization or dtype
        method = quantised.get("quant_method") if isinstance(quantised, dict) else None
        parts = (
            kind,
            f"{parameters(known[0]) / 1e6:,.1f} M parameters" if known else "",
            f"{size / 2**20:,.0f} MiB of weights" + (f" in {dtype}" if dtype else ""),
            f"quantised ({visible(str(method or 'unknown'), _MOST_NAME)})" if quantised else "",
            f"licence {self.licence or 'not stated'}",
        )
        return f"{self.name}: {', '.join(filter(None, parts))}"

    @cached_property
    def _config(self) -> Mapping[str, Any]:
        return read_json(checkpoint.holding("config.json", self.folder) / "config.json")


@dataclass(frozen=True)
class LoadedModel:
    """A policy in memory, in the form of a `FoundModel`."""

    policy: Policy
    name = "policy"
    recipe = None

    @property
    def tokenizer(self) -> Tokenizer:
        return self.policy.tokenizer

    @property
    def max_positions(self) -> int:
        return self.policy.max_positions

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "step": None, "weights": None}


def find_model(name: str, which: str | None = None) -> FoundModel:
    """The model called `name`; of a run, its checkpoint `which` (as in `find_checkpoint`), else the newest.

    Raises `CheckpointError` for a run without it, a study of several runs, and whatever is no model.
    """
    path = Path(name).expanduser()
    if path.is_dir() and is_run(path):
        folder = find_checkpoint(path, which or LAST)
        return _found(name if which in (None, LAST) else str(folder), folder)
    if path.is_dir() and (runs := sorted(entry for entry in path.iterdir() if is_run(entry))):
        raise CheckpointError(
            f"{path} holds several runs and is no model.",
            remedy=f"Give one of them: {', '.join(str(run) for run in runs[:4])}.",
        )
    if which is not None:
        raise CheckpointError(f"{name} is no run directory, so it has no checkpoint {which!r}.")
    folder = checkpoint.resolve(name)
    checkpoint.demand_config(checkpoint.holding("config.json", folder))
    return _found(name, folder)


def _found(name: str, folder: Path) -> FoundModel:
    run = _run_of(folder)
    recipe = None
    if run and not names_code(read_config(run)):  # a stranger's: nothing of it is imported
        recipe = language_model(load_recipe(run / "config.yaml"))
    if recipe is not None:  # a run may be a stranger's: nothing is sent to the servers that it names
        local = recipe.sandbox.model_copy(update={"backend": "local", "http": None})
        recipe = recipe.model_copy(update={"sandbox": local})
    step = checkpoint_step(folder) if (folder / MANIFEST).is_file() else None
    return FoundModel(name, folder, recipe, step)


def _run_of(folder: Path) -> Path | None:
    """The run directory whose checkpoint `folder` is."""
    run = folder.resolve().parent.parent
    return run if folder.resolve().parent.name == "checkpoints" and is_run(run) else None


def write_gguf(found: FoundModel, path: Path, *, kind: str | None = None, overwrite: bool = False) -> str:
    """Write a model of our decoder for llama.cpp, an adapter merged, and return the type of its matrices.

    Without `kind` that is the type of the weights on disk, and F16 for adapters, whose changes bfloat16 would
    round away, and for quantised models. Raises `CheckpointError` for other architectures.
    """
    base = checkpoint.base_folder(found.folder)
    config = read_json((base or found.folder) / "config.json")
    if checkpoint.read_shape(base or found.folder) is None:
        raise CheckpointError(
            f"expected Qwen2, Qwen3 or Llama in {found.folder}, found {config.get('model_type')!r}",
            remedy="llama.cpp's convert_hf_to_gguf.py writes GGUF files of other architectures.",
        )
    dtype = str(config.get("dtype") or config.get("torch_dtype"))
    stored = {"float32": "F32", "bfloat16": "BF16"}.get(dtype, "F16")
    kind = kind or ("F16" if base or found.quantization else stored)
    policy = Policy.from_folder(found.folder, device="cpu")
    gguf.write(
        path,
        policy.model.shape,
        policy.published_tensors(),
        policy.tokenizer,
        kind=kind,
        name=Path(found.name).stem or found.name,
        overwrite=overwrite,
    )
    return kind


@dataclass(frozen=True)
class PromptReader:
    """What of a model decides which prompts fit: its tokenizer and its longest prompt and answer together."""

    tokenizer: Tokenizer
    max_positions: int


def find_reader(
    recipe: ModelRecipe, texts: Callable[[], Iterable[str]], *, fetch: bool
) -> PromptReader | None:
    """The tokenizer and the positions of the recipe's model, without its weights.

    The tokenizer of a decoder from random weights is trained on `texts`. None for a model on the hub that is
    not in the cache, unless it is to be fetched. Raises `CheckpointError` for a folder without weights.
    """
    model = recipe.model
    if model.id is None:
        tokenizer = train_tokenizer(texts(), model.shape.vocab_size)
        return PromptReader(tokenizer, model.shape.max_positions)
    try:
        folder = checkpoint.resolve(model.id, model.cache_dir, offline=model.offline or not fetch)
    except CheckpointError:
        if fetch or model.offline or local_folder(model.id):
            raise
        return None
    found = FoundModel(model.id, folder, None, None)
    checkpoint.check_weights(folder)
    return PromptReader(found.tokenizer, found.max_positions or sys.maxsize)


def build_policy(
    recipe: ModelRecipe, texts: Callable[[], Iterable[str]], reader: PromptReader | None = None
) -> Policy:
    """The policy at the start: a published or earlier model, or a decoder from random weights.

    The tokenizer of such a decoder is that of `reader`, or is trained on `texts`. With `model.lora` the
    policy has a new adapter. It uses gradient checkpointing as `checkpoints_here` says.
    """
    model = recipe.model
    checkpoints = checkpoints_here(recipe)  # by the memory that is left before the weights are there
    if model.id is not None:
        policy = Policy.load(model)
    else:
        tokenizer = reader.tokenizer if reader else train_tokenizer(texts(), model.shape.vocab_size)
        policy = Policy.random(
            model.shape, tokenizer, seed=recipe.seed, dtype=model.dtype, device=model.device
        )
    if model.lora is not None:
        folder = None if model.id is None else local_folder(model.id)
        source = gguf.source_of(folder) if folder else None
        local = source.file if source else folder.resolve() if folder else None
        policy.add_adapter(model.lora, seed=recipe.seed, base=str(local) if local else model.id)
    policy.set_gradient_checkpointing(checkpoints)
    return policy
