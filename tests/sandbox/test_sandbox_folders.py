"""How much an answer's folder holds, counted where hostile code has made it, and its removal."""

from __future__ import annotations

import os
import threading

import pytest

from greenward.sandbox.inside.files import MAX_ENTRIES, UNCOUNTABLE, folder_bytes, remove_folder
from greenward.sandbox.isolation import ALL_LAYERS, CORE_LAYERS
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Call, Job, Limits, Outcome

LIMITS = Limits(cpu_seconds=5.0, wall_seconds=15.0)


def blocks_beneath(path) -> int:
    """An independent count, by paths: each inode once."""
    found = {}
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            status = os.lstat(os.path.join(folder, name))
            found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def test_the_count_is_that_of_the_disk(tmp_path):
    for depth in range(1, 8):
        folder = tmp_path / "/".join("d" * depth)
        folder.mkdir()
        (folder / "file").write_bytes(os.urandom(1000 * depth))
        os.link(folder / "file", folder / "again")
        (folder / "link").symlink_to("/usr")
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    assert folder_bytes(str(tmp_path)) == blocks_beneath(tmp_path) < 1 << 20


def test_depth_and_length_of_paths_do_not_matter(tmp_path):
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("d" * 200, dir_fd=here)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    file = os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here)
    os.write(file, os.urandom(3 << 20))
    os.fsync(file)  # some file systems count blocks when they write them
    assert 3 << 20 <= folder_bytes(str(tmp_path)) < 12 << 20
    os.close(file)
    os.close(here)
    remove_folder(str(tmp_path))


def test_what_cannot_be_counted_is_more_than_any_limit(tmp_path, monkeypatch):
    (tmp_path / "d").mkdir()
    opening = os.open

    def refuse(path, *arguments, **names):
        if path == "d":
            raise PermissionError(13, "refused")
        return opening(path, *arguments, **names)

    monkeypatch.setattr(os, "open", refuse)
    assert folder_bytes(str(tmp_path)) == UNCOUNTABLE
    monkeypatch.undo()
    for number in range(MAX_ENTRIES):
        os.close(os.open(tmp_path / str(number), os.O_CREAT | os.O_WRONLY))
    assert folder_bytes(str(tmp_path)) == UNCOUNTABLE


def test_what_vanishes_during_the_count_is_no_breach(tmp_path):
    stop = threading.Event()

    def make_and_remove():
        while not stop.is_set():
            os.mkdir(tmp_path / "d")
            (tmp_path / "d" / "e").mkdir()
            os.rename(tmp_path / "d", tmp_path / "f")
            os.rmdir(tmp_path / "f" / "e")
            os.rmdir(tmp_path / "f")

    thread = threading.Thread(target=make_and_remove)
    thread.start()
    try:
        assert all(folder_bytes(str(tmp_path)) < 1 << 20 for _ in range(2000))
    finally:
        stop.set()
        thread.join()


WRITE = """
import os
{prepare}
def write(folder, number, size):
    with open(f"{{folder}}/{{number}}", "wb", buffering=0) as file: file.write(b"x" * size)
def f(x):
    {fill}
    return x
"""


@pytest.mark.parametrize("layers", [ALL_LAYERS, CORE_LAYERS], ids=["A", "B"])
@pytest.mark.parametrize("form", ["calls", "checks", "program", "in_process"])
def test_more_than_a_folder_may_hold_is_never_completed(layers, form):
    fill = "for number in range(40): write('d', number, 1 << 20)"
    codes = [
        WRITE.format(prepare=prepare, fill=fill)
        for prepare in ("os.mkdir('d')", "os.umask(0o477); os.mkdir('d'); os.umask(0)")
    ]
    enough = WRITE.format(prepare="os.mkdir('d')", fill="for number in range(8): write('d', number, 1 << 20)")

    def job(code: str) -> Job:
        if form == "program":
            return Job(code + "f(3)\n", limits=LIMITS)
        fields = {
            "calls": {"calls": (Call((3,)),)},
            "checks": {"checks": ("f(3)",)},
            "in_process": {"expressions": ("exec('f(3)', globals())",)},
        }[form]
        return Job(code, "f", limits=LIMITS, **fields)

    with LocalExecutor(1, layers=layers) as executor:
        results = dict(executor.run(map(job, [*codes, enough])))
    for index in (0, 1):
        raised = any(one.error_class == "OSError" for one in results[index].results)
        refused = raised or results[index].outcome in (Outcome.OUTPUT_LIMIT, Outcome.LOAD_ERROR)
        assert refused, results[index]
    assert results[2].outcome is Outcome.COMPLETED
    assert all(one.returned for one in results[2].results)
