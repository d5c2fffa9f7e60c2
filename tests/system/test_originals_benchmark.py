"""What `make originals` runs: the commands of docs/migration.md at small size, and what the originals' users type."""

from __future__ import annotations

import importlib
import re
import shlex
from itertools import takewhile
from pathlib import Path
from types import ModuleType

import pytest

from originals_retyped import COMMANDS, RLDK_COMMANDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "migration.md").read_text("utf-8")


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        return importlib.import_module("originals")


@pytest.fixture
def folder(benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the commands run, with empty runs where they name some."""
    monkeypatch.chdir(tmp_path)
    benchmark.write_files(tmp_path)
    for name in ("run_1", "run_2", "runs/mine"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_each_command_of_the_originals_stands_on_the_left_side_of_a_page() -> None:
    pages = PAGE + (ROOT / "docs" / "reference" / "rldk.md").read_text("utf-8")
    left = [line.strip("|").split(" | ")[0] for line in pages.splitlines() if line.startswith("| ")]
    typed = [span for cell in left for span in re.findall(r"`([^`]+)`", cell)]
    assert not [command for command in COMMANDS if command not in typed]
    verbs = [shlex.split(command) for command in typed if command.startswith("rldk ")]
    for command in RLDK_COMMANDS:
        words = list(takewhile(re.compile(r"[a-z][a-z-]*").fullmatch, shlex.split(command)))
        assert any(verb[1 : 1 + len(words)] == words for verb in verbs), command


def test_every_row_of_the_page_is_run_and_none_is_lost(benchmark: ModuleType) -> None:
    """Against a plain count of the commands that stand behind the first column."""
    rows = list(benchmark.rows_of(PAGE))
    count = 0
    for line in PAGE.splitlines():
        if line.startswith("| "):
            ours = line[2:].partition(" | ")[2]
            count += len(re.findall(r"`(?:greenward|rldk) (?!(?:train|eval)`)", ours))
    assert sum(len(row.commands) for row in rows) == count > 60


def test_trainings_load_once_they_are_small(benchmark: ModuleType, folder: Path) -> None:
    commands = {command for row in benchmark.rows_of(PAGE) for command in row.commands}
    trainings = sorted(one for one in commands if one.startswith("greenward train"))
    lines = [benchmark.made_small(command, "owner/model")[1] for command in trainings]
    lines += benchmark.PREPARED.values()
    answers = {line: benchmark.typed("greenward", line.removeprefix("greenward ")) for line in lines}
    assert not {line: said for line, (outcome, said) in answers.items() if (outcome, said) != ("ok", "read")}


def test_what_users_of_the_originals_type_is_read_or_answered(benchmark: ModuleType, folder: Path) -> None:
    lines = list(benchmark.typed_lines())
    assert len(lines) > 300 and {program for program, _ in lines} == {"greenward", "rldk"}
    failed = [
        (line, said) for line in lines if (found := benchmark.typed(*line))[0] != "ok" for said in [found[1]]
    ]
    assert not failed


@pytest.mark.parametrize(
    "line", ["train quickstart nonsense.key=1", "diff --nonsense", "nonsense", "evals --suit"]
)
def test_what_nobody_knows_is_no_answer(benchmark: ModuleType, folder: Path, line: str) -> None:
    assert benchmark.typed("greenward", line)[0] == "failed"


def test_each_large_model_of_the_page_has_a_plan(benchmark: ModuleType) -> None:
    commands = [command for row in benchmark.rows_of(PAGE) for command in row.commands]
    planned = " ".join(benchmark.plans(commands))
    named = {
        name for one in commands if one.startswith("greenward train") for name in re.findall(r"Qwen/\S+", one)
    }
    assert named and all(name in planned for name in named)
