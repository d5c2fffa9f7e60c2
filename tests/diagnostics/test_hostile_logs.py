"""Logs of strangers that are small and ask for much: one error or a note each, in bounded time and memory."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import struct
import time
import tracemalloc
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from greenward.common.errors import DiagnosticsError, GreenwardError
from greenward.common.parquet import read_parquet
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.readers.trackers import _masked_crc

SECONDS, BYTES = 10.0, 200 << 20  # far more than is needed


def resident(name):
    """A size of this process in bytes, as the kernel counts it: VmRSS, or VmHWM, its peak."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) << 10


@contextmanager
def bounded():
    """The peak is that of the kernel where it can be reset: tracing each allocation triples the time."""
    counted = True
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
    except OSError:
        counted = False
        tracemalloc.start()
    began = time.process_time()
    try:
        yield
        assert time.process_time() - began < SECONDS
        peak = resident("VmHWM") - before if counted else tracemalloc.get_traced_memory()[1]
        assert peak < BYTES
    finally:
        tracemalloc.stop()


def database(path, *statements):
    with closing(sqlite3.connect(path)) as made:
        for statement in statements:
            made.execute(statement)
        made.commit()
    return path


CONFIGS = "create table configs (run_name text, config text)"
METRICS = "create table metrics (run_name text, step integer, metrics text)"
COUNT = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 300000000)"
LONG = "hex(zeroblob(50000000))"
DATABASES = {
    "a view": [f"create view metrics as {COUNT} select 'a' as run_name, i as step, '{{}}' as metrics from n"],
    "a generated column": [
        f"create table metrics (run_name text, step integer, metrics text as ({LONG}))",
        "insert into metrics values ('a', 1)",
    ],
    "a virtual table": ["create virtual table metrics using fts5(run_name, step)"],
    "a config that is a view": [
        METRICS,
        "insert into metrics values ('a', 1, '{\"loss\": 1}')",
        f"create view configs as select 'a' as run_name, {LONG} as config",
    ],
}


@pytest.mark.parametrize("statements", DATABASES.values(), ids=DATABASES)
def test_a_database_that_is_a_program_is_not_run(tmp_path, statements):
    path = database(tmp_path / "runs.db", *statements)
    with bounded():
        try:
            run = read_run_signals(path)
        except DiagnosticsError as error:
            assert "no table of metrics" in str(error)
        else:
            assert "there is no table of configs" in " ".join(run.notes)


@pytest.mark.parametrize("side", ["journal", "wal", "shm"])
def test_nothing_beside_a_database_is_waited_for(tmp_path, side):
    path = database(tmp_path / "runs.db", METRICS, "insert into metrics values ('a', 1, '{\"loss\": 2}')")
    os.mkfifo(tmp_path / f"runs.db-{side}")
    if side == "wal":  # its rows count, so it must be read
        with pytest.raises(DiagnosticsError, match="no regular file"):
            read_run_signals(path)
    else:
        assert read_run_signals(path).values["loss"].tolist() == [2]


def test_rows_in_a_write_ahead_log_are_read_and_nothing_is_written(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    with closing(sqlite3.connect(tmp_path / "runs.db")) as live:
        for statement in (
            "pragma journal_mode = wal",
            METRICS,
            "insert into metrics values ('a', 1, '{\"loss\": 2}')",
        ):
            live.execute(statement)
        live.commit()
        for name in ("runs.db", "runs.db-wal"):
            shutil.copy(tmp_path / name, theirs)
    before = {one.name: one.read_bytes() for one in theirs.iterdir()}
    assert read_run_signals(theirs / "runs.db").values["loss"].tolist() == [2]
    assert {one.name: one.read_bytes() for one in theirs.iterdir()} == before


LINKED = {
    "metrics.jsonl": '{"step": 1, "loss": 2}\n',
    "trainer_state.json": '{"log_history": [{"step": 1, "loss": 2}]}',
    "progress.csv": "step,loss\n1,2\n",
}


@pytest.mark.parametrize("name", LINKED)
def test_a_link_between_folders_of_the_folder_that_is_read_is_followed(tmp_path, name):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "kept").write_text(LINKED[name])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to("../store/kept")
    assert read_run_signals(tmp_path).values["loss"].tolist() == [2]


def test_pages_that_name_one_another_end(tmp_path):
    """Every inner page of the table's tree names the next one a hundred times: 100^5 rows in six pages."""
    size, levels, fan_out = 4096, 5, 100
    path = database(
        tmp_path / "runs.db",
        f"pragma page_size = {size}",
        METRICS,
        "insert into metrics values ('a', 1, '{\"loss\": 1}')",
    )
    content = bytearray(path.read_bytes())
    root = next(
        number
        for number in range(2, len(content) // size + 1)
        if content[(number - 1) * size] == 13 and b'{"loss"' in content[(number - 1) * size : number * size]
    )
    leaf = bytes(content[(root - 1) * size : root * size])
    pages = [bytearray(leaf)]
    first = len(content) // size + 1
    for level in range(levels):
        below = first + level
        page = bytearray(size)
        cells = b"".join(struct.pack(">I", below) + b"\x01" for _ in range(fan_out))
        start = size - len(cells)
        page[:12] = struct.pack(">BHHHBI", 5, 0, fan_out, start, 0, below)
        page[start:] = cells
        for index in range(fan_out):
            struct.pack_into(">H", page, 12 + 2 * index, start + 5 * index)
        pages.append(page)
    content[(root - 1) * size : root * size] = pages.pop()
    content += b"".join(pages)
    struct.pack_into(">I", content, 28, len(content) // size)
    path.write_bytes(content)
    with bounded(), pytest.raises(DiagnosticsError, match=r"runs\.db"):
        read_run_signals(path)


PRINTED = {
    "a long word": "step: - " + "x" * 90_000,
    "words of 300 characters": "step: - " + ("x" * 300 + " ") * 300,
    "quotes": "{'" + "'a" * 45_000 + "}",
    "an open quote": "{'" + ("'" + "x" * 300) * 300 + "}",
    "spaces": "{'a':" + " " * 90_000 + "}",
    "digits": "step:" + "9" * 90_000 + " - ",
    "points": "{'a': 1" + ".1" * 45_000 + "}",
    "carriage returns": "step:1 - \r" * 9000,
    "openings": "{'a': 1, " * 10_000,
    "closings": "{" * 45_000 + "'a': 1" + "}" * 45_000,
    "bars": "|" * 90_000,
    "cells": "| a | 1 " * 10_000 + "|",
    "rules": "-|" * 45_000 + "x",
    "words": "a b c d e f g h " * 5000,
    "equals": "a=" * 45_000,
    "colons": "step: " * 15_000,
    "spaces between words": "a" + " " * 90_000 + "b",
    "quotes of mail": "> " * 45_000,
    "epochs": "Epoch:[1/1](1/5)" * 5000,
    "rates": "1/2 [00:01<" * 8000,
    "calls": "tensor(" * 12_000,
    "colours": "\x1b[" * 45_000,
    "brackets": "[1" * 45_000,
    "digits and commas": "step 1" + ",111" * 20_000,
    "units": "loss 1" + "ms" * 40_000,
    "a tuple": "('a" + "', 1, 'b" * 10_000 + "')",
    "quotes of tuples": "('" + "'" * 90_000 + ")",
    "words before a gap": "a.b " * 20_000 + "  1",
    "names of paths": "a/" * 45_000 + " 1",
    "writers": "(a pid=1) " * 9000,
    "levels": "2024-11-28 20:07:12 " + "a " * 40_000 + "INFO x: 1",
    "words of a reward": "step 1 " + "average " * 10_000 + "reward: 1",
}


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, id=name, marks=pytest.mark.slow if number % 3 else ())
        for number, (name, line) in enumerate(PRINTED.items())
    ],
)
def test_printed_lines_take_linear_time(tmp_path, line):
    path = tmp_path / "train.log"
    path.write_text(f"{line}\n" * 10 + "step:1 - loss:0.5\n")
    began = time.process_time()
    read_run_signals(path)
    assert time.process_time() - began < 3  # 27 s per line of 1 MB, if it is quadratic


def test_names_in_printed_lines_are_still_read(tmp_path):
    (tmp_path / "a.log").write_text(
        "step:1 - actor/entropy:0.6 - critic/score/mean:np.float64(0.25) - x@y:1\n"
    )
    run = read_run_signals(tmp_path / "a.log")
    assert {name: float(values[0]) for name, values in run.values.items()} == {
        "entropy": 0.6,
        "reward/mean": 0.25,
        "x@y": 1.0,
    }


PIECES = {
    "many beginnings": [{"step": n % 5, "loss": n} for n in range(30_000)],
    "many resumes": [{"step": 1000 + n % 50 + n // 10, "loss": n} for n in range(30_000)],
    "many falls": [{"step": -n, "loss": n} for n in range(30_000)],
    "many runs": [{"step": n, "run_id": f"r{n}", "loss": n} for n in range(30_000)],
    "many kinds": [{"step": n // 2, f"a{n % 3000}": 1, f"b{n % 2999}": 2} for n in range(30_000)],
    "runs and names": [{"step": n // 150, "run_id": f"r{n % 150}", f"a{n % 3001}": 1} for n in range(30_000)],
}


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(rows, id=name, marks=() if name in ("many resumes", "many kinds") else pytest.mark.slow)
        for name, rows in PIECES.items()
    ],
)
def test_steps_that_go_back_again_and_again_take_linear_time(tmp_path, rows):
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with bounded(), suppress(GreenwardError):
        read_run_signals(tmp_path / "log.jsonl")


TEXTS = {
    "cells of HTML": "<table>" + "<td>" * 100_000,
    "tables of HTML": "<table><tr><td>1" * 20_000,
    "open tags": "<table " * 50_000 + "<" * 100_000,
    "long outer names": json.dumps({"step": 1, "o" * 200_000: {f"i{n}": n for n in range(2000)}}),
    "a deep row": '{"step": 1, "a": ' + '{"a":' * 5000 + "1" + "}" * 5001,
    "an endless number": '{"step": 1, "loss": ' + "9" * 100_000 + "}",
    "an endless step": '{"step": ' + "9" * 4000 + ', "loss": 1}',
    "no object": "[1, 2]\n3\nnull",
    "utf-16": '{"step": 1, "loss": 2}\n'.encode("utf-16"),
    "zeros": b"\0" * 100_000,
    "not utf-8": b'{"step": 1, "loss": "\xff\xfe"}',
    "a key twice": '{"step": 1, "step": 2, "loss": NaN, "loss": Infinity}',
    "other types": '{"step": [], "loss": {}}\n{"step": "x"}\n{"step": true}\n{"step": 1e400, "loss": []}',
    "names that each have a step": "\n".join(f'{{"step": {n}, "n{n % 4000}": 1}}' for n in range(30_000)),
}


@pytest.mark.parametrize(
    "name",
    [
        *("metrics.jsonl", "trainer_state.json", "a.txt"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("other.jsonl", "a.csv", "a.html", "a.ipynb")
        ),
    ],
)
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_hostile_text_in_any_log(tmp_path, name, text):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with bounded(), suppress(GreenwardError):
        read_run_signals(tmp_path / name)


def event(size, content=b"", crc=None):
    head = struct.pack("<Q", size)
    return head + struct.pack("<I", _masked_crc(head) if crc is None else crc) + content


RECORDS = {
    "a length of 2^63": event(1 << 63),
    "a length of 60 MB": event(60 << 20, b"x"),
    "a wrong checksum": event(1, b"x0000", crc=1),
    "lengths inside": event(3, b"\x2a\xff\x7f" + b"0000"),
    "groups": event(2, b"\x0b\x0b" + b"0000"),
    "varints": event(12, b"\xff" * 12 + b"0000"),
}


@pytest.mark.parametrize("content", RECORDS.values(), ids=RECORDS)
def test_lengths_in_event_files_and_in_files_of_wandb_are_checked(tmp_path, content):
    (tmp_path / "events.out.tfevents.1").write_bytes(content * 2)
    (tmp_path / "run-a.wandb").write_bytes(b":W&B\x00\x00\x00" + content * 2)
    for path in tmp_path.iterdir():
        with bounded(), pytest.raises(DiagnosticsError):
            read_run_signals(path)


def test_special_files_and_links_that_lead_out_are_not_read(tmp_path):
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"step": 1, "loss": 2}\n')
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.mkfifo(theirs / "metrics.jsonl")
    (theirs / "other.jsonl").symlink_to(secret)
    with pytest.raises(DiagnosticsError, match="no metrics"):
        read_run_signals(theirs)
    (theirs / "metrics.jsonl").unlink()
    (theirs / "metrics.jsonl").symlink_to(secret)
    with pytest.raises(DiagnosticsError, match="no metrics"):
        read_run_signals(theirs)
    (theirs / "metrics.jsonl").unlink()
    (theirs / "metrics.jsonl").write_text('{"step": 1, "loss": 3}\n')
    (theirs / "config.yaml").symlink_to(secret)
    with pytest.raises(GreenwardError, match="leads out"):
        read_run_signals(theirs)
    (tmp_path / "mine.jsonl").symlink_to(secret)  # the user may name a link
    assert read_run_signals(tmp_path / "mine.jsonl").values["loss"].tolist() == [2]
    with pytest.raises(DiagnosticsError, match="regular file"):
        read_run_signals("/dev/zero")


def test_a_parquet_file_that_stands_for_more_than_it_holds_is_refused(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    tables = {
        "rows": arrow.table({"step": arrow.array(np.ones(3_000_000, np.int64))}),
        "values": arrow.table(
            {
                "step": [1],
                "list": arrow.ListArray.from_arrays(
                    [0, 20_000_000], arrow.array(np.ones(20_000_000, np.int8))
                ),
            }
        ),
        "unpacked": arrow.table({"step": list(range(9)), "text": ["x" * 9_000_000] * 9}),
    }
    for what, table in tables.items():
        path = tmp_path / f"{what}.parquet"
        parquet.write_table(table, path, compression="zstd", use_dictionary=what != "unpacked")
        with bounded(), pytest.raises(DiagnosticsError, match=what):
            list(read_parquet(DiagnosticsError, path))
        if what != "rows":  # a log needs its columns of numbers only
            assert read_run_signals(path).steps[0] in (0, 1)
    # A dictionary of one long text, which each row holds.
    sound = arrow.table({"step": list(range(3000)), "text": ["x" * 100_000] * 3000, "loss": [0.5] * 3000})
    parquet.write_table(sound, tmp_path / "sound.parquet", compression="zstd")
    del sound
    with bounded():
        assert len(read_run_signals(tmp_path / "sound.parquet").steps) == 3000
        assert next(read_parquet(DiagnosticsError, tmp_path / "sound.parquet"))["loss"] == 0.5
    many = arrow.table(
        {"step": range(90_000), **{f"a{i}": arrow.nulls(90_000, "double") for i in range(300)}}
    )
    parquet.write_table(many, tmp_path / "many.parquet", compression="zstd")
    with bounded(), pytest.raises(DiagnosticsError, match="27090000 values"):
        read_run_signals(tmp_path / "many.parquet")


def test_the_numbers_of_a_parquet_file_are_read_whatever_their_names(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "step": [1, 2],
        "loss.mean": np.array([0.5, 1.5], np.float16),
        "a": [1.0, 2.0],  # by this name, pyarrow would read the next one, too
        "a.b": ["x", "y"],
        "nested": [{"c": 1.0}, {"c": 2.0}],
    }
    parquet.write_table(arrow.table(columns), tmp_path / "log.parquet")
    assert read_run_signals(tmp_path / "log.parquet").values.keys() == {"loss.mean"}
