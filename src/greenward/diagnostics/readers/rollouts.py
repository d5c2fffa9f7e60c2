"""The answers that a run kept, whoever wrote them, as one kind of record.

greenward's `rollouts/step_000012.jsonl`, TRL's `completions/completions_00012.parquet`, verl's `12.jsonl`
(`trainer.rollout_data_dir`), Tinker cookbook's `iteration_000012/train_rollout_summaries.jsonl`, and
`traces.jsonl` of prime-rl (`rollouts/step_12/…`) and verifiers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from greenward.runs.files import JsonRows

# Names with a step, the folders where they are, and the files in them where they are folders themselves.
_PLACES = (
    (r"step_(\d{1,15})\.jsonl", ("rollouts",), ""),
    (r"completions_(\d{1,15})\.parquet", ("completions", "."), ""),
    (r"(\d{1,15})\.jsonl", ("rollouts", "rollout_data", "rollout", "rollout_data_dir", "."), ""),
    (r"iteration_(\d{1,15})", (".",), "train_rollout_summaries.jsonl"),
    (r"step_(\d{1,15})", ("rollouts",), "**/traces.jsonl"),
)
_MOST_FILES = 10_000
_CHARACTERS = 20_000  # of an answer that are kept


@dataclass(frozen=True)
class Rollout:
    """An answer. `length` is in tokens where those were counted, else in characters; None: not known."""

    task: str
    answer: str
    reward: float | None
    length: float | None
    status: str = ""


def find_rollouts(folder: Path) -> tuple[tuple[int, Path], ...]:
    """(step, file) of the answers of a run, oldest first."""
    for pattern, places, inner in _PLACES:
        for place in places:
            # Links may lead out of the run.
            entries = numbered(folder / place, re.compile(pattern))
            found = sorted((step, path) for step, path in entries if not path.is_symlink())
            if inner:
                files = ((step, file) for step, one in found for file in islice(one.glob(inner), 100))
                found = [(step, file) for step, file in files if "eval" not in file.parts]
            if found:
                return tuple(found)
    return ()


def numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    """(number, path) of the entries of a folder whose names the pattern matches; none without a folder."""
    try:
        matched = ((pattern.fullmatch(one.name), one) for one in folder.iterdir())
        return list(islice(((int(match[1]), one) for match, one in matched if match), _MOST_FILES))
    except OSError:
        return []


def read_rollouts(file: Path, most: int = 512) -> Iterator[Rollout]:
    """The first answers of a file; what cannot be read is left out.

    Raises:
        DiagnosticsError: a parquet file without pyarrow, or a broken one.
    """
    if file.suffix == ".parquet":
        from greenward.diagnostics.readers.tables import parquet_rows

        rows: Iterator[Mapping[str, Any]] = parquet_rows(file)
    else:
        rows = iter(JsonRows(file, lenient=True))
    for row in islice(rows, most):
        yield _rollout(row)


def _rollout(row: Mapping[str, Any]) -> Rollout:
    rewards = row["rewards"] if isinstance(row.get("rewards"), Mapping) else {}
    terms = [value for key, value in row.items() if key.endswith("_reward") and _is_number(value)]
    candidates = (
        *(row.get(key) for key in ("reward", "score")),
        sum(terms) if terms else None,  # TRL has a column for each function
        *(row.get(key) for key in ("total_reward", "advantage")),
        *rewards.values(),
    )
    reward = next(filter(_is_number, candidates), None)
    answer = _text(row, "answer", "completion", "output", "response")
    length = row.get("tokens", row.get("completion_tokens"))
    if not _is_number(length):
        steps = row["steps"] if isinstance(row.get("steps"), list) else ()
        counted = [s["ac_len"] for s in steps if isinstance(s, Mapping) and _is_number(s.get("ac_len"))]
        length = sum(counted) if counted else len(answer) or None
    status = row.get("status")
    return Rollout(
        _text(row, "problem", "prompt", "input", "example_id", "task"),
        answer,
        None if reward is None else float(reward),
        None if length is None else float(length),
        status if isinstance(status, str) else "",
    )


def _text(row: Mapping[str, Any], *keys: str) -> str:
    for key in keys:
        value = row.get(key)
        if isinstance(value, (int, float)) and key == "answer":
            continue
        if isinstance(value, (str, int)):
            return str(value)[:_CHARACTERS]
        if isinstance(value, list):  # messages of a chat
            parts = [one.get("content") for one in value if isinstance(one, Mapping)]
            return "\n".join(str(part) for part in parts if part)[:_CHARACTERS]
    return ""


def _is_number(value: Any) -> bool:
    """Whether it is a number that a float can hold, as can the sum of many."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, float) or abs(value) < 1 << 64
