"""Tables with a column for each signal: CSV and TSV (also SB3's `progress.csv`), and parquet."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from greenward.diagnostics.readers.log import MAX_CELL, STEP_KEYS, Format, Log, Row, number_in
from greenward.errors import DiagnosticsError
from greenward.user_files import MAX_LOG_BYTES, UNEXPECTED, lines, open_file

_LEAST_ROWS = 100_000  # of a parquet file of any size
_LEAST_VALUES = 1 << 24
_LEAST_UNPACKED, MAX_RATIO = 64 << 20, 100
_BATCH_BYTES = 256 << 20
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


def _rows_at_once(path: Path, file: Any, names: set[str] | None) -> int:
    """How many rows of a parquet file to read at once, of the columns with these names or of all.

    By run lengths and dictionaries a few bytes stand for any number of rows or values: what the footer says
    is compared with the size of the file. Raises `DiagnosticsError`.
    """
    footer, size = file.metadata, path.stat().st_size
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
    if names is not None:
        chunks = [one for one in chunks if one.path_in_schema in names]
    for what, found, most in (
        ("rows", footer.num_rows, _LEAST_ROWS + size),
        ("values", sum(one.num_values for one in chunks), max(_LEAST_VALUES, size)),
        (
            "bytes, unpacked",
            sum(max(one.total_uncompressed_size, 0) for one in chunks),
            max(_LEAST_UNPACKED, MAX_RATIO * size),
        ),
    ):
        if not 0 <= found <= most:
            raise DiagnosticsError(f"{path} says that it has {found} {what}; at most {most} are read")
    # A value of a dictionary may be as long as the dictionary, and stand in each row.
    texts = sum(one.total_uncompressed_size for one in chunks if one.physical_type.endswith("BYTE_ARRAY"))
    return max(1, min(1024, _BATCH_BYTES // max(1, texts)))


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
    return chain.from_iterable(parquet_rows(path, only_numbers=True) for path in files)


def parquet_rows(path: Path, *, only_numbers: bool = False) -> Iterator[Row]:
    """The rows of a parquet file, or of its columns of numbers.

    Raises `DiagnosticsError` without pyarrow, or for a broken file.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DiagnosticsError(
            f"{path} is a parquet file, which needs pyarrow", remedy="pip install pyarrow"
        ) from None
    try:
        with (
            open_file(path, MAX_LOG_BYTES) as source,
            parquet.ParquetFile(source, thrift_string_size_limit=1 << 24) as file,
        ):
            names = _numbers(file) if only_numbers else None
            wanted = None if names is None else sorted(names)
            for batch in file.iter_batches(_rows_at_once(path, file, names), columns=wanted):
                yield from batch.to_pylist()
    except (ArrowException, OSError, *UNEXPECTED) as error:
        raise DiagnosticsError(f"{path} cannot be read as parquet: {str(error)[:200]}") from None


SB3 = Format("SB3", r"progress\.csv", _csv_rows, _CSV_STEPS)
CSV = Format("CSV", r".*\.(csv|tsv)", _csv_rows, _CSV_STEPS, whole_folder=False)
PARQUET = Format("parquet", r".*\.parquet", _parquet_rows, magic=b"PAR1", whole_folder=False)
