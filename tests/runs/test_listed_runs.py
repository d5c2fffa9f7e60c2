"""The list of runs: what it says of each, and folders that were made to break or to mislead it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from greenward.cli.main import cli
from greenward.common.errors import RunError
from greenward.runs.listing import list_runs
from greenward.runs.output import RunLock

STATES = ("running", "finished", "interrupted", "failed")


def write_run(
    path: Path, *, steps: int = 3, status: str | None = "finished", scores: tuple[float, ...] = ()
) -> Path:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text("name: mine\ntraining: {max_steps: 9}\n")
    rows = [json.dumps({"step": step, "reward/mean": step / 10}) for step in range(1, steps + 1)]
    (path / "metrics.jsonl").write_text("".join(row + "\n" for row in rows))
    if status:
        (path / "summary.json").write_text(json.dumps({"status": status}))
    (path / "evaluations").mkdir()
    for step, score in enumerate(scores, start=1):
        estimate = {"value": score, "low": 0.0, "high": 1.0}
        record = {"step": step, "metrics": {"pass@1": estimate}, "rates": {}, "rows": []}
        (path / f"evaluations/step_{step:06d}.json").write_text(json.dumps(record))
    return path


def write_checkpoints(path: Path, steps: tuple[int, ...], size: int = 1000) -> None:
    for step in steps:
        (path / f"checkpoints/step_{step:06d}").mkdir(parents=True)
        (path / f"checkpoints/step_{step:06d}/model.safetensors").write_bytes(b"x" * size)
    (path / "checkpoints/last").symlink_to(f"step_{steps[-1]:06d}")


def by_path(folder: Path):
    return {one.path: one for one in list_runs(folder)[0]}


def test_each_run_has_its_state_steps_newest_figures_and_size(tmp_path):
    write_run(tmp_path / "one", scores=(0.25, 0.5))
    write_run(tmp_path / "demo/seed_0", status="interrupted", steps=5)
    (write_run(tmp_path / "rates/rate=1/seed_1", status=None, steps=0) / "failure.txt").write_text(
        "no\nmemory"
    )
    write_run(tmp_path / "open", status=None)
    (tmp_path / "notes.txt").write_text("mine")
    lock = RunLock(tmp_path / "open")
    try:
        found = by_path(tmp_path)
    finally:
        lock.release()
    assert {path: one.state for path, one in found.items()} == {
        "one": "finished", "demo/seed_0": "interrupted", "rates/rate=1/seed_1": "failed", "open": "running",
    }  # fmt: skip
    one = found["one"]
    assert (one.recipe, one.steps, one.planned, one.reward) == ("mine", 3, 9, 0.3)
    assert (one.metric, one.score) == ("pass@1", 0.5)
    assert found["demo/seed_0"].steps == 5 and found["rates/rate=1/seed_1"].failure == "no memory"
    files = [file for file in (tmp_path / "one").rglob("*") if file.is_file()]
    assert one.bytes == sum(file.stat().st_size for file in files)
    assert by_path(tmp_path / "one").keys() == {"."}


def test_what_can_be_deleted_is_what_neither_a_resume_nor_the_best_nor_a_pin_needs(tmp_path):
    run = write_run(tmp_path / "run", scores=(0.1, 0.9, 0.2, 0.3, 0.4))
    write_checkpoints(run, (1, 2, 3, 4, 5))
    (run / "checkpoints/pinned.json").write_text('{"steps": [3]}')
    (run / "checkpoints/.step_000006.tmp").mkdir()
    before = write_run(tmp_path / "before", steps=0, status=None)
    found = by_path(tmp_path)
    assert [(one.path, one.bytes) for one in found["run"].deletable] == [
        ("run/checkpoints/step_000001", 1000),
        ("run/checkpoints/step_000004", 1000),
        ("run/checkpoints/.step_000006.tmp", 0),
    ]
    assert [one.path for one in found["before"].deletable] == ["before"]
    lock = RunLock(run)
    assert by_path(tmp_path)["run"].deletable == ()
    lock.release()
    assert run.is_dir() and before.is_dir() and len(list((run / "checkpoints").glob("step_*"))) == 5


BROKEN = {
    "config.yaml": (b"\xff\xfe", b"- a list", b"a: [", b"name: [1]\ntraining: 3", b"&a [*a, *a]"),
    "metrics.jsonl": (
        b"{",
        b'{"step": -1}\n[]\n\xff\n',
        b'{"step": 1, "reward/mean": "NaN"}\n',
        b"[" * 100_000,
    ),
    "summary.json": (b"[]", b"{", b'{"status": []}'),
    "evaluations/step_000001.json": (
        b"[]",
        b'{"step": 1, "metrics": {"pass@1": {"value": "x"}}}',
        b"{}",
        b"nul",
    ),
    "checkpoints/pinned.json": (b"[]", b'{"steps": ["a"]}', b"{"),
    "failure.txt": (b"\x00\x1b[2J\xff" * 50_000,),
    ".lock": (b"x",),
}


def test_broken_files_links_and_pipes_never_end_the_list(tmp_path):
    outside = write_run(tmp_path / "outside")
    folder = tmp_path / "runs"
    number = 0
    for name, contents in BROKEN.items():
        for content in contents:
            number += 1
            run = write_run(folder / f"{number:03d}", scores=(0.5,))
            write_checkpoints(run, (1, 2))
            (run / name).write_bytes(content)
        for kind in range(3):
            number += 1
            run = write_run(folder / f"{number:03d}", scores=(0.5,))
            (run / "checkpoints").mkdir()
            (run / name).unlink(missing_ok=True)
            if kind == 0:
                (run / name).symlink_to(outside / "config.yaml")
            elif kind == 1:
                os.mkfifo(run / name)
            else:
                (run / name).mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "circle").symlink_to(folder)
    (folder / "nowhere").symlink_to("absent")
    loop = write_run(folder / "loop")
    (loop / "inner").symlink_to(loop)
    linked = write_run(folder / "linked")
    (linked / "checkpoints").symlink_to(outside)
    (folder / "name\x1b[2J\n\u202e").mkdir()
    write_run(folder / "name\x1b[2J\n\u202e/run")
    os.mkdir(os.fsencode(folder) + b"/\xff")
    write_run(folder / os.fsdecode(b"\xff/run"))
    deep = folder / "/".join("d" * 30)
    write_run(deep)
    for index in range(300):
        write_run(folder / f"many/{index}", steps=1)
    found, notes = list_runs(folder)
    assert len([one for one in found if one.path.startswith("many/")]) == 300
    assert not any(
        one.path.startswith(("link/", "circle", "outside", "d/")) or one.path == "link" for one in found
    )
    assert "3 link(s) were not followed." in notes
    states = {one.state for one in found}
    assert states <= {*STATES, "unreadable"} and "unreadable" in states and "finished" in states
    assert not any(str(outside) in part.path for one in found for part in one.deletable)
    for arguments in ((), ("--json",)):
        result = CliRunner().invoke(cli, ["runs", str(folder), *arguments])
        assert result.exit_code == 0, result.exception
        assert "\x1b" not in result.output and ("--json" in arguments or "\u202e" not in result.output)
    record = json.loads(result.output)
    assert len(record["runs"]) == len(found) and outside.is_dir()


def test_a_folder_without_runs_and_none_at_all(tmp_path):
    assert "No runs." in CliRunner().invoke(cli, ["runs", str(tmp_path)]).output
    with pytest.raises(RunError, match="no such folder"):
        list_runs(tmp_path / "absent")


def test_the_command_loads_no_torch(tmp_path):
    write_run(tmp_path / "one")
    code = (
        "import sys; from greenward.cli.main import main\n"
        f"try: main(['runs', {str(tmp_path)!r}])\nexcept SystemExit: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "1 run (1 finished)" in done.stdout
