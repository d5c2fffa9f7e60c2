"""Tables with a column for each signal: CSV and TSV (also SB3's `progress.csv`), and parquet."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from greenward.diagnostics.readers.json_files import STEP_KEYS
from greenward.diagnostics.readers.log import Format, Log, Row, number_in
from greenward.errors import DiagnosticsError

_SB3_STEPS = ("time/total_timesteps", "time/iterations")


def _read_csv(files: list[Path], run: str | None) -> Log:
    notes: list[str] = []
    name = "SB3" if files[0].name == "progress.csv" else "CSV"
    return Log(name, _csv_rows(files, notes), (*_SB3_STEPS, *STEP_KEYS), notes=notes)


def _csv_rows(files: list[Path], notes: list[str]) -> Iterator[Row]:
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
            notes.append(f"{path.name}: {broken} line(s) do not fit the headings and were left out")


def _headings(cells: list[str], path: Path) -> list[str]:
    """The names of the columns. A curve that TensorBoard exported is named by its file."""
    if [cell.strip().lower() for cell in cells] == ["wall time", "step", "value"]:
        return ["wall_time", "step", path.stem.rpartition("-tag-")[2] or path.stem]
    # An export of W&B names each column "run - metric".
    return [cell.strip().rpartition(" - ")[2] or cell.strip() for cell in cells]


def _read_parquet(files: list[Path], run: str | None) -> Log:
    return Log("parquet", (row for path in files for row in parquet_rows(path)), STEP_KEYS)


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


SB3 = Format("SB3", r"progress\.csv", _read_csv)
CSV = Format("CSV", r".*\.(csv|tsv)", _read_csv, whole_folder=False)
PARQUET = Format("parquet", r".*\.parquet", _read_parquet, b"PAR1", whole_folder=False)
