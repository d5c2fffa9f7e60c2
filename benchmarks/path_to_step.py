"""How much of the source runs from the command to the first step of RL: the files with a call.

    python benchmarks/path_to_step.py                 # their number, and their names in the order of calls
    python benchmarks/path_to_step.py --functions     # with the functions that were called

It runs `train quickstart` made short, in this process, and counts the files of the package of which a
function was called up to the end of the first step of the trainer. What runs while a module is imported, and
the processes of the sandbox, do not count.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import greenward
from greenward.cli.main import cli

PACKAGE = str(Path(greenward.__file__).parent) + "/"
COMMAND = (
    "train", "quickstart", "warm_start.max_steps=80", "training.max_steps=1", "evaluation.enabled=false",
    "--quiet",
)  # fmt: skip
LAST = ("training/trainer.py", "train_step")


def files_called() -> dict[str, dict[str, None]]:
    """File -> its functions that were called, both in the order of their first calls."""
    found: dict[str, dict[str, None]] = {}
    over, importing = False, threading.local()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal over
        code = frame.f_code
        if over or event not in ("call", "return") or not code.co_filename.startswith(PACKAGE):
            return
        if not code.co_filename.endswith(".py"):
            return  # a template
        depth = vars(importing).get("depth", 0)
        if code.co_name == "<module>":
            importing.depth = depth + (1 if event == "call" else -1)
        elif not depth:
            file = code.co_filename.removeprefix(PACKAGE)
            found.setdefault(file, {})[code.co_qualname] = None
            over = event == "return" and (file, code.co_name) == LAST

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(SystemExit):
            cli.main([*COMMAND, "--output", f"{folder}/run"])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if not over:
        raise SystemExit("the trainer took no step")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--functions", action="store_true", help="name the functions, too")
    options = parser.parse_args()
    found = files_called()
    for file, names in found.items():
        print(f"{file}: {', '.join(names)}" if options.functions else file)
    print(f"{len(found)} files, {sum(map(len, found.values()))} functions")


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
