"""Hostile text made safe to show: in a terminal, in a report, in a file, in an error message."""

from __future__ import annotations

import re
import unicodedata

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
    return _MAYBE_HIDDEN.sub(
        lambda one: REPLACEMENT if unicodedata.category(one[0]) in _HIDDEN_CATEGORIES else one[0], text
    )
