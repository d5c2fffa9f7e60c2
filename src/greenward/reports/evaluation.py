"""Reports one evaluation from the files of its folder. What cannot be read is left out, as for runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from greenward.common.errors import RunError
from greenward.common.files import expects
from greenward.reports.document import (
    AnsweredTask,
    Answers,
    Fact,
    Report,
    Table,
    bounded,
    duration,
    percent_of,
    section,
    session_table,
    setting_text,
    share,
    shown_answer,
    words,
)
from greenward.reports.games import game_blocks
from greenward.reports.runs import is_game
from greenward.runs.files import JsonRows, read_json
from greenward.tasks import summary_tables

SUMMARY, RESULTS, SAMPLES, PROMPTS = "summary.json", "results.jsonl", "samples.jsonl", "prompts.jsonl"
_SHOWN_ANSWERS = 5
_MAX_ROWS = 40  # of a table


def is_evaluation(path: Path) -> bool:
    """Whether a finished evaluation lies at `path`."""
    return (path / RESULTS).is_file() and (path / SUMMARY).is_file()


@expects("the files of an evaluation", RunError)
def evaluation_report(path: Path) -> Report:
    """The report of the evaluation at `path`. Raises `RunError` if there is none that is finished."""
    summary = None
    with suppress(RunError):
        summary = read_json(path / SUMMARY)
    if summary is None:
        raise RunError(f"{path} holds no finished evaluation ({SUMMARY}).")
    model = summary.get("model") or {}
    suite = str(summary.get("suite", "?"))
    if games := [row for row in JsonRows(path / RESULTS, lenient=True) if is_game(row)]:
        return Report(
            kind="evaluation",
            title=f"{model.get('name')} plays {suite}",
            headline="; ".join(f"{one['suite']}: {one.get('headline', '')}" for one in games) + ".",
            facts=(Fact("time", duration(summary.get("seconds", {}).get("wall", 0.0))),),
            sections=(
                *(section(one["suite"], *game_blocks(one["suite"], {"Value": [one]})) for one in games),
                section("Settings", *_settings(summary), level="appendix"),
            ),
            footer="Written by greenward from the files of the evaluation. Intervals are 95 %.",
        )
    by_agents = "tools" in summary.get("settings", {})
    failed = tuple(islice(_failed(path, transcripts=by_agents), _SHOWN_ANSWERS))
    metrics = [(name, percent_of(m), str(m["problems"])) for name, m in summary["metrics"].items()]
    result = Table("", ("Metric", "Value", "Problems"), tuple(metrics), "95 % intervals over problems.")
    return Report(
        kind="evaluation",
        title=f"{model.get('name') or summary.get('samples_file') or 'answers'} on {suite}",
        headline=_headline(summary, suite),
        facts=tuple(_facts(summary)),
        notes=tuple(map(str, summary.get("notes", ()))),
        sections=(
            section("Result", result if metrics else None),
            *(section(title, *tables(summary)) for title, tables in summary_tables(summary)),
            *(section(title, table, level="detail") for title, table in _tables(summary)),
            section(
                "Failing answers: the first of each of the first problems",
                Answers(failed) if failed else None,
                level="appendix",
            ),
            section("Settings", *_settings(summary), level="appendix"),
        ),
        footer="Written by greenward from the files of the evaluation. Intervals are 95 %.",
    )


def _headline(summary: Mapping[str, Any], suite: str) -> str:
    failures = [str(failure) for failure in summary.get("failures", ())]
    first = next(iter(summary.get("metrics", {}).items()), None)
    if first is None:
        return " ".join(failures) or f"Nothing could be scored on {suite}."
    name, metric = first
    result = (
        f"{name} {percent_of(metric)} on {metric['problems']} problems of {suite}; "
        f"{summary.get('problems_passed', 0)} of {summary.get('answered', 0)} problems solved."
    )
    return " ".join((*failures, result))


def _facts(summary: Mapping[str, Any]) -> Iterator[Fact]:
    settings = summary.get("settings", {})
    yield Fact("answers", str(summary.get("answers", 0)))
    for name, key in (("temperature", "temperature"), ("style", "style"), ("few-shot", "fewshot")):
        if key in settings:
            yield Fact(name, str(settings[key]))
    if usage := summary.get("usage"):
        tokens = f"{usage['prompt_tokens']:,} of prompts, {usage['completion_tokens']:,} of answers"
        unknown = usage["answers_not_counted"]
        yield Fact("tokens", f"{tokens}, {unknown:,} answers not counted" if unknown else tokens)
    timeout = settings.get("timeout_seconds")
    yield Fact("timeout", "the suite's own" if timeout is None else f"{timeout:g} CPU s")
    if isolation := summary.get("isolation"):
        yield Fact("isolation", f"level {isolation['level']}")
    yield Fact("time", duration(summary.get("seconds", {}).get("wall", 0.0)))


def _tables(summary: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    """(title, table) of rates, counts and tags."""
    answers = summary.get("answers", 0)
    if rates := summary.get("rates"):
        rows = tuple((words(name), percent_of(rate)) for name, rate in rates.items())
        yield "Rates", Table("", ("Share of answers", ""), rows)
    for title, column, key in (
        ("What became of the answers", "Status", "statuses"),
        ("Errors of failing answers", "Error", "errors"),
        ("Answers without a program", "Reason", "extraction_failures"),
    ):
        if counts := summary.get(key):
            counted = tuple(
                (words(name) if key == "statuses" else name, str(count), share(count, answers))
                for name, count in islice(counts.items(), _MAX_ROWS)
            )
            yield title, Table("", (column, "Answers", "Share"), counted)
    if tags := summary.get("tags"):
        shown = islice(tags.items(), _MAX_ROWS)
        tagged = tuple((tag, str(row["problems"]), percent_of(row["pass@1"])) for tag, row in shown)
        caption = f"The first {_MAX_ROWS} of {len(tags)} tags." if len(tags) > _MAX_ROWS else ""
        yield "By tag", Table("", ("Tag", "Problems", "pass@1"), tagged, caption)


def _settings(summary: Mapping[str, Any]) -> Iterator[Table]:
    """The settings, and the versions and the machine of the newest session."""
    rows = [(words(name), setting_text(value)) for name, value in summary.get("settings", {}).items()]
    if model := summary.get("model"):
        rows.append(("weights' step", setting_text(model["step"])))
        rows += [("server", setting_text(model["server"]))] if "server" in model else []
    sessions = summary.get("sessions") or ()
    if len(sessions) > 1:
        rows.append(("sessions", str(len(sessions))))
    if rows:
        yield Table("", ("", ""), tuple(rows))
    if sessions:
        yield session_table(sessions[-1])


def _failed(path: Path, *, transcripts: bool) -> Iterator[AnsweredTask]:
    """The failing answers in their order, one for each problem; of agents, their transcripts."""
    rows = {
        (row["task_id"], row["sample"]): row
        for row in JsonRows(path / RESULTS, lenient=True)
        if row.get("status") not in ("passed", "infrastructure", None) and {"task_id", "sample"} <= row.keys()
    }
    prompts = {
        row.get("task_id"): row.get("prompt", "") for row in JsonRows(path / PROMPTS, lenient=True) if rows
    }
    shown = set()
    for sample in JsonRows(path / SAMPLES, lenient=True) if rows else ():
        row = rows.get((sample.get("task_id"), sample.get("sample")))
        if row is None or row["task_id"] in shown:
            continue
        shown.add(row["task_id"])
        failure = row.get("first_failure") or row.get("extraction_failure") or row.get("error_message")
        code = (None if transcripts else sample.get("solution")) or sample.get("completion")
        answer = shown_answer(row["status"], code, failure, remark=f"answer {row['sample']}")
        yield AnsweredTask(str(row["task_id"]), bounded(prompts.get(row["task_id"], "")), (answer,))
