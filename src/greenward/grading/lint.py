"""What ruff says about many programs at once: one `ruff check` and one `ruff format` for all of them.

The programs are hostile text. They lie under names of ours in a private folder, ruff reads no
configuration but ours, comments that switch its rules off are ignored, and both processes are bounded
in time. A program on which ruff crashes (it does when code is nested too deeply) is found by halving
the batch, and takes nothing else with it.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from greenward.errors import RewardError

# Style, not types: pycodestyle, pyflakes, names, likely bugs, comprehensions, complexity, simpler
# statements, returns, needless code, modern syntax.
RULES = ("E", "F", "W", "N", "B", "C4", "C90", "SIM", "RET", "PIE", "UP")
INVALID_SYNTAX = "invalid-syntax"

_SHARED = ("--isolated", "--no-cache", "--quiet", "--target-version", "py310")
_CHECK = ("check", *_SHARED, "--ignore-noqa", "--exit-zero", "--output-format", "json", "--select")
_FORMAT = ("format", *_SHARED)
_SECONDS = 10.0
_UNFORMATTED = 2  # ruff format could not parse some file; the others are done


@dataclass(frozen=True)
class Violation:
    """A rule that a line (from 1) breaks; the rule is INVALID_SYNTAX where ruff cannot read it."""

    rule: str
    line: int


@dataclass(frozen=True)
class Findings:
    """What ruff check found in a program, and the program as ruff format writes it."""

    violations: tuple[Violation, ...]
    formatted: str


class RuffFailure(Exception):
    """Ruff crashed or took too long over some program of a batch."""


def examine(programs: Sequence[str]) -> list[Findings | None]:
    """The findings on each program; None for one that makes ruff crash or takes it too long.

    Programs must be encodable as UTF-8. Raises `RewardError` when ruff is missing or does not work.
    """
    if not programs:
        return []
    try:
        return list(_examine_together(programs))
    except RuffFailure:
        if len(programs) == 1:
            check_ruff()
            return [None]
        middle = len(programs) // 2
        return examine(programs[:middle]) + examine(programs[middle:])


def check_ruff() -> None:
    """Try ruff on a line that we know. Raises `RewardError`, naming the remedy, unless it works."""
    try:
        (findings,) = _examine_together(["import os\nx=1\n"])
    except RuffFailure as error:
        raise RewardError(f"ruff does not work: {error}.", remedy="pip install --upgrade ruff") from None
    if findings != Findings((Violation("F401", 1),), "import os\n\nx = 1\n"):
        raise RewardError(
            f"ruff answers otherwise than expected: {findings}.", remedy="pip install --upgrade ruff"
        )


def _examine_together(programs: Sequence[str]) -> list[Findings]:
    with tempfile.TemporaryDirectory(prefix="greenward-ruff-") as name:
        folder = Path(name)
        paths = [folder / f"{index}.py" for index in range(len(programs))]
        for path, program in zip(paths, programs, strict=True):
            path.write_bytes(program.encode())
        violations: list[list[Violation]] = [[] for _ in programs]
        for found in json.loads(_run((*_CHECK, ",".join(RULES), "."), folder, accepted=(0,))):
            index = int(Path(found["filename"]).stem)
            violations[index].append(Violation(found["code"] or INVALID_SYNTAX, found["location"]["row"]))
        _run((*_FORMAT, "."), folder, accepted=(0, _UNFORMATTED))
        return [
            Findings(tuple(of_one), path.read_bytes().decode())
            for of_one, path in zip(violations, paths, strict=True)
        ]


def _run(arguments: Sequence[str], folder: Path, *, accepted: Sequence[int]) -> bytes:
    try:
        done = subprocess.run(
            [_binary(), *arguments],
            cwd=folder,
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuffFailure(f"ruff {arguments[0]} took longer than {_SECONDS:.0f} seconds") from None
    if done.returncode not in accepted:
        said = done.stderr.decode(errors="replace").strip()[-300:]
        raise RuffFailure(f"ruff {arguments[0]} ended with {done.returncode}: {said}")
    return done.stdout


@lru_cache(maxsize=1)
def _binary() -> str:
    try:
        from ruff import find_ruff_bin

        return find_ruff_bin()
    except (ImportError, FileNotFoundError):
        raise RewardError(
            "the reward terms readability and code_score need ruff, which is not installed.",
            remedy="pip install ruff",
        ) from None
