"""Makes text safe to show: hostile text in a terminal, a report or a message, and text that may hold keys."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from greenward.common.files import read_file

REPLACEMENT = "\ufffd"
MAX_MESSAGE_CHARS = 300
_MAYBE_HIDDEN = re.compile(r"[^\n\t -~]")
# Control, format (zero width, direction), surrogate, and the two separators that break lines.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def visible(text: str, max_chars: int | None = None) -> str:
    """`text`, cut to `max_chars`, with every hidden character but newline and tab replaced by �.

    Terminal escapes lose their effect, direction overrides cannot reorder code, and the result is valid
    in HTML and UTF-8. A Windows line ending becomes a newline.
    """
    text = text.replace("\r\n", "\n")
    if max_chars is not None and len(text) > max_chars:
        text = text[: max_chars - 1] + "…"
    return _MAYBE_HIDDEN.sub(lambda one: REPLACEMENT if _is_hidden(one[0]) else one[0], text)


def visible_json(text: str) -> str:
    """A JSON text in which hidden characters are escaped, as `visible` replaces them; it means the same."""
    return _MAYBE_HIDDEN.sub(lambda one: json.dumps(one[0])[1:-1] if _is_hidden(one[0]) else one[0], text)


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN_CATEGORIES


def encodable(text: str) -> str:
    """`text` with a question mark for each half of a character, which JSON can hold and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def listed(names: Sequence[str], most: int) -> str:
    """The first `most` of the names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


KEYS = (
    "WANDB_API_KEY",
    "HF_TOKEN",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "OPENAI_API_KEY",
)
SETTINGS = ("MBPP_DATASET_PATH", "MBPP_EVAL_NUM_QUESTIONS")
"""Further variables that `.env` may give: which problems are asked, and how many."""
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)
_LINE = re.compile(r"""\s*(?:export\s+)?(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s#]*))""")
_IN_URL = re.compile(r"(://[^:@/\s]*:)[^@/\s]+@")
_MOST_BYTES = 1 << 16  # of `.env`, which may be a stranger's


def load_keys(folder: Path = Path()) -> None:
    """Set those of `KEYS` and `SETTINGS` that `.env` in `folder` gives and the environment does not.

    Nothing else in the file has an effect: a folder of somebody else cannot redirect a client.
    """
    try:
        text = read_file(folder / ".env", _MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return
    for match in filter(None, map(_LINE.match, text.splitlines())):
        name, value = match[1], next(filter(None, match.groups()[1:]), "")
        if name in (*KEYS, *SETTINGS) and value:
            os.environ.setdefault(name, value)


def without_keys(text: str) -> str:
    """The text, with `***` for passwords in URLs and the values of variables that are named like keys."""
    secrets = (value for name, value in os.environ.items() if _SECRET.search(name))
    for value in sorted(secrets, key=len, reverse=True):
        if len(value) >= 8:
            text = text.replace(value, "***")
    return _IN_URL.sub(r"\1***@", text)
