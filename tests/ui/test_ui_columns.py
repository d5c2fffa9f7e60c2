"""The index: what is appended, cut or replaced is read as the file now is, and kept between servers."""

from __future__ import annotations

import json
import math
import os
import time

import numpy as np
import pytest
from made_runs import answer, write_run

from greenward.common import files
from greenward.runs import answers
from greenward.runs.answers import read_answer_columns
from greenward.runs.reading import read_metrics
from greenward.ui import cache, columns
from greenward.ui.cache import Cache
from greenward.ui.catalog import Catalog, Place
from greenward.ui.columns import Store
from greenward.ui.logs import LogStore
from greenward.ui.process import WorkerProcess
from greenward.ui.verdicts import Verdicts


@pytest.fixture(autouse=True)
def _read_at_once(monkeypatch):
    """What a look reads does not depend on how busy the machine is."""
    monkeypatch.setattr(columns, "SECONDS_AT_ONCE", 60.0)


@pytest.fixture
def run(tmp_path):
    write_run(tmp_path / "runs" / "one", 40, seed=0)
    return tmp_path / "runs" / "one"


def place_of(run) -> Place:
    return next(iter(Catalog([run.parent]).places().values()))


def same_metrics(store: Store, place: Place) -> None:
    found = store.metrics(place)
    rows = read_metrics(place.path / "metrics.jsonl").rows
    assert found.steps.tolist() == [row["step"] for row in rows]
    for key, values in found.values.items():
        np.testing.assert_allclose(values, [row.get(key, math.nan) for row in rows], rtol=1e-6)
    assert found.values.keys() == {key for row in rows for key in row} - {"step"}


def same_answers(store: Store, place: Place) -> None:
    found, expected = store.answers(place).columns, read_answer_columns(place.path)
    assert len(found) == len(expected)
    for name in ("steps", "rows", "offsets", "same"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    for name, values in expected.numbers.items():
        np.testing.assert_array_equal(found.numbers[name], values)
    assert found.texts("status").tolist() == expected.texts("status").tolist()


def test_metrics_follow_the_file(run):
    place, store = place_of(run), Store(Cache(None))
    file = run / "metrics.jsonl"
    same_metrics(store, place)
    with file.open("a") as opened:  # appended to, with a key of its own, and torn
        opened.write('{"step": 41, "own/term": 2.5, "reward/mean": "NaN"}\n{"step": 42, "ow')
    same_metrics(store, place)
    with file.open("a") as opened:
        opened.write('n/term": 3.5}\n')
    same_metrics(store, place)
    assert store.metrics(place).values["own/term"][-1] == 3.5
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:10]))  # cut, as a resumed run does
    same_metrics(store, place)
    assert store.metrics(place).dropped == 32
    file.write_text("".join(lines[:10]) + lines[20])  # replaced in place by something longer
    same_metrics(store, place)


def test_rows_that_are_read_in_several_parts_are_those_of_the_file(run, monkeypatch):
    monkeypatch.setattr(columns, "_ROWS_AT_ONCE", 7)
    with (run / "metrics.jsonl").open("a") as opened:
        opened.write('{"step": 41, "late/one": 1.5}\n{"step": 42, "late/other": "Infinity"}\n')
    place, store = place_of(run), Store(Cache(None))
    same_metrics(store, place)
    assert store.metrics(place).non_finite == 1
    monkeypatch.setattr(columns, "MAX_KEYS", 3)
    found = Store(Cache(None)).metrics(place)
    rows = read_metrics(run / "metrics.jsonl").rows
    assert list(found.values) == [key for key in rows[0] if key != "step"][:3]
    assert len(found.steps) == len(rows)


def test_a_file_of_the_same_length_with_another_end_is_read_anew(run):
    place, store = place_of(run), Store(Cache(None))
    same_metrics(store, place)
    file = run / "metrics.jsonl"
    content = file.read_bytes()
    with file.open("r+b") as opened:
        opened.seek(len(content) - 8)
        opened.write(content[-8:].replace(b"1", b"2").replace(b"3", b"4").replace(b"5", b"6"))
    with file.open("ab") as opened:
        opened.write(b'{"step": 41, "entropy": 9.0}\n')
    same_metrics(store, place)


def test_answers_follow_their_files(run):
    place, store = place_of(run), Store(Cache(None))
    rng = np.random.default_rng(9)
    same_answers(store, place)
    folder = run / "rollouts"

    def write(step: int, count: int) -> None:
        rows = [json.dumps(answer(step, index, rng)) + "\n" for index in range(count)]
        (folder / f"step_{step:06d}.jsonl").write_text("".join(rows))

    write(50, 5)
    same_answers(store, place)
    with (folder / "step_000050.jsonl").open("a") as opened:  # as a recorder appends
        opened.write(json.dumps(answer(50, 5, rng)) + "\n")
    same_answers(store, place)
    write(20, 3)  # one in the middle is written anew
    same_answers(store, place)
    write(15, 4)  # and one comes in between
    same_answers(store, place)
    for step in (40, 50):
        (folder / f"step_{step:06d}.jsonl").unlink()  # resumed from step 30
    same_answers(store, place)
    assert store.answers(place).dropped > 0


def test_an_index_is_kept_and_used_again(run, tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "_WORTH_KEEPING", 0)
    place = place_of(run)
    first = Store(Cache(tmp_path / "cache"))
    same_metrics(first, place), same_answers(first, place)
    assert len(list((tmp_path / "cache").iterdir())) == 2
    second = Store(Cache(tmp_path / "cache"))
    monkeypatch.setattr(columns, "parsed_row", None)  # would be called for a row that is read again
    monkeypatch.setattr(columns, "rows_of_file", None)
    same_metrics(second, place)
    same_answers(second, place)


def test_a_damaged_index_is_made_again(run, tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "_WORTH_KEEPING", 0)
    place = place_of(run)
    first = Store(Cache(tmp_path / "cache"))
    same_metrics(first, place), same_answers(first, place)
    for file in (tmp_path / "cache").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    second = Store(Cache(tmp_path / "cache"))
    same_metrics(second, place), same_answers(second, place)


def test_the_cache_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", 2500)
    for index in range(5):
        file = Cache(tmp_path).file(tmp_path / str(index), "metrics")
        assert file is not None
        file.write_bytes(bytes(1000))
    (tmp_path / "thesis.txt").write_bytes(bytes(5000))
    os.utime(tmp_path / "thesis.txt", (0, 0))
    Cache(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3 and (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o707])
def test_a_cache_that_others_can_write_to_is_not_used(run, tmp_path, mode):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    catalog = Catalog([run.parent], Cache(folder))
    (place,) = catalog.places().values()
    assert catalog.config(place)["seed"] == 0 and not list(folder.iterdir())


def test_settings_are_kept_until_their_file_changes(run, tmp_path, monkeypatch):
    first = Catalog([run.parent], Cache(tmp_path / "cache"))
    (place,) = first.places().values()
    assert not first.knows_config(place)
    config = first.config(place)
    assert config["seed"] == 0
    second = Catalog([run.parent], Cache(tmp_path / "cache"))
    assert second.knows_config(place) and second.config(place) == config
    (run / "config.yaml").write_text("seed: 5\nbegun: 2026-01-01\n")
    assert not second.knows_config(place)
    assert second.config(place) == {"seed": 5, "begun": "2026-01-01"}


def test_reading_stops_in_between_and_goes_on(run, monkeypatch):
    monkeypatch.setattr(columns, "SECONDS_AT_ONCE", 0.0)
    monkeypatch.setattr(columns, "_ROWS_AT_ONCE", 7)
    os.utime(run / "rollouts", (1e9, 1e9))  # as of a run that was made long ago
    place, store = place_of(run), Store(Cache(None))
    shares = [store.metrics(place).share for _ in range(7)]
    assert 0 < shares[0] < 1 and shares[-1] == 1.0 and shares == sorted(shares)
    same_metrics(store, place)
    shares = [store.answers(place).share for _ in range(4)]
    assert shares == [0.25, 0.5, 0.75, 1.0]
    same_answers(store, place)


def test_answers_are_followed_in_a_folder_that_did_not_change(run):
    place, store = place_of(run), Store(Cache(None))
    same_answers(store, place)
    folder = run / "rollouts"
    with (folder / "step_000040.jsonl").open("a") as opened:
        opened.write(json.dumps(answer(40, 8, np.random.default_rng(1))) + "\n")
    os.utime(folder, ns=(0, store.answers(place).folder[2]))
    same_answers(store, place)


def test_a_line_beyond_the_most_that_is_read_hides_and_makes_no_row(run, monkeypatch):
    monkeypatch.setattr(files.lines, "__defaults__", (4096,))
    monkeypatch.setattr(columns, "MAX_LINE_BYTES", 4096)
    monkeypatch.setattr(answers, "MAX_LINE_BYTES", 4096)
    long = "x" * 4096 + '{"step": 90, "made/up": 1.0}'
    place, store = place_of(run), Store(Cache(None))
    with (run / "metrics.jsonl").open("a") as opened:
        opened.write(long)
    for _ in range(2):
        assert store.metrics(place).steps[-1] == 40 and store.metrics(place).broken == 0
    with (run / "metrics.jsonl").open("a") as opened:
        opened.write('{"step": 91}\n{"step": 41, "own": 1.0}\n')
    for _ in range(2):
        found = store.metrics(place)
        assert found.steps[-2:].tolist() == [40, 41] and found.broken == 1 and found.share == 1.0
    file = run / "rollouts" / "step_000040.jsonl"
    with file.open("a") as opened:
        opened.write(long + '\n{"answer": "behind it"}\n')
    read = store.answers(place).columns
    ((_, row),) = answers.read_rows_at(run, read, [len(read) - 1], within=run.parent)
    assert row["answer"] == "behind it" and read.broken == 1


def test_a_file_of_answers_that_cannot_be_read_hides_no_other(run, tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "_WORTH_KEEPING", 0)
    place = place_of(run)
    listed = sorted((run / "rollouts").iterdir())
    whole = len(Store(Cache(None)).answers(place).columns)
    lost = len(listed[1].read_text().splitlines())
    os.replace(listed[1], tmp_path / "moved")
    os.mkfifo(listed[1])
    for store in (Store(Cache(tmp_path / "cache")), Store(Cache(tmp_path / "cache"))):
        for _ in range(2):
            found = store.answers(place)
            assert len(found.columns) == whole - lost
            (why,) = found.unread.values()
            assert "no regular file" in why
    listed[1].unlink()
    os.replace(tmp_path / "moved", listed[1])
    same_answers(store, place)
    assert not store.answers(place).unread


@pytest.mark.parametrize("content", [b"[" * 100_000, b"null", b"{}", b"PK\x03\x04" + bytes(60)])
def test_kept_files_of_any_other_form_are_made_again(run, tmp_path, content):
    kept = Cache(tmp_path / "cache")
    place = place_of(run)
    for what in ("config", "diagnosis", "metrics", "answers"):
        file = kept.file(run, what)
        assert file is not None
        file.write_bytes(content)
    assert Catalog([run.parent], kept).config(place)["seed"] == 0
    worker = WorkerProcess()
    verdicts = Verdicts(kept, LogStore(kept).file, worker)
    try:
        assert verdicts.get(place) is None
    finally:
        verdicts.close()
        worker.close()
    same_metrics(Store(kept), place), same_answers(Store(kept), place)


def test_a_diagnosis_of_a_folder_that_became_a_link_is_not_shown(run, tmp_path):
    place = place_of(run)
    run.rename(tmp_path / "runs" / "other")
    run.symlink_to(tmp_path / "runs" / "other")  # within the folder, so that opening a file is not refused
    kept = Cache(tmp_path / "cache")
    worker = WorkerProcess()
    verdicts = Verdicts(kept, LogStore(kept).file, worker)
    try:
        until = time.monotonic() + 300
        while (found := verdicts.get(place, first=True)) is None and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        verdicts.close()
        worker.close()
    assert found is not None and found["headline"] == "The folder was moved."
    assert list(tmp_path.glob("cache/*diagnosis")) == []


def test_reading_stops_in_between_lines_that_are_no_rows(run, monkeypatch):
    monkeypatch.setattr(columns, "SECONDS_AT_ONCE", 0.0)
    monkeypatch.setattr(columns, "_ROWS_AT_ONCE", 7)
    (run / "metrics.jsonl").write_text("no row\n" * 20 + '{"step": 1, "a": 2.0}\n')
    place, store = place_of(run), Store(Cache(None))
    shares = [store.metrics(place).share for _ in range(4)]
    assert 0 < shares[0] < shares[1] < shares[2] < shares[3] == 1.0
    assert store.metrics(place).broken == 20 and store.metrics(place).steps.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("STRASSE", "Straße"),  # folds to two letters of ASCII
        ("straße", "STRASSE"),
        ("ÜBER", "über"),
        ("a/b", "A/b"),
        ('say "no"\n', 'Say "No"\n'),
        ("k", "\u212a"),  # the sign of Kelvin
    ],
)
@pytest.mark.parametrize("as_ascii", [True, False])
def test_a_text_is_found_as_python_compares_it_however_it_was_written(tmp_path, text, held, as_ascii):
    folder = tmp_path / "rollouts"
    folder.mkdir()
    rows = [{"answer": one} for one in (held, "nothing here", f"before {held} behind")]
    lines = [json.dumps(row, ensure_ascii=as_ascii) for row in rows]
    lines.append('{"answer": "A\\/b"}')
    (folder / "step_000001.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = read_answer_columns(tmp_path)
    expected = [at for at, row in enumerate([*rows, {"answer": "A/b"}]) if holds(row, text)]
    assert expected
    shown = answers.read_rows_at(tmp_path, found, range(4), texts=[text])
    assert [at for at, row in shown if answers.holds_text(row, text)] == expected


def holds(row: dict[str, str], text: str) -> bool:
    return text.casefold() in row["answer"].casefold()
