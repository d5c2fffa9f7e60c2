"""Reads the files of trackers and trainers: JSON, Trackio, MLflow, TensorBoard, W&B.

- JSON: rows are flat (prime-rl, Tinker cookbook, LLaMA-Factory, RLlib), nested (verl's
  `{"step": 1, "data": {…}}`) or events (`{"step": 1, "name": "kl", "value": 0.1}`). Sources:
  transformers/trainer_callback.py (TrainerState), verl/utils/tracking.py (FileLogger),
  tinker_cookbook/utils/ml_log.py (JsonLogger), prime_rl/utils/monitor, verifiers/utils/save_utils.py,
  ray/tune/logger/json.py.
- MLflow: `metrics/NAME` with a line of time, value and step for each value, `params/NAME` with the value
  (mlflow/store/tracking/file_store.py).
- Trackio: SQLite with one row of JSON for each logged step, and the runs of one project.
- TensorBoard: TFRecord framing, that is length (uint64), masked CRC-32C of the length, data, masked CRC-32C
  of the data (tensorflow/core/lib/io/record_writer.h); each record is an `Event` message with scalars
  (event.proto, summary.proto, tensor.proto).
- W&B offline: `run-ID.wandb`, a LevelDB log: a header of 7 bytes, then blocks of 32 KiB with records of
  CRC-32, length, type (1 whole, 2 first, 3 middle, 4 last) and data (leveldb/doc/log_format.md); each is a
  `Record` message (wandb/proto/wandb_internal.proto).
"""

from __future__ import annotations

import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from greenward.common.errors import DiagnosticsError, RunError
from greenward.common.files import MAX_LOG_BYTES, open_file, read_file
from greenward.common.parsing import parse_json_text
from greenward.diagnostics.readers.rows import (
    MAX_CELL,
    Format,
    Log,
    NoLogError,
    Row,
    encoding_of,
    flat,
    json_object,
    number_in,
    of_event,
    text_lines,
)
from greenward.runs.files import read_json
from greenward.runs.reading import CONFIG, METRICS, read_config, read_sessions

# Planted faults are the truth that diagnostics are measured against: they must find it themselves.
_HIDDEN = "faults"
_STATE = "trainer_state.json"


def _greenward_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    folder = files[0].parent
    config = read_config(folder) if (folder / CONFIG).is_file() else None
    if config is not None:
        config.pop(_HIDDEN, None)
    sessions = read_sessions(folder)
    rows = _line_rows(files, run, log)
    log.config, log.session = config, sessions[-1] if sessions else {}
    return rows


def _line_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    if (beside := files[0].parent / "config.json").is_file():
        try:
            log.config = read_json(beside)
        except RunError:
            log.notes.append("config.json cannot be read and was left out")
    return _lines(files, log.notes)


def _lines(files: list[Path], notes: list[str]) -> Iterator[Row]:
    for path in files:
        broken, torn, count = 0, False, 0
        first: Row = {}
        for line in text_lines(path):
            if not line or line.isspace():
                continue
            row = json_object(line)
            if torn := row is None:
                broken += 1
                continue
            count += 1
            if count == 1:
                first = row or {}
                continue
            if count == 2 and first:
                yield of_event(flat(first))
            if row:
                yield of_event(flat(row))
        if count == 1:  # one line may hold all rows
            rows = _rows_in(first, path.stem)
            yield from map(of_event, map(flat, rows if len(rows) > 1 else [first]))
        if broken > torn:
            notes.append(f"{path.name}: {broken - torn} line(s) cannot be read and were left out")
        if torn:
            notes.append("the last line is torn and was left out")


def _document_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    """One JSON document: the newest trainer_state.json of a run, or any that holds rows."""
    states = [(path, _document(path, log.notes)) for path in files]
    found = [(path, state) for path, state in states if state is not None]
    if not found:
        raise DiagnosticsError(f"{files[0]} is not a JSON document that can be read")
    # Each checkpoint holds the whole history up to it.
    path, newest = max(found, key=lambda one: _global_step(one[1]))
    settings = newest if isinstance(newest, dict) else {}
    log.format = "HF trainer" if "log_history" in settings else "JSON"
    config = {key: value for key, value in settings.items() if isinstance(value, (int, float, str))}
    log.config = config or None
    rows = _rows_in(newest, path.stem)
    if rows and all(map(_names_a_file, rows)):
        raise NoLogError(
            f"{path} lists checkpoints or other files, and is no log over time",
            remedy="Name the log itself, such as the event files or what the training printed.",
        )
    for row in rows:
        if "train_runtime" in row:
            log.set_aside["the closing summary of the trainer"] += 1
        else:
            yield of_event(flat(row))


_FILE_KEY = re.compile(r"(?:.*_)?(?:path|file|filename|checkpoint)s?", re.IGNORECASE)


def _names_a_file(row: Row) -> bool:
    return any(isinstance(cell, str) and _FILE_KEY.fullmatch(name) for name, cell in row.items())


_LISTS = ("log_history", "history", "metrics", "rows", "logs")  # the best first
_LEVELS = 3


def _rows_in(value: Any, name: str, levels: int = _LEVELS) -> list[Row]:
    """The rows in a JSON document: a list of them, also under a key, or lists that are the columns."""
    if isinstance(value, list):
        if value and all(isinstance(one, list) and len(one) == 3 for one in value):
            return [{"step": one[1], name: one[2]} for one in value]  # a curve that TensorBoard exported
        return [one for one in value if isinstance(one, dict)]
    if not isinstance(value, dict) or not levels:
        return []
    best = next((found for key in _LISTS if (found := _rows_in(value.get(key), key, levels - 1))), None)
    if best:
        return best
    columns = {key: one for key, one in value.items() if isinstance(one, list) and one and _is_plain(one[0])}
    # pandas writes a column as a mapping from its index.
    indexed = {key: one for key, one in value.items() if isinstance(one, dict) and one and _counts(one)}
    if columns and len(sizes := set(map(len, columns.values()))) == 1:
        return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    if columns:
        most = max(sizes)
        return [
            {key: one[place] for key, one in columns.items() if place < len(one)} for place in range(most)
        ]
    if value and len(indexed) == len(value):
        index = {place: None for one in indexed.values() for place in one}
        return [{key: one.get(place) for key, one in indexed.items()} for place in index]
    if _counts(value) and all(isinstance(one, dict) for one in value.values()):
        return [{"step": int(key), **one} for key, one in value.items()]
    return max((_rows_in(one, key, levels - 1) for key, one in value.items()), key=len, default=[])


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (int, float, str))


def _counts(value: Row) -> bool:
    """Whether all keys of a mapping are whole numbers, and none of its values is a list."""
    return all(key.isdecimal() and len(key) < 19 and not isinstance(one, list) for key, one in value.items())


def _document(path: Path, notes: list[str]) -> Any:
    try:
        content = read_file(path)
        return parse_json_text(content.decode(encoding_of(content[:512])))
    except (OSError, ValueError):
        notes.append(f"{path.parent.name}/{path.name} cannot be read and was left out")
        return None


def _global_step(state: Any) -> float:
    step = state.get("global_step", 0) if isinstance(state, dict) else 0
    return step if isinstance(step, (int, float)) else 0


GREENWARD = Format("greenward", METRICS.replace(".", r"\."), _greenward_rows)
HF_TRAINER = Format("HF trainer", _STATE.replace(".", r"\."), _document_rows)
JSON_LINES = Format("JSON lines", r".*\.(jsonl|ndjson)", _line_rows, whole_folder=False)
JSON = Format("JSON", r".*\.json", _document_rows, whole_folder=False)


def _mlflow_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    """A file for each metric, with lines of the time, the value and the step; without a step it is 0."""
    place = next(one for one in files[0].parents if one.name == "metrics")
    params = place.parent / "params"
    with suppress(OSError):
        found = {
            one.name: read_file(one, MAX_PARAMETER).decode("utf-8", "replace") for one in params.iterdir()
        }
        log.config = {
            name: text if (number := number_in(text)) is None else number for name, text in found.items()
        }
    for path in files:
        name, broken = path.relative_to(place).as_posix(), 0
        for counted, line in enumerate(text_lines(path, MAX_PARAMETER)):
            cells = line.split()
            if len(cells) in (2, 3) and (value := number_in(cells[1])) is not None:
                yield {"step": number_in(cells[2]) if len(cells) == 3 else counted, name: value}
            elif cells:
                broken += 1
        if broken:
            log.notes.append(f"{path.name}: {broken} line(s) cannot be read and were left out")


MAX_PARAMETER = 10_000  # bytes of a value
MLFLOW = Format("MLflow", r"[^.]+", _mlflow_rows, ("step",), inside="metrics")


_SQLITE_MAGIC = b"SQLite format 3\0"
_DATABASE_BYTES = 1 << 30  # of a database, and of its log
_TRIES = 3
# Of SQLite's virtual machine: reading a row takes some dozens, and a row at least some dozen bytes.
_LEAST_WORK, _WORK_PER_BYTE, _TICK = 200_000, 20, 1000


@contextmanager
def _private_copy(path: Path) -> Iterator[Path]:
    """A copy of a database with its write-ahead log. Raises `OSError` as `open_file` does.

    SQLite would write its files beside the database, and wait for a FIFO there. A trainer may move the log
    into the database while they are copied.
    """
    import shutil
    from tempfile import TemporaryDirectory

    real = path.resolve()
    with TemporaryDirectory() as folder:
        for attempt in range(_TRIES):
            copied, changed = Path(folder, str(attempt)), real.stat().st_mtime_ns
            for side in ("", "-wal"):
                with (
                    suppress(FileNotFoundError),
                    open_file(real.with_name(real.name + side), _DATABASE_BYTES, within=real.parent) as file,
                    open(f"{copied}{side}", "wb") as copy,
                ):
                    shutil.copyfileobj(file, copy)
            if real.stat().st_mtime_ns == changed:
                break
        yield copied


def _query(path: Path, table: str, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
    """Rows of a query of one table. Raises `DiagnosticsError` for what is no database of Trackio.

    A database can hold programs (views, virtual tables, generated columns), and pages that name one another.
    A plain table is asked for, whose cells are stored as they are; the steps of work and the characters
    that are read are bounded by the size of the file.
    """
    import sqlite3

    try:
        with (
            _private_copy(path) as copy,
            closing(sqlite3.connect(f"{copy.as_uri()}?mode=ro", uri=True)) as database,
        ):
            size = chars = sum(one.stat().st_size for one in copy.parent.iterdir())
            work = _LEAST_WORK + _WORK_PER_BYTE * size
            if sys.version_info >= (3, 11):
                database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_CELL)
            ticks = iter(range(work // _TICK))
            database.set_progress_handler(lambda: next(ticks, None) is None, _TICK)
            database.execute("pragma trusted_schema = off")
            found = "select sql from sqlite_master where type = 'table' and name = ?"
            (made,) = database.execute(found, (table,)).fetchone() or ("",)
            columns = database.execute(f"pragma table_xinfo({table})").fetchall()
            if not re.match(r"create\s+table\b", made, re.IGNORECASE) or any(
                hidden for *_, hidden in columns
            ):
                raise DiagnosticsError(f"{path} has no table of {table} as Trackio makes it")
            for row in database.execute(query, values):
                chars -= sum(len(cell) for cell in row if isinstance(cell, (str, bytes)))
                if chars < 0:
                    raise DiagnosticsError(f"{path} gives more than it holds, so it is damaged")
                yield row
    except (
        sqlite3.Error,
        OSError,
        UnicodeDecodeError,
    ) as error:  # the last of a damaged schema that sqlite cites
        raise DiagnosticsError(f"{path} cannot be read as a database of Trackio: {error}") from None


def _trackio_runs(path: Path) -> list[str]:
    """The names of the runs, in the order of their first rows."""
    found = _query(path, "metrics", "select run_name from metrics group by run_name order by min(rowid)")
    return [str(name) for (name,) in found]


def _trackio_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    for path in files:
        try:
            found = list(
                _query(path, "configs", "select config from configs where run_name = ? limit 1", run)
            )
            log.config = _json(found[0][0]) if found else None
        except DiagnosticsError:
            log.notes.append(f"{path.name}: there is no table of configs")
    query = "select step, metrics from metrics where run_name = ? and length(metrics) < ? order by rowid"
    broken = 0
    for path in files:
        for step, cell in _query(path, "metrics", query, run, MAX_CELL):
            if (values := _json(cell)) is None:
                broken += 1
            else:
                yield {**flat(values), "step": step}
    if broken:
        log.notes.append(f"{broken} row(s) cannot be read and were left out")


def _json(cell: Any) -> dict[str, Any] | None:
    try:
        value = parse_json_text(cell)
    except (ValueError, TypeError):
        return None
    return value if isinstance(value, dict) else None


TRACKIO = Format(
    "Trackio",
    r".*\.(db|sqlite3?)",
    _trackio_rows,
    ("step",),
    _SQLITE_MAGIC,
    whole_folder=False,
    runs=_trackio_runs,
)


Value = int | float | bytes


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """(number, value) of each field: varints as int, fixed widths as float, the rest as bytes.

    Raises `ValueError` for what is no message.
    """
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
        elif wire == 2:
            size, at = _varint(message, at)
            if at + size > end:
                raise ValueError("a field is longer than its message")
            yield key >> 3, message[at : at + size]
            at += size
        elif wire in (1, 5):
            width, kind = (8, "<d") if wire == 1 else (4, "<f")
            if at + width > end:
                raise ValueError("a number is cut off")
            yield key >> 3, struct.unpack_from(kind, message, at)[0]
            at += width
        else:
            raise ValueError(f"wire type {wire} is not known")


def messages(message: bytes, number: int) -> list[bytes]:
    """The values of a field of bytes, which may be messages."""
    return [value for field, value in fields(message) if field == number and isinstance(value, bytes)]


def protobuf_rows(
    files: list[Path],
    records: Callable[[Path, list[str]], Iterator[bytes]],
    parse: Callable[[bytes], Iterator[Row]],
    notes: list[str],
) -> Iterator[Row]:
    """The rows of the records of files; records that cannot be read are left out, which is noted."""
    for path in files:
        broken = 0
        for record in records(path, notes):
            try:
                yield from parse(record)
            except ValueError:
                broken += 1
        if broken:
            notes.append(f"{path.name}: {broken} record(s) cannot be read and were left out")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            # int64 is written as two's complement of 64 bits.
            return (value - (1 << 64) if value >= 1 << 63 else value), at
        shift += 7
    raise ValueError("a number is cut off")


_FLOAT, _DOUBLE = 1, 2  # tensor.proto: DataType
_RECORD_BYTES = 64 << 20  # of one record; scalars take fewer than 200


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


def _tensorboard_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    return protobuf_rows(files, _tensorboard_records, _scalars, log.notes)


def _tensorboard_records(path: Path, notes: list[str]) -> Iterator[bytes]:
    with open_file(path, MAX_LOG_BYTES) as file:
        while head := file.read(12):
            if len(head) == 12:
                size, crc = struct.unpack("<QI", head)
                if _masked_crc(head[:8]) != crc or size > _RECORD_BYTES:
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
    for number, value in fields(event):
        if number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for entry in messages(summary, 1):
            tag = ""
            found: float | None = None
            for number, value in fields(entry):
                if number == 1 and isinstance(value, bytes):
                    tag = value.decode("utf-8", "replace")
                elif number == 2 and isinstance(value, float):
                    found = value
                elif number == 8 and isinstance(value, bytes):
                    found = _tensor(value)
            if tag and found is not None:
                yield {"step": step, tag: found}


def _tensor(tensor: bytes) -> float | None:
    """The number of a tensor that holds one."""
    kind: Any = None
    content: Any = None
    for number, value in fields(tensor):
        if number == 1:
            kind = value
        elif number in (4, 5, 6):  # tensor_content, float_val, double_val; repeated numbers are packed
            content = value
    form = {_FLOAT: "<f", _DOUBLE: "<d"}.get(kind)
    if isinstance(content, float):
        return content
    if form is None or not isinstance(content, bytes) or len(content) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, content)[0])


TENSORBOARD = Format("TensorBoard", r".*\.tfevents\..*", _tensorboard_rows, ("step",))


_BLOCK, _HEADER = 32768, 7
_MOST_PARTS = 2048  # of a record, each at most a block
_WANDB_MAGIC = b":W&B"
_HISTORY, _CONFIG, _RUN = 2, 5, 17
_WHOLE, _FIRST, _LAST = 1, 2, 4


def _wandb_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    config: Row = {}
    log.config = config
    return protobuf_rows(files, _wandb_records, partial(_rows_of, config=config), log.notes)


def _rows_of(record: bytes, config: Row) -> Iterator[Row]:
    """The row of a record of history; what a record says of the config goes into `config`."""
    for number, value in fields(record):
        if number == _HISTORY and isinstance(value, bytes):
            yield _history(value)
        elif number == _CONFIG and isinstance(value, bytes):
            config |= _items(value)
        elif number == _RUN and isinstance(value, bytes):
            for update in messages(value, 4):
                config |= _items(update)


def _history(message: bytes) -> Row:
    row = flat(_items(message))
    for step in messages(message, 2):
        for number, value in fields(step):
            if number == 1:
                row.setdefault("_step", value)
    row.setdefault("_step", 0)  # protobuf does not write a 0
    for name in ("_timestamp", "_runtime", "_wandb"):
        row.pop(name, None)
    return row


def _items(message: bytes) -> Row:
    """Key → value of the items (1) of a message: of key (1), nested key (2) and JSON (16)."""
    found: Row = {}
    for item in messages(message, 1):
        key: Any = ""
        nested: list[str] = []
        text: Any = b"null"
        for number, value in fields(item):
            if number == 1 and isinstance(value, bytes):
                key = value.decode("utf-8", "replace")
            elif number == 2 and isinstance(value, bytes):
                nested.append(value.decode("utf-8", "replace"))
            elif number == 16 and isinstance(value, bytes):
                text = value
        name = key or "/".join(nested)
        try:
            found[name] = parse_json_text(text)
        except ValueError:
            found[name] = None
    return found


def _wandb_records(path: Path, notes: list[str]) -> Iterator[bytes]:
    wrong, torn = 0, False
    parts: list[bytes] = []
    with open_file(path, MAX_LOG_BYTES) as file:
        if not file.read(_HEADER).startswith(_WANDB_MAGIC):
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


WANDB = Format("W&B", r".*\.wandb", _wandb_rows, ("train/global_step", "_step"), _WANDB_MAGIC)
