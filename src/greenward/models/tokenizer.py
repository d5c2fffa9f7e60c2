"""Text to token ids and back, over `tokenizers`; reads and writes Hugging Face folders."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import takewhile
from math import prod
from pathlib import Path
from typing import Any

import tokenizers
from jinja2 import TemplateError
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from greenward.common.errors import CheckpointError
from greenward.common.files import expecting, read_file
from greenward.common.parsing import parse_json_text
from greenward.common.text import encodable
from greenward.models.chat_template import render

END = "<|endoftext|>"
PAD = "<|pad|>"
# The tokens before the text above a gap, before the text below it, and before what fills it.
_INFILLING = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
)
_MOST_IDS = 1 << 31
_MOST_GROWTH = 1500  # of a text, in characters, by what comes before or after the model of a tokenizer
_ANSWER = "the assistant's answer"  # stands for it while a template is rendered

# A newline takes the indentation after it, a word its leading space: short Python is then about one
# token for each lexeme.
_LEXEMES = r"\r?\n[ \t]*| ?[^\W\d]\w*| ?\d{1,3}| ?[^\s\w]+|[ \t]+(?=\S)|\s+"


class Tokenizer:
    """Encodes without adding special tokens; special tokens written out in the text become their ids.

    `eos_ids` are all tokens that end a completion, `eos_id` the first of them; `pad_id` falls back
    to `eos_id`. `chat_template` is the Jinja source, or None.
    """

    begins_answers = True
    """Whether a prompt may hold the first words of the answer."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_ids: Sequence[int],
        pad_id: int | None = None,
        bos_id: int | None = None,
        chat_template: str | None = None,
    ) -> None:
        if not eos_ids:
            raise CheckpointError(
                "the tokenizer has no end-of-sequence token",
                remedy="name one in generation_config.json or tokenizer_config.json (eos_token)",
            )
        self.backend = backend
        self.eos_ids = tuple(eos_ids)
        self.eos_id = self.eos_ids[0]
        self.pad_id = self.eos_id if pad_id is None else pad_id
        self.bos_id = bos_id
        self.chat_template = chat_template

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def special_ids(self) -> dict[str, int]:
        added = self.backend.get_added_tokens_decoder()
        return {token.content: id_ for id_, token in added.items() if token.special}

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids; with `add_special_tokens` as a model expects the start of a text (BOS for Llama).

        Lone surrogates, which JSON can hold and UTF-8 cannot, count as question marks.
        """
        with without_panics(f"the tokenizer cannot encode a text of {len(text)} characters"):
            return self.backend.encode(encodable(text), add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)

    def decode_answer(self, ids: Iterable[int]) -> str:
        """The text of a completion, without tokens that end or pad it, with those that mark its parts.

        Tags of thoughts, channels and calls of tools are special tokens in some models.
        """
        left_out = {*self.eos_ids, self.pad_id, self.bos_id}
        return self.decode([one for one in map(int, ids) if one not in left_out], skip_special_tokens=False)

    def answer_stream(self) -> Callable[[int], str]:
        """A function of the tokens of an answer, one after the other, that returns what each adds to it.

        A character whose bytes are several tokens comes with the last of them.
        """
        left_out = {*self.eos_ids, self.pad_id, self.bos_id}
        stream = decoders.DecodeStream(skip_special_tokens=False)
        return lambda id_: "" if id_ in left_out else stream.step(self.backend, id_) or ""

    def render_question(self, text: str, *, raw: bool = False) -> list[int]:
        """Ids of a question in the chat format; if `raw`, or without a format, of a text to go on with."""
        if raw or self.chat_template is None:
            return self.encode(text, add_special_tokens=True)
        return self.render_chat([{"role": "user", "content": text}])

    @cached_property
    def _infilling_ids(self) -> list[int] | None:
        for tokens in _INFILLING:
            ids = [id_ for token in tokens if (id_ := self.backend.token_to_id(token)) is not None]
            if len(ids) == len(tokens):
                return ids
        return None

    @property
    def fills_gaps(self) -> bool:
        """Whether there are tokens for `render_gap`; of a model that was not trained with them, too."""
        return self._infilling_ids is not None

    def render_gap(self, before: str, after: str, *, most: int) -> list[int]:
        """Ids that ask for the text between two others (fill in the middle, arXiv 2207.14255).

        Where there would be more than `most`, what is farthest from the gap is left out; a third of the ids
        are then of the text after it, or more after a short text.
        """
        if self._infilling_ids is None:
            raise CheckpointError("the tokenizer has no tokens that mark a gap")
        prefix, suffix, middle = self._infilling_ids
        start = [id_ for id_ in self.encode("", add_special_tokens=True) if id_ == self.bos_id]
        room = max(0, most - len(start) - 3)
        before_ids, after_ids = self.encode(before), self.encode(after)
        after_ids = after_ids[: max(room // 3, room - len(before_ids))]
        before_ids = before_ids[max(0, len(before_ids) + len(after_ids) - room) :]
        return [*start, prefix, *before_ids, suffix, *after_ids, middle]

    def decode_filling(self, ids: Iterable[int]) -> str:
        """The text that fills a gap: a completion up to its first added token, special or not.

        Added tokens of spaces alone are text: with them, some tokenizers write indentation.
        """
        added = self.backend.get_added_tokens_decoder()
        ends = {id_ for id_, token in added.items() if token.content.strip("\u2581 \t\r\n")}
        return self.decode(takewhile(lambda id_: id_ not in ends, map(int, ids)))

    def render_chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
        begun: str = "",
    ) -> list[int]:
        """Ids of a conversation in the model's chat format, which says how the `tools` are called.

        With `begun`, they end with these first words of the assistant's answer.
        """
        if not begun:
            return self.encode(self._chat_text(messages, add_generation_prompt, tools))
        answer = {"role": "assistant", "content": f"{begun}{_ANSWER}\n```\n"}
        text, found, _ = self._chat_text([*messages, answer], False, tools).partition(_ANSWER)
        if not found:
            raise CheckpointError("the model's chat template does not render the assistant's answers")
        return self.encode(text)

    def render_next_message(
        self, messages: Sequence[dict[str, Any]], message: dict[str, Any], *, ended: bool = True
    ) -> list[int]:
        """Ids between the assistant's answer to `messages` and its next answer; `message` comes in between.

        The template's end token of the first answer is left out if that answer `ended` with one of its own.
        The answer itself is not needed, since token ids of sampled text are kept as they are. Raises
        `CheckpointError` where the template does not render answers as they are.
        """
        answer = {"role": "assistant", "content": _ANSWER}
        _, found, after = self._chat_text([*messages, answer, message], True).partition(_ANSWER)
        if not found:
            raise CheckpointError("the model's chat template does not render the assistant's answers")
        for end in self.eos_ids if ended else ():
            after = after.removeprefix(self._token(end))
        return self.encode(after)

    def _chat_text(
        self,
        messages: Sequence[dict[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        if self.chat_template is None:
            raise CheckpointError(
                "expected a tokenizer with a chat template, found none",
                remedy="set model.prompt_style to completion, or use an instruction-tuned model",
            )
        try:
            return render(
                self.chat_template,
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                tools=list(tools) or None,
                bos_token="" if self.bos_id is None else self._token(self.bos_id),
                eos_token=self._token(self.eos_id),
            )
        except TemplateError as error:
            raise CheckpointError(
                f"the model's chat template cannot render this conversation: {error}"
            ) from error

    def _token(self, id_: int) -> str:
        return self.backend.id_to_token(id_) or ""

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """The bytes that each id adds to a text; empty for special tokens.

        A single token may hold part of a character, which is why stop strings are looked for in
        bytes.
        """
        special = set(self.special_ids.values())
        byte_level = "ByteLevel" in json.dumps(json.loads(self.backend.to_str())["decoder"])
        table = []
        for id_ in range(self.vocab_size):
            token = self._token(id_)
            if id_ in special:
                table.append(b"")
            elif byte_level and all(char in _BYTE_OF_CHAR for char in token):
                table.append(bytes(_BYTE_OF_CHAR[char] for char in token))
            elif len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
                table.append(bytes.fromhex(token[3:5]))
            else:
                table.append(token.replace("\u2581", " ").encode())
        return table

    def save(self, folder: Path | str) -> None:
        """Write tokenizer.json, tokenizer_config.json and, if any, chat_template.jinja."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": self._token(self.eos_id),
            "pad_token": self._token(self.pad_id),
            "clean_up_tokenization_spaces": False,
        }
        if self.bos_id is not None:
            config["bos_token"] = self._token(self.bos_id)
        if self.chat_template is not None:
            (folder / "chat_template.jinja").write_text(self.chat_template, encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path | str) -> Tokenizer:
        """Read a Hugging Face folder; ids that end a text come from all files that name one."""
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(
                f"expected a tokenizer in {path}, found no such file",
                remedy="save the model's tokenizer beside it (AutoTokenizer.save_pretrained)",
            )
        with expecting("a tokenizer", folder, CheckpointError):
            return cls._read(folder)

    @classmethod
    def _read(cls, folder: Path) -> Tokenizer:
        path = folder / "tokenizer.json"
        content = read_file(path, within=boundary(folder))
        with without_panics(f"expected a tokenizer in {path}"):
            backend = tokenizers.Tokenizer.from_buffer(content)
        _demand_bounded_growth(backend, path)
        backend.no_truncation()
        backend.no_padding()
        config = read_json(folder / "tokenizer_config.json", missing_ok=True)
        end, pad, begin = (_token_id(backend, config.get(f"{name}_token")) for name in ("eos", "pad", "bos"))
        ends = [
            read_json(folder / source, missing_ok=True).get("eos_token_id")
            for source in ("generation_config.json", "config.json")
        ]
        named = [id_ for ids in (*ends, end) for id_ in (ids if isinstance(ids, list) else [ids])]
        template = config.get("chat_template")
        if isinstance(template, list):  # of named templates
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        template_file = folder / "chat_template.jinja"
        if template_file.is_file():
            template = read_file(template_file, within=boundary(folder)).decode("utf-8")
        eos_ids = list(dict.fromkeys(id_ for id_ in named if id_ is not None))
        if not all(type(id_) is int and 0 <= id_ < _MOST_IDS for id_ in eos_ids):
            raise TypeError(f"eos_token_id is {str(eos_ids)[:60]}")
        if not isinstance(template, str | None):
            raise TypeError(f"chat_template is {str(template)[:60]!r}")
        return cls(backend, eos_ids=eos_ids, pad_id=pad, bos_id=begin, chat_template=template)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A lossless byte-level BPE tokenizer of at most `vocab_size` ids for source code.

    The 256 bytes and two special tokens are always there, so the smallest useful size is 258.
    """
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LEXEMES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(END, special=True), AddedToken(PAD, special=True)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(map(encodable, texts), trainer)
    return Tokenizer(backend, eos_ids=[0], pad_id=1)  # the trainer numbers special tokens first


@contextmanager
def without_panics(failure: str) -> Iterator[None]:
    """Turns what tokenizers raises into a `CheckpointError`: bare Exception, BaseException where Rust panics.

    It panics for a pattern that backtracks without end, for example.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise CheckpointError(f"{failure}: {str(error)[:500]}") from error
        raise


_CHARACTERS_MADE_OF_ONE = {  # at most, by the steps of tokenizers that can make more than one
    "BertNormalizer": 12, "NFD": 4, "NFC": 3, "NFKD": 18, "NFKC": 18, "Lowercase": 2, "ByteLevel": 5,
    "Metaspace": 2, "WordPiece": 2, "BPEDecoder": 2, "CTC": 2,
}  # fmt: skip


def _demand_bounded_growth(backend: tokenizers.Tokenizer, path: Path) -> None:
    """Raises `CheckpointError` if the steps before or after the model can make a short text very long."""
    for parts in ((backend.normalizer, backend.pre_tokenizer, backend.post_processor), (backend.decoder,)):
        steps = [json.loads(part.__getstate__()) for part in parts if part is not None]
        if (growth := prod(map(_growth, steps))) > _MOST_GROWTH:
            raise CheckpointError(
                f"{path} can make a text {growth:.3g} times as long; at most {_MOST_GROWTH} times is allowed",
                remedy="Its steps (Replace, Prepend, ...) repeat text: take them out, or use another model.",
            )


def _growth(step: dict[str, Any]) -> float:
    """How many characters or ids a step of a tokenizer makes of one, at most."""
    match step:
        case {"type": "Sequence"}:
            (parts,) = (value for value in step.values() if isinstance(value, list))
            return prod(map(_growth, parts), start=1.0)
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
            return max(1.0, len(content) / len(pattern))
        case {"type": "Replace", "content": str(content)}:  # a pattern can match between characters
            return 1.0 + len(content)
        case {"type": "Prepend", "prepend": str(content)}:
            return 1.0 + len(content)
        case {"type": "Precompiled", "precompiled_charsmap": str(table)}:  # a trie and what it leads to
            table_bytes = base64.b64decode(table)
            texts = table_bytes[4 + int.from_bytes(table_bytes[:4], "little") :].decode("utf-8", "replace")
            return float(max(map(len, texts.split("\0")), default=1) or 1)
        case {"type": "TemplateProcessing", "single": list(pieces), "special_tokens": dict(special)}:
            named = [piece.get("SpecialToken", {}).get("id") for piece in pieces]  # None for the text
            return max(1.0, sum(1 if id_ is None else len(special[id_]["ids"]) - 1 for id_ in named))
    return float(_CHARACTERS_MADE_OF_ONE.get(step["type"], 1))


def boundary(folder: Path) -> Path:
    """The folder that links in a model folder may not leave. In the hub's cache they lead to its blobs."""
    real = Path(os.path.realpath(folder))
    snapshots = (parent for parent in real.parents if parent.name == "snapshots")
    return next((one.parent for one in snapshots if (one.parent / "blobs").is_dir()), real)


def read_json(path: Path, *, missing_ok: bool = False) -> dict[str, Any]:
    """The object in a JSON file of a model folder."""
    if missing_ok and not path.is_file():
        return {}
    try:
        found = parse_json_text(read_file(path, within=boundary(path.parent)).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"expected a JSON object in {path}, found: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"expected a JSON object in {path}, found a {type(found).__name__}")
    return found


def _token_id(backend: tokenizers.Tokenizer, token: Any) -> int | None:
    """The id of a special token, named in tokenizer_config.json by its text or by a table with its text."""
    content = token.get("content") if isinstance(token, dict) else token
    return None if content is None else backend.token_to_id(content)


# GPT-2's printable stand-in for each byte, inverted.
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_OTHERS = (byte for byte in range(256) if byte not in _PRINTABLE)
_BYTE_OF_CHAR = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + n): b for n, b in enumerate(_OTHERS)}
