"""The bounds on grading: what no sandbox can beat, and the usual way with a fresh interpreter."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Sequence

from side import ENTRY_POINT, EXPECTED, INPUTS, by_threads, serve


def only_fork(codes: Sequence[str], workers: int) -> Sequence[bool]:
    """Runs nothing: what a process of its own costs at the least."""
    for _ in codes:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return [True] * len(codes)


def run_here(codes: Sequence[str], workers: int) -> Sequence[bool]:
    """Runs the answer in this very interpreter, with no protection at all."""
    passed = []
    for code in codes:
        namespace: dict[str, object] = {}
        exec(compile(code, "<answer>", "exec"), namespace)
        function = namespace[ENTRY_POINT]
        passed.append([function(*arguments) for arguments in INPUTS] == EXPECTED)  # type: ignore[operator]
    return passed


def run_fresh(code: str) -> bool:
    """Runs the answer in an interpreter of its own, without site packages; compares what it prints."""
    program = f"{code}\nprint([{ENTRY_POINT}(*arguments) for arguments in {INPUTS}])"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, check=True)
    return bool(ast.literal_eval(done.stdout.decode()) == EXPECTED)


if __name__ == "__main__":
    ways = {"fork": only_fork, "exec": run_here, "interpreter": by_threads(run_fresh)}
    serve(ways, {"python": sys.version.split()[0]})
