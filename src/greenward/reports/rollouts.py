"""The page of rollouts: the answers that a run kept, filtered by step, status, task, reward, and sorted."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TypeGuard

from greenward.common.errors import RunError
from greenward.common.files import expecting
from greenward.reports.document import (
    NOTHING,
    AnsweredTask,
    Answers,
    Fact,
    Link,
    Links,
    Report,
    Table,
    bounded,
    section,
    share,
    shown_answer,
    words,
)
from greenward.reports.render import render_html
from greenward.runs.files import write_atomically
from greenward.runs.output import OTHER_PAGES, claim_folder
from greenward.runs.reading import ROLLOUTS, is_run, read_rollouts, steps_in

MAX_PAGES = 50  # of HTML, which are all written: `OTHER_PAGES` have two digits

Row = Mapping[str, Any]
Order = Literal["reward", "advantage", "length"]


@dataclass(frozen=True)
class RolloutFilter:
    """Which answers to show. None and empty mean all; steps and rewards are inclusive bounds.

    An answer has a reward within the bounds if that of any role is. `task` is a part of the task's id.
    """

    first_step: int | None = None
    last_step: int | None = None
    statuses: tuple[str, ...] = ()
    task: str = ""
    reward_min: float = -math.inf
    reward_max: float = math.inf

    def matches(self, row: Row) -> bool:
        """Whether a row of the steps asked for is to be shown."""
        least, most = self.reward_min, self.reward_max
        unbounded = (least, most) == (-math.inf, math.inf)
        return (
            (not self.statuses or _status(row) in self.statuses)
            and self.task in _task_id(row)
            and (unbounded or any(least <= reward <= most for reward in _numbers(row, "rewards").values()))
        )

    def __str__(self) -> str:
        steps = ["…" if step is None else str(step) for step in (self.first_step, self.last_step)]
        parts = {
            f"step {' to '.join(dict.fromkeys(steps))}": steps != ["…", "…"],
            f"status {' or '.join(map(words, self.statuses))}": self.statuses,
            f"task {self.task}": self.task,
            f"reward at least {self.reward_min:g}": self.reward_min > -math.inf,
            f"reward at most {self.reward_max:g}": self.reward_max < math.inf,
        }
        return ", ".join(part for part, given in parts.items() if given)


def steps_around(path: Path, step: int, window: int) -> tuple[int, int]:
    """The first and the last of the kept steps around a step: `window` before it, and as many from it on."""
    kept = [one for one, _ in steps_in(path / ROLLOUTS)]
    place = bisect_left(kept, step)
    around = kept[max(0, place - window) : place + window]
    return (around[0], around[-1]) if around else (step, step)


class Rollouts:
    """The answers of the run at `path` that a filter lets through; read anew for each page.

    They stand in the order of training, or of what they are `sorted_by`: the largest first, the `smallest`
    first if that is said, and those without a value last. An answer has the largest reward of its roles;
    lengths are in tokens, or in characters where no tokens were counted.

    `matching` is how many there are, `pages` how many pages they fill, at least one. Raises `RunError` when
    there is no run, or it kept no rollouts, or no answer has what they are sorted by, or a file is broken.
    """

    def __init__(
        self,
        path: Path,
        wanted: RolloutFilter,
        page_size: int,
        sorted_by: Order | None = None,
        *,
        smallest: bool = False,
    ) -> None:
        if not is_run(path):
            raise RunError(
                f"{path} holds no run (config.yaml)", remedy="Of a study, give the folder of a seed."
            )
        if not steps_in(path / ROLLOUTS):
            raise RunError(
                f"{path} kept no rollouts",
                remedy="Reinforcement learning keeps the answers that it trains on; other training has none.",
            )
        self._path, self._wanted, self._page_size = path, wanted, page_size
        self._sorted_by, self._smallest = sorted_by, smallest
        keys: list[float] = []  # of the answers that are wanted, the smallest is shown first
        every: Counter[str] = Counter()
        self._statuses: Counter[str] = Counter()
        self._rewards: dict[str, dict[str, tuple[float, int]]] = {}  # sum and number by status and role
        with expecting("the rollouts of a run", path, RunError):
            for _, row in self._rows():
                every[_status(row)] += 1
                if wanted.matches(row):
                    if sorted_by is not None:
                        value = _sorted_value(row, sorted_by)
                        keys.append(math.inf if value is None else value if smallest else -value)
                    self._statuses[_status(row)] += 1
                    of_status = self._rewards.setdefault(_status(row), {})
                    for role, reward in _numbers(row, "rewards").items():
                        total, count = of_status.get(role, (0.0, 0))
                        of_status[role] = total + reward, count + 1
        if keys and min(keys) == math.inf:
            raise RunError(
                f"{path}: no answer that was asked for has the value {sorted_by!r}",
                remedy="A recorder writes it where it is given (docs/recorder.md); sort by another value.",
            )
        self._order = sorted(range(len(keys)), key=keys.__getitem__) if keys else None
        self._every = every  # whether or not they are wanted
        self.matching = self._statuses.total()
        self.pages = max(1, -(-self.matching // page_size))

    def report(self, page: int = 1, *, linked: bool = False) -> Report:
        """One page, from 1; `linked` as HTML to its neighbours. Raises `RunError` without such a page."""
        if not 1 <= page <= self.pages:
            raise RunError(f"there is no page {page}: the {self.matching} answers fill {self.pages}")
        first = (page - 1) * self._page_size
        places: Sequence[int] = range(first, min(first + self._page_size, self.matching))
        if self._order is not None:
            places = self._order[first : first + self._page_size]
        wanted = (pair for pair in self._rows() if self._wanted.matches(pair[1]))
        with expecting("the rollouts of a run", self._path, RunError):
            chosen = set(places)
            rows = islice(wanted, max(places, default=-1) + 1)
            found = {place: _task(*pair) for place, pair in enumerate(rows) if place in chosen}
        shown = tuple(found[place] for place in places if place in found)
        of = f" of {self._wanted}" if str(self._wanted) else ""
        if self._sorted_by is not None:
            of += f", {'smallest' if self._smallest else 'largest'} {self._sorted_by} first"
        headline = f"{self.matching:,} of {self._every.total():,} answers{of}"
        if shown:
            headline += f"; {first + 1:,} to {first + len(shown):,} are shown"
        notes = []
        if not self._every:
            kept = [step for step, _ in steps_in(self._path / ROLLOUTS)]
            notes.append(f"Answers of {len(kept)} steps are kept, the first {kept[0]}, the last {kept[-1]}.")
        if self._every and not self._every.keys() & (self._wanted.statuses or self._every.keys()):
            notes.append(f"The statuses of these steps are: {', '.join(map(words, sorted(self._every)))}.")
        if linked and self.pages > MAX_PAGES:
            notes.append(f"HTML has the first {MAX_PAGES} pages only. Narrow the filter to see the others.")
        statuses = (
            (words(status), f"{count:,}", share(count, self.matching), self._mean_reward(status))
            for status, count in self._statuses.most_common()
        )
        columns = ("Status", "Answers", "Share", "Mean reward")
        return Report(
            kind="rollouts",
            title=f"Answers of {self._path.resolve().name}",
            headline=f"{headline}.",
            facts=(Fact("page", f"{page} of {self.pages}"),),
            notes=tuple(notes),
            sections=(
                section("Statuses", Table("", columns, tuple(statuses)) if shown else None),
                section("Answers", Answers(shown) if shown else None, self._links(page) if linked else None),
            ),
            footer="Written by greenward from the rollouts of the run.",
        )

    def write_html(self, folder: Path) -> Path:
        """Write rollouts.html, rollouts-2.html … into `folder` in place of older ones; returns the first."""
        claim_folder(folder, "report")
        for old in chain.from_iterable(map(folder.glob, OTHER_PAGES)):
            old.unlink()
        for page in range(1, min(self.pages, MAX_PAGES) + 1):
            write_atomically(folder / _page_name(page), render_html(self.report(page, linked=True)).encode())
        return folder / _page_name(1)

    def _rows(self) -> Iterator[tuple[int, Row]]:
        return read_rollouts(self._path, self._wanted.first_step, self._wanted.last_step)

    def _mean_reward(self, status: str) -> str:
        """The mean over the answers that have a reward, of each role where there are several."""
        means = {role: total / count for role, (total, count) in self._rewards[status].items()}
        several = len({role for roles in self._rewards.values() for role in roles}) > 1
        texts = (f"{role} {mean:.3g}" if several else f"{mean:.3g}" for role, mean in means.items())
        return " · ".join(texts) or NOTHING

    def _links(self, page: int) -> Links | None:
        last = min(self.pages, MAX_PAGES)
        places = {"first": 1, "previous": page - 1, "next": page + 1, "last": last}
        links = (
            Link(f"{name} page", _page_name(number))
            for name, number in places.items()
            if 1 <= number <= last and number != page
        )
        return Links(tuple(links)) if last > 1 else None


def _page_name(page: int) -> str:
    return "rollouts.html" if page == 1 else f"rollouts-{page}.html"


def _task(step: int, row: Row) -> AnsweredTask:
    status = _status(row)
    rewards = _numbers(row, "rewards")
    if len(rewards) == 1:
        rewards = {"reward": next(iter(rewards.values()))}
    advantage = {"advantage": row["advantage"]} if _is_number(row.get("advantage")) else {}
    figures = {**rewards, **_numbers(row, "terms"), **advantage}
    remarks = [f"step {step}", *(f"{name} {value:.3g}" for name, value in figures.items())]
    remarks += [f"{row['tokens']} tokens"] if row.get("tokens") else []
    remarks += [f"ended by {words(str(row['stop']))}"] if row.get("stop") else []
    answer = shown_answer(status, row.get("answer"), row.get("first_failure"), remark=" · ".join(remarks))
    said = (
        f"{number}. {turn.get('role')}: {turn.get('text')}"
        for number, turn in enumerate(row.get("transcript") or (), 1)
        if isinstance(turn, dict)
    )
    return AnsweredTask(_task_id(row), bounded("\n".join((*_asked(row), *said))), (answer,))


def _asked(row: Row) -> tuple[str, ...]:
    """The prompt, where the answer has one of its own: those of our runs are in their problems."""
    return (str(row["prompt"]),) if row.get("prompt") else ()


def _sorted_value(row: Row, by: Order) -> float | None:
    if by == "reward":
        return max(_numbers(row, "rewards").values(), default=None)
    value = (
        row.get("advantage") if by == "advantage" else row.get("tokens") or len(str(row.get("answer", "")))
    )
    return float(value) if _is_number(value) else None


def _status(row: Row) -> str:
    return str(row.get("status", "unknown"))


def _task_id(row: Row) -> str:
    return str(row.get("task_id", row.get("problem", "")))


def _numbers(row: Row, key: str) -> dict[str, float]:
    found = row.get(key)
    items = found.items() if isinstance(found, dict) else ()
    return {str(name): float(value) for name, value in items if _is_number(value)}


def _is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a number that a float can hold."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 64)
