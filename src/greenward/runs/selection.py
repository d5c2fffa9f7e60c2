"""The query language for kept answers: one text for the command line, a URL, Python and a finding.

A query is a list of conditions that must all hold, joined by `&` and percent-encoded as in a URL:

    step=40-&stop=length                   cut off from step 40 on
    status=failed,timeout&reward>=0.5      one of two statuses, and a reward of at least 0.5
    reward>=p90&passed=0                   among the highest tenth of rewards, without passing
    groups=constant                        of groups whose rewards are all equal
    same=8f0c…&sort=-tokens                one text, the longest first

- `step=12`, `step=10-20`, `step=10-`, `step=-20`; `status=failed,timeout`; `group=7`. Names take several
  values with commas between them.
- `problem=ID`: of this problem; `task=PART`: of problems whose id holds this.
- `stop=length`: that ended so; `error=NameError`: with this exception; `passed=0`: that did not pass.
- `reward>=0.5`, `advantage<0`, `tokens>p90`, `length`, `step`: with such a number, by `=`, `>=`, `<=`, `>` or
  `<`. `p90` is a percentile over the run.
- `times>=10`: whose text so many answers of the run have.
- `term.NAME=0`, `reward.ROLE>1`: with such a term of the reward, such a reward of a role.
- `groups=constant`, `all_pass`, `all_fail`, `mixed`: of groups whose rewards are all equal, that pass or fail
  as a whole, or differ.
- `same=HASH`: with this very text; `mixed=1`: whose text both passed and failed for one problem.
- `text=WORDS`: whose answer, failure, prompt or transcript holds this, in any case.
- `sort=reward`, `sort=-reward`: the smallest, the largest first; those without a value last.

Of one role, all conditions on `reward` must hold.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote_plus

import numpy as np

from greenward.common.errors import RunError
from greenward.runs.answers import NUMBERS, ROLE, TERM, AnswerColumns

Group = Literal["constant", "all_pass", "all_fail", "mixed"]
GROUPS: tuple[Group, ...] = ("constant", "all_pass", "all_fail", "mixed")
_NAMED = {"status": "status", "stop": "stop", "error": "error", "group": "group", "problem": "task"}
SORTABLE = ("step", "times", *NUMBERS)
MAX_QUERY_CHARS = 4096
_PART = re.compile(r"([^<>=]+)(>=|<=|=|>|<)(.*)", re.DOTALL)
_STEPS = re.compile(r"(\d{1,12})|(\d{0,12})-(\d{0,12})")
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")
_HASH = re.compile(r"[0-9a-f]{16}")
_COMPARE = {"=": np.equal, ">=": np.greater_equal, "<=": np.less_equal, ">": np.greater, "<": np.less}


class Condition(NamedTuple):
    """One part of a query."""

    field: str
    operator: str
    value: str

    def __str__(self) -> str:
        value = quote(self.value, safe="/,.-_~:+@!$'()*;")
        return f"{quote(self.field, safe='/._-')}{self.operator}{value.replace('+', '%2B')}"


@dataclass(frozen=True)
class Selection:
    """A query that was read. `unknown` are the parts that mean nothing, as they were written."""

    conditions: tuple[Condition, ...] = ()
    sort: str = ""
    unknown: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [str(one) for one in self.conditions]
        return "&".join([*parts, *([f"sort={quote(self.sort, safe='/._-')}"] if self.sort else [])])

    @property
    def text(self) -> tuple[str, ...]:
        """The texts that an answer must hold, which no column tells."""
        return tuple(one.value for one in self.conditions if one.field == "text" and one.value)

    def with_conditions(self, *more: Condition) -> Selection:
        """The same with further conditions."""
        return replace(self, conditions=(*self.conditions, *more))

    def mask(self, columns: AnswerColumns) -> np.ndarray:
        """Which answers [N] fulfil all conditions but those on texts.

        A condition on a column that the run does not have holds for none of them.
        """
        found = np.ones(len(columns), bool)
        of_reward = [one for one in self.conditions if one.field == "reward"]
        for one in self.conditions:
            if one.field not in ("reward", "text"):
                found &= _holds(one, columns)
        if of_reward:  # of one role, all of them
            roles = columns.roles or ["reward"]
            found &= np.any(
                [
                    np.all([_compare(one, columns.numbers[role]) for one in of_reward], axis=0)
                    for role in roles
                ],
                axis=0,
            )
        return found

    def has_values(self, columns: AnswerColumns, places: np.ndarray) -> bool:
        """Whether any of the answers has what they are to be sorted by."""
        return not bool(np.isnan(_values(columns, self.sort.lstrip("-"))[places].astype(float)).all())

    def order(self, columns: AnswerColumns, places: np.ndarray, most: int | None = None) -> np.ndarray:
        """The places in the order that was asked for; those without a value last, equal ones as they stood.

        With `most`, so many of the first ones only, without sorting the others.
        """
        if not self.sort:
            return places if most is None else places[:most]
        values = _values(columns, self.sort.lstrip("-"))[places].astype(float)
        keys = np.where(np.isnan(values), np.inf, -values if self.sort.startswith("-") else values)
        if most is not None and most < len(keys) // 2:
            limit = np.partition(keys, most - 1)[most - 1]
            below = np.flatnonzero(keys < limit)
            near = np.concatenate([below, np.flatnonzero(keys == limit)[: most - len(below)]])
            near.sort()
            places, keys = places[near], keys[near]
        return places[np.argsort(keys, kind="stable")][:most]


def parse_query(text: str, *, strict: bool = False) -> Selection:
    """The query that a text asks for. Raises `RunError` for a part without a meaning where it is `strict`."""
    conditions, unknown, sort = [], [], ""
    parts = text[:MAX_QUERY_CHARS].removeprefix("?").split("&")
    for written in filter(None, parts):
        part = unquote_plus(written, errors="replace")
        match = _PART.fullmatch(part)
        field, operator, value = match.groups() if match else ("", "", "")
        if field == "sort" and operator == "=" and _is_number_field(value.lstrip("-")):
            sort = value
        elif match and _means_something(one := Condition(field, operator, value)):
            conditions.append(one)
        else:
            unknown.append(part)
    if strict and unknown:
        raise RunError(
            f"{unknown[0]!r} is no condition on answers.",
            remedy="Such as step=10-20, status=failed, task=sort, reward>=0.5, term.tests=0, stop=length, "
            "groups=constant, text=eval, sort=-tokens; joined by &.",
        )
    return Selection(tuple(conditions), sort, tuple(unknown))


def _is_number_field(name: str) -> bool:
    return name in SORTABLE or (name.startswith((TERM, ROLE)) and len(name) > len(TERM))


def _means_something(one: Condition) -> bool:
    field, operator, value = one
    if field == "step" and operator == "=":
        return _STEPS.fullmatch(value) is not None and value != "-"
    if _is_number_field(field):
        return _PERCENTILE.fullmatch(value) is not None or _number(value) is not None
    if operator != "=":
        return False
    if field == "groups":
        return value in GROUPS
    if field == "same":
        return _HASH.fullmatch(value) is not None
    if field == "mixed":
        return value in ("0", "1")
    return field in _NAMED or field in ("task", "text")


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def step_range(text: str) -> tuple[int | None, int | None]:
    """The first and the last step of `12`, `10-20`, `10-` or `-20`. Raises `RunError` for another text."""
    match = _STEPS.fullmatch(text)
    if match is None or text == "-":
        raise RunError(f"expected a step (12) or a range of steps (10-20, 10-, -20), not {text!r}")
    first, last = (match[1], match[1]) if match[1] else (match[2], match[3])
    return (int(first) if first else None, int(last) if last else None)


def _values(columns: AnswerColumns, name: str) -> np.ndarray:
    if name == "step":
        return columns.steps
    if name == "times":
        _, numbers, counts = np.unique(columns.same, return_inverse=True, return_counts=True)
        times: np.ndarray = counts[numbers.reshape(-1)]
        return times
    found = columns.numbers.get(name)
    return np.full(len(columns), np.nan) if found is None else found


def _compare(one: Condition, values: np.ndarray) -> np.ndarray:
    percentile = _PERCENTILE.fullmatch(one.value)
    if percentile is None:
        limit = _number(one.value) or 0.0
    else:
        finite = values[np.isfinite(values)]
        if not len(finite):
            return np.zeros(len(values), bool)
        limit = float(np.percentile(finite, float(percentile[1])))
    # A column holds single precision, in which a limit such as 0.1 is another number.
    limit = float(np.float32(limit)) if values.dtype == np.float32 else limit
    found: np.ndarray = _COMPARE[one.operator](values, limit)
    return found


def _holds(one: Condition, columns: AnswerColumns) -> np.ndarray:
    field, operator, value = one
    if field == "step" and operator == "=":
        first, last = step_range(value)
        low, high = first or 0, last if last is not None else np.iinfo(np.int64).max
        return (columns.steps >= low) & (columns.steps <= high)
    if _is_number_field(field):
        return _compare(one, _values(columns, field))
    if field == "task":
        names = columns.codes["task"].names
        return np.array([value in name for name in names] + [False], bool)[columns.names["task"]]
    if field == "same":
        return columns.same == np.uint64(int(value, 16))
    if field == "mixed":
        return mixed(columns) == (value == "1")
    if field == "groups":
        return _in_groups(columns, value)
    column = _NAMED[field]
    wanted = [value] if field == "problem" else value.split(",")
    numbers = [found for name in wanted if (found := columns.codes[column].get(name)) is not None]
    return np.isin(columns.names[column], numbers)


def group_numbers(columns: AnswerColumns) -> tuple[np.ndarray, int]:
    """(the number [N] of the group that each answer belongs to, how many groups there are)."""
    groups = columns.names["group"].astype(np.int64)
    both = columns.steps * (len(columns.codes["group"].names) + 1) + groups
    names, numbers = np.unique(both, return_inverse=True)
    return numbers.reshape(-1), len(names)


def _in_groups(columns: AnswerColumns, kind: str) -> np.ndarray:
    numbers, count = group_numbers(columns)
    low, high = np.full(count, np.inf, np.float32), np.full(count, -np.inf, np.float32)
    values = columns.numbers["passed" if kind in ("all_pass", "all_fail") else "reward"]
    np.fmin.at(low, numbers, values)
    np.fmax.at(high, numbers, values)
    members = np.bincount(numbers, minlength=count)
    told = {
        "constant": (high - low <= 1e-6) & (members > 1),
        "mixed": high - low > 1e-6,
        "all_pass": low == 1.0,
        "all_fail": high == 0.0,
    }
    return told[kind][numbers]


def text_and_task(columns: AnswerColumns) -> np.ndarray:
    """A number [N] of 64 bits that answers with equal text to one problem share."""
    spread: np.ndarray = columns.names["task"].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return columns.same ^ spread


def mixed(columns: AnswerColumns) -> np.ndarray:
    """Which answers [N] have a text that both passed and did not pass, for one problem."""
    names, numbers = np.unique(text_and_task(columns), return_inverse=True)
    passed, every = np.zeros(len(names)), np.zeros(len(names))
    np.add.at(passed, numbers.reshape(-1), columns.numbers["passed"])
    np.add.at(every, numbers.reshape(-1), 1)
    return ((passed > 0) & (passed < every))[numbers.reshape(-1)]
