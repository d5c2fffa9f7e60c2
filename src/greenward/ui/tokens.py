"""Numbers by token of an answer: log-probability, advantage, ratio, entropy, KL, where the run kept them.

They lie in `tokens/step_000012.jsonl`, a turn a line: `row` of the answer among those of its step, `pieces`
(the texts of the tokens), `mask` (1 where the policy wrote) and a list for each number.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from greenward.common.files import MAX_LINE_BYTES, lines, open_file
from greenward.common.text import visible
from greenward.runs.answers import is_number, parsed_row
from greenward.runs.files import from_json_number
from greenward.runs.reading import TOKENS, step_name
from greenward.ui.catalog import Place

NUMBERS = ("logprob", "entropy", "advantage", "ratio", "kl")
MAX_BYTES = 256 << 20
MAX_TURNS = 64
MAX_TOKENS = 8192  # of a turn
MAX_PIECE = 200


def has_tokens(place: Place, step: int) -> bool:
    """Whether the run kept numbers by token of some answers of a step."""
    return _file(place, step).is_file()


def tokens_of(place: Place, step: int, row: int) -> dict[str, Any]:
    """The turns of an answer, each with the texts of its tokens and a list for each kind of number.

    A number that is not finite is None, and so is one that is missing. Raises `OSError`.
    """
    turns: list[dict[str, Any]] = []
    if not has_tokens(place, step):
        return {"turns": turns}
    with open_file(_file(place, step), MAX_BYTES, within=place.root) as opened:
        for line in lines(opened, MAX_LINE_BYTES):
            content = parsed_row(line)
            if content is not None and content.get("row") == row and isinstance(content.get("pieces"), list):
                turns.append(_turn(content))
                if len(turns) == MAX_TURNS:
                    break
    return {"turns": turns}


def _turn(content: dict[str, Any]) -> dict[str, Any]:
    pieces = content["pieces"]
    count = min(len(pieces), MAX_TOKENS)
    mask = content.get("mask")
    return {
        "role": visible(str(content.get("role") or ""), 60),
        "pieces": [visible(str(piece), MAX_PIECE) for piece in pieces[:count]],
        "mask": [int(one == 1) for one in mask[:count]] if isinstance(mask, list) else [1] * count,
        "numbers": {
            name: _column(content[name], count) for name in NUMBERS if isinstance(content.get(name), list)
        },
        "rest": len(pieces) - count,
    }


def _column(values: list[Any], count: int) -> list[float | None]:
    read = [from_json_number(value) for value in values[:count]]
    found = [float(value) if is_number(value) and np.isfinite(value) else None for value in read]
    return found + [None] * (count - len(found))


def _file(place: Place, step: int) -> Path:
    return place.path / TOKENS / f"{step_name(step)}.jsonl"
