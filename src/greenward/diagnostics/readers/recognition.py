"""Tells the log of a training from any other file, by the readers of logs and a part of the file.

A reader takes what it can from any text: `diagnose README.md` reads the numbers of a table. What a folder is
looked through for needs more: signals of a training, with the steps that they are of.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import numpy as np

from greenward.common.errors import GreenwardError
from greenward.common.files import UNEXPECTED, open_file
from greenward.diagnostics.readers.alignment import Table
from greenward.diagnostics.readers.formats import STDOUT, Found, find_logs
from greenward.diagnostics.readers.names import is_known
from greenward.diagnostics.readers.printed import tells
from greenward.diagnostics.readers.rows import Row, as_number, encoding_of
from greenward.diagnostics.readers.tables import NOTEBOOK, PARQUET
from greenward.diagnostics.readers.trackers import JSON

PART_BYTES = 256 << 10  # of the beginning, and of the end
WHOLE_BYTES = 8 << 20  # of a document of JSON or a table of columns, of which a part cannot be read
MOST_ROWS = 5000
MOST_RUNS = 4
_SERIES = 5  # steps, from which on the values of a signal are a series
_LONG_SERIES = 10
_TEXT = 100  # characters of a cell that is an answer or a prompt
# As a word of its own, also within "TotalReward": much else has "kl" or "lr" in it.
_WORD = re.compile(
    r"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))(?:(?i:kl|lr|rew)(?![a-z])|"
    r"(?i:reward|return|loss|score|entropy|accura|grad|win|success|solved|utility|fitness|perplexity))"
)
_DOCUMENTS = (".json", ".ipynb")


def is_training_log(path: Path, within: Path) -> bool:
    """Whether `diagnose` reads the file at `path` and finds the log of a training there.

    At most `2 · PART_BYTES` are read, `WHOLE_BYTES` of a document. False for what cannot be read, as a link
    that leads out of `within`.
    """
    with suppress(GreenwardError, OSError, *UNEXPECTED), TemporaryDirectory(prefix="greenward-") as folder:
        with open_file(path, 1 << 62, within=within) as opened:
            content = _part(opened)
        sample = Path(folder, path.name)
        sample.write_bytes(content)
        return bool(content) and any(
            _is_of_training(one, path, content) for one in find_logs(sample)[:MOST_RUNS]
        )
    return False


def _part(opened: BinaryIO) -> bytes:
    """The file, or its first and last lines; nothing of what is too large or no text."""
    size = os.fstat(opened.fileno()).st_size
    head = opened.read(PART_BYTES)
    is_table = head.startswith(PARQUET.magic)
    text = head[:4096]
    if not is_table and b"\0" in text and encoding_of(text[:512]) == "utf-8-sig":
        return b""
    if size <= 2 * PART_BYTES:
        return head + opened.read(PART_BYTES)
    if is_table or _is_document(head):
        return head + opened.read(WHOLE_BYTES) if size <= WHOLE_BYTES else b""
    opened.seek(size - PART_BYTES)
    return head.rpartition(b"\n")[0] + b"\n" + opened.read(PART_BYTES).partition(b"\n")[2]


def _is_document(text: bytes) -> bool:
    """Whether it begins as a value of JSON that goes on over lines."""
    first = text.lstrip(b"\xef\xbb\xbf \r\n\t").split(b"\n")[0].rstrip()
    return first[:1] in (b"{", b"[") and (len(first) < 3 or not first.endswith((b"}", b"]")))


def _is_of_training(found: Found, path: Path, content: bytes) -> bool:
    read, _, form = found.rows()
    rows = list(islice(read, MOST_ROWS))
    table = Table(rows, form.step_keys)
    runs = table.runs()
    if not runs:
        return False
    columns = table.aligned(max(runs, key=lambda one: one.size))
    signals = [name for name in columns.values if tells(name) and (is_known(name) or _WORD.search(name))]
    known = [name for name in signals if is_known(name)]
    steps = int(np.any([columns.recorded[name] for name in signals], axis=0).sum()) if signals else 0
    if form is STDOUT:
        if path.suffix in _DOCUMENTS:  # numbers within a document that its own reader does not take for rows
            return False
        if columns.counted_by and steps >= _SERIES:
            return True
        if not columns.counted_by and known and steps >= _LONG_SERIES:
            return True
        text = content.decode(encoding_of(content[:512]), "replace")
        given = {name for name in signals if _is_assigned(name, text)}
        return len(given) >= 3 or (bool(columns.counted_by) and len(given.intersection(known)) >= 2)
    if _are_texts(rows):
        return False
    if columns.counted_by:
        return bool(signals) if steps >= _SERIES else len(known) >= 3 and form not in (JSON, NOTEBOOK)
    has_words = any(
        as_number(cell) is None for row in rows for cell in row.values() if cell not in (None, "")
    )
    return len(signals) >= 2 and bool(known) and steps >= _SERIES and not has_words


def _is_assigned(name: str, text: str) -> bool:
    """Whether a signal stands there as in no sentence about it: with a path for its name, or parted from its
    number by a sign or a gap.
    """
    if "/" in name and name in text:
        return True
    last = re.escape(name.rpartition("/")[2])
    return re.search(rf"{last}(?:['\"]|\s?[:=]|\s{{0,80}}[|│┃║]|\s\s|\t)", text) is not None


def _are_texts(rows: Sequence[Row]) -> bool:
    """Whether most rows hold a text, as answers and problems do."""
    texts = sum(any(isinstance(cell, str) and len(cell) > _TEXT for cell in row.values()) for row in rows)
    return 2 * texts > len(rows)
