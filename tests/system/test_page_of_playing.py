"""The match of docs/playing.md, by the commands of the page."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "playing.md"


@pytest.mark.slow
def test_the_figures_of_the_match_are_those_that_its_commands_print(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    commands = [
        line
        for line in text.splitlines()
        if line.startswith("greenward train spiral_self_play training.max_steps") or "--games 1000" in line
    ]
    assert len(commands) == 2
    for command in commands:
        _, *arguments = shlex.split(command)
        printed = subprocess.run(
            [sys.executable, "-m", "greenward", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    won = next(line for line in printed.splitlines() if line.strip().startswith("won"))
    shares = [float(share) for share in re.findall(r"([\d.]+)% \[", won)]
    told = re.findall(r"[\d.]+ % \[([\d.]+) %, ([\d.]+) %\] (?:won )?as (?:first|second)", text)
    assert len(shares) == len(told) == 2
    # Another processor rounds otherwise, and the training differs: the intervals hold what it gives.
    assert all(float(low) <= share <= float(high) for share, (low, high) in zip(shares, told, strict=True))
