"""The report of one evaluation (`greenward eval`, `greenward grade`) from the files of its folder.

Reading is lenient, as for runs: what cannot be read is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from greenward.errors import RunError
from greenward.intervals import Estimate
from greenward.reports.document import Fact, Table
from greenward.reports.results import percent
from greenward.reports.tables import duration
from greenward.user_text import parse_json_text

SUMMARY, RESULTS, SAMPLES, PROMPTS = "summary.json", "results.jsonl", "samples.jsonl", "prompts.jsonl"
_SHOWN_ANSWERS = 5
_MAX_CHARACTERS = 3000
_MAX_ROWS = 40  # of a table


@dataclass(frozen=True)
class FailedAnswer:
    """An answer that failed, with what it was asked."""

    task_id: str
    sample: int
    prompt: str
    code: str
    status: str
    first_failure: str


@dataclass(frozen=True)
class EvaluationContent:
    """A report of one evaluation, laid out by no view yet."""

    title: str
    headline: str
    facts: tuple[Fact, ...]
    notes: tuple[str, ...]
    metrics: Table | None
    tables: tuple[Table, ...]
    failed: tuple[FailedAnswer, ...]
    settings: Table | None


def is_evaluation(path: Path) -> bool:
    """Whether a finished evaluation lies at `path`."""
    return (path / RESULTS).is_file() and (path / SUMMARY).is_file()


def load_evaluation(path: Path) -> EvaluationContent:
    """The report of the evaluation at `path`. Raises `RunError` if there is none that is finished."""
    try:
        summary = parse_json_text((path / SUMMARY).read_text(errors="replace"))
        assert isinstance(summary, dict)
    except (OSError, ValueError, AssertionError):
        raise RunError(f"{path} holds no finished evaluation ({SUMMARY}).") from None
    model = summary.get("model") or {}
    suite = str(summary.get("suite", "?"))
    title = f"{model.get('name') or summary.get('samples_file') or 'answers'} on {suite}"
    return EvaluationContent(
        title=title,
        headline=_headline(summary, suite),
        facts=_facts(summary),
        notes=tuple(map(str, summary.get("notes", ()))),
        metrics=_metrics(summary),
        tables=tuple(_tables(summary)),
        failed=tuple(islice(_failed(path), _SHOWN_ANSWERS)),
        settings=_settings(summary),
    )


def _headline(summary: Mapping[str, Any], suite: str) -> str:
    failures = [str(failure) for failure in summary.get("failures", ())]
    first = next(iter(summary.get("metrics", {}).items()), None)
    if first is None:
        return " ".join(failures) or f"Nothing could be scored on {suite}."
    name, metric = first
    result = (
        f"{name} {percent(_estimate(metric))} on {metric['problems']} problems of {suite}; "
        f"{summary.get('problems_passed', 0)} of {summary.get('answered', 0)} problems solved."
    )
    return " ".join((*failures, result))


def _facts(summary: Mapping[str, Any]) -> tuple[Fact, ...]:
    settings = summary.get("settings", {})
    facts = [Fact("answers", str(summary.get("answers", 0)))]
    facts += [
        Fact(name, str(settings[key]))
        for name, key in (("temperature", "temperature"), ("style", "style"), ("few-shot", "fewshot"))
        if key in settings
    ]
    timeout = settings.get("timeout_seconds")
    facts.append(Fact("timeout", "the suite's own" if timeout is None else f"{timeout:g} CPU s"))
    isolation = summary.get("isolation")
    if isolation:
        facts.append(Fact("isolation", f"level {isolation['level']}"))
    facts.append(Fact("time", duration(summary.get("seconds", {}).get("wall", 0.0))))
    return tuple(facts)


def _metrics(summary: Mapping[str, Any]) -> Table | None:
    rows = [(name, percent(_estimate(m)), str(m["problems"])) for name, m in summary["metrics"].items()]
    caption = "95 % intervals over problems."
    return Table("Result", ("Metric", "Value", "Problems"), tuple(rows), caption) if rows else None


def _tables(summary: Mapping[str, Any]) -> Iterator[Table]:
    answers = summary.get("answers", 0)
    rates = summary.get("rates", {})
    if rates:
        rows = tuple((name.replace("_", " "), percent(_estimate(rate))) for name, rate in rates.items())
        yield Table("Rates", ("Share of answers", ""), rows)
    for title, column, key in (
        ("What became of the answers", "Status", "statuses"),
        ("Errors of failing answers", "Error", "errors"),
        ("Answers without a program", "Reason", "extraction_failures"),
    ):
        counts = summary.get(key) or {}
        if counts:
            counted = tuple(
                (name.replace("_", " ") if key == "statuses" else name, str(count), _share(count, answers))
                for name, count in islice(counts.items(), _MAX_ROWS)
            )
            yield Table(title, (column, "Answers", "Share"), counted)
    tags = summary.get("tags") or {}
    if tags:
        shown = islice(tags.items(), _MAX_ROWS)
        tagged = tuple((tag, str(row["problems"]), percent(_estimate(row["pass@1"]))) for tag, row in shown)
        caption = f"The first {_MAX_ROWS} of {len(tags)} tags." if len(tags) > _MAX_ROWS else ""
        yield Table("By tag", ("Tag", "Problems", "pass@1"), tagged, caption)


def _settings(summary: Mapping[str, Any]) -> Table | None:
    rows = [(name.replace("_", " "), _plain(value)) for name, value in summary.get("settings", {}).items()]
    rows += [("weights' step", _plain(model["step"])) for model in [summary.get("model")] if model]
    sessions = summary.get("sessions") or [{}]
    newest = sessions[-1]
    rows += [(name, _plain(newest[name])) for name in ("python", "system", "device") if newest.get(name)]
    rows += [(name, str(version)) for name, version in (newest.get("packages") or {}).items()]
    if len(sessions) > 1:
        rows.append(("sessions", str(len(sessions))))
    return Table("Settings", ("", ""), tuple(rows)) if rows else None


def _failed(path: Path) -> Iterator[FailedAnswer]:
    """The failing answers in their order, one for each problem."""
    rows = {
        (row["task_id"], row["sample"]): row
        for row in _rows(path / RESULTS)
        if row.get("status") not in ("passed", "infrastructure", None) and {"task_id", "sample"} <= row.keys()
    }
    prompts = {row.get("task_id"): row.get("prompt", "") for row in _rows(path / PROMPTS)} if rows else {}
    shown = set()
    for sample in _rows(path / SAMPLES) if rows else ():
        row = rows.get((sample.get("task_id"), sample.get("sample")))
        if row is None or row["task_id"] in shown:
            continue
        shown.add(row["task_id"])
        failure = row.get("first_failure") or row.get("extraction_failure") or row.get("error_message") or ""
        yield FailedAnswer(
            str(row["task_id"]),
            int(row["sample"]),
            _bounded(prompts.get(row["task_id"], "")),
            _bounded(sample.get("solution") or sample.get("completion") or ""),
            str(row["status"]),
            _bounded(failure),
        )


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                row = parse_json_text(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield row


def _estimate(value: Mapping[str, Any]) -> Estimate:
    return Estimate(value["value"], value["low"], value["high"])


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(repr, value)) or "none"
    return "–" if value is None else str(value)


def _bounded(text: Any) -> str:
    text = str(text)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}\n… (cut)"
