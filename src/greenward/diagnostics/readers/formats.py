"""Finds the logs and answers of runs and reads them, whatever trainer or tracker wrote them.

- JSON: rows are flat (prime-rl, Tinker cookbook), nested (verl's `{"step": 1, "data": {…}}`) or events
  (`{"step": 1, "name": "kl", "value": 0.1}`). Sources: transformers/trainer_callback.py (TrainerState),
  verl/utils/tracking.py (FileLogger), tinker_cookbook/utils/ml_log.py (JsonLogger), prime_rl/utils/monitor,
  verifiers/utils/save_utils.py.
- Printed output: TRL's `{'loss': 0.1, …}` lines and verl's `step:1 - actor/entropy:0.6 - …`.
- Tables with a column for each signal: CSV and TSV (also SB3's `progress.csv`), and parquet.
- Trackio: SQLite with one row of JSON for each logged step, and the runs of one project.
- TensorBoard: TFRecord framing, that is length (uint64), masked CRC-32C of the length, data, masked CRC-32C
  of the data (tensorflow/core/lib/io/record_writer.h); each record is an `Event` message with scalars
  (event.proto, summary.proto, tensor.proto).
- W&B offline: `run-ID.wandb`, a LevelDB log: a header of 7 bytes, then blocks of 32 KiB with records of
  CRC-32, length, type (1 whole, 2 first, 3 middle, 4 last) and data (leveldb/doc/log_format.md); each is a
  `Record` message (wandb/proto/wandb_internal.proto).
- Answers: greenward's `rollouts/step_000012.jsonl`, TRL's `completions/completions_00012.parquet`, verl's
  `12.jsonl` (`trainer.rollout_data_dir`), Tinker cookbook's
  `iteration_000012/train_rollout_summaries.jsonl`, and `traces.jsonl` of prime-rl (`rollouts/step_12/…`) and
  verifiers.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import sqlite3
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from greenward.common.errors import DiagnosticsError, RunError
from greenward.common.files import (
    MAX_LOG_BYTES,
    leads_out,
    lines,
    open_file,
    read_file,
    read_parquet,
)
from greenward.common.parsing import parse_json_text
from greenward.runs.files import JsonRows, read_json
from greenward.runs.reading import CONFIG, METRICS, read_config, read_sessions

MAX_NAME = 256  # characters; longer names are left out
MAX_CELL = 10_000_000  # characters of one row
STEP_KEYS = (
    "step", "global_step", "train/global_step", "trainer/global_step", "training/global_step", "_step",
    "training_step", "iteration", "progress/batch", "update", "Step",
    "global_step/max_steps", "current_steps",
)  # fmt: skip
_MAX_DEPTH = 8

Row = dict[str, Any]


@dataclass
class Log:
    """What the files of a run say beside its rows; complete once all rows were taken."""

    format: str
    config: Mapping[str, Any] | None = None
    session: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Format:
    """A format of logs: `file_names` is a pattern of them, `magic` the first bytes where there are any.

    `rows` reads the files of one run in their order: its rows, under the names of its tracker, oldest first.
    A row may hold a part of a step only. What else the files say goes into the `Log`. `step_keys` are the
    names under which the format counts steps, the best first; rows are counted where none has one. `runs`
    gives the names of the runs in files of the format, where one file may hold several. `whole_folder` says
    that the files of a folder belong to one run.
    """

    name: str
    file_names: str
    rows: Callable[[list[Path], str, Log], Iterator[Row]]
    step_keys: tuple[str, ...] = STEP_KEYS
    magic: bytes = b""
    whole_folder: bool = True
    runs: Callable[[Path], list[str]] | None = None


def number_in(text: str) -> float | None:
    """The number that a text is, None for any other text."""
    try:
        return float(text)
    except ValueError:
        return None


def flat(row: Row) -> Row:
    """The row with nested mappings as `outer/inner`; those named `data` or `metrics` give no name."""
    if dict not in map(type, row.values()):
        return row
    found: Row = {}

    def collect(values: Mapping[str, Any], prefix: str, depth: int) -> None:
        for key, value in values.items():
            if isinstance(value, dict):
                if depth < _MAX_DEPTH and len(prefix) + len(key) <= MAX_NAME:
                    container = key in ("data", "metrics", "logs", "history") and not prefix
                    collect(value, prefix if container else f"{prefix}{key}/", depth + 1)
            else:
                found.setdefault(f"{prefix}{key}", value)

    collect(row, "", 0)
    return found


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
        source = JsonRows(path.resolve(), lenient=True)  # links are checked where logs are found
        for row in source:
            row = flat(row)
            if "name" in row and "value" in row:
                row = {**{key: row[key] for key in STEP_KEYS if key in row}, str(row["name"]): row["value"]}
            yield row
        if broken := source.broken - (source.torn is not None):
            notes.append(f"{path.name}: {broken} line(s) cannot be read and were left out")
        if source.torn is not None:
            notes.append("the last line is torn and was left out")


def _document_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    """One JSON document: the newest trainer_state.json of a run, a list of rows, or rows under a key."""
    states = [(path, _document(path, log.notes)) for path in files]
    found = [(path, state) for path, state in states if state is not None]
    if not found:
        raise DiagnosticsError(f"{files[0]} is not a JSON document that can be read")
    # Each checkpoint holds the whole history up to it.
    path, newest = max(found, key=lambda one: _global_step(one[1]))
    settings = newest if isinstance(newest, dict) else {}
    candidates = (newest, *map(settings.get, ("log_history", "history", "metrics", "rows", "logs")))
    rows = next((one for one in candidates if isinstance(one, list)), None)
    if rows is None:
        raise DiagnosticsError(f"{path} holds no list of rows, such as log_history")
    log.format = "HF trainer" if "log_history" in settings else "JSON"
    config = {key: value for key, value in settings.items() if isinstance(value, (int, float, str))}
    log.config = config or None
    return (flat(row) for row in rows if isinstance(row, dict) and "train_runtime" not in row)


def _document(path: Path, notes: list[str]) -> Any:
    try:
        return parse_json_text(read_file(path))
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


_NUMBER = r"[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf)"
_TRL = re.compile(rf"['\"]([^'\"]{{1,256}})['\"]:\s*['\"]?({_NUMBER})['\"]?")
_VERL = re.compile(rf"(?<![\w/@.-])([\w/@.-]{{1,256}}):(?:np\.\w+\()?({_NUMBER})")
_LINE = 100_000  # bytes that are looked at


def _printed_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    step = counted = 0
    for path in files:
        with open_file(path, MAX_LOG_BYTES) as file:
            for line in lines(file, _LINE):
                for part in line.decode("utf-8", "replace").split("\r"):
                    text = part.strip()
                    if "step:" in text and " - " in text:
                        row: Row = {name: number_in(value) for name, value in _VERL.findall(text)}
                        if "step" in row:
                            yield row
                    elif (start := text.find("{'")) >= 0 and text.endswith("}"):
                        row = {name: number_in(value) for name, value in _TRL.findall(text[start:])}
                        if not row or "train_runtime" in row:
                            continue
                        named = next((row.pop(key) for key in STEP_KEYS if key in row), None)
                        if named is not None and named.is_integer():
                            step = int(named)
                        # Evaluations are printed after the step that they follow.
                        elif not all(name.startswith(("eval_", "epoch")) for name in row):
                            step, counted = step + 1, counted + 1
                        yield {**row, "step": step}
    if counted:
        log.notes.append(f"{counted} printed lines name no step; lines are counted")


STDOUT = Format("printed lines", r".*\.(log|out|txt)", _printed_rows, ("step",), whole_folder=False)


_NUMBERS = ("BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE")
_CSV_STEPS = ("time/total_timesteps", "time/iterations", *STEP_KEYS)  # the first two are SB3's


def _csv_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    for path in files:
        broken = 0
        with open_file(path, MAX_LOG_BYTES) as file:
            delimiter = max("\t;,", key=file.readline(MAX_CELL).decode("utf-8", "replace").count)
            file.seek(0)
            texts = (line.decode("utf-8", "replace").replace("\0", "") for line in lines(file, MAX_CELL))
            rows = csv.reader(texts, delimiter=delimiter)
            columns: list[str] = []
            while True:
                try:
                    cells = next(rows, None)
                except csv.Error:
                    broken += 1
                    continue
                if cells is None:
                    break
                if not columns:
                    columns = _headings([cell.removeprefix("\ufeff") for cell in cells], path)
                elif len(cells) == len(columns):
                    yield {name: number_in(cell) for name, cell in zip(columns, cells, strict=True) if cell}
                elif cells:
                    broken += 1
        if broken:
            log.notes.append(f"{path.name}: {broken} line(s) do not fit the headings and were left out")


def _headings(cells: list[str], path: Path) -> list[str]:
    """The names of the columns. A curve that TensorBoard exported is named by its file."""
    if [cell.strip().lower() for cell in cells] == ["wall time", "step", "value"]:
        return ["wall_time", "step", path.stem.rpartition("-tag-")[2] or path.stem]
    # An export of W&B names each column "run - metric".
    return [cell.strip().rpartition(" - ")[2] or cell.strip() for cell in cells]


def _numbers(file: Any) -> set[str]:
    """The names of the columns that are plain numbers, which a log needs of a parquet file.

    By a name, pyarrow also reads columns whose path continues it after a dot: such names are left out.
    """
    columns = [file.schema.column(index) for index in range(len(file.schema))]
    plain = {
        one.path
        for one in columns
        if one.path == one.name
        and not one.max_repetition_level
        and (one.physical_type in _NUMBERS or one.logical_type.type == "FLOAT16")
    }
    others = {one.path for one in columns} - plain
    return plain - {path[: dot.start()] for path in others for dot in re.finditer(r"\.", path)}


def _parquet_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    return chain.from_iterable(parquet_rows(path, _numbers) for path in files)


parquet_rows = partial(read_parquet, DiagnosticsError)


SB3 = Format("SB3", r"progress\.csv", _csv_rows, _CSV_STEPS)
CSV = Format("CSV", r".*\.(csv|tsv)", _csv_rows, _CSV_STEPS, whole_folder=False)
PARQUET = Format("parquet", r".*\.parquet", _parquet_rows, magic=b"PAR1", whole_folder=False)


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
            config |= _items(value, 1)
        elif number == _RUN and isinstance(value, bytes):
            for update in messages(value, 4):
                config |= _items(update, 1)


def _history(message: bytes) -> Row:
    row = flat(_items(message, 1))
    for step in messages(message, 2):
        for number, value in fields(step):
            if number == 1:
                row.setdefault("_step", value)
    row.setdefault("_step", 0)  # protobuf does not write a 0
    for name in ("_timestamp", "_runtime", "_wandb"):
        row.pop(name, None)
    return row


def _items(message: bytes, number: int) -> Row:
    """Key → value of repeated items of key (1), nested key (2) and JSON (16)."""
    found: Row = {}
    for item in messages(message, number):
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


# The best first: a folder of a run with files of several formats is read by the first of them.
FORMATS = (GREENWARD, HF_TRAINER, SB3, WANDB, TRACKIO, TENSORBOARD, JSON_LINES, CSV, PARQUET, STDOUT, JSON)
# Formats whose names are too common to be looked for in folders.
_BY_NAME_ONLY = (JSON, STDOUT)
_MOST_ENTRIES = 20_000
_DEPTH = 4
_SHOWN = 20
# Answers, predictions, reports and the like, which are no logs of steps.
_NO_LOGS = re.compile(
    r"(\d+|predictions|.*rollouts?|rollout_.*|.*traces|checkpoints|timing_spans|trace_events|.*summaries|alerts|"
    r"completions_\d+|.*samples(\.raw)?)\.\w+"
)


@dataclass(frozen=True)
class Found:
    """The files of one run, in the order in which they are read."""

    name: str
    format: Format
    files: tuple[Path, ...]


def find_log(path: Path, pick: str | None = None) -> Found:
    """The log at `path`, a file or a folder; `pick` names a run where there are several.

    Raises:
        DiagnosticsError: none, or several and none picked.
    """
    if not path.exists():
        raise DiagnosticsError(f"{path}: there is no such file or folder")
    found = _in_folder(path) if path.is_dir() else _in_file(path)
    if pick is not None:
        if not (chosen := [one for one in found if one.name == pick]):
            raise DiagnosticsError(f"{path} has no run {pick!r}", remedy=f"It has {_names(found)}.")
        return chosen[0]
    if not found:
        formats = ", ".join(dict.fromkeys(one.name for one in FORMATS))
        raise DiagnosticsError(
            f"{path} has no metrics.jsonl, nor another log that is known", remedy=f"Known: {formats}."
        )
    if len(found) > 1:
        raise DiagnosticsError(
            f"{path} has {len(found)} runs", remedy=f"Name one by --pick, or by its path: {_names(found)}"
        )
    return found[0]


def _names(found: list[Found]) -> str:
    names = [one.name for one in found]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _in_file(path: Path) -> list[Found]:
    real = path.resolve()  # a link that the user named may lead anywhere
    for form in FORMATS:
        if re.fullmatch(form.file_names, path.name) and _has_magic(path, form):
            return _runs(form, [real], path.name)
    with open_file(path, MAX_LOG_BYTES) as file:
        head = file.read(64)
    for form in FORMATS:
        if form.magic and head.startswith(form.magic):
            return _runs(form, [real], path.name)
    if re.fullmatch(r".*\.(db|sqlite3?|wandb|parquet)", path.name):
        raise DiagnosticsError(f"{path} is not what its name says: its first bytes are {head[:8]!r}")
    return _runs(JSON_LINES if head.lstrip().startswith(b"{") else STDOUT, [real], path.name)


def _in_folder(folder: Path) -> list[Found]:
    by_run: dict[tuple[int, str], list[Path]] = {}
    for path in _files(folder):
        for rank, form in enumerate(FORMATS):
            if (
                form not in _BY_NAME_ONLY
                and re.fullmatch(form.file_names, path.name)
                and not _NO_LOGS.fullmatch(path.name)
                and _has_magic(path, form)
            ):
                by_run.setdefault((rank, _run_of(path, form, folder)), []).append(path)
                break
    if not by_run:
        return []
    own = FORMATS.index(GREENWARD), "."
    if own in by_run:  # arms of a run are runs inside it
        by_run = {own: by_run[own]}
    # Of one folder the best format counts: trainer_state.json lies beside event files.
    best = min(rank for rank, _ in by_run)
    found = []
    for (rank, name), files in sorted(by_run.items()):
        if rank == best:
            found += _runs(FORMATS[rank], sorted(files, key=_order), name)
    return found


def _order(path: Path) -> tuple[list[int | str], str]:
    """Files of a resumed run in the order in which they were begun: numbers in names count as numbers."""
    parts = re.split(r"(\d+)", path.name)
    return [int(part) if part.isdigit() and len(part) < 30 else -1 for part in parts], str(path)


def _run_of(path: Path, form: Format, folder: Path) -> str:
    if form is WANDB:
        return run_id(path)
    place = path.parent if form.whole_folder else path
    if form is HF_TRAINER and place != folder and re.fullmatch(r"checkpoint-\d+", place.name):
        place = place.parent
    return place.relative_to(folder).as_posix()


def _runs(form: Format, files: list[Path], name: str) -> list[Found]:
    if form.runs is None:
        return [Found(name, form, tuple(files))]
    return [Found(run, form, tuple(files)) for file in files for run in form.runs(file)]


def _has_magic(path: Path, form: Format) -> bool:
    if not form.magic:
        return True
    try:
        with open_file(path, MAX_LOG_BYTES) as file:
            return file.read(len(form.magic)) == form.magic
    except OSError:
        return False


def _files(folder: Path) -> Iterator[Path]:
    """The files below `folder`, the nearest first; links that lead out of it are not followed."""
    level, seen = [folder], 0
    for _ in range(_DEPTH):
        inner: list[Path] = []
        for place in level:
            try:
                entries = sorted(os.scandir(place), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                seen += 1
                if seen > _MOST_ENTRIES:
                    return
                path = Path(entry.path)
                if entry.is_symlink() and leads_out(path, folder):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith("."):
                        inner.append(path)
                elif entry.is_file():
                    yield path
        level = inner


# Names with a step, the folders where they are, and the files in them where they are folders themselves.
_PLACES = (
    (r"step_(\d{1,15})\.jsonl", ("rollouts",), ""),
    (r"completions_(\d{1,15})\.parquet", ("completions", "."), ""),
    (r"(\d{1,15})\.jsonl", ("rollouts", "rollout_data", "rollout", "rollout_data_dir", "."), ""),
    (r"iteration_(\d{1,15})", (".",), "train_rollout_summaries.jsonl"),
    (r"step_(\d{1,15})", ("rollouts",), "**/traces.jsonl"),
)
_MOST_FILES = 10_000
_CHARACTERS = 20_000  # of an answer that are kept


@dataclass(frozen=True)
class Rollout:
    """An answer. `length` is in tokens where those were counted, else in characters; None: not known."""

    task: str
    answer: str
    reward: float | None
    length: float | None
    status: str = ""


def find_rollouts(folder: Path) -> tuple[tuple[int, Path], ...]:
    """(step, file) of the answers of a run, oldest first."""
    for pattern, places, inner in _PLACES:
        for place in places:
            # Links may lead out of the run.
            entries = numbered(folder / place, re.compile(pattern))
            found = sorted((step, path) for step, path in entries if not path.is_symlink())
            if inner:
                files = ((step, file) for step, one in found for file in islice(one.glob(inner), 100))
                found = [(step, file) for step, file in files if "eval" not in file.parts]
            if found:
                return tuple(found)
    return ()


def numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    """(number, path) of the entries of a folder whose names the pattern matches; none without a folder."""
    try:
        matched = ((pattern.fullmatch(one.name), one) for one in folder.iterdir())
        return list(islice(((int(match[1]), one) for match, one in matched if match), _MOST_FILES))
    except OSError:
        return []


def read_rollouts(file: Path, most: int = 512) -> Iterator[Rollout]:
    """The first answers of a file; what cannot be read is left out.

    Raises:
        DiagnosticsError: a parquet file without pyarrow, or a broken one.
    """
    if file.suffix == ".parquet":
        rows: Iterator[Mapping[str, Any]] = parquet_rows(file)
    else:
        rows = iter(JsonRows(file, lenient=True))
    for row in islice(rows, most):
        yield _rollout(row)


def _rollout(row: Mapping[str, Any]) -> Rollout:
    rewards = row["rewards"] if isinstance(row.get("rewards"), Mapping) else {}
    terms = [value for key, value in row.items() if key.endswith("_reward") and _is_number(value)]
    candidates = (
        *(row.get(key) for key in ("reward", "score")),
        sum(terms) if terms else None,  # TRL has a column for each function
        *(row.get(key) for key in ("total_reward", "advantage")),
        *rewards.values(),
    )
    reward = next(filter(_is_number, candidates), None)
    answer = _text(row, "answer", "completion", "output", "response")
    length = row.get("tokens", row.get("completion_tokens"))
    if not _is_number(length):
        steps = row["steps"] if isinstance(row.get("steps"), list) else ()
        counted = [s["ac_len"] for s in steps if isinstance(s, Mapping) and _is_number(s.get("ac_len"))]
        length = sum(counted) if counted else len(answer) or None
    status = row.get("status")
    return Rollout(
        _text(row, "problem", "prompt", "input", "example_id", "task"),
        answer,
        None if reward is None else float(reward),
        None if length is None else float(length),
        status if isinstance(status, str) else "",
    )


def _text(row: Mapping[str, Any], *keys: str) -> str:
    for key in keys:
        value = row.get(key)
        if isinstance(value, (int, float)) and key == "answer":
            continue
        if isinstance(value, (str, int)):
            return str(value)[:_CHARACTERS]
        if isinstance(value, list):  # messages of a chat
            parts = [one.get("content") for one in value if isinstance(one, Mapping)]
            return "\n".join(str(part) for part in parts if part)[:_CHARACTERS]
    return ""


def _is_number(value: Any) -> bool:
    """Whether it is a number that a float can hold, as can the sum of many."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, float) or abs(value) < 1 << 64
