"""Reports one evaluation from the files of its folder. What cannot be read is left out, as for runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from greenward.common.errors import RunError
from greenward.common.files import expects
from greenward.common.terminal import echo
from greenward.common.text import visible
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
from greenward.runs.reading import RESULTS, SUMMARY, stored_as
from greenward.tasks import summary_tables

if TYPE_CHECKING:
    from greenward.evaluation.audit_report import AuditReport
    from greenward.evaluation.compare import PairedComparison

SAMPLES, PROMPTS = "samples.jsonl", "prompts.jsonl"
_SHOWN_ANSWERS = 5
_MAX_ROWS = 40  # of a table


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
    rows = JsonRows(path / RESULTS, lenient=True)
    if (first := next(iter(rows), None)) is not None and is_game(first):
        games = list(filter(is_game, rows))
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
    return summary_report(summary, _failed(path, transcripts=by_agents))


def summary_report(summary: Mapping[str, Any], failing: Iterable[AnsweredTask] = ()) -> Report:
    """The report of the evaluation of which this is the summary, with some failing answers."""
    model, suite, failed = summary.get("model") or {}, str(summary.get("suite", "?")), tuple(failing)
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
    named = (
        ("temperature", "temperature"),
        ("prompt", "prompt"),
        ("style", "style"),
        ("few-shot", "fewshot"),
        ("computed in", "dtype"),
    )
    for name, key in named:
        if key in settings:
            yield Fact(name, "the server's own" if settings[key] is None else str(settings[key]))
    if stored := stored_as(summary.get("model") or {}):
        yield Fact("weights", stored)
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
        ("How programs were found in answers", "Program", "extraction"),
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
        rows += [("quantisation", stored)] if (stored := stored_as(model)) else []
        rows += [("server", setting_text(model["server"]))] if "server" in model else []
    sessions = summary.get("sessions") or ()
    if len(sessions) > 1:
        rows.append(("sessions", str(len(sessions))))
    if rows:
        yield Table("", ("", ""), tuple(rows))
    if sessions:
        yield session_table(sessions[-1])


def _failed(path: Path, *, transcripts: bool) -> Iterator[AnsweredTask]:
    """Failing answers in their order, one for each of the first problems; of agents, their transcripts."""
    failed: defaultdict[Any, set[Any]] = defaultdict(set)  # there may be a million answers
    for row in filter(_has_failed, JsonRows(path / RESULTS, lenient=True)):
        failed[row["task_id"]].add(row["sample"])
    shown: dict[Any, dict[str, Any]] = {}
    for sample in JsonRows(path / SAMPLES, lenient=True) if failed else ():
        if len(shown) == _SHOWN_ANSWERS:
            break
        task_id = sample.get("task_id")
        if task_id in failed and task_id not in shown and sample.get("sample") in failed[task_id]:
            shown[task_id] = sample
    prompts = {
        task_id: row.get("prompt", "")
        for row in (JsonRows(path / PROMPTS, lenient=True) if shown else ())
        if (task_id := row.get("task_id")) in shown
    }
    rows: dict[Any, dict[str, Any]] = {}
    for row in filter(_has_failed, JsonRows(path / RESULTS, lenient=True)):
        if len(rows) == len(shown):
            break
        task_id = row["task_id"]
        if task_id in shown and row["sample"] == shown[task_id]["sample"]:
            rows[task_id] = row
    for task_id, sample in shown.items():
        if task_id not in rows:  # the file was written anew meanwhile
            continue
        row = rows[task_id]
        failure = row.get("first_failure") or row.get("extraction_failure") or row.get("error_message")
        code = (None if transcripts else sample.get("solution")) or sample.get("completion")
        answer = shown_answer(row["status"], code, failure, remark=f"answer {row['sample']}")
        yield AnsweredTask(str(task_id), bounded(prompts.get(task_id, "")), (answer,))


def _has_failed(row: Mapping[str, Any]) -> bool:
    """Whether a row of results.jsonl names an answer that was judged and did not pass."""
    return row.get("status") not in ("passed", "infrastructure", None) and {"task_id", "sample"} <= row.keys()


_SHOWN_IDS = 40  # of each kind; JSON has all
_COLOURS = {"accepted": "red", "poisoned": "red", "killed": "yellow", "hung": "yellow", "raised": "yellow"}


def comparison_warnings(found: PairedComparison) -> list[str]:
    """What makes a comparison unfair, a sentence each."""

    def some(ids: Sequence[str]) -> str:
        return " ".join(ids[:3]) + (" …" if len(ids) > 3 else "")

    warnings = found.differences
    if unpaired := (*found.unpaired_a, *found.unpaired_b):
        warnings.append(
            f"THE PROBLEMS DIFFER: {found.problems} are compared; {len(found.unpaired_a)} are only in A and "
            f"{len(found.unpaired_b)} only in B ({some(unpaired)})"
        )
    if found.too_few:
        left_out = f"fewer than {found.k} answers on a side ({some(found.too_few)})"
        warnings.append(f"{len(found.too_few)} problems left out: {left_out}")
    if found.infrastructure:
        warnings.append(
            f"{found.infrastructure} answers were lost to the infrastructure and count as not passed"
        )
    return warnings


def print_comparison(found: PairedComparison) -> None:
    """Prints what makes the comparison unfair, the claim, both rates, and the problems won and lost."""
    for warning in comparison_warnings(found):
        click.secho(visible(f"! {warning}"), fg="yellow")
    click.secho(visible(found.claim), bold=True)
    for side, name, rate in (("A", found.name_a, found.a), ("B", found.name_b, found.b)):
        interval = f"[{rate.low:.1%}, {rate.high:.1%}]"
        echo(f"  {side}           pass@{found.k} {rate.value:6.1%} {interval:16} {name}")
    points = found.difference
    interval = f"[{100 * points.low:+.1f}, {100 * points.high:+.1f}]"
    echo(f"  difference  {100 * points.value:+.1f} points, 95 % interval {interval}")
    if found.mid_p is not None:
        echo(f"  mid-p       {found.mid_p:.2g}")
    power = "(power 80 %, alpha 5 %)"
    if found.detectable is None:
        echo(f"  {found.problems} problems are too few to show any difference {power}")
    else:
        least = f"the smallest difference that these {found.problems} problems can show {power}"
        echo(f"  {least}: {100 * found.detectable:.1f} points")
    for label, ids in (("won by B", found.won), ("lost by B", found.lost)):
        more = f" … and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
        echo(f"  {label:11} {len(ids)}  {' '.join(ids[:_SHOWN_IDS])}{more}".rstrip())


def print_audit(report: AuditReport, *, show_all: bool = False) -> None:
    """Prints what kind of grader a reward is in the first line, then one example of each weakness, or all."""
    kinds = ", ".join(finding.kind.value for finding in report.findings)
    unfit = [trial for trial in report.false_refusals if trial.detail and not report.told_apart]
    if report.says_nothing:
        click.secho("It never told right from wrong: is the data of the shape it expects?", bold=True)
        echo("--signature, --ground-truth, --data-source and --column change the data (docs/audit.md).")
        given = ", ".join(sorted({str(trial.score) for trial in report.honest})[:5])
        echo(f"It gave {given} to {len(report.honest)} right answers, and no more to wrong ones.")
    else:
        verdict = "Sound" if report.sound else "NOT SOUND"
        counts = f"accepted {len(report.accepted)} of {len(report.cheats)} wrong or cheating answers"
        if report.broken_by:
            counts += f", was broken by {len(report.broken_by)}"
        counts += f", refused {len(report.false_refusals)} of {len(report.honest)} right ones"
        if report.pairs:
            counts += f", {len(report.pairs)} pairs in the wrong order"
        click.secho(visible(f"{verdict}{kinds and f', {kinds}'}: {counts}."), bold=True)
    echo(f"{report.function}: {report.signature} signature, {report.presentation}")
    if report.left_out:
        echo(f"Left out: tasks of {report.left_out}, where no right answer scored above a wrong one.")
    if not (report.told_apart or report.says_nothing):
        echo("No right answer scored above a wrong one of the same form.")
    if unfit:
        echo(f"  {unfit[0].answer} was refused: {unfit[0].detail}")
    for finding in report.findings:
        of = f" ({finding.count} of {finding.of})" if finding.of > 1 else ""
        echo(f"  {finding.kind.value}{of}: {finding.why}")
        if finding.example:
            echo(f"    {finding.example}")
    if report.spellings:
        usual = [trial for trial in report.spellings if trial.family == "spelling"]
        refused = ", ".join(trial.answer for trial in report.refused_spellings[:4])
        shown = f": {refused} …" if refused else ""
        echo(f"Spellings of right values: {len(report.refused_spellings)} of {len(usual)} refused{shown}")
    if show_all:
        _print_trials(report)
    elif not report.sound:
        echo("--all shows every answer that was judged wrongly, and --json every answer.")


def _print_trials(report: AuditReport) -> None:
    """Prints the answers that a reward judged wrongly, by family with the reason once."""
    for heading, trials in (
        ("Cheating answers accepted", report.accepted),
        ("Answers that killed or hung it, or made it raise", report.broken_by),
        ("Right answers refused", report.false_refusals),
        ("Spellings of right values refused", report.refused_spellings),
    ):
        if trials:
            click.secho(f"\n{heading}: {len(trials)}", bold=True)
        for family in dict.fromkeys(trial.family for trial in trials):
            members = [trial for trial in trials if trial.family == family]
            echo(f"  {family}: {members[0].why}")
            for trial in members:
                outcome = click.style(f"{trial.outcome.value:8}", fg=_COLOURS.get(trial.outcome.value))
                detail = f" ({trial.detail})" if trial.detail else ""
                click.echo(f"    {outcome} {visible(f'{trial.answer}, {trial.task_id}{detail}')}")
    if report.pairs:
        click.secho(f"\nPairs in the wrong order: {len(report.pairs)}", bold=True)
    for pair in report.pairs:
        echo(f"    {pair}")
