"""Text that a model wrote, made safe to show."""

from __future__ import annotations

import unicodedata


def visible(text: str) -> str:
    """`text` with every control, format and surrogate character but newline and tab made visible as �.

    Terminal escapes lose their effect, direction overrides cannot reorder code, and the result is
    valid in HTML and UTF-8.
    """
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in {"Cc", "Cf", "Cs"} else "\ufffd" for c in text
    )
