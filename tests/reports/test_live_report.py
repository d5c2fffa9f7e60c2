"""The live page: reloads itself while the run goes on, and is still once it has ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from test_report_document import Page

from greenward.cli.main import main
from greenward.common.errors import RunError
from greenward.reports import write
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


def reloads(page) -> bool:
    return any(attributes.get("http-equiv") == "refresh" for _, attributes in Page(page.read_text()).tags)


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


def test_the_page_reloads_itself_until_the_run_ends(tmp_path, writer, monkeypatch):
    page, seen = tmp_path / "run/report.html", []

    def tick(_seconds: float) -> None:
        seen.append(reloads(page))
        if len(seen) == 2:
            writer.communicate("\n")

    monkeypatch.setattr(write.time, "sleep", tick)
    assert write.follow(tmp_path / "run", tmp_path / "run") == page
    assert seen == [True, True, True]  # it waits once more, for an arm that may begin
    assert not reloads(page) and "written" in page.read_text()


def test_of_a_run_that_is_not_running_the_page_is_written_once_and_that_is_said(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    with RunDirectory.create(tmp_path / "run", {"algorithm": {"name": "grpo"}}) as run:
        run.metrics.append(1, {"loss": 1.0})
    monkeypatch.setattr(write.time, "sleep", lambda _: pytest.fail("it waited"))
    with pytest.raises(SystemExit) as caught:
        main(["report", str(tmp_path / "run"), "--follow"])
    page = tmp_path / "reports/run/report.html"
    shown = capsys.readouterr()
    assert not caught.value.code and shown.out.strip() == "reports/run/report.html" and not reloads(page)
    assert "run is not running" in shown.err and "--resume" in shown.err and "Ctrl-C" not in shown.err


def test_ctrl_c_leaves_a_page_that_does_not_reload(tmp_path, writer):
    follower = subprocess.Popen(
        [sys.executable, "-m", "greenward", "report", str(tmp_path / "run"), "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        # Background jobs of a shell ignore SIGINT, and so would their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    page = tmp_path / "reports/run/report.html"
    deadline = time.monotonic() + 60
    while not page.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert reloads(page)
    follower.send_signal(signal.SIGINT)
    _, errors = follower.communicate(timeout=60)
    assert follower.returncode == 130
    assert "Traceback" not in errors and "Interrupted" in errors
    assert not reloads(page)


def test_what_is_no_run_is_refused_and_nothing_is_made(tmp_path):
    with pytest.raises(RunError, match="neither a run"):
        write.follow(tmp_path / "absent", tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_only_one_run_can_be_followed(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["report", str(tmp_path), str(tmp_path), "--follow"])
    assert caught.value.code == 2 and "one RUN" in capsys.readouterr().err
