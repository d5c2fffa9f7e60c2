"""Writes what every recorded run, evaluation, diagnosis and help gives, with all digits of its numbers.

To see on one machine whether a change of the code leaves everything as it was, to the last bit:

    PYTHONPATH=tests python tests/system/record_exactly.py BEFORE      # without the change
    PYTHONPATH=tests python tests/system/record_exactly.py AFTER       # with it
    diff -r BEFORE AFTER
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import test_recorded_evaluations
import test_recorded_findings
import test_recorded_help
import test_recorded_runs
from recording import call


def diagnoses(folder: Path) -> str:
    """What the diagnostics print of the runs of `test_recorded_findings`."""
    test_recorded_findings.make_runs(folder)
    runs = sorted(path.name for path in folder.iterdir())
    commands = (*test_recorded_findings.COMMANDS, *(f"diagnose {run}" for run in runs))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        said = [(command, call(*command.split(), "--json")) for command in commands]
        said += [(command, call(*command.split())) for command in commands]
    return "\n".join(f"$ {command}\n{code}\n{text}" for command, (code, text) in said)


def results() -> Iterator[tuple[str, Callable[[Path], Any]]]:
    """(name, what gives it in an empty folder) of all that is recorded."""
    for name, run in test_recorded_runs.RUNS.items():
        yield f"run_{name}", partial(_of_run, run)
    for name, evaluate in test_recorded_evaluations.FORMS.items():
        yield f"evaluation_{name}", evaluate
    yield "diagnoses", diagnoses
    yield "help", lambda _: test_recorded_help.helps()


def _of_run(run: test_recorded_runs.Run, folder: Path) -> Any:
    return test_recorded_runs.carry_out(run, folder / "run", interrupted=bool(run.first))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True)
    for name, make in results():
        with tempfile.TemporaryDirectory() as folder:
            found = make(Path(folder))
        text = found if isinstance(found, str) else json.dumps(found, indent=1, sort_keys=True)
        (target / f"{name}.txt").write_text(f"{text}\n", encoding="utf-8")
        print(name, flush=True)
