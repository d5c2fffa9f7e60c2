"""What a training printed: TRL's `{'loss': 0.1, …}` lines and verl's `step:1 - actor/entropy:0.6 - …`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from greenward.diagnostics.readers.log import Format, Log, Row, number_in
from greenward.user_files import MAX_LOG_BYTES, lines, open_file

_NUMBER = r"[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf)"
_TRL = re.compile(rf"['\"]([^'\"]{{1,256}})['\"]:\s*['\"]?({_NUMBER})['\"]?")
_VERL = re.compile(rf"(?<![\w/@.-])([\w/@.-]{{1,256}}):(?:np\.\w+\()?({_NUMBER})")
_LINE = 100_000  # bytes that are looked at


def _rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    step = 0
    for path in files:
        with open_file(path, MAX_LOG_BYTES) as file:
            for line in lines(file, _LINE):
                for part in line.decode("utf-8", "replace").split("\r"):
                    text = part.strip()
                    if "step:" in text and " - " in text:
                        row: Row = {name: number_in(value) for name, value in _VERL.findall(text)}
                        if "step" in row:
                            yield row
                    elif (start := text.find("{'")) >= 0 and text.endswith("}"):
                        row = {name: number_in(value) for name, value in _TRL.findall(text[start:])}
                        if not row or "train_runtime" in row:
                            continue
                        # Evaluations are printed after the step that they follow.
                        step += not all(name.startswith(("eval_", "epoch")) for name in row)
                        yield {"step": step, **row}
    if step:
        log.notes.append("the printed lines name no steps; lines are counted")


STDOUT = Format("printed lines", r".*\.(log|out|txt)", _rows, ("step",), whole_folder=False)
