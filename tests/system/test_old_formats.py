"""Safety net: run directories and evaluation folders of earlier versions are still read, with equal numbers.

`old_formats/` has folders as version 0.1.0 wrote them, without checkpoints: two runs of three steps with a
reward model, evaluations during training and on a suite; two evaluations by `greenward eval`; and a study
of two seeds with its arms. `old_formats.json` has what that version's commands said of them: exit codes,
verdicts and numbers. Words and layout may change, and new numbers may come.

Nothing here is recorded anew for a change of today's formats: these folders exist on users' disks. After a
change of what a command computes:

    python tests/system/test_old_formats.py
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from recording import call, check, record_lines

DATA = Path(__file__).parent / "old_formats"
RECORD = DATA.with_suffix(".json")

REPORTS = ("run_0", "run_1", "evaluation_1", "evaluation_2", "study", "study/seed_0")
JSON_COMMANDS = (
    "compare run_0 run_1",
    "compare evaluation_1 evaluation_2",
    "compare evaluation_1 evaluation_2 --k 2",
    "compare run_0 evaluation_2",
    "diff --a run_0 --b run_1",
    "diff --a run_0 --b run_0",
    "reward-health --run run_0",
    "evals --run run_0",
    "evals --run run_1 --suite held_out",
    "evals --run study/seed_0",
)
OF_EACH_COMMAND = {
    "compare": ("k", "problems", "a", "b", "difference", "p_value", "detectable", "won", "lost", "significant"),
    "diff": ("first_step", "last_step", "replay", "settings", "verdict"),
    "reward-health": ("verdict", "steps"),
    "evals": ("verdict", "steps"),
}  # fmt: skip


def _of_report(path: str) -> dict[str, Any]:
    """The numbers with a fraction in the Markdown report, except those of the settings at its end."""
    code, text = call("report", path, "--format", "markdown")
    text = re.split(r"<summary>Settings</summary>|\n## Settings", text)[0]
    return {"exit": code, "numbers": sorted(set(re.findall(r"\d+\.\d+", text)))}


def _of_command(command: str) -> dict[str, Any]:
    code, text = call(*command.split(), "--json")
    record = json.loads(text)
    name = command.split()[0]
    found = {"exit": code, **{key: record[key] for key in OF_EACH_COMMAND[name]}}
    if name == "diff":
        kept = ("found", "onset", "a", "b", "relative")
        found["differences"] = {row["signal"]: [row[key] for key in kept] for row in record["differences"]}
    if name in ("reward-health", "evals"):
        found["findings"] = [[one["name"], one["severity"], one["onset"]] for one in record["findings"]]
    if name == "evals":
        found["numbers"] = sorted({f"{number:.5f}" for number in _fractions(record["cards"])})
    return found


def _fractions(value: Any) -> list[float]:
    if isinstance(value, dict):
        return _fractions(list(value.values()))
    if isinstance(value, list):
        return [number for part in value for number in _fractions(part)]
    return [value] if isinstance(value, float) and value % 1 else []


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the old folders, which is the current directory."""
    shutil.copytree(DATA, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def _check(found: dict[str, Any], recorded: dict[str, Any]) -> None:
    missing = set(recorded.pop("numbers", ())) - set(found.pop("numbers", ()))
    assert not missing, f"numbers that are not there any more: {sorted(missing)}"
    check(recorded, found)


@pytest.mark.parametrize("path", REPORTS)
def test_a_report_of_an_old_folder_has_the_recorded_numbers(path: str, folders: Path) -> None:
    _check(_of_report(path), json.loads(RECORD.read_text())["reports"][path])


@pytest.mark.parametrize("command", JSON_COMMANDS)
def test_a_command_on_old_folders_says_what_it_said(command: str, folders: Path) -> None:
    _check(_of_command(command), json.loads(RECORD.read_text())["commands"][command])


@pytest.mark.parametrize("path", ["run_0", "evaluation_1", "study"])
@pytest.mark.parametrize("view", ["terminal", "html", "json"])
def test_every_view_of_an_old_folder_is_made(path: str, view: str, folders: Path) -> None:
    code, said = call("report", path, "--format", view)
    assert code == 0
    if view == "html":
        assert "</html>" in (folders / "reports" / path / "report.html").read_text()
    if view == "json":
        assert json.loads(said)


if __name__ == "__main__":
    os.chdir(DATA)
    record_lines(
        RECORD,
        {
            "reports": {path: _of_report(path) for path in REPORTS},
            "commands": {command: _of_command(command) for command in JSON_COMMANDS},
        },
    )
