"""The bounds on grading: what no sandbox can beat, and the usual way with a fresh interpreter."""

from __future__ import annotations

import ast
import mmap
import os
import subprocess
import sys
from collections.abc import Sequence

from side import ENTRY_POINT, EXPECTED, INPUTS, by_threads, serve

FAULTS = 417  # minor page faults of a trivial answer with five tests, the median of 150 (ru_minflt)
MEMORY = mmap.mmap(-1, FAULTS * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def only_fork(codes: Sequence[str], workers: int) -> Sequence[bool]:
    """Runs nothing: what a process of its own costs at the least."""
    for _ in codes:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return [True] * len(codes)


def fork_and_write(codes: Sequence[str], workers: int) -> Sequence[bool]:
    """Writes to as many pages as an answer does, each of which the kernel then copies, and runs nothing."""
    for _ in codes:
        pid = os.fork()
        if pid == 0:
            for page in range(FAULTS):
                MEMORY[page * mmap.PAGESIZE] = 1
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


def become_template() -> None:
    """Load what a worker has loaded when it forks an answer, which runs no functions of modules after it."""
    register, os.register_at_fork = os.register_at_fork, lambda **_: None
    from greenward.sandbox.inside import template

    template.preload()
    from greenward.sandbox.inside import worker  # noqa: F401

    os.register_at_fork = register
    template.compact()


if __name__ == "__main__":
    if "template" in sys.argv:
        become_template()
    MEMORY.write(bytes(len(MEMORY)))
    ways = {
        "fork": only_fork,
        "faults": fork_and_write,
        "exec": run_here,
        "interpreter": by_threads(run_fresh),
    }
    serve(ways, {"python": sys.version.split()[0]})
