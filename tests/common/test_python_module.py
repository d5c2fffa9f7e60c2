"""Processes of greenward's own import nothing from the working folder, which may be somebody else's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from greenward.common.processes import python_module


@pytest.mark.parametrize("safe_path", ["", "1"])
def test_no_module_of_the_working_folder_is_imported(tmp_path, safe_path):
    (tmp_path / "runpy.py").write_text("raise SystemExit(5)")
    (tmp_path / "greenward.py").write_text("raise SystemExit(5)")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "own.py").write_text("import sys\nprint(__name__, sys.argv[1:])")
    environment = {"PYTHONPATH": str(tmp_path / "folder"), "PYTHONSAFEPATH": safe_path}
    if not safe_path:
        del environment["PYTHONSAFEPATH"]

    def run(*command):
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )

    done = run(*python_module("own", "a", "--b"))
    assert (done.returncode, done.stdout) == (0, "__main__ ['a', '--b']\n"), done.stderr
    assert run(*python_module("greenward", "--version")).returncode == 0
    if not safe_path:
        assert run(sys.executable, "-m", "greenward").returncode == 5  # what it is good for
