"""What all readers of logs share: rows, formats, text of any encoding, and the numbers that texts mean."""

from __future__ import annotations

import codecs
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from greenward.common.errors import DiagnosticsError
from greenward.common.files import MAX_LINE_BYTES, MAX_LOG_BYTES, lines, open_file
from greenward.common.parsing import parse_json_text

MAX_NAME = 256  # characters; longer names are left out
MAX_CELL = 10_000_000  # characters of one row
_MAX_DEPTH = 8
# The best first, as `plain_key` gives them.
STEP_KEYS = (
    "step", "global_step", "train/global_step", "trainer/global_step", "training/global_step", "_step",
    "training_step", "train_step", "global_steps", "iteration", "training_iteration", "learning_iteration",
    "train_iteration", "time/iterations", "progress/batch", "update", "global_step/max_steps",
    "current_steps", "current_step", "optimizer_step", "steps", "time/total_timesteps", "total_timesteps",
    "totaltimesteps", "timesteps_total", "num_env_steps_sampled_lifetime", "num_env_steps_sampled",
    "timesteps", "timestep", "num_timesteps", "env_steps", "env_step", "totalenvinteracts",
    "total_env_steps", "total_num_frames", "total_steps", "total/steps", "total_t", "frames",
    "frame", "num_episodes", "global_episode", "total_episodes", "episode_num", "time/episodes",
    "episodes", "episode", "ep", "games", "game", "rounds", "round", "cycle", "rollout",
    "generation", "iterations", "iter", "itr", "it", "updates", "batch", "epochs", "epoch",
)  # fmt: skip
# Names of cells that say which run a row is of.
RUN_KEYS = frozenset({
    "run", "run_id", "run_name", "run_uuid", "run.hash", "run.name", "trial_id", "trial_name"
})  # fmt: skip
MISSING = frozenset({"", "-", "--", "none", "null", "na", "n/a", "<na>", "no log", "?"})

Row = dict[str, Any]


class NoLogError(DiagnosticsError):
    """A file was read, and is something else than a log, whatever another format would take from it."""


@dataclass
class Log:
    """What the files of a run say beside its rows; complete once all rows were taken.

    `set_aside` counts rows that the reader does not give, by the reason.
    """

    format: str
    config: Mapping[str, Any] | None = None
    session: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    set_aside: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Format:
    """A format of logs: `file_names` is a pattern of them, `magic` the first bytes where there are any.

    `rows` reads the files of one run in their order: its rows, under the names of its tracker, oldest first.
    A row may hold a part of a step only. What else the files say goes into the `Log`. `step_keys` are the
    names under which the format counts steps, the best first; rows are counted where none has one. `runs`
    gives the names of the runs in files of the format, where one file may hold several. `whole_folder` says
    that the files of a folder belong to one run; `inside` names a folder in which they lie, below the run's.
    """

    name: str
    file_names: str
    rows: Callable[[list[Path], str, Log], Iterator[Row]]
    step_keys: tuple[str, ...] = STEP_KEYS
    magic: bytes = b""
    whole_folder: bool = True
    runs: Callable[[Path], list[str]] | None = None
    inside: str = ""


def plain_key(name: str) -> str:
    """A name of a step or of a run as the tables of such names have it."""
    return name.strip().lower().replace(" ", "_")


# What evaluations are called. Terms of the reward may have such names as well: `rewards/test_passed`.
_EVALUATION = re.compile(
    r"(?<!reward/)(?<!rewards/)\b(?:eval\w*?|val(?:id(?:ation)?)?(?:-core|-aux)?|test(?:ing)?|dev|held[_-]?out)"
    r"(?:[/_\s@-]+|$)",
    re.IGNORECASE,
)


@lru_cache(4096)
def evaluated(name: str) -> str | None:
    """What an evaluation measured, by its name: `reward` of `eval/reward`, "" of the word alone. None for
    what training measured.
    """
    found = _EVALUATION.search(name[:MAX_NAME])
    return None if found is None else name[: found.start()] + name[found.end() :]


NUMBER = (
    r"[-+]?(?:(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,5})?|(?i:nan|inf(?:inity)?)(?![a-zA-Z]))"
)
# np.float64(0.3), tensor(0.3, device='cuda:0'), tensor([0.3]), <tf.Tensor: shape=(), …, numpy=0.3>
_WRAPPED = re.compile(
    rf"(?:[A-Za-z_][\w.]{{0,40}}\(|<tf\.Tensor: [^<>]{{0,80}} numpy=)"
    rf"\[?\s?({NUMBER})\]?(?:, ?[^()<>]{{0,80}})?[)>]"
)
_MARKED = re.compile(rf"[\[\"']{{0,2}}({NUMBER})([%kKM]?)[\]\"']{{0,2}}")  # [0.3], "0.3", 30%
_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3}){1,9}(?:\.\d{1,40})?")
_UNITS = {"%": 0.01, "k": 1e3, "K": 1e3, "M": 1e6, "": 1.0}
_WORDS = {"true": 1.0, "false": 0.0}


def number_in(text: str) -> float | None:
    """The number that a text is, None for any other text.

    A percentage is a share. In "1,234.5" commas part thousands; 1.2k is 1,200.
    """
    if len(text) > MAX_NAME:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    text = text.strip()
    if _GROUPED.fullmatch(text):
        return float(text.replace(",", ""))
    if found := _WRAPPED.fullmatch(text):
        return float(found[1])
    if found := _MARKED.fullmatch(text):
        return float(found[1]) * _UNITS[found[2]]
    return _WORDS.get(text.lower())


def as_number(value: Any) -> float | None:
    """The number that a cell of a log means, None where it is none; one beyond a float is infinite."""
    if isinstance(value, str):
        return number_in(value)
    if not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def flat(row: Row) -> Row:
    """The row with nested mappings as `outer/inner`; those named `data` or `metrics` give no name."""
    if dict not in map(type, row.values()):
        return row
    found: Row = {}

    def collect(values: Mapping[str, Any], prefix: str, depth: int) -> None:
        for key, value in values.items():
            if isinstance(value, dict):
                if depth < _MAX_DEPTH and len(prefix) + len(key) <= MAX_NAME:
                    container = key in ("data", "metrics", "logs", "history") and not prefix
                    collect(value, prefix if container else f"{prefix}{key}/", depth + 1)
            else:
                found.setdefault(f"{prefix}{key}", value)

    collect(row, "", 0)
    return found


_NAMES = ("name", "metric", "metric.name", "metric_name", "key", "tag")
_CONTEXT = "metric.context"


def of_event(row: Row) -> Row:
    """The row that an event means, which has the name and the value of one signal; any other row as it is."""
    value = row.get("value")
    if value is None or not isinstance(name := next(filter(None, map(row.get, _NAMES)), None), str):
        return row
    context = [str(cell) for key, cell in row.items() if key.startswith(_CONTEXT) and cell]
    # Beside its step and its run, times and indices are no signals.
    known = {
        key: cell for key, cell in row.items() if plain_key(key) in STEP_KEYS or plain_key(key) in RUN_KEYS
    }
    return {**known, "/".join([*context, name]): value}


# Numbers that JSON has no words for, as some writers name them.
_NOT_FINITE = re.compile(r"(?<=[:,\[\s])([-+]?)(nan|inf|infinity)(?=\s*[,\]}])", re.IGNORECASE)


def json_object(text: str) -> Row | None:
    """The JSON object that a text is, None for any other text."""
    try:
        value = parse_json_text(text)
    except ValueError:
        named = _NOT_FINITE.sub(
            lambda found: found[1].strip("+") + ("NaN" if found[2][0] in "nN" else "Infinity"), text
        )
        return json_object(named) if named != text else None
    return value if isinstance(value, dict) else None


_HEAD = 512


def encoding_of(head: bytes) -> str:
    """The encoding of a text by its first bytes: a mark, or the zeros that most of UTF-16 has."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    even, odd = head[::2].count(0), head[1::2].count(0)
    for encoding, zeros, others in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if len(head) > 3 and not others and 3 * zeros > len(head):
            return encoding
    return "utf-8-sig"


def text_lines(path: Path, most: int = MAX_LINE_BYTES) -> Iterator[str]:
    """The lines of a text without their ends; of a longer line the first `most` bytes.

    Raises `OSError` as `open_file` does.
    """
    with open_file(path, MAX_LOG_BYTES) as file:
        head = file.read(_HEAD)
        encoding = encoding_of(head)
        file.seek(0)
        if encoding == "utf-8-sig":
            file.seek(len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0)
            for line in lines(file, most):
                yield line.decode("utf-8", "replace").rstrip("\r\n")
            return
        with io.TextIOWrapper(file, encoding, "replace", newline="\n") as decoded:
            while text := decoded.readline(most):
                yield text.rstrip("\r\n").removeprefix("\ufeff")
