"""`greenward eval` ended by SIGKILL while it works: what it had judged is kept, the rest is as it would be."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from recording import run_until

from tiny_model import DATA

PROBLEMS, SAMPLES = 12, 40  # several chunks of answers


@pytest.fixture(scope="module")
def command(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("killed")
    # A prompt that any model continues to a program: an answer is a comment, and the tests take time.
    rows = [
        {
            "function_name": f"wait_{number}",
            "docstring": "Wait.",
            "test_cases": [[1, 1]],
            "starter_code": f'def wait_{number}(n):\n    """Wait."""\n    import time; time.sleep(0.01); return n # ',
        }
        for number in range(PROBLEMS)
    ]
    (folder / "suite.json").write_text(json.dumps(rows))
    return [
        sys.executable, "-m", "greenward", "eval", str(DATA / "starter"), "--suite", str(folder / "suite.json"),
        "--n", str(SAMPLES), "--max-tokens", "12", "--workers", "2", "--quiet", "--out",
    ]  # fmt: skip


def lines(path: Path) -> list[str]:
    """The whole lines of a file that another process may be writing."""
    return path.read_text().split("\n")[:-1] if path.is_file() else []


def judged_in(folder: Path, count: int) -> bool:
    return len(lines(folder / "results.jsonl")) >= count


def answers(folder: Path) -> dict[tuple[str, int], str]:
    rows = map(json.loads, lines(folder / "samples.jsonl"))
    return {(row["task_id"], row["sample"]): row["completion"] for row in rows}


@pytest.mark.slow
def test_killed_at_any_moment_the_same_command_goes_on_and_repeats_nothing(command, tmp_path):
    def finish(folder: Path) -> None:
        done = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    finish(tmp_path / "whole")
    killed = tmp_path / "killed"
    kept: list[str] = []
    for judged in (1, 60, 200, 400):  # rows of results after which to kill
        run_until([*command, str(killed)], partial(judged_in, killed, judged), signal.SIGKILL)
        found = lines(killed / "results.jsonl")
        assert found[: len(kept)] == kept  # what was judged before the last kill stands as it stood
        assert len(found) >= judged
        kept = found
    assert len(kept) < PROBLEMS * SAMPLES, "it was killed too late to prove anything"
    finish(killed)
    rows = [json.loads(row) for row in lines(killed / "results.jsonl")]
    assert lines(killed / "results.jsonl")[: len(kept)] == kept
    keys = [(row["task_id"], row["sample"]) for row in rows]
    assert len(keys) == len(set(keys)) == PROBLEMS * SAMPLES
    assert answers(killed) == answers(tmp_path / "whole")
    statuses = {(row["task_id"], row["sample"]): row["status"] for row in rows}
    whole = map(json.loads, lines(tmp_path / "whole" / "results.jsonl"))
    assert statuses == {(row["task_id"], row["sample"]): row["status"] for row in whole}
    assert json.loads((killed / "summary.json").read_text())["answers"] == PROBLEMS * SAMPLES
