"""Reads and writes models in llama.cpp's file format, GGUF.

A file, or a model that is split into several, is unpacked once: a folder in the user's cache then holds what
a Hugging Face folder holds beside its weights (config, tokenizer, chat template), and a record of the files
and their tensors. The weights stay in the files, from which they are read into the decoder a few rows at a
time. A file may be a stranger's: its header is read here, with bounds, before any library sees it.
Qwen2, Qwen3 and Llama are read here altogether. Of other architectures `transformers` makes the config and
the model. Byte-level tokenizers are made here, since `transformers` does not know all patterns that split a
text into words and takes those of GPT-2 instead; tokenizers of SentencePiece are made by `transformers`.

- Architectures: Qwen2, Qwen2.5, Qwen3 and Llama (with SmolLM, Mistral and others of that architecture) run on
  greenward's decoder, also with the scaling of Llama 3.1; Gemma and all others that `transformers` reads as
  GGUF go through `AutoModelForCausalLM`. Not supported: mixtures of experts of the architecture `llama`,
  sliding windows of these four.
- Quantisations: all that the package `gguf` dequantises (F32, F16, BF16, Q8_0, Q4_0 to Q5_1, Q2_K to Q6_K,
  IQ, TQ).
- Tokenizers: byte-level ones with `tokenizer.ggml.pre` of `gpt-2`, `smollm`, `qwen2`, `llama-bpe`, `tekken`,
  `gpt-4o`, `deepseek-coder` and names of the same; another name is refused.
- Ends of answers: the file's, and well-known control tokens such as `<|im_end|>` and `<|endoftext|>`.
- Split files: named by the first part (`m-00001-of-00003.gguf`) or their folder. For models that go through
  `transformers`, join them first by `llama-gguf-split --merge`.
- Refused: adapters, projectors (`mmproj`), embedding models, big-endian and damaged files, vocabularies of
  another size than the embeddings.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from torch import Tensor

from greenward.common.errors import CheckpointError
from greenward.common.files import expecting, open_file
from greenward.common.interruption import check
from greenward.common.text import listed
from greenward.models.decoder import DecoderShape, RopeScaling, RotaryTable
from greenward.models.tokenizer import Tokenizer, without_panics
from greenward.runs.files import force, temporary_name, write_json, writing
from greenward.runs.output import check_file

_FORM = 3  # of the unpacked folders: raised by every change of what is written into them
_RECORD = "gguf.json"
_MOST_BYTES = 1 << 50
_MOST_HEADER = 256 << 20  # of all parts of a model together, as the next two
_MOST_VALUES = 1 << 22  # in arrays
_MOST_TENSORS = 1 << 17
_MOST_SPLITS = 1 << 28  # of the tokens of SentencePiece, whose merges are found by splitting each everywhere
_ROWS_AT_ONCE = 1 << 18  # numbers of a matrix that are read at once: they stay in the processor's cache
_DAMAGED = "The file is cut short or damaged: fetch it again."
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # types of tokens
_ENDS = frozenset(  # what llama.cpp takes for the end of an answer where the file has it as a control token
    {
        "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<|return|>",
        "<end_of_turn>", "<end_of_utterance>", "</s>", "<EOT>", "[EOS]", "<｜end▁of▁sentence｜>",
    }
)  # fmt: skip
_NO_LANGUAGE_MODEL = {
    "adapter": "an adapter (LoRA) in llama.cpp's form",
    "mmproj": "the projector of a multimodal model",
    "clip": "the projector of a multimodal model",
    "imatrix": "an importance matrix",
    "bert": "an embedding model", "nomic-bert": "an embedding model", "jina-bert-v2": "an embedding model",
    "t5encoder": "an encoder", "whisper": "a speech model",
}  # fmt: skip
FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_SIZES = {  # of the file, and of config.json
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}  # fmt: skip
_ROPE_FACTORS = "rope_freqs.weight"
_TENSORS = {  # by the names that Hugging Face uses
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip

# How byte-level tokenizers split a text into words, by llama.cpp's names (`tokenizer.ggml.pre`).
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_LLAMA = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN35 = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_SLASHES = _REST.replace(r"[\r\n]*|\s*", r"[\r\n/]*|\s*", 1)
_TEKKEN = "|".join(_CASED) + r"|\p{N}" + _SLASHES
_GPT4O = "|".join(f"{one}{_CONTRACTIONS}?" for one in _CASED) + r"|\p{N}{1,3}" + _SLASHES


def _byte_level(*steps: Any, use_regex: bool = False) -> Any:
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    return pre_tokenizers.Sequence([*steps, last]) if steps else last


def _splitting(*patterns: str) -> Callable[[], Any]:
    return lambda: _byte_level(*(pre_tokenizers.Split(Regex(one), "isolated") for one in patterns))


def _single_digits(*patterns: str, use_regex: bool = True) -> Callable[[], Any]:
    def made() -> Any:
        splits = [pre_tokenizers.Split(Regex(one), "isolated") for one in patterns]
        return _byte_level(*splits, pre_tokenizers.Digits(individual_digits=True), use_regex=use_regex)

    return made


_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+")
_PRE_TOKENIZERS: Mapping[str, Callable[[], Any]] = {
    "gpt-2": lambda: _byte_level(use_regex=True),
    "smollm": _single_digits(),
    "qwen2": _splitting(_QWEN),
    "llama-bpe": _splitting(_LLAMA),
    "qwen35": _splitting(_QWEN35),
    "tekken": _splitting(_TEKKEN),
    "gpt-4o": _splitting(_GPT4O),
    "deepseek-coder": _single_digits(*_DEEPSEEK_CODER, use_regex=False),
}
_SAME = {  # other names of the same
    "phi-2": "gpt-2", "olmo": "gpt-2", "starcoder": "smollm", "refact": "smollm", "llama3": "llama-bpe",
    "llama-v3": "llama-bpe", "falcon3": "llama-bpe", "smaug-bpe": "llama-bpe", "deepseek-r1-qwen": "qwen2",
    "megrez": "qwen2", "llama4": "gpt-4o",
}  # fmt: skip
_WHOLE_WORDS = ("llama-bpe", "tekken")  # a word that is a token is this token, whatever the merges say
_BEGIN = ("llama-bpe", "tekken")  # those whose texts begin with BOS where the file says nothing


class StoredTensor(NamedTuple):
    """A tensor of a file: its shape, rows first, the name of its type, and where in the file it begins.

    `part` is the number of the file, from 0, where a model is split into several.
    """

    shape: tuple[int, ...]
    kind: str
    start: int
    part: int


@dataclass(frozen=True)
class Source:
    """The files that an unpacked folder stands for, several where a model is split into parts.

    `quantization` is such as Q4_K_M, `licence` as the file says, `identities` what changes with the files.
    """

    files: tuple[Path, ...]
    architecture: str
    quantization: str
    licence: str | None
    tensors: Mapping[str, StoredTensor]
    identities: Sequence[Sequence[int]]

    @property
    def file(self) -> Path:
        """The file by which the model is named."""
        return self.files[0]

    @property
    def numbers(self) -> int:
        """How many numbers its tensors hold."""
        return sum(math.prod(one.shape) for one in self.tensors.values())


def unpacked(path: Path) -> Path:
    """The folder that stands for the GGUF file at `path`, which is made where it is missing.

    `path` may be the first of several parts that lie beside each other. Raises `CheckpointError` for a file
    that is no GGUF file, is cut short, or holds no language model that can be read, and for parts that are
    missing, too many, renamed or not of one model.
    """
    with expecting("a GGUF file", path, CheckpointError):
        files = files_of(path)
        looked_at = [(str(file), _identity(file)) for _, file in sorted(files.items())]
        known = (_FORM, looked_at, *map(_version, ("transformers", "tokenizers", "gguf")))
        folder = _cache() / hashlib.sha256(json.dumps(known).encode()).hexdigest()[:32]
        if not (folder / _RECORD).is_file():
            contents = _read(files)
            folder.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(dir=folder.parent))
            try:
                _unpack(contents, draft, [identity for _, identity in looked_at])
                if not folder.exists():  # else another process was quicker
                    draft.rename(folder)
            except OSError:
                if not (folder / _RECORD).is_file():
                    raise
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    return folder


def source_of(folder: Path) -> Source | None:
    """The file that `folder` stands for; None for a folder that `unpacked` has not made."""
    try:
        if Path(os.path.realpath(folder)).parent != Path(os.path.realpath(_cache())):
            return None
    except CheckpointError:
        return None
    return _recorded(folder / _RECORD) if (folder / _RECORD).is_file() else None


@lru_cache(maxsize=8)
def _recorded(path: Path) -> Source:
    with expecting("the record of a GGUF file", path, CheckpointError):
        said = json.loads(path.read_text(encoding="utf-8"))
        tensors = {
            name: StoredTensor(tuple(shape), kind, start, part)
            for name, (shape, kind, start, part) in said["tensors"].items()
        }
        return Source(
            tuple(map(Path, said["files"])),
            said["architecture"],
            said["quantization"],
            said["licence"],
            tensors,
            said["identities"],
        )


def _cache() -> Path:
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:  # a user without a home
        raise CheckpointError(
            f"there is no place for a cache: {error}", remedy="Set XDG_CACHE_HOME."
        ) from error
    return cache / "greenward" / "gguf"


def _identity(path: Path) -> list[int]:
    """What changes when the content of a file does."""
    with open_file(path, _MOST_BYTES) as file:
        return _identity_of(file)


def _identity_of(file: BinaryIO) -> list[int]:
    status = os.fstat(file.fileno())
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _library() -> ModuleType:
    try:
        import gguf
    except ImportError as error:
        raise CheckpointError(
            "reading a GGUF file needs the package gguf, which is not installed",
            remedy="pip install 'greenward[train]'",
        ) from error
    library: ModuleType = gguf
    return library


@dataclass(frozen=True)
class _Contents:
    """What the headers of a file, or of the parts of a model, say; `path` is that of the first."""

    files: tuple[Path, ...]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def path(self) -> Path:
        return self.files[0]

    @property
    def architecture(self) -> str:
        found = self.text("general.architecture")
        if not found or not re.fullmatch(r"[\w.-]{1,64}", found):
            raise CheckpointError(
                f"expected an architecture (general.architecture) in {self.path}, found none"
            )
        return found

    def text(self, key: str) -> str | None:
        found = self.metadata.get(key)
        return found if isinstance(found, str) else None

    def number(self, key: str, default: float | None = None, *, whole: bool = False) -> Any:
        """A number of the model. Raises `CheckpointError` where it is missing or of another kind."""
        found = self.metadata.get(key, default)
        if isinstance(found, bool) or not isinstance(found, int if whole else (int, float)):
            shown = "none" if found is None else f"a {type(found).__name__}"
            kind = "a whole number" if whole else "a number"
            raise CheckpointError(f"expected {kind} ({key}) in {self.path}, found {shown}")
        return found

    def list(self, key: str, kind: type) -> list[Any]:
        found = self.metadata.get(key)
        if not isinstance(found, list) or not all(type(one) is kind for one in found):
            raise CheckpointError(f"expected a list of {kind.__name__} ({key}) in {self.path}, found none")
        return found


@dataclass
class _Room:
    """What the headers of all parts of a model may still take: bytes, values in arrays, and tensors."""

    bytes: int = _MOST_HEADER
    values: int = _MOST_VALUES
    tensors: int = _MOST_TENSORS


class _HeaderReader:
    """Takes a header from a file, value by value; nothing is read before its length is known to be there."""

    def __init__(self, file: BinaryIO, path: Path, room: _Room) -> None:
        self._file, self.path, self.room = file, path, room
        self.size = os.fstat(file.fileno()).st_size
        self.position = 0

    def broken(self, found: str) -> CheckpointError:
        return CheckpointError(f"expected a whole GGUF file in {self.path}, found {found}", remedy=_DAMAGED)

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > self.size:
            raise self.broken(f"the end of the file at byte {self.size:,}, inside of its header")
        self.room.bytes -= size
        if self.room.bytes < 0:
            raise self.broken(f"a header of more than {_MOST_HEADER >> 20} MiB")
        taken = self._file.read(size)
        if len(taken) < size:
            raise self.broken("a file that was cut short while it was read")
        self.position = end
        return taken

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def text(self) -> str:
        return self.take(self.number("Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind in _SCALARS:
            return _shortest(self.number(_SCALARS[kind]), kind)
        if kind != _ARRAY:
            raise self.broken(f"a value of the unknown type {kind}")
        kind, count = self.number("I"), self.number("Q")
        self.room.values -= count
        if self.room.values < 0:
            raise self.broken(f"lists of more than {_MOST_VALUES:,} values")
        if kind == _TEXT:
            return [self.text() for _ in range(count)]
        if kind not in _SCALARS:
            raise self.broken("a list of lists" if kind == _ARRAY else f"a list of the unknown type {kind}")
        code = f"<{count}{_SCALARS[kind]}"
        return list(struct.unpack(code, self.take(struct.calcsize(code))))


def _shortest(number: Any, kind: int) -> Any:
    """A float32 as the decimal number that was meant: 1e-06, not 9.999999974752427e-07."""
    return float(str(np.float32(number))) if kind == 6 else number


def _read(files: Mapping[int, Path]) -> _Contents:
    """What the headers of a model say, by the files of `files_of`. Raises `CheckpointError`."""
    room, path = _Room(), files.get(1) or files[min(files)]
    metadata, tensors = _read_header(path, room, part=0)
    count = _demand_all_parts(path, files, metadata)
    for number in range(2, count + 1):
        check()
        said, more = _read_header(files[number], room, part=number - 1)
        _demand_part(files[number], number, count, said, metadata)
        if twice := min(set(more) & set(tensors), default=None):
            raise CheckpointError(
                f"expected each tensor in one part, found {twice[:80]!r} in {files[number]} again",
                remedy="Take the parts of one model.",
            )
        tensors |= more
    _demand_tensors(path, len(tensors), metadata)
    later = (files[number] for number in range(2, count + 1))
    contents = _Contents((path, *later), metadata, tensors)
    _demand_language_model(contents)
    return contents


def _read_header(path: Path, room: _Room, *, part: int) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Metadata and tensors of a GGUF file, which all lie inside of the file. Raises `CheckpointError`."""
    with expecting("a GGUF file", path, CheckpointError), open_file(path, _MOST_BYTES) as file:
        reader = _HeaderReader(file, path, room)
        metadata, count = _metadata(reader)
        return metadata, _tensors(reader, metadata, count, part)


def _metadata(reader: _HeaderReader) -> tuple[dict[str, Any], int]:
    """What the header says in words and numbers, and how many tensors it lists."""
    path = reader.path
    if reader.size < 24 or reader.take(4) != b"GGUF":
        raise CheckpointError(
            f"expected a GGUF file in {path}, found a file that does not begin as one",
            remedy="Name a .gguf file, or the folder, and no file in it, of a model in Hugging Face's form.",
        )
    if (form := reader.number("I")) not in (2, 3):
        if form and form % (1 << 16) == 0:
            raise CheckpointError(
                f"expected a little-endian GGUF file in {path}, found a big-endian one",
                remedy="Take the usual file of this model; the big-endian one is for s390x.",
            )
        raise CheckpointError(
            f"expected version 2 or 3 of GGUF in {path}, found {form}",
            remedy="Convert it anew by a newer llama.cpp." if form == 1 else _DAMAGED,
        )
    tensor_count, pairs = reader.number("Q"), reader.number("Q")
    reader.room.tensors -= tensor_count
    if reader.room.tensors < 0 or pairs > _MOST_VALUES:
        raise reader.broken(f"{tensor_count:,} tensors and {pairs:,} values")
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = reader.text()
        if key in metadata:
            raise reader.broken(f"the key {key[:80]!r} twice")
        metadata[key] = reader.value(reader.number("I"))
    return metadata, tensor_count


def _tensors(
    reader: _HeaderReader, metadata: Mapping[str, Any], count: int, part: int
) -> dict[str, StoredTensor]:
    library = _library()
    listed = []
    for _ in range(count):
        name, dimensions = reader.text(), reader.number("I")
        if not 1 <= dimensions <= 4:
            raise reader.broken(f"a tensor of {dimensions} dimensions, {name[:80]!r}")
        shape = tuple(reversed([reader.number("Q") for _ in range(dimensions)]))
        listed.append((name, shape, reader.number("I"), reader.number("Q")))
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 8 <= alignment <= 1 << 16 or alignment & (alignment - 1):
        raise reader.broken(f"the alignment {str(alignment)[:40]}")
    begin = -(-reader.position // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    used, end = 0, begin
    for name, shape, number, offset in listed:
        try:
            kind = library.GGMLQuantizationType(number)
            block, block_bytes = library.GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError) as error:
            raise CheckpointError(
                f"expected a type of numbers that gguf {_version('gguf')} knows for {name[:80]!r} in "
                f"{reader.path}, found the number {number}",
                remedy="pip install --upgrade gguf, or take a file of another quantisation.",
            ) from error
        if name in tensors or not all(0 < size < 1 << 31 for size in shape) or shape[-1] % block:
            raise reader.broken(
                f"the tensor {name[:80]!r} of shape {shape}, {'twice' if name in tensors else kind.name}"
            )
        size = math.prod(shape) // block * block_bytes
        if offset % alignment:
            raise reader.broken(f"the tensor {name[:80]!r} at a place that is no multiple of {alignment}")
        tensors[name] = StoredTensor(shape, kind.name, begin + offset, part)
        used, end = used + size, max(end, begin + offset + size)
    if end > reader.size:
        missing = f"ends {end - reader.size:,} bytes before the end of its last tensor"
        raise reader.broken(f"{reader.size:,} bytes: the file {missing}")
    if used > reader.size:
        raise reader.broken("tensors that lie over each other")
    return tensors


def _demand_language_model(contents: _Contents) -> None:
    """Raises `CheckpointError` for what is no model of language."""
    path, architecture = contents.path, contents.architecture
    kind = _NO_LANGUAGE_MODEL.get(contents.text("general.type") or "") or _NO_LANGUAGE_MODEL.get(architecture)
    pooling = contents.metadata.get(f"{architecture}.pooling_type", 0)
    if kind or pooling or contents.metadata.get(f"{architecture}.attention.causal", True) is False:
        raise CheckpointError(
            f"expected a language model in {path}, found {kind or 'an embedding model'}",
            remedy="Name the file of the language model itself.",
        )
    if contents.number("general.quantization_version", 2, whole=True) != 2:
        raise CheckpointError(f"expected version 2 of quantised numbers in {path}, found another")
    tokens = contents.list("tokenizer.ggml.tokens", str)
    rows = contents.tensors.get("token_embd.weight")
    if rows is None or rows.shape[0] != len(tokens):
        shown = "none" if rows is None else f"{rows.shape[0]:,}"
        raise CheckpointError(
            f"expected an embedding (token_embd.weight) for each of the {len(tokens):,} tokens in {path}, "
            f"found {shown}",
            remedy="The file was put together from parts of different models: take another one.",
        )


def _unpack(contents: _Contents, folder: Path, identities: Sequence[Sequence[int]]) -> None:
    tokenizer = _tokenizer(contents)
    tokenizer.save(folder)
    if contents.architecture in FAMILIES and not contents.metadata.get(
        f"{contents.architecture}.expert_count"
    ):
        write_json(folder / "config.json", _config(contents))
    else:
        if len(contents.files) > 1:
            raise CheckpointError(
                f"expected Llama, Qwen2 or Qwen3 in {contents.path}, which is split into parts, found "
                f"{contents.architecture}, which is read by transformers from one file alone",
                remedy="Join the parts: llama-gguf-split --merge FIRST_PART WHOLE.gguf",
            )
        with _transformers(contents.path, "config") as given:
            from transformers import AutoConfig

            AutoConfig.from_pretrained(**given).save_pretrained(folder)
    ends = {
        "eos_token_id": list(tokenizer.eos_ids),
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.bos_id,
    }
    write_json(folder / "generation_config.json", ends)
    record = {
        "files": list(map(str, contents.files)),
        "identities": identities,
        "architecture": contents.architecture,
        "quantization": _quantization(contents),
        "licence": contents.text("general.license"),
        "tensors": contents.tensors,
    }
    write_json(folder / _RECORD, record, indent=None)


@contextmanager
def _transformers(path: Path, what: str) -> Iterator[dict[str, Any]]:
    """What `from_pretrained` takes for a GGUF file; its errors become `CheckpointError`."""
    if find_spec("transformers") is None:
        raise CheckpointError(
            f"{path} needs transformers, which is not installed", remedy="pip install 'greenward[train]'"
        )
    with without_panics(f"expected the {what} of a language model in {path}"):
        yield {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}


def _quantization(contents: _Contents) -> str:
    """The name of the mixture of types, or else the type of most numbers."""
    try:
        name = _library().LlamaFileType(contents.metadata.get("general.file_type")).name
        if name != "GUESSED":
            return str(name.partition("_")[2])
    except ValueError:
        pass
    numbers: Counter[str] = Counter()
    for one in contents.tensors.values():
        numbers[one.kind] += math.prod(one.shape)
    return numbers.most_common(1)[0][0]


def _config(contents: _Contents) -> dict[str, Any]:
    """The config.json of a model that our decoder computes, or nearly. Raises `CheckpointError`."""
    family = contents.architecture
    key = f"{family}.{{}}".format
    sizes = {ours: contents.number(key(theirs), whole=True) for theirs, ours in _SIZES.items()}
    heads = sizes["num_attention_heads"]
    head_dim = sizes["hidden_size"] // max(heads, 1)
    for name in ("attention.key_length", "rope.dimension_count"):
        head_dim = contents.number(key(name), head_dim, whole=True)
    same = {
        name: contents.number(key(name), head_dim)
        for name in ("attention.key_length", "attention.value_length")
    }
    if set(same.values()) != {head_dim} or contents.metadata.get(key("attention.sliding_window")):
        raise CheckpointError(
            f"{contents.path}: heads of several sizes, heads that are rotated in part, and sliding windows "
            f"are not read from GGUF files of the architecture {family}",
            remedy="Take the model in the form of Hugging Face.",
        )
    return {
        "architectures": [FAMILIES[family]],
        "model_type": family,
        **sizes,
        "vocab_size": contents.tensors["token_embd.weight"].shape[0],
        "num_key_value_heads": contents.number(key("attention.head_count_kv"), heads, whole=True),
        "head_dim": head_dim,
        "rms_norm_eps": contents.number(key("attention.layer_norm_rms_epsilon")),
        "rope_theta": contents.number(key("rope.freq_base"), 10000.0),
        "rope_scaling": _rope_scaling(contents, head_dim),
        "tie_word_embeddings": "output.weight" not in contents.tensors,
        "hidden_act": "silu",
        "torch_dtype": "float32",
    }


def _rope_scaling(contents: _Contents, head_dim: int) -> dict[str, Any] | None:
    key = f"{contents.architecture}.rope.scaling.{{}}".format
    kind = contents.text(key("type")) or "none"
    if _ROPE_FACTORS in contents.tensors:
        return _llama3_scaling(contents, head_dim)
    if kind == "none":
        return None
    found: dict[str, Any] = {"rope_type": kind, "factor": contents.number(key("factor"))}
    if kind == "yarn":
        original = contents.number(key("original_context_length"), whole=True)
        return found | {"original_max_position_embeddings": original}
    if kind != "linear":
        raise CheckpointError(
            f"{contents.path}: the scaling {kind[:40]!r} of positions is not read from GGUF files"
        )
    return found


def _llama3_scaling(contents: _Contents, head_dim: int) -> dict[str, Any]:
    """The numbers of Llama 3.1's scaling, of which the file holds only what they make of each frequency.

    All published models have the same numbers but for `factor`. Raises `CheckpointError` for others.
    """
    stored = contents.tensors[_ROPE_FACTORS]
    with open_file(contents.files[stored.part], _MOST_BYTES) as file:
        factors = torch.cat([rows.reshape(-1) for _, rows in _rows(file, stored)])
    scaling = RopeScaling(max(float(factors.max()), 1e-9), 1.0, 4.0, 8192)
    theta = contents.number(f"{contents.architecture}.rope.freq_base", 10000.0)
    shape = DecoderShape(1, head_dim, 1, 1, 1, head_dim, 1, 1, rope_theta=theta, rope_scaling=scaling)
    plain = theta ** -(torch.arange(0, head_dim, 2) / head_dim)
    made = plain / RotaryTable(shape).frequencies
    if made.shape != factors.shape or not torch.allclose(made, factors, rtol=1e-3):
        raise CheckpointError(
            f"{contents.path}: its factors of frequencies ({_ROPE_FACTORS}) are not those of Llama 3.1",
            remedy="Take the model in the form of Hugging Face.",
        )
    return {"rope_type": "llama3", **vars(scaling)}


def _tokenizer(contents: _Contents) -> Tokenizer:
    tokens = contents.list("tokenizer.ggml.tokens", str)
    kinds: list[int] = []
    if "tokenizer.ggml.token_type" in contents.metadata:
        kinds = contents.list("tokenizer.ggml.token_type", int)
    if kinds and len(kinds) != len(tokens):
        raise CheckpointError(
            f"expected {len(tokens)} types of tokens in {contents.path}, found {len(kinds)}"
        )
    named = {}
    for name in ("eos", "eot", "eom", "bos", "padding"):
        id_ = contents.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if id_ is None:
            continue
        if type(id_) is not int or not 0 <= id_ < len(tokens):
            raise CheckpointError(
                f"expected the id of a token (tokenizer.ggml.{name}_token_id) in {contents.path}, "
                f"found {str(id_)[:40]}"
            )
        named[name] = id_
    marks = [id_ for id_, kind in enumerate(kinds) if kind == _CONTROL and tokens[id_] in _ENDS]
    ends = dict.fromkeys([*(named[name] for name in ("eos", "eot", "eom") if name in named), *marks])
    if contents.text("tokenizer.ggml.model") == "gpt2":
        backend = _byte_level_backend(contents, tokens, kinds, named.get("bos"))
    else:
        if sum(len(token) ** 2 for token in tokens) > _MOST_SPLITS:
            raise CheckpointError(
                f"the tokens in {contents.path} are too long for a tokenizer of SentencePiece"
            )
        with _transformers(contents.path, "tokenizer") as given:
            from transformers import AutoTokenizer

            backend = AutoTokenizer.from_pretrained(**given).backend_tokenizer
    return Tokenizer(
        backend,
        eos_ids=list(ends),
        pad_id=named.get("padding"),
        bos_id=named.get("bos"),
        chat_template=contents.text("tokenizer.chat_template"),
    )


def _byte_level_backend(
    contents: _Contents, tokens: Sequence[str], kinds: Sequence[int], bos: int | None
) -> Backend:
    pre = contents.text("tokenizer.ggml.pre") or "none"
    pre = _SAME.get(pre, pre)
    if pre not in _PRE_TOKENIZERS:
        raise CheckpointError(
            f"expected a tokenizer that splits texts as {', '.join((*_PRE_TOKENIZERS, *_SAME))} does "
            f"(tokenizer.ggml.pre) in {contents.path}, found {pre[:40]!r}",
            remedy="Take the model in the form of Hugging Face, whose tokenizer.json says how.",
        )
    count = len(tokens)
    while kinds and count and kinds[count - 1] == _UNUSED:  # rows that round up the number of embeddings
        count -= 1
    vocab = {token: id_ for id_, token in enumerate(tokens[:count])}
    if len(vocab) < count:
        twice = next(token for id_, token in enumerate(tokens) if vocab.get(token) != id_)
        raise CheckpointError(f"expected each token once in {contents.path}, found {twice[:80]!r} twice")
    merges = [tuple(merge.split(" ")) for merge in contents.list("tokenizer.ggml.merges", str)]
    with without_panics(f"expected a tokenizer in {contents.path}"):
        backend = Backend(models.BPE(vocab, merges, ignore_merges=pre in _WHOLE_WORDS))
        backend.pre_tokenizer = _PRE_TOKENIZERS[pre]()
        backend.decoder = decoders.ByteLevel()
        if pre in ("qwen2", "qwen35"):
            backend.normalizer = normalizers.NFC()
        for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
            of_kind = [token for token, one in zip(tokens, kinds, strict=False) if one == kind]
            added = [AddedToken(token, normalized=False, special=special) for token in of_kind]
            (backend.add_special_tokens if special else backend.add_tokens)(added)
        if bos is not None and contents.metadata.get("tokenizer.ggml.add_bos_token", pre in _BEGIN) is True:
            begin = tokens[bos]
            backend.post_processor = processors.TemplateProcessing(
                [begin, "$A"], special_tokens=[(begin, bos)]
            )
    return backend


def transformers_model(source: Source, config: Any) -> Any:
    """The model of `transformers` in a file, in float32, with this config. Raises `CheckpointError`."""
    import transformers

    whole = getattr(transformers, "GgufConfig", None)  # of newer versions, which can leave weights quantised
    with _unchanged(source, 0), _transformers(source.file, "weights") as given:
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            **given,
            **({"quantization_config": whole(dequantize=True)} if whole else {}),
            config=config,
            dtype=torch.float32,
            trust_remote_code=False,
            output_loading_info=True,
        )
    if missing := found["missing_keys"]:
        raise CheckpointError(f"expected the weights {min(missing)} in {source.file}, found none")
    if quantizer := getattr(model, "hf_quantizer", None):
        quantizer.remove_quantization_config(model)  # with which it can be neither trained nor saved
    return model


@contextmanager
def _unchanged(source: Source, part: int) -> Iterator[BinaryIO]:
    """A file, open, if it is as it was when it was unpacked. Raises `CheckpointError`."""
    path = source.files[part]
    with expecting("a GGUF file", path, CheckpointError), open_file(path, _MOST_BYTES) as file:
        if _identity_of(file) != source.identities[part]:
            raise CheckpointError(
                f"{path} has changed since it was looked at",
                remedy="Give the same command again, once the file is whole.",
            )
        yield file


@torch.no_grad()
def load(targets: Mapping[str, Tensor], source: Source, shape: DecoderShape) -> None:
    """Fill the decoder's weights, by the names that Hugging Face uses, from a file, a few rows at a time.

    Raises `CheckpointError` for a tensor that is missing, of another shape, or unknown.
    """
    names = {tensor_name(published): published for published in targets}
    if unknown := sorted(set(source.tensors) - set(names) - {_ROPE_FACTORS}):
        raise CheckpointError(
            f"expected the tensors of the architecture {source.architecture} in {source.file}, found "
            f"{unknown[0][:80]!r} as well",
            remedy="Take the model in the form of Hugging Face.",
        )
    for name, published in names.items():
        target, stored = targets[published], source.tensors.get(name)
        if stored is None or stored.shape != target.shape:
            found = "none" if stored is None else str(stored.shape)
            raise CheckpointError(
                f"expected {name} of shape {tuple(target.shape)} in {source.file}, found {found}"
            )

    def part_of(name: str) -> int:
        return source.tensors[name].part

    for part, in_part in groupby(sorted(names, key=part_of), key=part_of):
        with _unchanged(source, part) as file:
            for name in in_part:
                target, published = targets[names[name]], names[name]
                order = row_order(published, shape) if source.architecture == "llama" else None
                for first, rows in _rows(file, source.tensors[name]):
                    check()
                    end = first + len(rows)
                    places = slice(first, end) if order is None else order[first:end]
                    target.view(-1, target.shape[-1])[places] = rows.to(target)


def _rows(file: BinaryIO, stored: StoredTensor) -> Iterator[tuple[int, Tensor]]:
    """The rows of a tensor in float32, some at a time, with the number of the first."""
    library = _library()
    kind = library.GGMLQuantizationType[stored.kind]
    block, block_bytes = library.GGML_QUANT_SIZES[kind]
    row_bytes = stored.shape[-1] // block * block_bytes
    count = math.prod(stored.shape[:-1])
    at_once = max(1, _ROWS_AT_ONCE // stored.shape[-1])
    file.seek(stored.start)
    for first in range(0, count, at_once):
        size = min(at_once, count - first) * row_bytes
        taken = bytearray(file.read(size))
        if len(taken) < size:
            raise CheckpointError(f"{file.name} was cut short while it was read", remedy=_DAMAGED)
        # In one row: the library takes 16 rows at a time, which are few blocks.
        raw = np.frombuffer(taken, dtype=np.uint8).reshape(1, -1)
        try:
            numbers = library.dequantize(raw, kind)
        except NotImplementedError as error:
            raise CheckpointError(
                f"the type of numbers {stored.kind} in {file.name} cannot be read by gguf {_version('gguf')}",
                remedy="Take a file of another quantisation.",
            ) from error
        rows = np.ascontiguousarray(numbers, dtype=np.float32).reshape(-1, stored.shape[-1])
        yield first, torch.from_numpy(rows)


def tensor_name(published: str) -> str:
    """llama.cpp's name of a tensor of our decoder that Hugging Face calls `published`."""
    name, _, kind = published.rpartition(".")
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
    return f"blk.{layer[1]}.{_TENSORS[layer[2]]}.{kind}" if layer else f"{_TENSORS[name]}.{kind}"


def row_order(published: str, shape: DecoderShape) -> Tensor | None:
    """Which row of a matrix llama.cpp holds at each place; None where all are in their places.

    Of Llama it holds the two halves of each head, which are rotated together, in turn.
    """
    heads = {"q": shape.heads, "k": shape.kv_heads}
    if not (match := re.search(r"\.([qk])_proj\.weight$", published)):
        return None
    rows = torch.arange(heads[match[1]] * shape.head_dim)
    return rows.view(-1, 2, shape.head_dim // 2).transpose(1, 2).flatten()


TYPES = ("F32", "BF16", "F16", "Q8_0")
"""In which matrices are written; vectors are always float32, as llama.cpp expects them."""


@torch.no_grad()
def write(
    path: Path,
    shape: DecoderShape,
    tensors: Iterable[tuple[str, Tensor]],
    tokenizer: Tokenizer,
    *,
    kind: str,
    name: str,
    overwrite: bool = False,
) -> None:
    """Write a decoder's tensors, by the names that Hugging Face uses, whole or not at all.

    Raises `CheckpointError` for a tokenizer that llama.cpp does not have, and `RunError` for a file that is
    there, but for a GGUF file with `overwrite`.
    """
    library = _library()
    family = shape.family
    said = _tokenizer_metadata(tokenizer, shape.vocab_size, path)
    if not (overwrite and path.is_file() and not path.is_symlink() and _begins_as_gguf(path)):
        check_file(path)
    draft = path.with_name(temporary_name(path))
    writer = library.GGUFWriter(draft, family)
    said |= {
        "general.type": "model",
        "general.name": name,
        "general.file_type": int(library.LlamaFileType[f"{'ALL' if kind == 'F32' else 'MOSTLY'}_{kind}"]),
        "general.quantization_version": 2,
        **{f"{family}.{key}": value for key, value in _shape_metadata(shape).items()},
    }
    for key, value in said.items():
        add = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
        }
        add.get(type(value), writer.add_array)(key, value)
    parts = {tensor_name(published): (published, tensor) for published, tensor in tensors}
    kinds = {name: _written_kind(tensor, kind) for name, (_, tensor) in parts.items()}
    if shape.rope_scaling is not None:
        plain = shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim)
        parts[_ROPE_FACTORS] = ("", plain / RotaryTable(shape).frequencies)
        kinds[_ROPE_FACTORS] = "F32"
    for name, (_, tensor) in parts.items():
        of = library.GGMLQuantizationType[kinds[name]]
        block, size = library.GGML_QUANT_SIZES[of]
        writer.add_tensor_info(
            name, tuple(tensor.shape), np.dtype(np.float32), tensor.numel() // block * size, raw_dtype=of
        )
    with writing(str(path)):
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for name, (published, tensor) in parts.items():
                check()
                order = row_order(published, shape) if family == "llama" else None
                numbers = tensor.detach().to("cpu", torch.float32)
                numbers = numbers if order is None else numbers[order]
                of = library.GGMLQuantizationType[kinds[name]]
                writer.write_tensor_data(library.quantize(np.ascontiguousarray(numbers.numpy()), of))
            writer.close()
            force([draft])
            os.replace(draft, path)
        finally:
            writer.close()
            draft.unlink(missing_ok=True)


def _begins_as_gguf(path: Path) -> bool:
    with open_file(path, _MOST_BYTES) as file:
        return file.read(4) == b"GGUF"


def _written_kind(tensor: Tensor, kind: str) -> str:
    if tensor.ndim < 2:
        return "F32"
    return "F16" if kind == "Q8_0" and tensor.shape[-1] % 32 else kind


def _shape_metadata(shape: DecoderShape) -> dict[str, Any]:
    return {
        "block_count": shape.layers,
        "context_length": shape.max_positions,
        "embedding_length": shape.hidden_size,
        "feed_forward_length": shape.intermediate_size,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": float(shape.norm_eps),
        "rope.freq_base": float(shape.rope_theta),
        "rope.dimension_count": shape.head_dim,
        "vocab_size": shape.vocab_size,
    }


def _tokenizer_metadata(tokenizer: Tokenizer, rows: int, path: Path) -> dict[str, Any]:
    """The vocabulary as llama.cpp names it, with a token for each of `rows` embeddings.

    Raises `CheckpointError` for a tokenizer that splits texts in another way than llama.cpp can.
    """
    said = json.loads(tokenizer.backend.to_str())
    model, normalizer = said["model"], (said["normalizer"] or {}).get("type")
    steps = _steps(said["pre_tokenizer"])
    known = {name: _steps(json.loads(made().__getstate__())) for name, made in _PRE_TOKENIZERS.items()}
    pre = next((name for name, found in known.items() if found == steps), None)
    if (
        model["type"] != "BPE"
        or pre is None
        or model.get("byte_fallback")
        or model.get("continuing_subword_prefix")
        or model.get("end_of_word_suffix")
        or bool(model.get("ignore_merges")) != (pre in _WHOLE_WORDS)
        or normalizer not in (None, "NFC")
        or (said["decoder"] or {}).get("type") != "ByteLevel"
    ):
        raise CheckpointError(
            f"{path} cannot be written: llama.cpp splits texts as {', '.join(_PRE_TOKENIZERS)} do, and this "
            f"tokenizer does so in another way",
            remedy="llama.cpp's convert_hf_to_gguf.py knows more models. No tokenizer there is like those "
            "that greenward trains.",
        )
    tokens = [f"[PAD{id_}]" for id_ in range(rows)]
    kinds = [_UNUSED] * rows
    added = {one["id"]: one for one in said["added_tokens"]}
    texts = {id_: token for token, id_ in model["vocab"].items()}
    texts |= {id_: one["content"] for id_, one in added.items()}
    if max(texts) >= rows:
        raise CheckpointError(f"the tokenizer has the id {max(texts)}, and the model {rows} embeddings")
    for id_, token in texts.items():
        tokens[id_] = token
        kinds[id_] = 1 if id_ not in added else _CONTROL if added[id_]["special"] else _USER_DEFINED
    begins = tokenizer.bos_id in tokenizer.encode("", add_special_tokens=True)
    ids = {"eos": tokenizer.eos_id, "padding": tokenizer.pad_id, "bos": tokenizer.bos_id}
    if len(tokenizer.eos_ids) > 1:
        ids["eot"] = tokenizer.eos_ids[1]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [one if isinstance(one, str) else " ".join(one) for one in model["merges"]],
        **{f"tokenizer.ggml.{name}_token_id": id_ for name, id_ in ids.items() if id_ is not None},
        "tokenizer.ggml.add_bos_token": begins,
        **({"tokenizer.chat_template": tokenizer.chat_template} if tokenizer.chat_template else {}),
    }


def _steps(state: Any) -> list[dict[str, Any]]:
    """The steps of a pre-tokenizer, without what changes no token."""
    if state is None:
        return []
    if state["type"] == "Sequence":
        return [one for part in state["pretokenizers"] for one in _steps(part)]
    return [{key: value for key, value in state.items() if key != "trim_offsets"}]


# llama.cpp names the parts of a split model NAME-00001-of-00003.gguf and so on, and opens the first. The
# metadata of the model is in that one; every part says which it is, of how many.
_NUMBER, _COUNT, _COUNT_OF_TENSORS = "split.no", "split.count", "split.tensors.count"
_PART = re.compile(r"(?s:(.*))-(\d{5})-of-(\d{5})\.gguf")
_AGAIN = "Fetch all parts again, into one folder, under the names that they were published under."
_SHOWN_PARTS = 4  # names in an error


def files_of(path: Path) -> dict[int, Path]:
    """By its number, from 1: `path`, and if its name is that of a first part, all parts that lie beside it.

    A whole file is number 1. Where `path` is a link, its own name counts before that of what it leads to.
    """
    for named in (path.absolute(), Path(os.path.realpath(path))):
        if match := _PART.fullmatch(named.name):
            folder = Path(os.path.realpath(named.parent))
            if int(match[2]) == 1:
                matches = ((_PART.fullmatch(one.name), one) for one in folder.iterdir())
                return {int(m[2]): one for m, one in matches if m and (m[1], m[3]) == (match[1], match[3])}
            return {int(match[2]): folder / named.name}
    return {1: Path(os.path.realpath(path))}


def without_later_parts(files: Iterable[Path]) -> list[Path]:
    """The files, of which each may be a model: all but the later parts whose first part is there, too."""
    named = {file: _PART.fullmatch(file.name) for file in files}
    firsts = {(m[1], m[3]) for m in named.values() if m and int(m[2]) == 1}
    return [file for file, m in named.items() if not m or int(m[2]) == 1 or (m[1], m[3]) not in firsts]


def _demand_all_parts(path: Path, files: Mapping[int, Path], metadata: Mapping[str, Any]) -> int:
    """The number of parts that the metadata of `path` tells, 1 for a whole file.

    `files` are those of `files_of`. Raises `CheckpointError` for a part that is not the first, for names that
    are not those of its parts, and for parts that are missing or too many.
    """
    count, number = (
        _split_number(metadata, key, path, default) for key, default in ((_COUNT, 1), (_NUMBER, 0))
    )
    if count < 2:
        return 1
    first = f"-00001-of-{count:05d}.gguf"
    match = _PART.fullmatch(path.name)
    if number != 0:
        begun = path.with_name(f"{match[1]}{first}").name if match else f"the file that ends in {first}"
        raise CheckpointError(
            f"expected a whole model or its first part in {path}, found part {number + 1} of {count}",
            remedy=f"Name the first part, {begun}, with all others beside it.",
        )
    if match is None or (int(match[2]), int(match[3])) != (1, count):
        raise CheckpointError(
            f"expected a name that ends in {first} for the first of {count} parts, found {path}",
            remedy="Give all parts the names that they were published under; or join them under their own "
            "names: llama-gguf-split --merge FIRST_PART WHOLE.gguf",
        )
    if missing := [n for n in range(1, count + 1) if n not in files]:
        names = listed([f"{match[1]}-{n:05d}-of-{count:05d}.gguf" for n in missing], _SHOWN_PARTS)
        raise CheckpointError(f"expected {count} parts beside {path}, found no {names}", remedy=_AGAIN)
    if extra := sorted(set(files) - set(range(1, count + 1))):
        raise CheckpointError(
            f"expected {count} parts beside {path}, found {files[extra[0]].name} as well",
            remedy="Move away what is no part of this model.",
        )
    return count


def _demand_part(
    path: Path, number: int, count: int, metadata: Mapping[str, Any], first: Mapping[str, Any]
) -> None:
    """Raises `CheckpointError` if the metadata of `path` is not that of part `number`, from 1, of `count`.

    `first` is the metadata of the first part, which a part may repeat.
    """
    found = [_split_number(metadata, key, path, 0) for key in (_NUMBER, _COUNT)]
    if found != [number - 1, count]:
        shown = f"part {found[0] + 1} of {found[1]}" if found[1] else "a file that is no part"
        raise CheckpointError(
            f"expected part {number} of {count} in {path}, found {shown}",
            remedy=f"It was renamed, or is of another model. {_AGAIN}",
        )
    own = (_NUMBER, _COUNT, _COUNT_OF_TENSORS, "general.alignment")
    other = [key for key, value in metadata.items() if key not in own and first.get(key) != value]
    if metadata.get(_COUNT_OF_TENSORS) != first.get(_COUNT_OF_TENSORS):
        other.append(_COUNT_OF_TENSORS)
    if other:
        raise CheckpointError(
            f"expected part {number} of the same model in {path}, found another {other[0]!r:.80}",
            remedy=_AGAIN,
        )


def _demand_tensors(path: Path, found: int, metadata: Mapping[str, Any]) -> None:
    """Raises `CheckpointError` if `found` is not the number of tensors that the first part, `path`, tells."""
    if (told := _split_number(metadata, _COUNT_OF_TENSORS, path, found)) != found:
        raise CheckpointError(
            f"expected {told:,} tensors in the parts of {path}, found {found:,}", remedy=_AGAIN
        )


def _split_number(metadata: Mapping[str, Any], key: str, path: Path, default: int) -> int:
    found = metadata.get(key, default)
    if type(found) is not int or found < 0:
        raise CheckpointError(f"expected a whole number ({key}) in {path}, found {str(found)[:40]}")
    return found
