"""Whether a process writes a run, asked from another one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from greenward.runs.directory import RunDirectory
from greenward.runs.output import is_being_written

WRITER = """
import sys
from pathlib import Path
from greenward.runs.directory import RunDirectory
with RunDirectory.create(Path(sys.argv[1]), {"algorithm": {"name": "grpo"}, "name": "written"}) as run:
    run.metrics.append(1, {"loss": 1.0})
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def writer(tmp_path):
    """Another process that writes a run until it is told to stop."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()


def test_whether_a_run_is_written_is_known_without_taking_its_lock(tmp_path, writer):
    run = tmp_path / "run"
    assert is_being_written(run)
    writer.kill()
    writer.wait()
    assert not is_being_written(run) and not is_being_written(tmp_path)
    with RunDirectory.create(run, {"algorithm": {"name": "grpo"}, "name": "written"}, resume=True):
        assert is_being_written(run)
    assert not is_being_written(run)
