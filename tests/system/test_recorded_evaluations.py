"""Safety net: every form of evaluation gives the summary and the verdicts that were recorded.

A model, a run, a server, a file of answers, agents, labels, games and a Q-network are evaluated by the command
line. The runs are those of `test_recorded_runs`, and are themselves held to what was recorded of them. Where numbers are meant to change, record all of them or some anew:

    PYTHONPATH=tests python tests/system/test_recorded_evaluations.py [NAME …]
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recording import call, check, record_lines, train
from test_recorded_runs import EVALUATED, RUNS, check_run, slow_ones_marked

from openai_server import OpenAIServer
from tiny_model import DATA

pytestmark = pytest.mark.usefixtures("kept_sandbox")

RECORD = Path(__file__).with_name("recorded_evaluations.json")
SUITE = DATA / "held_out.json"
OF_THE_MACHINE = frozenset(
    {
        "seconds",
        "cpu_seconds",
        "sessions",
        "isolation",
        "layers",
        "weights",
        "model",
        "model_name_or_path",
        "memory",
    }
)
SOLUTIONS = (
    "return a + b",
    "return a - b",
    "return xs[-1]",
    "while True: pass",
    "return s.upper()",
    "return -x",
)


def _evaluate(folder: Path, *arguments: object) -> dict[str, Any]:
    """What `greenward eval` writes."""
    return _outcome(folder / "out", "eval", *arguments)


def _outcome(out: Path, *command: object) -> dict[str, Any]:
    """What a command writes to `out`, but for what the machine and the clock decide."""
    code, said = call(*map(str, command), "--quiet", "--out", str(out))
    assert code == 0, said
    found = {"summary": _comparable(json.loads((out / "summary.json").read_text()))}
    for path in sorted(out.glob("*.jsonl")):
        rows = [_comparable(json.loads(line)) for line in path.read_text().splitlines()]
        found[path.stem] = sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))
    return found


def _comparable(value: Any) -> Any:
    """Without what the machine decides, among it which of both limits of time ends an endless loop."""
    if isinstance(value, dict):
        found: dict[str, Any] = {}
        for key, part in value.items():
            if key not in OF_THE_MACHINE:
                name, compared = _comparable(key), _comparable(part)
                found[name] = found[name] + compared if name in found else compared  # counts of both limits
        return found
    if isinstance(value, str):
        return value.replace("WallTimeLimit", "CPUTimeLimit")
    return [_comparable(part) for part in value] if isinstance(value, list) else value


def _policy(folder: Path) -> dict[str, Any]:
    drawn = ("--n", 4, "--max-tokens", 20, "--dtype", "float32", "--device", "cpu")
    return _evaluate(folder, DATA / "starter", "--suite", SUITE, *drawn)


def _server(folder: Path) -> dict[str, Any]:
    def answer(prompt: str) -> str:
        return SOLUTIONS[len(prompt) % len(SOLUTIONS)]

    with OpenAIServer(answer) as server:
        return _evaluate(
            folder, "tiny", "--base-url", server.url, "--suite", SUITE, "--n", 2, "--style", "chat"
        )


def _file(folder: Path) -> dict[str, Any]:
    problems = json.loads(SUITE.read_text())
    rows = [
        {"task_id": one["task_id"], "solution": f"{one['starter_code']}    {body}\n"}
        for one in problems
        for body in SOLUTIONS
    ]
    samples = folder / "samples.jsonl"
    samples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    limits = ("--timeout", 0.5, "--workers", 1)
    return _outcome(folder / "out", "grade", samples, "--suite", SUITE, "--k", "1,2", *limits)


def _of_run(form: str, *arguments: object) -> Callable[[Path], dict[str, Any]]:
    """Evaluates the run of a form, which it leaves in `run`."""
    run = RUNS[RUN_OF[form]]

    def evaluate(folder: Path) -> dict[str, Any]:
        train(run.recipe, folder / "run", *run.overrides)
        return _evaluate(folder, folder / "run", *arguments)

    return evaluate


RUN_OF = {
    "run": "quickstart",
    "edits": "repair_by_edits",
    "feedback": "repair_with_feedback",
    "agent": "agent",
    "spec": "spec",
    "vulnerability": "vulnerability",
    "games": "self_play_tictactoe",
    "kuhn": "self_play_kuhn",
    "dqn": "dqn",
}
FORMS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "policy": _policy,
    "server": _server,
    "file": _file,
    "run": _of_run("run", "--n", 2),
    "edits": _of_run("edits", "--n", 2, "--limit", 4),
    "feedback": _of_run("feedback", "--n", 2, "--limit", 4),
    "agent": _of_run("agent", "--n", 2, "--limit", 4),
    "spec": _of_run("spec", "--n", 2, "--limit", 4),
    "vulnerability": _of_run("vulnerability", "--n", 3, "--limit", 6),
    "games": _of_run("games", "--n", 8),
    "kuhn": _of_run("kuhn", "--n", 8),
    "dqn": _of_run("dqn", "--n", 3),
}

SLOW = frozenset({"edits", "vulnerability", "games", "dqn"})
"""Of each kind of task the form that takes least time stays among the other tests, where it takes few seconds."""


@pytest.mark.parametrize("form", slow_ones_marked(FORMS, SLOW))
def test_an_evaluation_gives_what_was_recorded(form: str, tmp_path: Path) -> None:
    found = FORMS[form](tmp_path)
    if form in RUN_OF:
        check_run(RUN_OF[form], tmp_path / "run")
    check(json.loads(RECORD.read_text())[form], found)


def test_each_run_that_is_left_to_this_file_is_evaluated_here() -> None:
    assert set(RUN_OF.values()) == EVALUATED


if __name__ == "__main__":
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for form in sys.argv[1:] or FORMS:
        with tempfile.TemporaryDirectory() as name:
            recorded[form] = FORMS[form](Path(name))
        print(f"recorded {form}")
    record_lines(RECORD, recorded)
