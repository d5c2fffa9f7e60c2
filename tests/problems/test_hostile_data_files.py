"""Files of problems and answers of strangers: bombs, special files and broken text, one `ProblemError` each."""

from __future__ import annotations

import base64
import gzip
import json
import os
import pickle
import time
import tracemalloc
import zlib

import pytest

from greenward.common import parsing
from greenward.common.errors import ProblemError
from greenward.evaluation.store import read_samples
from greenward.problems import rows as json_rows
from greenward.problems.catalog import load_file
from greenward.problems.contests import apps_rows, unpacked_tests
from greenward.problems.formats import load_json
from greenward.problems.problem import Case, Problem, ProblemSet

ROW = {"function_name": "f", "docstring": "", "test_cases": [[1, 1]], "starter_code": "def f(x):\n"}
PROBLEMS = ProblemSet((Problem("t/0", "", "f", tests=(Case((1,), 1),)),))


def bomb(megabytes):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(b" " * (1 << 20)) for _ in range(megabytes)), packer.flush()])


def test_a_gzip_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(json_rows, "MAX_UNPACKED_BYTES", 16 << 20)
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(bomb(75))
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    began = time.process_time()
    for read in (load_json, load_file, lambda path: read_samples(path, PROBLEMS)):
        with pytest.raises(ProblemError, match=r"unpacks to more than 16 MiB.*gunzip"):
            read(path)
    assert tracemalloc.get_traced_memory()[1] < 63 << 20  # 150 MB, when it was unpacked as a whole
    tracemalloc.stop()
    assert time.process_time() - began < 20


def test_several_members_of_a_gzip_file_count_together(tmp_path, monkeypatch):
    monkeypatch.setattr(json_rows, "MAX_UNPACKED_BYTES", 1 << 20)
    (tmp_path / "rows.jsonl.gz").write_bytes(bomb(1) * 3)
    with pytest.raises(ProblemError, match="more than 1 MiB"):
        load_json(tmp_path / "rows.jsonl.gz")


def test_sound_gzip_is_read_whatever_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(json_rows, "MAX_UNPACKED_BYTES", 1000)
    rows = [{**ROW, "task_id": f"{number} {os.urandom(20).hex()}"} for number in range(1000)]
    text = "\n".join(map(json.dumps, rows))
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    assert len(load_json(tmp_path / "rows.jsonl.gz")) == 1000


BROKEN = {
    "cut short": gzip.compress(b"{}" * 1000)[:-9],
    "not gzip": b"\x1f\x8b" + b"x" * 100,
    "a wrong checksum": gzip.compress(b"{}")[:-8] + b"\0" * 8,
    "not utf-8": gzip.compress(b"\xff\xfe\x00"),
    "nothing": b"",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_broken_gzip(tmp_path, content):
    (tmp_path / "rows.jsonl.gz").write_bytes(content)
    with pytest.raises(ProblemError):
        load_json(tmp_path / "rows.jsonl.gz")


TEXTS = {
    "utf-16": json.dumps(ROW).encode("utf-16"),
    "zeros": b"\0" * 10_000,
    "brackets": b"[" * 100_000,
    "an endless number": b'{"function_name": ' + b"9" * 10_000 + b"}",
    "a number beyond floats": b'{"function_name": "f", "docstring": "", "test_cases": [[1e999, 1]]}',
    "NaN": b'{"function_name": "f", "docstring": "", "test_cases": [[NaN, 1]]}',
    "a key twice": b'{"function_name": "f", "function_name": "g"}',
    "many keys twice": json.dumps({f"k{n}": 0 for n in range(50_000)}).encode()[:-1] + b', "k49999": 1}',
    "a row without an end": b'{"function_name": "' + b"x" * 1_000_000,
}


@pytest.mark.parametrize("content", TEXTS.values(), ids=TEXTS)
def test_hostile_text(tmp_path, content):
    (tmp_path / "rows.jsonl").write_bytes(content)
    began = time.process_time()
    with pytest.raises(ProblemError) as raised:
        load_json(tmp_path / "rows.jsonl")
    assert len(str(raised.value)) < 2000
    assert time.process_time() - began < 10


def test_special_files_and_links_out_of_a_folder(tmp_path):
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(ProblemError):
        load_json(tmp_path / "rows.jsonl")
    with pytest.raises(ProblemError, match="regular file"):
        json_rows.read_text(tmp_path / "rows.jsonl")
    with pytest.raises(ProblemError, match="regular file"):
        read_samples(tmp_path / "rows.jsonl", PROBLEMS)
    (tmp_path / "secret.py").write_text("def f(x): return 'SECRET'")
    answers = tmp_path / "answers" / "t_0"
    answers.mkdir(parents=True)
    (answers / "0.py").symlink_to(tmp_path / "secret.py")
    with pytest.raises(ProblemError, match="leads out"):
        read_samples(tmp_path / "answers", PROBLEMS)
    contest = tmp_path / "apps" / "0000"
    contest.mkdir(parents=True)
    (contest / "question.txt").symlink_to(tmp_path / "secret.py")
    with pytest.raises(ProblemError, match="leads out"):
        list(apps_rows(tmp_path / "apps"))
    (tmp_path / "mine.jsonl").write_text(json.dumps(ROW))
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "mine.jsonl")  # the user may name a link
    assert len(load_json(tmp_path / "link.jsonl")) == 1


def test_bad_rows_take_linear_time(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"task_id": 1}\n' + "x\n" * 80_000)  # 17 s, when each counted the lines before it
    began = time.process_time()
    with pytest.raises(ProblemError):
        load_file(path)
    path.write_text(json.dumps(ROW) + "\n" + '{"a":\n' * 40_000)  # each is the beginning of all that follow
    with pytest.raises(ProblemError):
        load_file(path, skip_bad_rows=True)
    assert time.process_time() - began < 15


def test_objects_over_several_lines_and_in_one_line_are_told_from_bad_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    values = [{"a": 1, "b": [1, {"c": "}\n{"}]}, {}, {"d": ["x"] * 50}]
    compact, spread = map(json.dumps, values), (json.dumps(value, indent=1) for value in values)
    path.write_text(" ".join(compact) + '\n\n{"cut": \n' + "\n".join(spread) + " x\n {} \n")
    bad = []
    rows = list(json_rows.read_rows(path, "rows", on_bad=bad.append))
    assert [row.values for row in rows] == [*values, *values, {}]
    lines = path.read_text().split("\n")
    spread_empty = lines.index("{}") + 1
    assert [row.line for row in rows] == [1, 1, 1, 4, spread_empty, spread_empty + 1, len(lines) - 1]
    assert [error.message.split(":")[0].split(", ", 1)[1] for error in bad] == [
        f"line {spread_empty}, column 1",
        f"line {len(lines) - 2}, column 3",
    ]
    assert "in the row that begins in line 3" in bad[0].message


@pytest.mark.parametrize("value", ["x" * 100_000, "\x1b[31m\u202e" + "y\n" * 1000], ids=["long", "escapes"])
def test_an_error_about_a_row_is_one_short_line_whatever_the_row_holds(tmp_path, value):
    path = tmp_path / "rows.jsonl"
    for name, row in {
        "mbpp": {"task_id": value, "text": "", "code": "", "test_list": []},
        "multipl-e": {"name": "a", "language": value, "prompt": "", "tests": ""},
        "deepcoder": {"problem": "", "tests": [{"input": "", "output": "", "testtype": value}]},
        "json": ROW | {"function_name": value},
    }.items():
        path.write_text(json.dumps(row) + "\n")
        with pytest.raises(ProblemError) as raised:
            load_file(path)
        assert len(raised.value.message) < len(str(path)) + 600, name
        assert not {"\x1b", "\u202e", "\n"} & set(raised.value.message), name


@pytest.mark.parametrize("form", ['{{"task_id": "a", "x": [{}[]]}}\n', "[[{}[]]]"])
def test_the_values_of_a_row_are_bounded(tmp_path, monkeypatch, form):
    monkeypatch.setattr(parsing, "MAX_JSON_VALUES", 1000)
    path = tmp_path / "rows.json"
    path.write_text(form.format("[]," * 2000))
    with pytest.raises(ProblemError, match="more than 1000 values"):
        load_file(path)
    path.write_text(json.dumps({**ROW, "docstring": '[{,\\" \\' * 2000}))  # those of a text do not count
    assert len(load_file(path)) == 1
    path.write_text("".join(f"{json.dumps({**ROW, 'task_id': str(i)})}\n" for i in range(1000)))
    assert len(load_file(path)) == 1000


def test_bad_rows_that_are_skipped_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(json_rows, "MAX_BAD_ROWS", 10)
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + "1\n" * 10)
    assert len(load_file(path, skip_bad_rows=True).skipped) == 10
    path.write_text(json.dumps(ROW) + "\n" + "1\n" * 11)
    with pytest.raises(ProblemError, match="more than 10 rows cannot be used"):
        load_file(path, skip_bad_rows=True)


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/never",)


@pytest.mark.parametrize(
    "content",
    [pickle.dumps(Evil()), pickle.dumps(["a"]), pickle.dumps(5), b"", b"\x80", b"\x8d" + b"\xff" * 8 + b"x", b"I" + b"9" * 9999],
)  # fmt: skip
def test_pickled_tests_are_one_text_or_refused(content):
    packed = base64.b64encode(zlib.compress(content)).decode()
    with pytest.raises(ProblemError):
        unpacked_tests(packed)
