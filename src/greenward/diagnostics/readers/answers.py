"""Finds and reads the answers that trainers write beside their logs.

In a file for each step: greenward's `rollouts/step_000012.jsonl`, TRL's
`completions/completions_00012.parquet`, verl's `12.jsonl` (`trainer.rollout_data_dir`), Tinker cookbook's
`iteration_000012/train_rollout_summaries.jsonl`, and `traces.jsonl` of prime-rl (`rollouts/step_12/…`) and
verifiers. In a file of many steps, whose rows name theirs: `samples.jsonl` and the like.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from greenward.common.errors import DiagnosticsError
from greenward.common.files import MAX_LINE_BYTES, MAX_LOG_BYTES, UNEXPECTED, lines, open_file
from greenward.common.text import visible
from greenward.diagnostics.readers.rows import STEP_KEYS
from greenward.runs.files import JsonRows, json_object
from greenward.runs.reading import is_step

Row = Mapping[str, Any]

# Names with a step, the folders where they are, and the files in them where they are folders themselves.
_PLACES = (
    (r"step_(\d{1,15})\.jsonl", ("rollouts",), ""),
    (r"completions_(\d{1,15})\.parquet", ("completions", "."), ""),
    (r"(\d{1,15})\.jsonl", ("rollouts", "rollout_data", "rollout", "rollout_data_dir", "."), ""),
    (r"iteration_(\d{1,15})", (".",), "train_rollout_summaries.jsonl"),
    (r"step_(\d{1,15})", ("rollouts",), "**/traces.jsonl"),
)
OF_MANY_STEPS = re.compile(
    r"(?:.*[_.-])?(?:rollouts?|samples|completions|generations|responses|answers|trajectories)\.jsonl"
)
_MOST_FILES = 10_000
_CHARACTERS = 20_000  # of an answer that a check reads
_LOOKED_AT = 8  # rows at the beginning of a file, by which it is told

_TASKS = ("task_id", "problem", "task", "example_id")
_PROMPTS = ("prompt", "input", "question", "query")
_ANSWERS = (
    "completion",
    "output",
    "response",
    "generation",
    "answer",
)  # beside others `answer` is the right one
_GROUPS = ("group", "group_id", "uid", "prompt_id")
_LENGTHS = ("tokens", "completion_tokens", "response_length", "completion_length", "num_tokens")
_STOPS = ("stop", "finish_reason", "stop_reason")
_REWARDS = ("reward", "score", "total_reward")
# What may be a number and is no part of a reward.
_NO_TERMS = frozenset(
    {*STEP_KEYS, *_TASKS, *_GROUPS, *_LENGTHS, *_REWARDS, "advantage", "index", "idx", "id", "row", "rank",
     "seed", "epoch", "timestamp", "time"}
)  # fmt: skip
_USED = frozenset({*_NO_TERMS, *_PROMPTS, *_ANSWERS, *_STOPS, "status", "terms", "rewards", "steps"})
MAX_TEXT = 200_000  # characters of an answer or a prompt that are kept
MAX_FIELDS, MAX_FIELD = 12, 2000  # further texts of a row, and the characters of each
MAX_TERMS = 64
_NAME, _WORDS = 200, 80  # characters of a name, and of a prompt in it
# What parts the turns of a prompt that a template has made one text of.
_ROLE = r"(?:system|user|assistant|model|tool)\b"
_BETWEEN_TURNS = re.compile(
    rf"(?:<\|[^|<>\s]{{1,40}}\|>|<(?:start|end)_of_turn>|</?s>|\[/?INST\])(?:{_ROLE})?|^{_ROLE}\s*$",
    re.MULTILINE,
)


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


def find_file_of_many_steps(folder: Path, within: Path) -> Path | None:
    """The file in a folder whose first rows are answers, each with its step; None where there is none."""
    try:
        named = sorted(one for one in folder.iterdir() if OF_MANY_STEPS.fullmatch(one.name))
    except OSError:
        return None
    return next((one for one in named[:_LOOKED_AT] if not one.is_symlink() and _has_steps(one, within)), None)


def _has_steps(file: Path, within: Path) -> bool:
    try:
        with open_file(file, MAX_LOG_BYTES, within=within) as opened:
            rows = [json_object(line) for line in islice(lines(opened, MAX_LINE_BYTES), _LOOKED_AT)]
    except (OSError, *UNEXPECTED):
        return False
    known = [one for one in rows if one is not None]
    return bool(known) and all(
        step_in(one) is not None
        and _text(one, *_ANSWERS)
        and (_text(one, *_PROMPTS) or _reward(one) is not None)
        for one in known
    )


def step_in(row: Row) -> int | None:
    """The step that a row names."""
    for key in STEP_KEYS:
        value = row.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if is_step(value):
            return value
    return None


def read_rollouts(file: Path, most: int = 512) -> Iterator[Rollout]:
    """The first answers of a file; what cannot be read is left out.

    Raises:
        DiagnosticsError: a parquet file without pyarrow, or a broken one.
    """
    for row in islice(rows_in(file), most):
        yield _rollout(row)


def rows_in(file: Path, within: Path | None = None) -> Iterator[Row]:
    """The rows of a file of answers as they are written. No link may lead out of `within`.

    Raises `DiagnosticsError` as `read_rollouts` does, and `RunError` for JSON lines that cannot be read.
    """
    if file.suffix == ".parquet":
        from greenward.common.parquet import read_parquet

        return read_parquet(DiagnosticsError, file, within=within)
    return iter(JsonRows(file, lenient=True, within=within))


def _rollout(row: Row) -> Rollout:
    reward = _reward(row)
    if reward is None and _is_number(row.get("advantage")):
        reward = float(row["advantage"])
    answer = _text(row, *_ANSWERS)
    length = next((row[key] for key in _LENGTHS if _is_number(row.get(key))), None)
    if length is None:
        steps = row["steps"] if isinstance(row.get("steps"), list) else ()
        counted = [s["ac_len"] for s in steps if isinstance(s, Mapping) and _is_number(s.get("ac_len"))]
        length = sum(counted) if counted else len(answer) or None
    status = row.get("status")
    return Rollout(
        _text(row, "problem", *_PROMPTS, "example_id", "task"),
        answer,
        reward,
        None if length is None else float(length),
        status if isinstance(status, str) else "",
    )


def kept_row(row: Row) -> dict[str, Any]:
    """An answer in the form in which a run of greenward's keeps it (docs/runs.md).

    Its problem is named by the first words that were asked and a hash of the prompt, where the row has no
    name for it, and answers to one prompt are a group. What else the row has are `terms`, where they are
    numbers, and `fields`, where they are texts.
    """
    prompt = _text(row, *_PROMPTS, most=MAX_TEXT)
    name = _text(row, *_TASKS, most=MAX_TEXT)
    if len(name) > _NAME or "\n" in name:  # the text of a problem
        prompt, name = prompt or name, ""
    said = blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest() if prompt else ""
    reward = _reward(row)
    group = next((row[key] for key in _GROUPS if isinstance(row.get(key), (str, int))), said or None)
    found = {
        "problem": name or (f"{_words(_last_turn(row) or prompt)} #{said}" if prompt else ""),
        "group": group if isinstance(group, int) else str(group)[:_NAME] if group else None,
        "prompt": prompt,
        "answer": _text(row, *_ANSWERS, most=MAX_TEXT),
        "status": row.get("status") if isinstance(row.get("status"), str) else None,
        "rewards": {} if reward is None else {"policy": reward},
        "terms": _terms(row),
        "advantage": row.get("advantage") if _is_number(row.get("advantage")) else None,
        "tokens": next((row[key] for key in _LENGTHS if _is_number(row.get(key))), None),
        "stop": _text(row, *_STOPS, most=_NAME) or None,
        "fields": _fields(row),
    }
    return {key: value for key, value in found.items() if value not in (None, {})}


def _words(prompt: str) -> str:
    """The first line of what was asked last in a prompt."""
    turns = [part.strip() for part in _BETWEEN_TURNS.split(prompt[-MAX_TEXT:])]
    asked = next((part for part in reversed(turns) if part), "")
    line = asked.partition("\n")[0].strip()
    return visible(line if len(line) <= _WORDS else f"{line[:_WORDS].rstrip()} …", _NAME)


def _last_turn(row: Row) -> str:
    """The last message of a prompt that is a list of them."""
    turns = next((row[key] for key in _PROMPTS if isinstance(row.get(key), list) and row[key]), [None])
    last = turns[-1]
    content = last.get("content") if isinstance(last, Mapping) else None
    return content[:MAX_TEXT] if isinstance(content, str) else ""


def _reward(row: Row) -> float | None:
    given = next((value for key in _REWARDS if (value := _one(row.get(key))) is not None), None)
    if given is not None:
        return given
    if "completion" in row and "advantage" in row:  # TRL: a column for each function, and not their weights
        columns = _terms(row)
    else:
        columns = {
            key: float(value) for key, value in row.items() if key.endswith("_reward") and _is_number(value)
        }
    rewards = row["rewards"] if isinstance(row.get("rewards"), Mapping) else {}
    known = [value for value in columns.values() if not math.isnan(value)]
    return (
        sum(known) if known else next((float(value) for value in rewards.values() if _is_number(value)), None)
    )


def _one(value: Any) -> float | None:
    """A number, or the only one of a list."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return float(value) if _is_number(value) else None


def _terms(row: Row) -> dict[str, float]:
    """The numbers of a row by name that may be parts of its reward."""
    own = row.get("terms")
    given = (
        own
        if isinstance(own, Mapping)
        else {key: value for key, value in row.items() if key not in _NO_TERMS}
    )
    numbers = ((str(key)[:_NAME], value) for key, value in given.items())
    return dict(
        islice(
            ((key, float(value)) for key, value in numbers if isinstance(value, bool) or _is_number(value)),
            MAX_TERMS,
        )
    )


def _fields(row: Row) -> dict[str, str]:
    texts = ((str(key)[:_NAME], value) for key, value in row.items() if key not in _USED)
    given = ((key, value[:MAX_FIELD]) for key, value in texts if isinstance(value, str) and value)
    return dict(islice(given, MAX_FIELDS))


def _text(row: Row, *keys: str, most: int = _CHARACTERS) -> str:
    for key in keys:
        value = row.get(key)
        if isinstance(value, (int, float)) and key == "answer":
            continue
        if isinstance(value, str) or type(value) is int:
            return str(value)[:most]
        if isinstance(value, list):  # messages of a chat
            parts = [one.get("content") for one in value if isinstance(one, Mapping)]
            return "\n".join(str(part) for part in parts if part)[:most]
    return ""


def _is_number(value: Any) -> bool:
    """Whether it is a number that a float can hold, as can the sum of many."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, float) or abs(value) < 1 << 64
