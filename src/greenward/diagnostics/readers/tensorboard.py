"""Event files of TensorBoard: records of TFRecord framing, each an `Event` message with scalars.

Framing: length (uint64), masked CRC-32C of the length, data, masked CRC-32C of the data
(tensorflow/core/lib/io/record_writer.h); messages: event.proto, summary.proto and tensor.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from greenward.diagnostics.readers import protobuf
from greenward.diagnostics.readers.log import Format, Log, Row
from greenward.user_files import MAX_LOG_BYTES, open_file

_FLOAT, _DOUBLE = 1, 2  # tensor.proto: DataType
_MOST_BYTES = 64 << 20  # of one record; scalars take fewer than 200


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    return protobuf.rows(files, _records, _scalars, log.notes)


def _records(path: Path, notes: list[str]) -> Iterator[bytes]:
    with open_file(path, MAX_LOG_BYTES) as file:
        while head := file.read(12):
            if len(head) == 12:
                size, crc = struct.unpack("<QI", head)
                if _masked_crc(head[:8]) != crc or size > _MOST_BYTES:
                    notes.append(f"{path.name}: a checksum is wrong; what follows it was left out")
                    return
                record = file.read(size + 4)
                if len(record) == size + 4:
                    yield record[:-4]
                    continue
            notes.append(f"{path.name}: the last record is torn and was left out")
            return


def _scalars(event: bytes) -> Iterator[Row]:
    step, summaries = 0, []
    for number, value in protobuf.fields(event):
        if number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for entry in protobuf.messages(summary, 1):
            tag = ""
            found: float | None = None
            for field, value in protobuf.fields(entry):
                if field == 1 and isinstance(value, bytes):
                    tag = value.decode("utf-8", "replace")
                elif field == 2 and isinstance(value, float):
                    found = value
                elif field == 8 and isinstance(value, bytes):
                    found = _tensor(value)
            if tag and found is not None:
                yield {"step": step, tag: found}


def _tensor(tensor: bytes) -> float | None:
    """The number of a tensor that holds one."""
    kind: Any = None
    content: Any = None
    for field, value in protobuf.fields(tensor):
        if field == 1:
            kind = value
        elif field in (4, 5, 6):  # tensor_content, float_val, double_val; repeated numbers are packed
            content = value
    form = {_FLOAT: "<f", _DOUBLE: "<d"}.get(kind)
    if isinstance(content, float):
        return content
    if form is None or not isinstance(content, bytes) or len(content) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, content)[0])


TENSORBOARD = Format("TensorBoard", r".*\.tfevents\..*", _rows, ("step",))
