"""What the pages ask for, as plain data: one function for each kind of page."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from greenward.common.errors import GreenwardError, RunError
from greenward.common.files import MAX_LINE_BYTES, UNEXPECTED, lines, open_file
from greenward.common.text import visible
from greenward.reports.document import Chart, Marker, Role, Series
from greenward.runs.answers import (
    ROLE,
    TERM,
    AnswerColumns,
    is_number,
    numbers_in,
    parsed_row,
    prompt_number,
)
from greenward.runs.files import from_json_number, read_json, to_json
from greenward.runs.prompts import Prompts, holding
from greenward.runs.reading import TOKENS, evaluation_files, flattened, step_name
from greenward.runs.selection import Selection, group_numbers, text_and_task
from greenward.ui import audits
from greenward.ui.catalog import Catalog, Place, plain_value, stamp
from greenward.ui.columns import MAX_POINTS, Answers, Metrics, curve, smoothed
from greenward.ui.logs import LogStore, Repeated, folder_of
from greenward.ui.verdicts import Verdicts, findings_in

MAX_ROWS = 512
MAX_TEXT = 64 << 10
MAX_COMPARED = 1500  # characters of a failure, since comparing takes time that grows faster than the text
PREVIEW_CHARS = 240
FACETS = ("status", "error", "stop", "task")
MAX_FACET_VALUES = 60
CHART_SIZE = 640, 360  # of a file
HISTOGRAMS = ("reward", "advantage", "tokens")
BINS, STEP_BINS = 28, 80
SECONDS_OF_SEARCH = 1.5
SECONDS_OF_DOWNLOAD = 60.0  # until all of a file must have been read
SECONDS_OF_CONFIGS = 0.4  # for those that are not at hand, when the list is asked for
_SEARCHED_AT_ONCE = 5000
SECTIONS = (
    ("Reward", re.compile(r"(reward|terms?|advantage|return)(/|s?$|_|/mean)")),
    ("Success", re.compile(r"pass_rate|status/|pass@|games/|quality")),
    ("Policy", re.compile(r"entropy|kl|approx_kl|clip/|ratio/|importance/|loss|grad_norm|learning_rate")),
    ("Answers", re.compile(r"completion/|tokens/|length|episodes/")),
    ("Groups", re.compile(r"groups/")),
    ("Speed and memory", re.compile(r"time/|perf/|sandbox")),
)  # fmt: skip
CURATED = (
    "reward/mean", "pass_rate", "completion/mean_length", "entropy", "approx_kl", "grad_norm",
    "groups/with_signal", "completion/truncated", "loss",
)  # fmt: skip
_Read = TypeVar("_Read", Metrics, Answers)
ROLES: tuple[Role, ...] = ("main", "second", "control", "third", "fourth", "fifth")


class Closeable(Protocol):
    """What has to be ended."""

    def close(self) -> None:
        """End it."""


class Pages:
    """The data of the pages, of a catalog of runs, their columns and their diagnoses."""

    def __init__(
        self, catalog: Catalog, store: LogStore, verdicts: Verdicts, others: Sequence[Closeable] = ()
    ) -> None:
        """`others` are closed with the pages."""
        self.catalog, self.store, self.verdicts = catalog, store, verdicts
        self._repeated = Repeated(store)
        self._closed = (verdicts, *others)

    def close(self) -> None:
        """End the worker, and delete what is kept for this server only."""
        for one in self._closed:
            one.close()

    def verdict(self, place: Place, *, first: bool = False) -> dict[str, Any] | None:
        """The diagnosis of a run, as far as it is made (`Verdicts.get`)."""
        found = self.verdicts.get(place, first=first)
        if place.logs and place.inner is None:
            self.catalog.inner[place.id] = (found or {}).get("inner", [])
        return found

    def linked(self, place: Place) -> dict[str, Any] | None:
        """The diagnosis, made before all others; its findings lead to answers only where there are any."""
        found = self.verdict(place, first=True)
        if found is None or not place.logs or self.store.revision(place):
            return found
        found = deepcopy(found)
        for one in findings_in(found):
            one["selection"] = ""
        return found

    def runs(self) -> dict[str, Any]:
        """All runs with what the list shows; configs that were never read follow within a moment."""
        started = time.monotonic()
        rows = []
        places = self.catalog.places()
        complete = True
        for place in places.values():
            known = self.catalog.knows_config(place) or time.monotonic() - started < SECONDS_OF_CONFIGS
            complete = complete and known
            rows.append(self.catalog.card(place, with_config=known))
        rows.sort(key=lambda card: -card["changed"])
        for card in rows:
            found = None if card["parent"] else self.verdict(places[card["id"]])
            card["verdict"] = None if found is None else _brief(found)
            card |= _of_log(found)
        also = self.repeated()
        hidden = {one.id for others in also.values() for one in others}
        rows = [
            {**card, "also": [one.name for one in also.get(card["id"], ())]}
            for card in rows
            if card["id"] not in hidden
        ]
        return {
            "folders": [visible(str(folder)) for folder in self.catalog.folders],
            "problems": [visible(one) for one in self.catalog.problems],
            "runs": rows,
            "audits": [audits.brief(one) for one in self.catalog.audits.values()],
            "waiting": self.catalog.waiting,
            "complete": complete
            and not self.catalog.waiting
            and all(card["parent"] or card["verdict"] for card in rows),
        }

    def repeated(self) -> dict[str, list[Place]]:
        """The logs that the list does not show, by the identifier of the one of the same training."""
        places = self.catalog.places()
        signals = {}
        for place in places.values():
            read = (self.verdict(place) or {}).get("read") if place.logs and place.inner is None else None
            if read:
                signals[place.id] = read["signals"]
        return self._repeated.others(places.values(), signals)

    def changes(self, place: Place | None) -> dict[str, Any]:
        """A text that changes with all that is shown, and whether anything is being written."""
        if place is not None:
            found: Any = (self.store.revision(place), *self.catalog.revision(place))
            running = bool(found[-1])
            exists = place.path.exists()
        else:
            every = [self.catalog.list_revision(one) for one in self.catalog.places().values()]
            every += [(stamp(one.path), False) for one in self.catalog.audits.values()]
            running, found, exists = any(one[-1] for one in every), tuple(every), True
        cursor = (
            f"{hash((found, self.verdicts.revision, self.catalog.waiting > 0, exists)) & (1 << 64) - 1:016x}"
        )
        return {"cursor": cursor, "running": running, "exists": exists}

    def run(self, place: Place) -> dict[str, Any]:
        """A run as a whole: its card, keys, config, evaluations and verdict."""
        card = self.catalog.card(place)
        notes = list(card["problems"])
        try:
            metrics = self.store.metrics(place)
        except (OSError, GreenwardError) as error:
            notes.append(f"metrics.jsonl: {_said(error)}")
            metrics = Metrics()
        if metrics.broken:
            notes.append(f"{metrics.broken} line(s) of metrics.jsonl cannot be read and were left out.")
        if metrics.dropped:
            notes.append(f"This run was resumed or cut: {metrics.dropped} row(s) that were here are gone.")
        if metrics.non_finite:
            notes.append(f"{metrics.non_finite} value(s) are NaN or infinite; they are gaps in the curves.")
        verdict = self.linked(place)
        if place.logs and verdict is not None and verdict.get("error"):
            notes.append(verdict["headline"])
        if left_out := (verdict or {}).get("read", {}).get("left_out"):
            notes.append(f"{left_out} signal(s) are not shown: the log has more than are kept.")
        return {
            **card,
            **_of_log(verdict),
            "root": visible(str(place.root)),
            "path": visible(str(place.path)),
            "notes": [visible(one) for one in notes],
            "keys": keys_by_section(list(metrics.values)),
            "curated": curated(metrics.values),
            "names": {**(verdict or {}).get("read", {}).get("names", {}), **_shown(metrics.theirs)},
            "rows": len(metrics.steps),
            "share": metrics.share,
            "has_answers": not place.logs or bool(self.store.revision(place)),
            "first_step": int(metrics.steps[0]) if len(metrics.steps) else None,
            "last_step": int(metrics.steps[-1]) if len(metrics.steps) else None,
            "config": {key: plain_value(value) for key, value in self.settings(place, verdict)},
            "evaluations": self.evaluations(place),
            "arms": [one.id for one in self.catalog.places().values() if one.parent == place.id],
            "inner": [
                [one.id, visible(one.inner)]
                for one in self.catalog.places().values()
                if one.inner is not None and place.inner is None and one.path == place.path
            ],
            "also": [[one.id, one.name] for one in self.repeated().get(place.id, ())] if place.logs else [],
            "audits": [
                [one.id, one.name]
                for one in self.catalog.audits_of(place)
                if "error" not in audits.brief(one)
            ],
            "verdict": verdict,
        }

    def settings(self, place: Place, verdict: Mapping[str, Any] | None) -> Iterator[tuple[str, Any]]:
        """The settings of a run by dotted keys, or those that another trainer's log says."""
        if place.logs:
            yield from (verdict or {}).get("read", {}).get("settings", {}).items()
        else:
            yield from flattened(self.catalog.config(place))

    def evaluations(self, place: Place) -> list[dict[str, Any]]:
        """Step, suite and metrics of each evaluation, oldest first; damaged files are left out."""
        found = []
        for step, suite, file in evaluation_files(place.path)[-400:]:
            record = evaluation_record(file, place.root)
            metrics = record.get("metrics")
            if isinstance(metrics, dict):
                found.append({"step": step, "suite": suite, "metrics": to_json(metrics)})
        return found

    def series(
        self, place: Place, keys: Sequence[str], *, low: float, high: float, points: int, window: int
    ) -> bytes:
        """Curves of some keys between two steps, as a head in JSON and arrays in single precision.

        The layout is: 4 bytes, the length of the head; the head, padded to a multiple of 8; then for each
        curve x, mean, low, high and, with a window above 1, the smoothed values, as float64 and float32.
        """
        metrics = self.store.metrics(place)
        points = max(2, min(points, MAX_POINTS))
        chosen = (metrics.steps >= low) & (metrics.steps <= high)
        steps = metrics.steps[chosen]
        head: list[dict[str, Any]] = []
        body = io.BytesIO()
        for key in keys:
            values = metrics.values.get(key)
            if values is None:
                head.append({"key": key, "count": 0, "raw": True, "missing": True})
                continue
            found = curve(steps, values[chosen], points)
            smooth = None
            if window > 1:
                smooth = curve(steps, smoothed(values.astype(np.float64), window)[chosen], points)
            head.append(
                {
                    "key": key,
                    "count": len(found.x),
                    "raw": found.raw,
                    "smooth": 0 if smooth is None else len(smooth.x),
                }
            )
            body.write(found.x.astype("<f8").tobytes())
            arrays = (found.mean,) if found.raw else (found.mean, found.low, found.high)
            for array in arrays:
                body.write(array.astype("<f4").tobytes())
            if smooth is not None:
                body.write(smooth.x.astype("<f8").tobytes())
                body.write(smooth.mean.astype("<f4").tobytes())
        top = {"curves": head, "share": metrics.share, "rows": len(metrics.steps)}
        text = json.dumps(top).encode()
        text += b" " * (-(len(text) + 4) % 8)
        return len(text).to_bytes(4, "little") + text + body.getvalue()

    def chart(self, place: Place, keys: Sequence[str], *, low: float, high: float, log: bool) -> Chart:
        """The same curves as a chart of the reports, for a file."""
        metrics = _whole(lambda: self.store.metrics(place), "curves")
        chosen = (metrics.steps >= low) & (metrics.steps <= high)
        lines = []
        for key, role in zip(keys, ROLES, strict=False):
            values = metrics.values.get(key)
            if values is not None:
                found = curve(metrics.steps[chosen], values[chosen], 400)
                sound = np.isfinite(found.mean) & ((found.mean > 0) | (not log))
                shown = zip(found.x[sound].tolist(), found.mean[sound].tolist(), strict=True)
                lines.append(Series(key, role, tuple(shown)))
        if not any(line.points for line in lines):
            raise RunError("there is no finite value to draw in these steps")
        marks = [
            Marker(mark["step"], mark["title"])
            for mark in self.marks(place)
            if set(mark["signals"]) & set(keys) and low <= mark["step"] <= high
        ]
        return Chart(", ".join(keys), "step", tuple(lines), log=log, markers=tuple(marks), caption=place.name)

    def marks(self, place: Place) -> list[dict[str, Any]]:
        """The findings with an onset: where they stand in the curves of their signals."""
        found = findings_in(self.linked(place) or {})
        return [{**one["onset"], **one} for one in found if one["onset"]]

    def series_rows(self, place: Place, keys: Sequence[str], low: float, high: float) -> Iterator[str]:
        """All points of some keys between two steps, as CSV. Raises `RunError` while they are being read."""
        metrics = _whole(lambda: self.store.metrics(place), "curves")
        yield _csv_line(["step", *keys])
        columns = [metrics.values.get(key) for key in keys]
        for row in np.flatnonzero((metrics.steps >= low) & (metrics.steps <= high)):
            values = ("" if one is None or np.isnan(one[row]) else float(one[row]) for one in columns)
            yield _csv_line([int(metrics.steps[row]), *values])

    def answers(
        self, place: Place, selection: Selection, *, first: int, count: int, fold: bool
    ) -> dict[str, Any]:
        """A page of the answers that a selection holds, with facets, histograms and what is known of all."""
        found = self.store.answers(place)
        columns = found.columns
        mask = selection.mask(columns)
        matching = np.flatnonzero(mask)
        searched = 1.0
        if selection.text:
            matching, searched = self._with_text(place, found, matching, selection.text)
            mask = np.zeros(len(columns), bool)
            mask[matching] = True
        number = len(matching)
        times: dict[int, int] = {}
        if fold and number:
            both = text_and_task(columns)[matching]
            _, places, counts = np.unique(both, return_index=True, return_counts=True)
            shown = matching[np.sort(places)]
            times = dict(zip(matching[places].tolist(), counts.tolist(), strict=True))
        else:
            shown = matching
        ordered = selection.order(columns, shown, first + count)[first:]
        ordered = ordered[:count]
        contents = dict(found.read(np.sort(ordered)))
        missing = [name for name in _own_fields(selection) if name not in columns.numbers]
        return {
            "total": len(columns),
            "matching": number,
            "rows_in_all": len(shown),
            "first": first,
            "share": found.share,
            "searched": searched,
            "query": str(selection),
            "unknown": [*selection.unknown, *(f"no answer has {name}" for name in missing)],
            "broken": columns.broken,
            "unread": [_text(why, 500) for why in [*self._other_logs(place), *found.whys][:4]],
            "dropped": found.dropped,
            "columns": {"terms": columns.terms, "roles": columns.roles},
            "judged": are_judged(columns),
            "counted": bool(np.isfinite(columns.numbers["tokens"]).any()),
            "rows": [
                {**listed(columns, int(one), contents.get(int(one), {})), "times": times.get(int(one), 1)}
                for one in ordered
            ],
            "facets": _facets(columns, selection, mask),
            "histograms": _histograms(columns, mask),
            "steps": _step_bars(columns, mask),
        }

    def _other_logs(self, place: Place) -> list[str]:
        """That other trainings have their logs in the folder of a log whose answers are shown, if any."""
        if not place.logs or not self.store.revision(place):
            return []
        same = next(
            (one for one in self.repeated().items() if place.id in (one[0], *(other.id for other in one[1]))),
            (place.id, []),
        )
        of_one = {same[0], *(other.id for other in same[1])}
        others = [
            one.name
            for one in self.catalog.places().values()
            if one.logs and one.inner is None and one.id not in of_one and folder_of(one) == folder_of(place)
        ]
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        named = f"{', '.join(others[:3])}{more}"
        return [f"The folder has other logs ({named}): of which one these answers are, is not told."] * bool(
            others
        )

    def answer_rows(self, place: Place, selection: Selection, form: str) -> Iterator[str]:
        """All answers that a selection holds, in its order: JSON Lines as they were written, or CSV.

        Raises `RunError` while they are being read.
        """
        found = _whole(lambda: self.store.answers(place), "answers")
        columns = found.columns
        matching = np.flatnonzero(selection.mask(columns))
        if selection.text:
            matching, _ = self._with_text(place, found, matching, selection.text, seconds=float("inf"))
        ordered = selection.order(columns, matching)
        fields = ["step", "row", "status", "task", "reward", "advantage", "tokens", "stop", "error", "group"]
        own = [*columns.terms, *columns.roles]
        if form == "csv":
            yield _csv_line([*fields, *own, "answer"])
        for begin in range(0, len(ordered), 256):
            block = ordered[begin : begin + 256]
            contents = dict(found.read(np.sort(block)))
            for one in map(int, block):
                if (row := contents.get(one)) is None:  # its file was cut or deleted
                    continue
                if form == "csv":
                    shown = listed(columns, one, row)
                    numbers = (shown_number(columns.numbers[name][one]) for name in own)
                    cells = [shown[name] for name in fields]
                    yield _csv_line([*cells, *numbers, str(row.get("answer", ""))])
                else:
                    yield json.dumps({"step": int(columns.steps[one]), **row}) + "\n"

    def _with_text(
        self,
        place: Place,
        answers: Answers,
        places: np.ndarray,
        texts: Sequence[str],
        seconds: float = SECONDS_OF_SEARCH,
    ) -> tuple[np.ndarray, float]:
        """The places whose answers or prompts hold all texts, of as many as can be read in the time; the
        share of those.
        """
        until = time.monotonic() + seconds
        prompts = Prompts()
        if answers.columns.prompts.any():
            with suppress(RunError):  # the page of an answer says why its prompt cannot be read
                while (prompts := self.store.prompts(place)).share < 1 and time.monotonic() < until:
                    pass  # each look reads on for a while
        found: list[int] = []
        done = 0
        while done < len(places) and (done == 0 or time.monotonic() < until):
            block = places[done : done + _SEARCHED_AT_ONCE]
            found += holding(answers.path, answers.columns, block, texts, prompts, answers.root)
            done += len(block)
        share = done / len(places) if len(places) else 1.0
        return np.array(found, np.int64), share * prompts.share

    def _prompt(self, place: Place, content: Mapping[str, Any]) -> dict[str, str]:
        """The prompt in a row, or the one that it names, and why that cannot be read."""
        prompt, key, unread = content.get("prompt"), content.get("prompt_id"), ""
        if not prompt and isinstance(key, str):
            try:
                prompt, unread = self._prompt_of(place, key)
            except RunError as error:
                unread = _text(_said(error))
        return {"prompt": _text(str(prompt or "")), "prompt_unread": unread}

    def _prompt_of(self, place: Place, key: str) -> tuple[str, str]:
        until = time.monotonic() + SECONDS_OF_SEARCH
        number = np.array([prompt_number(key)], np.uint64)
        while True:
            prompts = self.store.prompts(place)
            for _, prompt in prompts.read(place.path, number, place.root):
                return prompt, ""
            if prompts.share == 1:
                return "", ""
            if time.monotonic() > until:
                return "", f"The prompts of this run are being read: {prompts.share:.0%} so far."

    def answers_with(self, place: Place, step: int) -> Answers:
        """The answers of a run, those of `step` among them if they can be read in a short time."""
        until = time.monotonic() + SECONDS_OF_SEARCH
        found = self.store.answers(place)
        while found.share < 1 and step not in found.files and time.monotonic() < until:
            found = self.store.answers(place)
        return found

    def answer(self, place: Place, step: int, row: int) -> dict[str, Any] | None:
        """One answer with all that is known of it, None where there is none."""
        found = self.answers_with(place, step)
        columns = found.columns
        places = np.flatnonzero((columns.steps == step) & (columns.rows == row))
        if not len(places):
            if found.share < 1:
                raise RunError(f"The answers of this run are being read: {found.share:.0%} so far.")
            return None
        at = int(places[0])
        content = next((one for _, one in found.read([at])), None)
        if content is None:
            return None
        answer = str(content.get("answer", ""))
        turns = found_turns if isinstance(found_turns := content.get("transcript"), list) else []
        numbers, _ = group_numbers(columns)
        siblings = np.flatnonzero(numbers == numbers[at]) if content.get("group") is not None else places
        task = columns.names["task"][at]
        same = (columns.same == columns.same[at]) & (columns.names["task"] == task)
        order = np.flatnonzero(columns.names["task"] == task)
        failure = str(content.get("first_failure") or "")
        return {
            **listed(columns, at, content),
            "answer": _text(answer),
            "code": highlighted(answer),
            "marked_line": _failing_line(content, answer),
            "rest": max(0, len(answer) - MAX_TEXT),
            "failure": _text(failure),
            "difference": _difference(failure),
            "error_message": _text(str(content.get("error_message") or "")),
            "tests": str(content.get("tests") or ""),
            "stdout": _text(str(content.get("stdout") or "")),
            **self._prompt(place, content),
            "traceback": _text(str(content.get("traceback") or "")),
            "masked": _text(str(content.get("masked") or ""), 60),
            "transcript": [
                {"role": _text(str(turn.get("role")), 60), "text": _text(str(turn.get("text")))}
                for turn in turns[:64]
                if isinstance(turn, dict)
            ],
            "terms": self._weighed(place, numbers_in(content, "terms")),
            "rewards": [
                [_text(name, 200), shown_number(value)]
                for name, value in numbers_in(content, "rewards").items()
            ],
            "siblings": [listed(columns, int(one), {}) for one in siblings[:64]],
            "group_size": len(siblings),
            "same_hash": f"{int(columns.same[at]):016x}",
            "same_count": int(same.sum()),
            "same_steps": [int(columns.steps[same].min()), int(columns.steps[same].max())],
            "history": history(columns, order),
            "judged": are_judged(columns),
            "has_tokens": not place.logs and has_tokens(place, step),
            "source": _text(str(content.get("source") or ""), 300) if place.logs else "",
            "fields": _fields(content),
            "previous": _neighbour(columns, at - 1),
            "next": _neighbour(columns, at + 1),
            "share": found.share,
        }

    def _weighed(self, place: Place, terms: Mapping[str, float]) -> list[dict[str, Any]]:
        """The terms of a reward with the weights of the config, where it names them."""
        weights: dict[str, float] = {}
        rewards = self.catalog.config(place).get("rewards")
        for one in rewards if isinstance(rewards, list) else ():
            if isinstance(one, dict) and is_number(one.get("weight")):
                weights[str(one.get("name"))] = float(one["weight"])
        return [
            {"name": _text(name, 200), "value": shown_number(value), "weight": weights.get(name)}
            for name, value in terms.items()
        ]


def _whole(read: Callable[[], _Read], what: str) -> _Read:
    """What `read` returns once all of it has been read: a part of a file would be taken for the whole."""
    until = time.monotonic() + SECONDS_OF_DOWNLOAD
    while (found := read()).share < 1:
        if time.monotonic() > until:
            raise RunError(f"The {what} of this run are being read: {found.share:.0%} so far. Ask again.")
        time.sleep(0.01)  # a worker may be converting them
    return found


def keys_by_section(keys: Sequence[str]) -> list[dict[str, Any]]:
    """The keys of a log under the headings of `SECTIONS`; what none of them means stands last."""
    left = sorted(keys)
    found = []
    for title, pattern in SECTIONS:
        inside = [key for key in left if pattern.match(key)]
        if inside:
            found.append({"title": title, "keys": inside})
            left = [key for key in left if key not in inside]
    return [*found, {"title": "Other", "keys": left}] if left else found


def curated(values: Mapping[str, np.ndarray]) -> list[str]:
    """The keys that are shown first: the usual ones that the log has, or the first ones of another log."""
    chosen = [key for key in CURATED if key in values][:6]
    others = (key for key in sorted(values) if key not in chosen and not key.startswith(("time/", "perf/")))
    while len(chosen) < 6 and (key := next(others, None)) is not None:
        chosen.append(key)
    return chosen


def _of_log(found: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a card lacks before another trainer's log is read; nothing for a run of greenward's."""
    read = (found or {}).get("read")
    if read is None:
        return {"holds": len((found or {}).get("inner", ()))}
    return {"holds": 0, "step": read["last"], "reward": read["reward"], "recipe": read["trainer"]}


def _brief(found: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("verdict", "headline", "critical", "warnings", "spark", "spark_of", "outdated")
    return {key: found[key] for key in keys if key in found}


def _said(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).partition("\n")[0]


def evaluation_record(file: Path, root: Path) -> dict[str, Any]:
    """What a file of an evaluation holds; empty where it cannot be read."""
    try:
        return read_json(file, within=root) or {}
    except (OSError, RunError, *UNEXPECTED):
        return {}


def shown_number(value: Any) -> float | None:
    """A number with seven digits; None for NaN and infinity, which JSON does not have."""
    return float(f"{float(value):.7g}") if np.isfinite(value) else None


def _text(text: str, most: int = MAX_TEXT) -> str:
    return visible(text, most)


def listed(columns: AnswerColumns, at: int, content: Mapping[str, Any]) -> dict[str, Any]:
    """What a table shows of an answer."""
    names = {
        name: _text(columns.codes[name].names[columns.names[name][at]], 200)
        for name in ("status", "task", "stop", "error", "group")
    }
    numbers = {
        name: shown_number(columns.numbers[name][at]) for name in ("reward", "advantage", "tokens", "length")
    }
    failure = content.get("first_failure") or content.get("error_message") or ""
    return {
        "step": int(columns.steps[at]),
        "row": int(columns.rows[at]),
        **names,
        **numbers,
        "preview": _text(
            " ⏎ ".join(str(content.get("answer", ""))[: 4 * PREVIEW_CHARS].split("\n")), PREVIEW_CHARS
        ),
        "failure": _text(str(failure), PREVIEW_CHARS),
    }


def _shown(names: Mapping[str, str]) -> dict[str, str]:
    return {ours: visible(theirs, 200) for ours, theirs in names.items()}


def _own_fields(selection: Selection) -> list[str]:
    fields = [one.field for one in selection.conditions] + [selection.sort.lstrip("-")]
    return list(dict.fromkeys(name for name in fields if name.startswith((TERM, ROLE))))


def _facets(columns: AnswerColumns, selection: Selection, mask: np.ndarray) -> dict[str, list[list[Any]]]:
    """For each facet the values with the number of answers that the other conditions hold for.

    With a text in the selection, of those that `mask` [N] holds.
    """
    found = {}
    for facet in FACETS:
        names = columns.codes[facet].names
        own = ("task", "problem") if facet == "task" else (facet,)
        others = tuple(one for one in selection.conditions if one.field not in own)
        is_own = others != selection.conditions and not selection.text
        chosen = Selection(others).mask(columns) if is_own else mask
        counts = np.bincount(columns.names[facet][chosen], minlength=len(names))
        most = np.argsort(-counts, kind="stable")[:MAX_FACET_VALUES]
        found[facet] = [[names[one], int(counts[one])] for one in most if counts[one] and names[one]]
    return found


def _histograms(columns: AnswerColumns, mask: np.ndarray) -> dict[str, dict[str, Any]]:
    found = {}
    for name in HISTOGRAMS:
        values = columns.numbers[name]
        finite = np.isfinite(values)
        if not finite.any():
            continue
        low, high = float(values[finite].min()), float(values[finite].max())
        if low < high:
            counts, edges = np.histogram(values[mask & finite], BINS, (low, high))
            found[name] = {
                "counts": counts.tolist(),
                "low": low,
                "high": high,
                "edges": [shown_number(e) for e in edges],
            }
    return found


def _step_bars(columns: AnswerColumns, mask: np.ndarray) -> dict[str, Any]:
    if not len(columns):
        return {"counts": [], "passed": [], "edges": []}
    low, high = int(columns.steps[0]), int(columns.steps[-1]) + 1
    width = max(1, -(-(high - low) // STEP_BINS))
    edges = np.arange(low, high + width, width)
    counts, _ = np.histogram(columns.steps[mask], edges)
    passed, _ = np.histogram(columns.steps[mask & (columns.numbers["passed"] > 0)], edges)
    return {"counts": counts.tolist(), "passed": passed.tolist(), "edges": edges.tolist()}


def history(columns: AnswerColumns, places: np.ndarray) -> list[list[Any]]:
    """[step, answers, passed, mean reward] of one problem at each step that asked it, oldest first."""
    found = []
    for step in np.unique(columns.steps[places])[-400:]:
        there = places[columns.steps[places] == step]
        rewards = columns.numbers["reward"][there]
        known = rewards[np.isfinite(rewards)]
        mean = shown_number(known.mean()) if len(known) else None
        found.append([int(step), len(there), int(columns.numbers["passed"][there].sum()), mean])
    return found


def are_judged(columns: AnswerColumns) -> bool:
    """Whether any answer says how it fared: other trainers keep rewards only."""
    unknown = [columns.codes["status"].get(name, -1) for name in ("unknown", "")]
    return not bool(np.isin(columns.names["status"], unknown).all())


def _neighbour(columns: AnswerColumns, at: int) -> list[int] | None:
    return [int(columns.steps[at]), int(columns.rows[at])] if 0 <= at < len(columns) else None


def _fields(content: Mapping[str, Any]) -> list[list[str]]:
    """The further texts that another trainer wrote into a row, by name."""
    fields = content.get("fields")
    return (
        [[_text(name, 200), _text(str(text))] for name, text in fields.items()]
        if isinstance(fields, dict)
        else []
    )


_EXPECTED = re.compile(r"(?P<call>.*?): expected (?P<expected>.*), got (?P<got>.*)", re.DOTALL)


def _difference(failure: str) -> dict[str, Any] | None:
    """The call, what was expected and what came, in pieces that are equal or not; None if not told."""
    found = _EXPECTED.fullmatch(failure) if len(failure) <= MAX_COMPARED else None
    if found is None:
        return None
    expected, got = found["expected"], found["got"]
    opcodes = SequenceMatcher(None, expected, got, autojunk=False).get_opcodes()
    return {
        "call": _text(found["call"]),
        "expected": [[tag == "equal", _text(expected[a:b])] for tag, a, b, _, _ in opcodes if b > a],
        "got": [[tag == "equal", _text(got[c:d])] for tag, _, _, c, d in opcodes if d > c],
    }


def _failing_line(content: Mapping[str, Any], answer: str) -> int | None:
    """The line of the answer where it went wrong: as recorded, or where it is no Python."""
    line = content.get("error_line")
    if type(line) is int and line > 0:
        return line
    if content.get("status") != "syntax_error":
        return None
    try:
        compile(answer[:MAX_TEXT], "answer", "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        return error.lineno
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


def highlighted(code: str) -> list[list[Any]]:
    """The lines of a program, each as (class, text) pairs."""
    from pygments.lexers.python import PythonLexer  # the package finds it by a table, which threads race for
    from pygments.token import Comment, Keyword, Name, Number, Operator, String

    kinds = (
        (Comment, "comment"), (Keyword, "keyword"), (String, "string"), (Number, "number"),
        (Name.Function, "name"), (Name.Class, "name"), (Name.Builtin, "builtin"), (Operator.Word, "keyword"),
    )  # fmt: skip
    lines: list[list[Any]] = [[]]
    for token, text in PythonLexer(stripnl=False, ensurenl=False).get_tokens(_text(code)):
        kind = next((name for parent, name in kinds if token in parent), "")
        for number, part in enumerate(text.split("\n")):
            if number:
                lines.append([])
            if part:
                lines[-1].append([kind, part])
    return lines


def _csv_line(cells: Sequence[Any]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow([_cell(one) for one in cells])
    return out.getvalue()


def _cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    if isinstance(value, str):
        value = value.encode("utf-8", "backslashreplace").decode()
        return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
    return "" if value is None else value


_TOKEN_NUMBERS = ("logprob", "entropy", "advantage", "ratio", "kl")
_MAX_TOKEN_BYTES = 256 << 20
_MAX_TURNS = 64
_MAX_TOKENS = 8192  # of a turn
_MAX_PIECE = 200


def has_tokens(place: Place, step: int) -> bool:
    """Whether the run kept numbers by token of some answers of a step."""
    return _token_file(place, step).is_file()


def tokens_of(place: Place, step: int, row: int) -> dict[str, Any]:
    """The turns of an answer, each with the texts of its tokens and a list for each kind of number.

    They lie in `tokens/step_000012.jsonl`, a turn a line: `row` of the answer among those of its step,
    `pieces` (the texts of the tokens), `mask` (1 where the policy wrote) and a list for each number.
    A number that is not finite is None, and so is one that is missing. Raises `OSError`.
    """
    turns: list[dict[str, Any]] = []
    if not has_tokens(place, step):
        return {"turns": turns}
    with open_file(_token_file(place, step), _MAX_TOKEN_BYTES, within=place.root) as opened:
        for line in lines(opened, MAX_LINE_BYTES):
            content = parsed_row(line)
            if content is not None and content.get("row") == row and isinstance(content.get("pieces"), list):
                turns.append(_turn_of_tokens(content))
                if len(turns) == _MAX_TURNS:
                    break
    return {"turns": turns}


def _turn_of_tokens(content: dict[str, Any]) -> dict[str, Any]:
    pieces = content["pieces"]
    count = min(len(pieces), _MAX_TOKENS)
    mask = content.get("mask")
    return {
        "role": visible(str(content.get("role") or ""), 60),
        "pieces": [visible(str(piece), _MAX_PIECE) for piece in pieces[:count]],
        "mask": [int(one == 1) for one in mask[:count]] if isinstance(mask, list) else [1] * count,
        "numbers": {
            name: _token_numbers(content[name], count)
            for name in _TOKEN_NUMBERS
            if isinstance(content.get(name), list)
        },
        "rest": len(pieces) - count,
    }


def _token_numbers(values: list[Any], count: int) -> list[float | None]:
    read = [from_json_number(value) for value in values[:count]]
    found = [float(value) if is_number(value) and np.isfinite(value) else None for value in read]
    return found + [None] * (count - len(found))


def _token_file(place: Place, step: int) -> Path:
    return place.path / TOKENS / f"{step_name(step)}.jsonl"
