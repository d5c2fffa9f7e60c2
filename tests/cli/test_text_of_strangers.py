"""What commands write to the terminal: no text of a stranger reaches it with its hidden characters."""

from __future__ import annotations

import ast
import json
import warnings
from pathlib import Path

import click
import pytest

import greenward
from greenward.cli.main import cli, main
from greenward.cli.rldk import rldk
from greenward.common.text import visible
from greenward.grading.execution import ExecutionJudge
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Job

HOSTILE = "\x1b[2J\x9b31m\u202e"
# They write colours, or move the cursor; what they show of others is made visible part by part.
STYLED = {"_play_once", "_answer", "_progress", "_show_progress", "echo", "echo_json"}


@pytest.fixture
def said(capfd, tmp_path, monkeypatch):
    """`said(arguments…)`: what a command has written to standard output and to standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit):
            main(arguments)
        return "".join(capfd.readouterr())

    return run


def test_a_failing_reference_of_a_hostile_suite(said, tmp_path):
    reference = f"def f(n):\n    raise ValueError({HOSTILE!r})\n"
    row = {"function_name": "f", "docstring": "F.", "test_cases": [[1, 1]], "starter_code": "def f(n):\n"}
    (tmp_path / "suite.json").write_text(json.dumps([row | {"reference": reference}]))
    shown = said("eval", "--check-references", "--suite", "suite.json")
    assert "ValueError" in shown or "[2J" in shown
    assert visible(shown) == shown


@pytest.mark.parametrize("command", [("validate-format",), ("ingest",)])
def test_a_hostile_log(command, said, tmp_path, monkeypatch):
    monkeypatch.setattr("greenward.cli.main.cli", rldk)
    rows = [{"step": step, f"a{HOSTILE}": 1.0, "reward": step} for step in range(3)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = said(*command, "log.jsonl")
    assert "reward" in shown
    assert visible(shown) == shown


def test_a_wrong_use_and_a_warning_that_quote_a_stranger(said, monkeypatch):
    def told() -> None:
        print(warnings.formatwarning(f"{HOSTILE} is old", UserWarning, "file.py", 1))
        raise click.UsageError(f"{HOSTILE} is left out")

    monkeypatch.setitem(cli.commands, "told", click.Command("told", callback=told))
    shown = said("told")
    assert "is old" in shown and "is left out" in shown
    assert visible(shown) == shown


def test_the_message_of_an_answer_to_an_own_judge():
    class Judge(ExecutionJudge):
        def job(self, problem, code):
            return Job(code)

    with LocalExecutor(1) as executor, Judge(executor) as judge:
        (verdict,) = judge.grade([(None, f"raise ValueError({HOSTILE!r})")])
    assert "ValueError" in verdict.error_class + verdict.error_message
    assert visible(verdict.error_message) == verdict.error_message


def test_commands_write_by_what_makes_text_visible():
    """`click.echo` and `print` write whatever they are given."""
    raw = []
    for folder in ("cli", "recipes"):
        for file in (Path(greenward.__file__).parent / folder).rglob("*.py"):
            for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not isinstance(function, ast.FunctionDef) or function.name in STYLED:
                    continue
                called = [ast.unparse(one.func) for one in ast.walk(function) if isinstance(one, ast.Call)]
                raw += [f"{file.name}: {function.name}" for name in called if name in ("click.echo", "print")]
    assert raw == []
