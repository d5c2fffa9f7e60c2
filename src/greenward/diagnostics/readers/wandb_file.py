"""Runs of W&B that were kept offline: `run-ID.wandb`, a LevelDB log of `Record` messages.

Framing: a header of 7 bytes, then blocks of 32 KiB with records of CRC-32, length, type (1 whole, 2 first,
3 middle, 4 last) and data (leveldb/doc/log_format.md); messages: wandb/proto/wandb_internal.proto.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from greenward.diagnostics.readers import protobuf
from greenward.diagnostics.readers.log import Format, Log, Row, flat
from greenward.user_files import MAX_LOG_BYTES, open_file
from greenward.user_text import parse_json_text

_BLOCK, _HEADER = 32768, 7
_MOST_PARTS = 2048  # of a record, each at most a block
_MAGIC = b":W&B"
_HISTORY, _CONFIG, _RUN = 2, 5, 17
_WHOLE, _FIRST, _LAST = 1, 2, 4


def _rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    config: Row = {}
    log.config = config
    return protobuf.rows(files, _records, partial(_rows_of, config=config), log.notes)


def _rows_of(record: bytes, config: Row) -> Iterator[Row]:
    """The row of a record of history; what a record says of the config goes into `config`."""
    for number, value in protobuf.fields(record):
        if number == _HISTORY and isinstance(value, bytes):
            yield _history(value)
        elif number == _CONFIG and isinstance(value, bytes):
            config |= _items(value, 1)
        elif number == _RUN and isinstance(value, bytes):
            for update in protobuf.messages(value, 4):
                config |= _items(update, 1)


def _history(message: bytes) -> Row:
    row = flat(_items(message, 1))
    for step in protobuf.messages(message, 2):
        for number, value in protobuf.fields(step):
            if number == 1:
                row.setdefault("_step", value)
    row.setdefault("_step", 0)  # protobuf does not write a 0
    for name in ("_timestamp", "_runtime", "_wandb"):
        row.pop(name, None)
    return row


def _items(message: bytes, number: int) -> Row:
    """Key → value of repeated items of key (1), nested key (2) and JSON (16)."""
    found: Row = {}
    for item in protobuf.messages(message, number):
        key: Any = ""
        nested: list[str] = []
        text: Any = b"null"
        for field, value in protobuf.fields(item):
            if field == 1 and isinstance(value, bytes):
                key = value.decode("utf-8", "replace")
            elif field == 2 and isinstance(value, bytes):
                nested.append(value.decode("utf-8", "replace"))
            elif field == 16 and isinstance(value, bytes):
                text = value
        name = key or "/".join(nested)
        try:
            found[name] = parse_json_text(text)
        except ValueError:
            found[name] = None
    return found


def _records(path: Path, notes: list[str]) -> Iterator[bytes]:
    wrong, torn = 0, False
    parts: list[bytes] = []
    with open_file(path, MAX_LOG_BYTES) as file:
        if not file.read(_HEADER).startswith(_MAGIC):
            notes.append(f"{path.name}: not a file of W&B; it was left out")
            return
        at = _HEADER
        while head := file.read(min(_HEADER, left := _BLOCK - at % _BLOCK)):
            if left < _HEADER:  # what remains of a block is filled with zeros
                at += left
                continue
            if len(head) < _HEADER:
                torn = True
                break
            crc, size, kind = struct.unpack("<IHB", head)
            if kind == 0 and size == 0 and crc == 0:  # padding
                at = file.seek(at + left)
                continue
            data = file.read(size)
            if len(data) < size:
                torn = True
                break
            at += _HEADER + size
            if zlib.crc32(data, zlib.crc32(bytes([kind]))) != crc:
                wrong += 1
                parts = []
                if size > left:  # the length cannot be right either
                    at = file.seek((at // _BLOCK + 1) * _BLOCK)
                continue
            if kind in (_WHOLE, _FIRST):
                parts = []
            parts.append(data)
            if len(parts) > _MOST_PARTS:
                wrong += 1
                parts = []
            if kind in (_WHOLE, _LAST):
                yield b"".join(parts)
                parts = []
    if wrong:
        notes.append(f"{path.name}: {wrong} record(s) with a wrong checksum were left out")
    if torn:
        notes.append(f"{path.name}: the last record is torn and was left out")


def run_id(path: Path) -> str:
    """The identifier in the name of a file, which the files of a resumed run share."""
    match = re.fullmatch(r"run-(.+)\.wandb", path.name)
    return match[1] if match else path.stem


WANDB = Format("W&B", r".*\.wandb", _rows, ("train/global_step", "_step"), _MAGIC)
