"""Where the prompts of kept answers lie in their file, and which answers or prompts hold a text.

The file is read once, then only what is new; a prompt is found by its key and a place, without the others.
M is the number of prompts.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from greenward.common.files import MAX_LINE_BYTES, MAX_LOG_BYTES, lines, open_file
from greenward.runs.answers import (
    AnswerColumns,
    holds_text,
    lines_at,
    may_hold,
    parsed_row,
    prompt_number,
    read_rows_at,
    wanted_bytes,
)
from greenward.runs.files import reading
from greenward.runs.reading import PROMPTS

_BLOCK = 8 << 20
_TAIL = 64  # bytes before the old end, by which a file that only grew is told
_WRITTEN = re.compile(rb'^\{"step": \d{1,18}, "prompt_id": "([0-9a-f]{16})", "prompt": "', re.MULTILINE)


class Prompts:
    """The places of the prompts of a run, in the order of the file; of a key given again the later counts.

    `table` has keys (`prompt_number`), offsets and sizes in bytes, each [M]. It is replaced as a whole, so
    that one thread may read prompts while another reads on.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self.table = np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.offset = self.inode = self.size = 0
        self.tail = b""
        self._sorted = (
            self.table[0],
            np.zeros(0, np.int64),
            self.table[0],
        )  # keys, their order, and so ordered

    @property
    def share(self) -> float:
        """How much of the file was read."""
        return 1.0 if self.size == 0 else min(1.0, self.offset / self.size)

    def update(self, path: Path, within: Path, until: float = float("inf")) -> None:
        """Read what is new in the run at `path`, until a moment of `time.monotonic`.

        Raises `RunError` for a file that cannot be read, or a link that leads out of `within`.
        """
        file = path / PROMPTS
        if not os.path.lexists(file):
            self._forget()
            return
        with reading(file), open_file(file, MAX_LOG_BYTES, within=within) as opened:
            status = os.fstat(opened.fileno())
            opened.seek(max(0, self.offset - _TAIL))
            before = opened.read(min(_TAIL, self.offset))
            if status.st_ino != self.inode or status.st_size < self.offset or before != self.tail:
                self._forget()
                self.inode = status.st_ino
            self.size = status.st_size
            self._read(opened, until)
            opened.seek(max(0, self.offset - _TAIL))
            self.tail = opened.read(min(_TAIL, self.offset))

    def _read(self, opened: BinaryIO, until: float) -> None:
        found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        while self.offset < self.size:
            opened.seek(self.offset)
            block = opened.read(_BLOCK)
            end = block.rfind(b"\n") + 1
            if end:
                found.append(_places(block[:end], self.offset))
                self.offset += end
            else:
                opened.seek(self.offset)
                line = next(lines(opened, MAX_LINE_BYTES), b"")
                opened.seek(-1, os.SEEK_CUR)
                if opened.read(1) != b"\n":  # the last line, which is being written
                    self.size = self.offset
                    break
                found.append(_places(line, self.offset))
                self.offset = opened.tell()
            if time.monotonic() > until:
                break
        if found:
            columns = zip(self.table, *found, strict=True)
            keys, offsets, sizes = (np.concatenate(parts) for parts in columns)
            self.table = keys, offsets, sizes

    def read(
        self, path: Path, keys: np.ndarray, within: Path, texts: Sequence[str] = ()
    ) -> Iterator[tuple[int, str]]:
        """(key, prompt) of those of the keys that are known, in the order of the file.

        Those that cannot hold all `texts` in any case may be left out, and all where the file is gone. Raises
        `RunError` as `update` does.
        """
        every, offsets, sizes = self.table
        if not len(every):
            return
        if self._sorted[0] is not every:
            order = np.argsort(every, kind="stable")
            self._sorted = every, order, every[order]
        _, order, in_order = self._sorted
        last = np.searchsorted(in_order, keys, side="right") - 1
        places = np.sort(order[last[(last >= 0) & (in_order[last] == keys)]])
        wanted = wanted_bytes(texts)
        file = path / PROMPTS
        with (
            reading(file),
            suppress(FileNotFoundError),
            open_file(file, MAX_LOG_BYTES, within=within) as opened,
        ):
            for begin in range(0, len(places), 1000):
                block = places[begin : begin + 1000]
                for place, line in lines_at(opened, block, offsets[block], sizes[block], wanted):
                    row = parsed_row(line) if may_hold(line, wanted) else None
                    if row is not None and prompt_number(row.get("prompt_id")) == int(every[place]):
                        yield int(every[place]), str(row.get("prompt") or "")


def _places(block: bytes, offset: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys, offsets and sizes of the prompts in some whole lines, which begin at `offset`."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1
    if not len(ends):  # longer than any line that is read
        return np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    begins = np.concatenate([[0], ends[:-1]])
    written = {match.start(): match[1] for match in _WRITTEN.finditer(block)}
    if len(written) == len(begins):
        keys = np.frombuffer(bytes.fromhex(b"".join(written.values()).decode()), ">u8").astype(np.uint64)
    else:
        numbers = []
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            row = {"prompt_id": written[begin].decode()} if begin in written else parsed_row(block[begin:end])
            numbers.append(prompt_number((row or {}).get("prompt_id")))
        keys = np.array(numbers, np.uint64)
        named = keys > 0
        keys, begins, ends = keys[named], begins[named], ends[named]
    return keys, begins + offset, ends - begins


def holding(
    path: Path,
    columns: AnswerColumns,
    places: np.ndarray,
    texts: Sequence[str],
    prompts: Prompts,
    within: Path | None = None,
) -> list[int]:
    """Those of the places of answers whose row or prompt holds each of the texts, in any case, ascending.

    Raises `RunError` for files that cannot be read.
    """
    within = within or path
    asked = np.unique(columns.prompts[places])
    folded = [text.casefold() for text in texts]
    said: dict[int, frozenset[int]] = {}
    of_one = texts if len(texts) == 1 else ()
    for key, prompt in prompts.read(path, asked[asked > 0], within, of_one):
        prompt = prompt.casefold()
        held = frozenset(number for number, text in enumerate(folded) if text in prompt)
        if held:
            said[key] = held
    by_rest: dict[frozenset[int], list[int]] = defaultdict(list)
    if said:
        for place, key in zip(places.tolist(), columns.prompts[places].tolist(), strict=True):
            by_rest[said.get(key, frozenset())].append(place)
    else:
        by_rest[frozenset()] = places.tolist()
    found = []
    for held, members in by_rest.items():
        rest = [text for number, text in enumerate(texts) if number not in held]
        if not rest:
            found += members
            continue
        rows = read_rows_at(path, columns, members, within=within, texts=rest)
        found += [place for place, row in rows if all(holds_text(row, text) for text in rest)]
    return sorted(found)
