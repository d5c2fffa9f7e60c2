"""Reads tables: CSV and TSV, also as trackers export them, parquet, HTML and the outputs of notebooks.

- Exports: W&B's has the columns `RUN - METRIC`, with `__MIN` and `__MAX` beside each; TensorBoard's has
  `Wall time`, `Step` and `Value`; those of MLflow and Aim have a row for each value, with its name and run.
- Notebooks: the texts and the HTML of the outputs of the cells (nbformat). The callback of transformers
  shows a table with a row for each logged step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

from greenward.common.errors import DiagnosticsError
from greenward.common.files import read_file
from greenward.common.parsing import parse_json_text
from greenward.diagnostics.readers.rows import (
    MAX_CELL,
    STEP_KEYS,
    Format,
    Log,
    Row,
    encoding_of,
    number_in,
    of_event,
    plain_key,
    text_lines,
)

# Those of Stable-Baselines3 come first: it logs iterations beside them.
_CSV_STEPS = ("time/total_timesteps", "time/iterations", *STEP_KEYS)
_BOUND = re.compile(r"__(?:MIN|MAX)")
_OF_RUN = " - "
_DECIMAL_COMMA = re.compile(r"[-+]?\d{1,40},\d{1,40}(?:[eE][-+]?\d{1,5})?")


def _cells(path: Path, broken: list[str]) -> Iterator[list[str]]:
    """The rows of cells of a CSV file, the headings first; rows that cannot be parsed go into `broken`."""
    import csv

    first = next((line for line in text_lines(path, MAX_CELL) if line.strip() and line[0] != "#"), "")
    delimiter = max("\t;,", key=first.count)
    texts = (f"{line}\n".replace("\0", "") for line in text_lines(path, MAX_CELL))
    rows = csv.reader(texts, delimiter=delimiter)
    begun = False
    while True:
        try:
            cells = next(rows, None)
        except csv.Error as error:
            broken.append(str(error))
            continue
        if cells is None:
            return
        if any(cells) and not (cells[0].startswith("#") and not begun):  # a comment before the headings
            begun = True
            # Where a semicolon parts the cells, a comma is the point.
            comma = delimiter == ";"
            yield [one.replace(",", ".") if comma and _DECIMAL_COMMA.fullmatch(one) else one for one in cells]


def _runs_of_columns(columns: list[str]) -> list[str]:
    """The runs of an export of W&B, whose columns are named "run - metric"; none for another table."""
    others = [one for one in columns[1:] if one]
    if not others or not columns or plain_key(columns[0]) not in _STEPS_OF_EXPORTS:
        return []
    runs = [one.rpartition(_OF_RUN)[0] for one in others]
    return list(dict.fromkeys(runs)) if all(runs) else []


_STEPS_OF_EXPORTS = {*STEP_KEYS, "relative_time_(process)", "relative_time_(wall)", "wall_time", "_runtime"}


def _csv_runs(path: Path) -> list[str]:
    columns = [cell.strip() for cell in next(_cells(path, []), [])]
    if {"Name", "State", "Created", "Runtime"} <= {*columns}:
        raise DiagnosticsError(
            f"{path} is W&B's table of runs, one row for each, and no log over time",
            remedy="Export the history of a run (wandb.Api().run(PATH).history().to_csv(FILE)) or a chart.",
        )
    return _runs_of_columns(columns)


def _csv_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    for path in files:
        broken: list[str] = []
        rows = _cells(path, broken)
        heading = [cell.strip() for cell in next(rows, [])]
        columns = _headings(heading, run, path, log)
        if heading and heading[0].startswith("{"):  # JSON lines under another name
            return
        if is_d3rlpy(path):
            columns = [None, "step", path.stem]  # the epoch stands before the step
            rows = chain([heading], rows)
        elif heading and 2 * sum(number_in(cell) is not None for cell in heading) > len(heading):
            log.notes.append(f"{path.name} has no headings; its columns are counted")
            columns = [f"column {place}" for place in range(1, len(heading) + 1)]
            columns = columns if len(columns) > 1 else [path.stem]
            first = [heading, *islice(rows, _PEEKED)]
            rows = chain(first, rows)
            if len(columns) > 1 and _counts([cells[0] for cells in first if cells]):
                columns[0] = "step"
        for cells in rows:
            if len(cells) == len(columns):
                named = zip(columns, cells, strict=True)
                yield of_event({name: _cell(cell) for name, cell in named if name is not None and cell})
            else:
                broken.append("")
        if broken:
            log.notes.append(f"{path.name}: {len(broken)} line(s) do not fit the headings and were left out")


_PEEKED = 50  # rows


def is_d3rlpy(path: Path) -> bool:
    """Whether a file is of those that d3rlpy writes, without headings: one for each signal of a run."""
    return path.suffix == ".csv" and path.with_name("time_step.csv").is_file()


def _counts(cells: list[str]) -> bool:
    """Whether a column counts its rows, from any number on, and maybe anew."""
    numbers = [number_in(cell) for cell in cells]
    pairs = pairwise(numbers)
    return len(numbers) > 2 and all(
        was is not None and now is not None and (now == was + 1 or now == numbers[0]) for was, now in pairs
    )


def _cell(text: str) -> float | str:
    """The number of a cell, else its text: of the name of a run or of a signal."""
    try:
        return float(text)
    except ValueError:
        return text


def _headings(cells: list[str], run: str, path: Path, log: Log) -> list[str | None]:
    """The names of the columns, None for those that are left out."""
    if [cell.lower() for cell in cells] == ["wall time", "step", "value"]:
        return [None, "step", path.stem.rpartition("-tag-")[2] or path.stem]
    if cells[:3] == ["r", "l", "t"]:  # stable_baselines3/common/monitor.py: a row for each episode
        log.format = "SB3 Monitor"
        return ["episode_reward", "episode_length", "time/time_elapsed", *(one or None for one in cells[3:])]
    if "time/total_timesteps" in cells:
        log.format = "SB3"
    if runs := _runs_of_columns(cells):
        log.format = "W&B"
        if bounds := sum(bool(_BOUND.search(one)) for one in cells):
            log.notes.append(f"{bounds} column(s) of least and greatest values (__MIN, __MAX) were left out")
        parts = [one.rpartition(_OF_RUN) for one in cells[1:]]
        chosen = run if run in runs else runs[0]
        return [
            cells[0], *(name if of == chosen and not _BOUND.search(name) else None for of, _, name in parts)
        ]  # fmt: skip
    return [cell or None for cell in cells]  # pandas writes an index without a name


def _parquet_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    from greenward.common.parquet import read_parquet

    return chain.from_iterable(read_parquet(DiagnosticsError, path, numbers_only=True) for path in files)


_TAG = re.compile(r"<(/?)(table|tr|td|th)\b[^<>]*>", re.IGNORECASE)
_ANY_TAG = re.compile(r"<[^<>]{0,10000}>")


def html_tables(text: str) -> Iterator[list[list[str]]]:
    """The tables of an HTML text, as rows of cells."""
    import html

    rows: list[list[str]] = []
    end: int | None = None  # of the tag of the cell that is open
    for tag in _TAG.finditer(text):
        closes, kind = bool(tag[1]), tag[2].lower()
        if end is not None and rows:
            rows[-1].append(html.unescape(_ANY_TAG.sub("", text[end : tag.start()])).strip())
        end = None if closes or kind in ("table", "tr") else tag.end()
        if kind == "table" and rows:
            yield rows
            rows = []
        elif (kind == "tr" and not closes) or (end is not None and not rows):
            rows.append([])
    if rows:
        yield rows


def _rows_of_table(table: list[list[str]]) -> Iterator[Row]:
    columns, *rows = table
    for cells in rows:
        if len(cells) == len(columns):
            yield of_event({name: _cell(cell) for name, cell in zip(columns, cells, strict=True) if name})


def _html_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    for path in files:
        content = read_file(path)
        yield from _rows_of_html(content.decode(encoding_of(content[:512]), "replace"))


def _rows_of_html(text: str) -> Iterator[Row]:
    for table in html_tables(text):
        rows = list(_rows_of_table(table))
        if any(type(cell) is float for row in rows for cell in row.values()):
            yield from rows


def _notebook_rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    """The tables of HTML in the outputs; where there are none, what was printed."""
    from greenward.diagnostics.readers.printed import rows_of_texts

    for path in files:
        content = read_file(path)
        try:
            outputs = list(_outputs(parse_json_text(content.decode(encoding_of(content[:512]), "replace"))))
        except ValueError:
            raise DiagnosticsError(f"{path} is not a notebook that can be read") from None
        rows = chain.from_iterable(_rows_of_html(text) for kind, text in outputs if kind == "text/html")
        found = list(rows)
        if not any(plain_key(name) in STEP_KEYS for row in found for name in row):
            printed = (text.split("\n") for kind, text in outputs if kind != "text/html")
            found = list(rows_of_texts(chain.from_iterable(printed), log)) or found
        if not found:
            raise DiagnosticsError(
                f"{path} has no rows of signals in its {len(outputs)} outputs",
                remedy="Run its training again and save it with the outputs, or name the trainer's log.",
            )
        yield from found


def _outputs(notebook: Any) -> Iterator[tuple[str, str]]:
    """(type, text) of the outputs of a notebook's cells, in their order."""
    cells = notebook.get("cells", ()) if isinstance(notebook, dict) else ()
    for output in chain.from_iterable(one.get("outputs", ()) for one in cells if isinstance(one, dict)):
        data = output.get("data") or {}
        kind = next((one for one in ("text/html", "text/plain") if one in data), "stream")
        text = data.get(kind, output.get("text", ""))
        yield kind, "".join(map(str, text)) if isinstance(text, list) else str(text)


TABLE = Format("CSV", r"progress\.csv", _csv_rows, _CSV_STEPS)
CSV = Format("CSV", r".*\.(csv|tsv)", _csv_rows, _CSV_STEPS, whole_folder=False, runs=_csv_runs)
PARQUET = Format("parquet", r".*\.parquet", _parquet_rows, magic=b"PAR1", whole_folder=False)
HTML = Format("HTML table", r".*\.html?", _html_rows, whole_folder=False)
NOTEBOOK = Format("notebook", r".*\.ipynb", _notebook_rows, whole_folder=False)
