from __future__ import annotations

import tempfile

import pytest

from greenward.sandbox.isolation import PORTABLE_LAYERS, Level
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Call, Job, Limits, RunResult

QUICK = Limits(cpu_seconds=1.0, wall_seconds=3.0, memory_bytes=512 << 20)


class Runner:
    def __init__(self, executor: LocalExecutor) -> None:
        self.executor = executor

    def __call__(self, code: str, *, limits: Limits = QUICK, **fields) -> RunResult:
        """Runs `code` as the function f, called once with 3 (or as the fields say)."""
        fields = {"entry_point": "f", "calls": (Call((3,)),), **fields}
        ((_, result),) = self.executor.run([Job(code, limits=limits, **fields)])
        return result


@pytest.fixture(scope="package")
def run():
    with LocalExecutor(1) as executor:
        yield Runner(executor)


@pytest.fixture(scope="package")
def run_barely_protected():
    """With resource limits only: what holds then is the pool itself."""
    with pytest.warns(UserWarning, match="isolation level C"):
        executor = LocalExecutor(1, require=Level.C, layers=PORTABLE_LAYERS)
    with executor:
        yield Runner(executor)


@pytest.fixture
def own_temporary_folder(tmp_path, monkeypatch):
    """Temporary files of this process and its children go where no other test looks."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path
