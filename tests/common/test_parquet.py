"""Parquet files of others are read by another process, which a damaged file may end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from greenward.common import parquet
from greenward.common.errors import DiagnosticsError
from greenward.common.parquet import read_parquet
from greenward.common.processes import python_module

TABLE = {"step": list(range(3000)), "loss": [1 / (step + 1) for step in range(3000)], "text": ["x"] * 3000}


@pytest.fixture
def idle(monkeypatch):
    """The processes that wait for a file, none of which is left from another test."""
    monkeypatch.setattr(parquet, "_idle", [])
    yield parquet._idle
    for reader in parquet._idle:
        reader._process.kill()
        reader._process.wait()


@pytest.fixture
def written(tmp_path) -> Path:
    arrow, written = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    written.write_table(arrow.table(TABLE), tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """In place of the process that reads, this program answers."""
    monkeypatch.setattr(parquet, "has_pyarrow", lambda: True)

    def replace(program: str) -> None:
        (tmp_path / "stand_in.py").write_text(program)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(parquet, "python_module", lambda name: python_module("stand_in"))

    return replace


@pytest.mark.parametrize(
    ("program", "by"),
    [
        ("import os; input(); os.abort()", "SIGABRT"),
        ("input(); raise SystemExit(3)", "status 3"),
        ("input(); print('what a library says')", "SIGKILL|status 0"),
    ],
)
def test_a_process_that_ends_is_an_error_that_names_the_file(program, by, stand_in, idle):
    stand_in(program)
    with pytest.raises(
        DiagnosticsError, match=rf"log.parquet cannot be read as parquet: .*\(({by})\).*damaged"
    ):
        list(read_parquet(DiagnosticsError, Path("log.parquet")))
    assert idle == []


def test_files_are_read_by_one_process_also_after_one_that_was_left_halfway(written, idle):
    assert list(read_parquet(DiagnosticsError, written, numbers_only=True)) == [
        {"step": step, "loss": loss} for step, loss in zip(TABLE["step"], TABLE["loss"], strict=True)
    ]
    (reader,) = idle
    left = read_parquet(DiagnosticsError, written)
    assert next(left) == {"step": 0, "loss": 1.0, "text": "x"}
    assert idle == []  # it is at work
    left.close()
    assert [row["step"] for row in read_parquet(DiagnosticsError, written)] == TABLE["step"]
    assert idle == [reader]


def test_two_files_may_be_read_at_a_time(written, idle):
    pairs = zip(read_parquet(DiagnosticsError, written), read_parquet(DiagnosticsError, written), strict=True)
    assert [one["step"] - other["step"] for one, other in pairs] == [0] * 3000


def test_a_process_that_died_while_it_waited_is_replaced(written, idle):
    assert len(list(read_parquet(DiagnosticsError, written))) == 3000
    (reader,) = idle
    reader._process.kill()
    reader._process.wait()
    assert len(list(read_parquet(DiagnosticsError, written))) == 3000
    assert len(idle) == 1 and idle != [reader]


def test_a_process_that_did_not_finish_its_answer_is_asked_for_no_other(written, idle, monkeypatch):
    def interrupted(source: object) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pickle.load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(read_parquet(DiagnosticsError, written))
    assert idle == []


def test_a_forked_process_reads_by_a_process_of_its_own(written):
    code = f"""
import os
from pathlib import Path
from greenward.common import parquet
from greenward.common.errors import DiagnosticsError
rows = parquet.read_parquet(DiagnosticsError, Path({str(written)!r}))
print(len(list(rows)), len(parquet._idle), flush=True)
if os.fork():
    print(os.waitstatus_to_exitcode(os.wait()[1]), len(parquet._idle))
else:
    os._exit(len(parquet._idle))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("3000 1\n0 1\n", "")


def test_whatever_is_damaged_this_process_goes_on(written, idle, tmp_path):
    content, damaged = written.read_bytes(), tmp_path / "damaged.parquet"
    footer = int.from_bytes(content[-8:-4], "little")
    for place in range(len(content) - 8 - footer, len(content) - 8, 97):
        damaged.write_bytes(content[:place] + bytes([content[place] ^ 64]) + content[place + 1 :])
        try:
            list(read_parquet(DiagnosticsError, damaged))
        except DiagnosticsError as error:
            assert str(damaged) in error.message
    assert len(list(read_parquet(DiagnosticsError, written))) == 3000


def test_what_waits_for_a_file_ends_with_its_process(written):
    code = f"""
from pathlib import Path
from greenward.common import parquet
from greenward.common.errors import DiagnosticsError
rows = parquet.read_parquet(DiagnosticsError, Path({str(written)!r}))
print(len(list(rows)), parquet._idle[0]._process.pid)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    rows, pid = done.stdout.split()
    assert (rows, done.stderr) == ("3000", "")
    with pytest.raises(ProcessLookupError):  # not even as a zombie
        os.kill(int(pid), 0)
