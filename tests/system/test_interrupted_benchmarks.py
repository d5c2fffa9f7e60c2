"""Ctrl-C ends each benchmark as it ends a command: by one line and exit code 130."""

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
