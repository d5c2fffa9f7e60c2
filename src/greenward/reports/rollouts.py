"""The answers that a run kept: those that a query selects (`runs/selection.py`), page by page."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from greenward.common.errors import RunError
from greenward.common.files import expecting
from greenward.reports.document import (
    NOTHING,
    AnsweredTask,
    Answers,
    Fact,
    Report,
    Table,
    bounded,
    section,
    share,
    shown_answer,
    words,
)
from greenward.runs.answers import ROLE, is_number, numbers_in, read_answer_columns, read_rows_at
from greenward.runs.prompts import Prompts, holding
from greenward.runs.reading import ROLLOUTS, is_run, read_prompts, steps_in
from greenward.runs.selection import Condition, Selection, step_range

Row = Mapping[str, Any]


def steps_around(path: Path, step: int, window: int) -> tuple[int, int]:
    """The first and the last of the kept steps around a step: `window` before it, and as many from it on."""
    kept = [one for one, _ in steps_in(path / ROLLOUTS)]
    place = bisect_left(kept, step)
    around = kept[max(0, place - window) : place + window]
    return (around[0], around[-1]) if around else (step, step)


class Rollouts:
    """The answers of the run at `path` that a query selects, in its order: of training where it says none.

    `matching` is how many there are, `pages` how many pages they fill, at least one. Raises `RunError` when
    there is no run, or it kept no rollouts, or no answer has what they are sorted by, or a file is broken.
    """

    def __init__(self, path: Path, wanted: Selection, page_size: int) -> None:
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
        with expecting("the rollouts of a run", path, RunError):
            columns = self._columns = read_answer_columns(path)
            places = np.flatnonzero(wanted.mask(columns))
            if wanted.text:
                prompts = Prompts()
                prompts.update(path, path)
                places = np.array(holding(path, columns, places, wanted.text, prompts), np.int64)
            if wanted.sort and len(places) and not wanted.has_values(columns, places):
                raise RunError(
                    f"{path}: no answer that was asked for has the value {wanted.sort.lstrip('-')!r}",
                    remedy="A recorder writes it where it is given (docs/recorder.md); sort by another one.",
                )
        of_steps = Selection(tuple(one for one in wanted.conditions if one.field == "step")).mask(columns)
        self._every = np.flatnonzero(of_steps)
        self._places = places
        self._order = wanted.order(columns, places)
        self.matching = len(places)
        self.pages = max(1, -(-self.matching // page_size))

    def report(self, page: int = 1) -> Report:
        """One page, from 1. Raises `RunError` without such a page."""
        if not 1 <= page <= self.pages:
            raise RunError(f"there is no page {page}: the {self.matching} answers fill {self.pages}")
        first = (page - 1) * self._page_size
        chosen = self._order[first : first + self._page_size]
        columns = self._columns
        with expecting("the rollouts of a run", self._path, RunError):
            rows = read_rows_at(self._path, columns, np.sort(chosen))
            found = dict(rows)
            named = {key for row in found.values() if isinstance(key := row.get("prompt_id"), str)}
            prompts = read_prompts(self._path, named)
        shown = tuple(
            _task(int(columns.steps[place]), found[place], prompts)
            for place in map(int, chosen)
            if place in found
        )
        of = f" of {said}" if (said := in_words(self._wanted)) else ""
        if sort := self._wanted.sort:
            of += f", {'largest' if sort.startswith('-') else 'smallest'} {sort.lstrip('-')} first"
        headline = f"{self.matching:,} of {len(self._every):,} answers{of}"
        if shown:
            headline += f"; {first + 1:,} to {first + len(shown):,} are shown"
        notes = []
        if not len(self._every):
            kept = [step for step, _ in steps_in(self._path / ROLLOUTS)]
            notes.append(f"Answers of {len(kept)} steps are kept, the first {kept[0]}, the last {kept[-1]}.")
        statuses = set(columns.texts("status")[self._every].tolist())
        asked = {
            name for one in self._wanted.conditions if one.field == "status" for name in one.value.split(",")
        }
        if statuses and asked and not statuses & asked:
            notes.append(f"The statuses of these steps are: {', '.join(map(words, sorted(statuses)))}.")
        table = Table("", ("Status", "Answers", "Share", "Mean reward"), tuple(self._statuses()))
        return Report(
            kind="rollouts",
            title=f"Answers of {self._path.resolve().name}",
            headline=f"{headline}.",
            facts=(Fact("page", f"{page} of {self.pages}"),),
            notes=tuple(notes),
            sections=(
                section("Statuses", table if shown else None),
                section("Answers", Answers(shown) if shown else None),
            ),
            footer="Written by greenward from the rollouts of the run.",
        )

    def _statuses(self) -> list[tuple[str, ...]]:
        """A row of the table for each status, the most frequent first, in the order in which they occur."""
        names, firsts, counts = np.unique(
            self._columns.names["status"][self._places], return_index=True, return_counts=True
        )
        found: list[tuple[str, ...]] = []
        for place in sorted(range(len(names)), key=lambda one: (-counts[one], firsts[one])):
            inside = self._places[self._columns.names["status"][self._places] == names[place]]
            status = self._columns.codes["status"].names[names[place]]
            count = int(counts[place])
            mean = self._mean_reward(inside)
            found.append((words(status), f"{count:,}", share(count, self.matching), mean))
        return found

    def _mean_reward(self, places: np.ndarray) -> str:
        """The mean over the answers that have a reward, of each role where there are several."""
        roles = self._columns.roles
        texts = []
        for role in roles:
            values = self._columns.numbers[role][places].astype(np.float64)
            if len(values := values[~np.isnan(values)]):
                name = f"{role.removeprefix(ROLE)} " if len(roles) > 1 else ""
                texts.append(f"{name}{values.mean():.3g}")
        return " · ".join(texts) or NOTHING


_OPERATORS = {">=": "at least", "<=": "at most", ">": "above", "<": "below", "=": ""}


def in_words(selection: Selection) -> str:
    """The conditions of a query, as a headline says them."""
    return ", ".join(map(_in_words, selection.conditions))


def _in_words(one: Condition) -> str:
    if one.field == "step" and one.operator == "=":
        steps = ["…" if step is None else str(step) for step in step_range(one.value)]
        return f"step {' to '.join(dict.fromkeys(steps))}"
    if one.field in ("status", "stop", "error", "group"):
        return f"{one.field} {' or '.join(map(words, one.value.split(',')))}"
    return " ".join(filter(None, (one.field, _OPERATORS[one.operator], one.value)))


def _task(step: int, row: Row, prompts: Mapping[str, str]) -> AnsweredTask:
    status = str(row.get("status", "unknown"))
    rewards = numbers_in(row, "rewards")
    if len(rewards) == 1:
        rewards = {"reward": next(iter(rewards.values()))}
    advantage = {"advantage": row["advantage"]} if is_number(row.get("advantage")) else {}
    figures = {**rewards, **numbers_in(row, "terms"), **advantage}
    remarks = [f"step {step}", *(f"{name} {value:.3g}" for name, value in figures.items())]
    remarks += [f"{row['tokens']} tokens"] if row.get("tokens") else []
    remarks += [f"ended by {words(str(row['stop']))}"] if row.get("stop") else []
    remarks += [f"not trained on: {words(str(row['masked']))}"] if row.get("masked") else []
    failure = "\n".join(str(part) for part in map(row.get, ("first_failure", "traceback")) if part)
    answer = shown_answer(status, row.get("answer"), failure, remark=" · ".join(remarks))
    turns = row.get("transcript")
    said = (
        f"{number}. {turn.get('role')}: {turn.get('text')}"
        for number, turn in enumerate(turns if isinstance(turns, list) else (), 1)
        if isinstance(turn, dict)
    )
    return AnsweredTask(
        str(row.get("task_id", row.get("problem", ""))),
        bounded("\n".join((*_asked(row, prompts), *said))),
        (answer,),
    )


def _asked(row: Row, prompts: Mapping[str, str]) -> tuple[str, ...]:
    """The prompt in the row, or the one of `prompts` that it names."""
    prompt = row.get("prompt") or prompts.get(str(row.get("prompt_id")))
    return (str(prompt),) if prompt else ()
