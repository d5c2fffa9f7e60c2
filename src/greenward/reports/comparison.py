"""Reports several evaluations side by side: scores, paired comparisons, and the answers that flipped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from greenward.common.errors import RunError
from greenward.common.files import expects
from greenward.reports.document import (
    NOTHING,
    AnsweredTask,
    Answers,
    Block,
    Paragraph,
    Report,
    ShownAnswer,
    Table,
    bounded,
    metric_label,
    metric_order,
    percent_of,
    points,
    section,
    shown_answer,
)
from greenward.reports.evaluation import PROMPTS, RESULTS, SAMPLES, comparison_warnings
from greenward.reports.training import short_names
from greenward.runs.files import JsonRows
from greenward.runs.reading import is_evaluation, read_summary

if TYPE_CHECKING:
    from greenward.evaluation.compare import PairedComparison

_SHOWN_FLIPS = 10  # of each kind of a comparison


def are_evaluations(paths: Sequence[Path]) -> bool:
    """Whether several paths are folders of evaluations. Raises `RunError` where only some are."""
    found = [path for path in paths if is_evaluation(path)]
    if found and len(found) < len(paths):
        other = next(path for path in paths if path not in found)
        raise RunError(
            f"{found[0]} is an evaluation, and {other} is none that is finished.",
            remedy="Give evaluations, or runs. `greenward compare` takes one of each.",
        )
    return len(found) > 1


@expects("the files of evaluations", RunError)
def comparison_report(paths: Sequence[Path], found: Sequence[PairedComparison]) -> Report:
    """The report of the evaluations at `paths`; `found` compares the first with each of the others."""
    names = short_names(paths)
    summaries = [read_summary(path) or {} for path in paths]
    suites = dict.fromkeys(str(one.get("suite", "?")) for one in summaries)
    pairs = list(zip(names[1:], paths[1:], found, strict=True))
    notes = [(f"{name}: " if len(pairs) > 1 else "", pair) for name, _, pair in pairs]
    sides = f"A is {names[0]}, B {names[1]}." if len(pairs) == 1 else f"A is {names[0]}."
    flips = []
    for name, path, pair in pairs:
        for ids, winner, loser in (
            (pair.won, (name, path), (names[0], paths[0])),
            (pair.lost, (names[0], paths[0]), (name, path)),
        ):
            title = f"Solved by {winner[0]}, not by {loser[0]}"
            flips.append(section(title, *_flips(ids, loser, winner) if ids else (), level="detail"))
    return Report(
        kind="evaluations compared",
        title=f"{', '.join(names)} on {', '.join(suites)}",
        headline=" ".join((sides, *(f"{prefix}{pair.claim}." for prefix, pair in notes))),
        notes=tuple(f"{prefix}{text}" for prefix, pair in notes for text in comparison_warnings(pair)),
        sections=(
            section("Scores", _scores(names, summaries)),
            section("Paired comparison with the first", _comparisons(names[1:], found)),
            *flips,
        ),
        footer="Written by greenward from the files of the evaluations. Intervals are 95 %.",
        data={"comparisons": [one.to_json() for one in found]},
    )


def _scores(names: Sequence[str], summaries: Sequence[Mapping[str, Any]]) -> Table:
    metrics = sorted({name for one in summaries for name in one.get("metrics", {})}, key=metric_order)
    rows = tuple(
        (
            name,
            *(percent_of(one.get("metrics", {}).get(metric)) for metric in metrics),
            str(one.get("answered", NOTHING)),
            str(one.get("answers", NOTHING)),
        )
        for name, one in zip(names, summaries, strict=True)
    )
    columns = ("Evaluation", *map(metric_label, metrics), "Problems", "Answers")
    return Table("", columns, rows, "Each on all problems that it answered; 95 % intervals over problems.")


def _comparisons(names: Sequence[str], found: Sequence[PairedComparison]) -> Table:
    rows = tuple(
        (
            name,
            points(one.difference),
            f"{one.p_value:.2g}",
            f"{len(one.won)} / {len(one.lost)}",
            NOTHING if one.detectable is None else f"{100 * one.detectable:.1f}",
            str(one.problems),
        )
        for name, one in zip(names, found, strict=True)
    )
    k, tests = found[0].k, ", ".join(dict.fromkeys(one.test for one in found))
    columns = ("Evaluation", "Difference (points)", "p", "Won / lost", "Detectable", "Problems")
    caption = (
        f"pass@{k} on the problems that both answered; p by {tests}. Detectable is the smallest difference, "
        "in points, that these problems show with power 80 % at alpha 5 %."
    )
    if len(found) > 1:
        caption += (
            f" These are {len(found)} tests: by chance the smallest p is below 5 % more often than that."
        )
    return Table("", columns, rows, caption)


def _flips(ids: Sequence[str], loser: tuple[str, Path], winner: tuple[str, Path]) -> Iterator[Block]:
    """The first of the problems that one side alone solved, with an answer of each side."""
    shown = ids[:_SHOWN_FLIPS]
    if len(ids) > len(shown):
        yield Paragraph(f"The first {len(shown)} of {len(ids)} problems.", quiet=True)
    failed = _answers(loser[1], shown, passed=False, title=loser[0])
    right = _answers(winner[1], shown, passed=True, title=winner[0])
    prompts = {
        row.get("task_id"): row.get("prompt", "") for row in JsonRows(winner[1] / PROMPTS, lenient=True)
    }
    yield Answers(
        tuple(
            AnsweredTask(
                one,
                bounded(prompts.get(one, "")),
                tuple(side[one] for side in (failed, right) if one in side),
            )
            for one in shown
        )
    )


def _answers(path: Path, ids: Sequence[str], *, passed: bool, title: str) -> dict[str, ShownAnswer]:
    """For each task the first answer that passed, or the first that did not."""
    wanted: dict[Any, Mapping[str, Any]] = {}
    for row in JsonRows(path / RESULTS, lenient=True):
        if row.get("task_id") in ids and (row.get("success") is True) is passed:
            wanted.setdefault(row["task_id"], row)
    found: dict[str, ShownAnswer] = {}
    for sample in JsonRows(path / SAMPLES, lenient=True):
        task_id = sample.get("task_id")
        chosen = wanted.get(task_id) if isinstance(task_id, str) else None
        if chosen is None or sample.get("sample") != chosen.get("sample"):
            continue
        code = sample.get("solution") or sample.get("completion")
        reasons = (chosen.get(key) for key in ("first_failure", "extraction_failure", "error_message"))
        remark = f"answer {chosen.get('sample')}"
        failure = next(filter(None, reasons), "")
        found[str(task_id)] = shown_answer(chosen.get("status"), code, failure, title, remark)
    return found
