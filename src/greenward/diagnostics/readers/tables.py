"""Tables with a column for each signal: CSV and TSV (also SB3's `progress.csv`), and parquet."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from greenward.diagnostics.readers.log import STEP_KEYS, Format, Log, Row, number_in
from greenward.errors import DiagnosticsError

_CSV_STEPS = ("time/total_timesteps", "time/iterations", *STEP_KEYS)  # the first two are SB3's


def _csv_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    for path in files:
        broken = 0
        with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
            head = file.readline()
            file.seek(0)
            delimiter = max("\t;,", key=head.count)
            lines = csv.reader((line.replace("\0", "") for line in file), delimiter=delimiter)
            columns: list[str] = []
            while True:
                try:
                    cells = next(lines, None)
                except csv.Error:
                    broken += 1
                    continue
                if cells is None:
                    break
                if not columns:
                    columns = _headings(cells, path)
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


def _parquet_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    return chain.from_iterable(map(parquet_rows, files))


def parquet_rows(path: Path) -> Iterator[Row]:
    """The rows of a parquet file. Raises `DiagnosticsError` without pyarrow, or for a broken file."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DiagnosticsError(
            f"{path} is a parquet file, which needs pyarrow", remedy="pip install pyarrow"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                yield from batch.to_pylist()
    except (ArrowException, OSError, ValueError) as error:
        raise DiagnosticsError(f"{path} cannot be read as parquet: {str(error)[:200]}") from None


SB3 = Format("SB3", r"progress\.csv", _csv_rows, _CSV_STEPS)
CSV = Format("CSV", r".*\.(csv|tsv)", _csv_rows, _CSV_STEPS, whole_folder=False)
PARQUET = Format("parquet", r".*\.parquet", _parquet_rows, magic=b"PAR1", whole_folder=False)
