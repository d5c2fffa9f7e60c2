"""What the tests against recorded numbers share: the command line in this process, and the comparison."""

from __future__ import annotations

import contextlib
import io
import json
import math
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

RELATIVE, ABSOLUTE = 5e-4, 1e-6  # processors were found to differ by 1e-5 and 3e-8 at most
# Two figures are rounding errors themselves: of log-probabilities of up to 10 nats, in which float32 has steps
# of 1e-6. Ten steps are allowed.
ROUNDING = 1e-5
OF_ROUNDING = ("/importance/difference", "/importance/max_difference")


def call(*arguments: str) -> tuple[int, str]:
    """Runs `greenward …` in this process, which spares the start of an interpreter: (exit code, output)."""
    from greenward.cli.main import main

    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            main(list(arguments))
        except SystemExit as ended:
            return int(ended.code or 0), output.getvalue()
    raise AssertionError("main returned")


def train(recipe: str, output: Path, *arguments: str) -> str:
    """`greenward train` in this process, with the reward of `recorded_runs` importable: what it printed."""
    import torch

    from tiny_model import DATA

    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DATA)
        patch.setenv("HF_HUB_OFFLINE", "1")
        code, said = call("train", recipe, *arguments, "--quiet", "--output", str(output))
    torch.set_num_threads(threads)
    assert code == 0, f"greenward train {recipe} {' '.join(arguments)} ended with {code}: {said}"
    return said


def run_until(command: list[str], reached: Callable[[], bool], number: int) -> tuple[int, str]:
    """Sends a signal to a process when something is reached: its exit code and standard error."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 200
    while not reached() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    return process.returncode, said


def differences(recorded: Any, found: Any, where: str = "") -> Iterator[str]:
    """Where `found` lacks something that was recorded or differs from it; new keys are left alone."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        for key in recorded:
            if key in found:
                yield from differences(recorded[key], found[key], f"{where}/{key}")
            else:
                yield f"{where}/{key}: missing"
    elif isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
        for index, (one, other) in enumerate(zip(recorded, found, strict=True)):
            yield from differences(one, other, f"{where}[{index}]")
    elif not _equal(recorded, found, ROUNDING if where.endswith(OF_ROUNDING) else ABSOLUTE):
        yield f"{where}: recorded {_short(recorded)}, found {_short(found)}"


def check(recorded: Any, found: Any) -> None:
    """Fails with the first differences, if there are any."""
    different = list(differences(recorded, json.loads(to_json(found))))
    assert not different, "\n".join(different[:20])


def _equal(recorded: Any, found: Any, absolute: float) -> bool:
    if isinstance(recorded, (int, float)) and isinstance(found, (int, float)):
        return math.isclose(recorded, found, rel_tol=RELATIVE, abs_tol=absolute)
    return bool(recorded == found)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def to_json(value: Any) -> str:
    """JSON with seven digits of each number."""

    def rounded(part: Any) -> Any:
        if isinstance(part, float) and math.isfinite(part):
            return float(f"{part:.7g}")
        if isinstance(part, dict):
            return {key: rounded(one) for key, one in part.items()}
        return [rounded(one) for one in part] if isinstance(part, (list, tuple)) else part

    return json.dumps(rounded(value), ensure_ascii=False)


def record_lines(path: Path, sections: dict[str, dict[str, Any]]) -> None:
    """Writes a JSON object of objects with one line for each entry, so that a change is seen in its line."""
    parts = (
        f'"{name}": {{\n'
        + ",\n".join(f"{json.dumps(key)}: {to_json(value)}" for key, value in entries.items())
        for name, entries in sections.items()
    )
    path.write_text("{\n" + "\n},\n".join(parts) + "\n}\n}\n")
