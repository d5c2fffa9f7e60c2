"""A disk that fills up while a checkpoint is written: a small one of its own, filled before the second checkpoint."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from recording import call

from greenward.runs.checkpoints import latest_checkpoint, verify
from greenward.runs.reading import read_metrics, without_timing
from tiny_model import REINFORCED

pytestmark = pytest.mark.usefixtures("kept_sandbox")

LEFT = 192 << 10  # bytes: enough for the rows of a step, and less than a checkpoint


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("a file system cannot be mounted here: this needs root")
    yield folder
    # Lazily: a process of the sandbox that is ending may still hold a file.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def train(output: Path, steps: int, *options: str) -> int:
    settings = (
        "evaluation.enabled=false",
        "training.checkpoint_interval_steps=1",
        f"training.max_steps={steps}",
    )
    code, _ = call(
        "train", "quickstart", *REINFORCED, *settings, "--quiet", "--output", str(output), *options
    )
    return code


def fill(disk: Path, left: int) -> Path:
    """A file that leaves `left` bytes."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)) == 4096:
                pass
        except OSError:
            pass
        file.truncate(file.tell() - left)
    return filler


def test_a_full_disk_leaves_the_checkpoint_before_whole_and_the_run_goes_on_later(
    disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = disk / "run"
    assert train(run, 1) == 0
    first = latest_checkpoint(run)
    assert first is not None
    assert sum(file.stat().st_size for file in first.rglob("*")) > LEFT
    filler = fill(disk, LEFT)
    assert train(run, 2, "--resume") == 2
    said = capsys.readouterr().err
    assert "step_000002: the disk is full" in said and "--resume" in said and "Traceback" not in said
    verify(first)
    assert (run / "checkpoints" / "last").resolve() == first
    assert [path.name for path in (run / "checkpoints").glob("*step_*")] == ["step_000001"]
    filler.unlink()
    assert train(run, 2, "--resume") == 0
    assert train(tmp_path / "whole", 2) == 0
    rows = [
        [without_timing(row) for row in read_metrics(path / "metrics.jsonl").rows]
        for path in (run, tmp_path / "whole")
    ]
    assert rows[0] == rows[1] and len(rows[0]) == 2
