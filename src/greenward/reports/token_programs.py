"""Programs written token by token, in a report: what Q-learning solves beside random search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from greenward.errors import RunError
from greenward.intervals import proportion
from greenward.reports.document import NOTHING, Block, Code, Link, Links, Section, Table, section
from greenward.reports.figures import bounded, duration, percent, percent_of
from greenward.reports.study import Study
from greenward.runs.files import read_json
from greenward.runs.reading import RecordedRun

RANDOM_SEARCH, REPLAY = "random_search.json", "replay.html"
UNSEEN = "unseen_problems"
"""The name of the evaluation on problems that are not trained on; that on the trained ones has none."""


def program_sections(study: Study) -> tuple[Section, ...]:
    """What each run of `kind: dqn` reached, and random search by the same mask and prior; else nothing."""
    runs = [run for run in study.main_runs if run.config.get("kind") == "dqn"]
    return (section("Beside random search", *(block for run in runs for block in _blocks(run))),)


def _blocks(run: RecordedRun) -> Iterator[Block]:
    evaluation = next(reversed(run.evaluations), None)
    greedy = {row["task_id"]: row for row in (evaluation or {}).get("greedy_rows", ())}
    search = None
    with suppress(RunError):
        search = read_json(run.path / RANDOM_SEARCH)
    if not greedy:
        return
    solved = sum(row["status"] == "passed" for row in greedy.values())
    seconds = sum(float(row.get("time/step", 0.0)) for row in run.metrics)
    episodes = max((int(row["episodes"]) for row in run.metrics if "episodes" in row), default=0)
    name = f"Q-learning, greedy, after {episodes:,} episodes in {duration(seconds)}"
    rows = [_row(name, solved, len(greedy))]
    if search:
        for label, key in (("as many episodes", "at_episodes"), ("as much time", "at_seconds")):
            rows.append(_row(f"Random search, {label}", int(search[key]["solved"]), len(greedy)))
    for evaluation in run.suites.get(UNSEEN, ())[-1:]:
        unseen = evaluation["greedy_rows"]
        right = sum(row["status"] == "passed" for row in unseen)
        rows.append(_row("Q-learning, greedy, problems never trained on", right, len(unseen)))
    caption = (
        "The problems are those trained on, judged by tests that training never sees. Wilson's 95 % "
        "intervals over problems."
    )
    if search:
        chance = percent_of(search["pass_rate"])
        caption += (
            f" Random search drew {search['episodes']:,} programs by the same mask and token prior; {chance} "
            "of them passed. It keeps programs that pass, and has no policy: Q-learning must write its one "
            "program at once."
        )
    yield Table(f"{run.path.name}: problems solved", ("", "Solved", "Share"), tuple(rows), caption)
    yield Table(
        f"{run.path.name}: each problem",
        ("Problem", "Greedy program", "Random search found one after"),
        tuple((task, _words(row["status"]), _first(search, task)) for task, row in greedy.items()),
    )
    for task, row in greedy.items():
        title = f"{task}, greedy: {_words(row['status'])}"
        yield Code(bounded(row.get("code", "")), "python", title, folded=True)
    if (run.path / REPLAY).is_file():
        yield Links((Link("Replay of greedy episodes", REPLAY),))


def _row(label: str, solved: int, number: int) -> tuple[str, ...]:
    return label, f"{solved} of {number}", percent(proportion(solved, number))


def _first(search: Mapping[str, Any] | None, task: str) -> str:
    found = (search or {}).get("found", {}).get(task)
    if found is None:
        return NOTHING
    return f"{found['episodes']:,} episodes" + ("" if found["hidden"] else ", wrong on hidden tests")


def _words(status: str) -> str:
    return "solved" if status == "passed" else str(status).replace("_", " ")
