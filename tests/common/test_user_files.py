"""Files in folders of somebody else: regular ones, bounded, and none that a link leads to."""

from __future__ import annotations

import os
import socket

import pytest

from greenward.common import files
from greenward.common.files import read_untrusted


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "secret").write_text("secret")
    inside = tmp_path / "theirs"
    (inside / "deep").mkdir(parents=True)
    (inside / "deep/file").write_bytes(b"12345")
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "folder").symlink_to(tmp_path)
    (inside / "within").symlink_to("deep/file")
    (inside / "loop").symlink_to("loop")
    os.mkfifo(inside / "pipe")
    return inside


def test_a_file_is_read_up_to_its_bound(folder):
    assert read_untrusted(folder, "deep/file", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_untrusted(folder, "deep/file", 4)


def test_the_folder_itself_may_be_reached_by_a_link(folder, tmp_path):
    (tmp_path / "shortcut").symlink_to(folder)
    assert read_untrusted(tmp_path / "shortcut", "deep/file", 5) == b"12345"


@pytest.mark.parametrize(
    "path",
    ["link", "folder/secret", "within", "loop", "pipe", "deep", "../secret", "deep/../link", "", "none"],
)
def test_nothing_else_is_read(folder, path):
    with pytest.raises(OSError):
        read_untrusted(folder, path, 100)


def test_absolute_paths_devices_and_sockets_are_refused(folder, monkeypatch):
    with pytest.raises(OSError, match="outside of its folder"):
        read_untrusted(folder, folder / "deep/file", 100)
    with pytest.raises(OSError, match="not a regular file"):
        read_untrusted("/dev", "null", 100)
    monkeypatch.chdir(folder)  # the name of a socket is bounded
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        with pytest.raises(OSError, match="not a regular file"):
            read_untrusted(folder, "socket", 100)


def test_a_folder_that_becomes_a_link_between_the_look_and_the_opening_is_refused(tmp_path, monkeypatch):
    runs, outside = tmp_path / "runs", tmp_path / "outside"
    (runs / "one").mkdir(parents=True)
    outside.mkdir()
    (runs / "one" / "file").write_text("own")
    (outside / "file").write_text("secret")
    assert files.read_file(runs / "one" / "file", within=runs) == b"own"

    def swapped(*given: str) -> str:
        (runs / "one").rename(tmp_path / "moved")
        (runs / "one").symlink_to(outside)
        return relative(*given)

    relative = files.os.path.relpath  # of paths that were looked at
    monkeypatch.setattr(files.os.path, "relpath", swapped)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        files.read_file(runs / "one" / "file", within=runs)
