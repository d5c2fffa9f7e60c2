"""Making text that a model wrote safe to print."""

from __future__ import annotations

import re

_ESCAPE_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor moves
    r"|\x1b[\]P^_X].*?(?:\x1b\\|\x07|\Z)"  # titles, links, device strings
    r"|\x1b.?",
    re.DOTALL,
)
# Everything else that moves the cursor, hides text or reverses it, newline and tab aside.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    """`text` without terminal escapes, control characters and direction overrides."""
    return _INVISIBLE.sub("", _ESCAPE_SEQUENCES.sub("", text))
