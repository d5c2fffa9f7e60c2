"""Checkpoints are whole or absent, and a damaged one is named and passed over."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from greenward.common.errors import CheckpointError, RunError
from greenward.runs.checkpoints import (
    MANIFEST,
    checkpoint_step,
    find_checkpoint,
    latest_checkpoint,
    save_checkpoint,
    verify,
)
from greenward.runs.directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    with RunDirectory.create(tmp_path / "run", {"seed": 0}) as run:
        yield run


def filler(text: str):
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_text(text)
        (folder / "state").mkdir()
        (folder / "state/optimizer.pt").write_text(text * 2)

    return write


def names(run: RunDirectory) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir())


def test_the_newest_are_kept_and_last_is_a_plain_model_folder_wherever_the_run_is_moved(run, tmp_path):
    for step in (20, 40, 60):
        save_checkpoint(run, step, filler("first try"), keep=2)
        save_checkpoint(run, step, filler(f"weights {step}"), keep=2)
    assert names(run) == ["last", "step_000040", "step_000060"]
    assert (run.checkpoints / "last" / "model.safetensors").read_text() == "weights 60"
    assert (run.checkpoints / "last").readlink() == Path("step_000060")
    assert latest_checkpoint(run) == latest_checkpoint(run.path) == run.checkpoints / "step_000060"
    assert checkpoint_step(run.checkpoints / "last") == 60
    run.close()
    verify(run.path.rename(tmp_path / "elsewhere") / "checkpoints/last")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which file a descriptor is")
def test_the_rows_of_all_steps_reach_the_disk_before_the_checkpoint(run, monkeypatch):
    run.metrics.append(1, {"loss": 0.5})
    run.predictions.append(1, [0.25], [True])
    run.prompts.add(1, "Add two numbers.")
    forced, fsync = [], os.fsync

    def recorded(descriptor: int) -> None:
        forced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    save_checkpoint(run, 1, lambda folder: forced.append("the checkpoint"))
    before = forced[: forced.index("the checkpoint")]
    assert {"metrics.jsonl", "predictions.jsonl", "prompts.jsonl", "run"} <= set(before)


def test_a_file_cut_short_is_named_with_both_sizes_and_the_one_before_is_used(run):
    save_checkpoint(run, 20, filler("weights"))
    newest = save_checkpoint(run, 40, filler("weights"))
    (newest / "state/optimizer.pt").write_text("weigh")
    with pytest.raises(CheckpointError, match=r"optimizer\.pt: expected 14 bytes, found 5"):
        verify(newest)
    with pytest.warns(UserWarning, match=r"optimizer\.pt"):
        assert latest_checkpoint(run) == run.checkpoints / "step_000020"


def test_changed_missing_and_unsealed_files_are_found(run):
    path = save_checkpoint(run, 20, filler("weights"))
    (path / "model.safetensors").write_text("WEIGHTS")
    with pytest.raises(CheckpointError, match="SHA-256"):
        verify(path)
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="missing"):
        verify(path)
    (path / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        verify(path)
    (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"no manifest\.json"):
        verify(path)


def test_when_all_are_damaged_a_run_does_not_silently_start_over(run):
    (save_checkpoint(run, 20, filler("a")) / "model.safetensors").write_text("")
    with pytest.warns(UserWarning), pytest.raises(CheckpointError, match="every checkpoint"):
        latest_checkpoint(run)


def write_evaluation(run, step, value):
    estimate = {"value": value, "low": 0.0, "high": 1.0}
    run.write_evaluation(step, {"step": step, "metrics": {"pass@1": estimate}})


@pytest.mark.parametrize(
    "record", [{"step": 20}, {"step": "x", "metrics": {}}, {"step": 20, "metrics": {"pass@1": {"value": []}}}]
)
def test_an_evaluation_that_says_nothing_is_not_the_best(run, record):
    write_evaluation(run, 10, 0.5)
    for step in (10, 20):
        save_checkpoint(run, step, filler("a"))
    run.write_evaluation(20, record)
    assert find_checkpoint(run.path, "best").name == "step_000010"


@pytest.mark.parametrize("rows", [[{"success": True}], [{"success": True, "task_id": []}]])
def test_an_evaluation_of_another_form_is_named(run, rows):
    save_checkpoint(run, 10, filler("a"))
    run.write_evaluation(10, {"step": 10, "metrics": {}, "rows": rows})
    with pytest.raises(RunError, match="the evaluations of a run"):
        find_checkpoint(run.path, "best")


@pytest.mark.parametrize("name", ["a" * 1000, "a/" * 3000, "\0", "../x"])
def test_a_manifest_that_names_no_file_of_the_checkpoint_is_damaged(run, name):
    path = save_checkpoint(run, 10, filler("a"))
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"][name] = {"bytes": 1, "sha256": "a"}
    (path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError):
        verify(path)


def test_the_best_is_that_of_the_highest_held_out_pass_rate_among_the_kept(run):
    for step, value in ((10, 0.9), (20, 0.5), (30, 0.7), (40, 0.7), (50, 0.6)):
        write_evaluation(run, step, value)
        save_checkpoint(run, step, filler("a"), keep=4)
    write_evaluation(run, 60, 1.0)
    assert find_checkpoint(run.path, "best").name == "step_000040"
    assert find_checkpoint(run.path, "last").name == "step_000050"
    assert find_checkpoint(run.path, "step_000020").name == "step_000020"
    with pytest.raises(CheckpointError, match="no checkpoint 'step_000010'") as caught:
        find_checkpoint(run.path, "step_000010")
    assert "step_000020, step_000030" in (caught.value.remedy or "")


def test_a_checkpoint_that_was_asked_for_is_not_passed_over_when_damaged(run):
    path = save_checkpoint(run, 1, filler("a"))
    (path / "model.safetensors").write_text("changed")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        find_checkpoint(run.path, "step_000001")


@pytest.mark.parametrize(
    ("error", "free", "raised", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            1 << 30,
            RunError,
            "step_000040: the disk is full",
        ),
        (RuntimeError("PytorchStreamWriter failed"), 0, RunError, "disk is full"),  # a serialiser hides it
        (ZeroDivisionError("a bug"), 1 << 30, ZeroDivisionError, "a bug"),
    ],
)
def test_a_failed_save_leaves_the_earlier_one_and_no_rubbish(run, monkeypatch, error, free, raised, message):
    save_checkpoint(run, 20, filler("a"))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))

    def fail(folder: Path) -> None:
        (folder / "model.safetensors").write_text("half")
        raise error

    with pytest.raises(raised, match=message):
        save_checkpoint(run, 40, fail)
    assert names(run) == ["last", "step_000020"]
    verify(run.checkpoints / "last")


def test_what_a_kill_left_behind_is_swept_up(run):
    (run.checkpoints / ".step_000040.writing").mkdir()
    (run.checkpoints / ".step_000020.deleted").mkdir()
    assert latest_checkpoint(run) is None
    save_checkpoint(run, 60, filler("a"))
    assert names(run) == ["last", "step_000060"]
