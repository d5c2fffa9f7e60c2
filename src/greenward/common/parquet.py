"""Reads parquet files of others in a process of its own: pyarrow ends the process on some damaged files.

That process imports pyarrow once and reads one file after the other: it is asked for a file or for the next
rows (a line of JSON) and gives a pickle. It runs as the same user, so that a file that took it over could do
no more by a pickle than without.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from greenward.common.errors import GreenwardError
from greenward.common.files import MAX_LOG_BYTES, open_file
from greenward.common.processes import python_module

_LEAST_ROWS = 100_000  # of a file of any size
_LEAST_VALUES = 1 << 24
_LEAST_UNPACKED, _MAX_RATIO = 64 << 20, 100
_BATCH_BYTES = 256 << 20
_NUMBERS = ("BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE")

Rows = list[dict[str, Any]]


def has_pyarrow() -> bool:
    """Whether pyarrow, which reads parquet files, is installed."""
    try:
        return find_spec("pyarrow") is not None
    except ValueError:  # what was put in its place is no module
        return False


def read_parquet(
    error: type[GreenwardError], path: Path, *, numbers_only: bool = False, within: Path | None = None
) -> Iterator[dict[str, Any]]:
    """The rows of a parquet file, or of those of its columns that are plain numbers.

    Raises an `error` without pyarrow, for a broken file, or a link that leads out of `within`.
    """
    if not has_pyarrow():
        raise error(f"{path} is a parquet file, which needs pyarrow", remedy="pip install pyarrow")
    reader = _waiting_reader() or _Reader()
    request: dict[str, Any] | None = {
        "path": os.path.abspath(path),
        "numbers_only": numbers_only,
        "within": None if within is None else os.path.abspath(within),
    }
    try:
        while found := reader.ask(request):
            if isinstance(found, str):
                raise error(f"{path} {found}")
            yield from found
            request = None
    finally:
        if reader.is_running:
            _idle.append(reader)  # it is asked for the next file, even if rows of this one are left


class _Reader:
    """A process that reads. `ask` gives rows of a file, none at its end, or what is wrong with it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            python_module(__name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # a Ctrl-C is not for it; it ends when this process closes the pipe
        )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: dict[str, Any] | None) -> Rows | str:
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None and answers is not None
        try:
            asked.write(json.dumps(request).encode() + b"\n")
            asked.flush()
            found: Rows | str = pickle.load(answers)
        except (OSError, EOFError, pickle.UnpicklingError):
            ended = self.end()
            by = signal.Signals(-ended).name if ended < 0 else f"status {ended}"
            return f"cannot be read as parquet: pyarrow ended its process ({by}); the file may be damaged"
        except BaseException:  # its answer would be taken for that to the next request
            self.end()
            raise
        return found

    def end(self) -> int:
        """Kill it and wait for that: its return code."""
        self._process.kill()
        return self._process.wait()


_idle: list[_Reader] = []
os.register_at_fork(after_in_child=lambda: _idle.clear())  # answers would go to the wrong process


def _waiting_reader() -> _Reader | None:
    """One that waits for a file and runs still. Other threads may take theirs meanwhile."""
    with suppress(IndexError):
        while not (reader := _idle.pop()).is_running:
            pass
        return reader
    return None


@atexit.register
def _end_all() -> None:
    """Leave no process that another one has to wait for: in containers none may."""
    while _idle:
        _idle.pop().end()


def main() -> None:
    """Answers requests until the other process ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that a library prints is an answer
    found: Iterator[Rows] = iter(())
    for line in sys.stdin.buffer:
        if (request := json.loads(line)) is not None:
            found = _batches(**request)
        _answer(found, answers)


def _answer(found: Iterator[Rows], answers: IO[bytes]) -> None:
    try:
        answer: Rows | str = next(found, [])
    except GreenwardError as refused:
        answer = refused.message
    except Exception as fault:  # those of pyarrow, the file system, and of memory
        answer = f"cannot be read as parquet: {str(fault)[:200]}"
    pickle.dump(answer, answers)
    answers.flush()


def _batches(path: str, numbers_only: bool, within: str | None) -> Iterator[Rows]:
    from pyarrow import parquet

    with (
        open_file(Path(path), MAX_LOG_BYTES, within=None if within is None else Path(within)) as source,
        parquet.ParquetFile(source, thrift_string_size_limit=1 << 24) as file,
    ):
        names = _numbers(file) if numbers_only else None
        wanted = None if names is None else sorted(names)
        rows_at_once = _rows_at_once(os.fstat(source.fileno()).st_size, file, names)
        for batch in file.iter_batches(rows_at_once, columns=wanted):
            if rows := batch.to_pylist():
                yield rows


def _numbers(file: Any) -> set[str]:
    """The names of the columns that are plain numbers.

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


def _rows_at_once(size: int, file: Any, names: set[str] | None) -> int:
    """How many rows of a file of `size` bytes to read at once, of the columns with these names or of all.

    By run lengths and dictionaries a few bytes stand for any number of rows or values: what the footer says
    is compared with the size of the file. Raises `GreenwardError`.
    """
    footer = file.metadata
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
            max(_LEAST_UNPACKED, _MAX_RATIO * size),
        ),
    ):
        if not 0 <= found <= most:
            raise GreenwardError(f"says that it has {found} {what}; at most {most} are read")
    # A value of a dictionary may be as long as the dictionary, and stand in each row.
    texts = sum(one.total_uncompressed_size for one in chunks if one.physical_type.endswith("BYTE_ARRAY"))
    return max(1, min(1024, _BATCH_BYTES // max(1, texts)))


if __name__ == "__main__":
    main()
