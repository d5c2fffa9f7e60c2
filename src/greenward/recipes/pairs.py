"""The user's own supervised data: a JSON Lines file of prompts and completions.

Each line is `{"prompt": str, "completion": str}` or `{"messages": [{"role", "content"}, …]}` whose
last message is the assistant's (rendered by the model's chat template).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from greenward.errors import ProblemError
from greenward.policies.tokenizer import Tokenizer
from greenward.user_text import parse_json_text


def read_pairs(path: Path, tokenizer: Tokenizer) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(prompt ids, completion ids) of every line. Raises `ProblemError` naming a bad line."""
    check_pairs(path)
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _pair(_parsed(line, path, number), tokenizer, f"{path}, line {number}")


def check_pairs(path: Path) -> None:
    """Raises `ProblemError` for a file that is not there or is empty."""
    if not path.is_file() or not path.stat().st_size:
        found = f"there is no file {path}" if not path.is_file() else f"{path} is empty"
        raise ProblemError(
            f"warm_start.data: {found}.",
            remedy='Expected JSON Lines of {"prompt": …, "completion": …} or {"messages": […]}.',
        )


def _parsed(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        row = parse_json_text(line)
    except json.JSONDecodeError as error:
        raise ProblemError(
            f"{path}, line {number}: not JSON ({error.msg} at column {error.colno})."
        ) from None
    if not isinstance(row, dict):
        raise ProblemError(f"{path}, line {number}: expected an object, found {type(row).__name__}.")
    return row


def _pair(row: dict[str, Any], tokenizer: Tokenizer, where: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if "messages" in row:
        return _chat_pair(row["messages"], tokenizer, where)
    texts = []
    for field in ("prompt", "completion"):
        if not isinstance(row.get(field), str):
            found = "nothing" if field not in row else type(row[field]).__name__
            raise ProblemError(
                f"{where}: field {field!r} must be text, found {found}.",
                remedy=f"Fields of this line: {', '.join(map(str, row)) or 'none'}.",
            )
        texts.append(row[field])
    return tuple(tokenizer.encode(texts[0])), tuple(tokenizer.encode(texts[1]))


def _chat_pair(messages: Any, tokenizer: Tokenizer, where: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    well_formed = (
        isinstance(messages, list)
        and len(messages) >= 2
        and all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in messages
        )
    )
    if not well_formed or messages[-1]["role"] != "assistant":
        raise ProblemError(
            f"{where}: 'messages' must be a list of {{role, content}} that ends with the assistant's answer."
        )
    if not tokenizer.chat_template:
        raise ProblemError(
            f"{where}: 'messages' need a chat template, and this model's tokenizer has none.",
            remedy="Use prompt/completion pairs, or an instruction-tuned model.",
        )
    return tuple(tokenizer.render_chat(messages[:-1])), tuple(tokenizer.encode(messages[-1]["content"]))
