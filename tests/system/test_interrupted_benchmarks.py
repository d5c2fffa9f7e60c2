"""How benchmarks end: Ctrl-C as in a command, by one line and exit code 130; wrong arguments by an error."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
GUARD = re.compile(r'^if __name__ == "__main__":\n((?: .*\n|\n)+)', re.MULTILINE)
PROGRAM = """
import time
from entry import run_main

def main():
    {body}

run_main(main)
"""
ANYWHERE = """
    print("begun", flush=True)
    time.sleep(60)
"""
IN_A_TRAINING = """
    from greenward.common.interruption import stoppable
    with stoppable(lambda: "Stopping."):
        print("begun", flush=True)
        time.sleep(60)
"""


def test_every_benchmark_is_run_by_the_entry():
    programs = [*BENCHMARKS.glob("*.py"), *(BENCHMARKS / "faultbench").glob("*.py")]
    guards = {path.name: found[-1] for path in programs if (found := GUARD.findall(path.read_text()))}
    assert len(guards) > 50
    assert [name for name, body in guards.items() if not body.endswith("run_main(main)\n")] == []


@pytest.mark.parametrize("body", [ANYWHERE, IN_A_TRAINING], ids=["anywhere", "in a training"])
def test_an_interrupted_benchmark_says_so_in_one_line(body):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body.strip())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts the tests in the background has Ctrl-C ignored, which processes inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines() == ["Stopping."] * (body is IN_A_TRAINING) + ["Interrupted."]


@pytest.mark.parametrize(("returned", "code"), [("None", 0), ("0", 0), ("1", 1)])
def test_what_a_benchmark_returns_is_its_exit_code(returned, code):
    program = PROGRAM.format(body=f"return {returned}")
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    assert (
        subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True).returncode
        == code
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("growth.py --only nothing_of_this_name", "no subject has"),
        ("growth.py --only grade --largest 10", "no subject has"),
        ("growth.py --json absent/growth.json", "no folder"),
        ("core_use.py --steps 2", "at least 3"),
        ("step_phases.py --rounds 0", "at least 1"),
        ("step_phases.py --completions 4", "at least --group-size"),
    ],
)
def test_arguments_that_measure_nothing_are_refused_at_once(command, said, tmp_path):
    program, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / program), *arguments],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and said in done.stderr


def test_an_interrupted_measurement_of_growth_leaves_no_process(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import growth

    started = []

    def interrupted(pid, options):
        raise KeyboardInterrupt

    class Noted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(growth.os, "wait4", interrupted)
    monkeypatch.setattr(growth.subprocess, "Popen", Noted)
    with pytest.raises(KeyboardInterrupt):
        growth.measured([sys.executable, "-c", "import time; time.sleep(600)"])
    assert [process.returncode for process in started] == [-signal.SIGTERM]
