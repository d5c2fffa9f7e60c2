"""What is seen side by side: runs, the answers of a group, a problem over time, an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from greenward.common.errors import GreenwardError, RunError
from greenward.common.text import visible
from greenward.runs.answers import numbers_in
from greenward.runs.files import to_json
from greenward.runs.reading import (
    WITHOUT_EFFECT,
    by_problem,
    counts_answers,
    evaluation_files,
    flattened,
    read_sessions,
)
from greenward.ui.catalog import Place
from greenward.ui.data import (
    MAX_TEXT,
    Pages,
    are_judged,
    evaluation_record,
    highlighted,
    history,
    listed,
    shown_number,
)

MAX_RUNS = 20
MAX_GROUP = 16
MAX_CLUSTERS = 30
MAX_FLIPS = 200
_OF_THE_MACHINE = ("python", "system", "device", "cpu_count", "git.commit", "git.modified")
_KEPT_ANSWERS = 8


def compared(pages: Pages, places: Sequence[Place], missing: Sequence[str] = ()) -> dict[str, Any]:
    """What differs between runs: settings, code and machine, and the results on the same problems.

    Each run is compared with the first one, in pairs by problem. `missing` are identifiers of none.
    """
    configs = [dict(flattened(pages.catalog.config(one))) for one in places]
    sessions = [_session(one) for one in places]
    first, *others = places
    keys, share = _common_keys(pages, places)
    return {
        "runs": [pages.catalog.card(one) for one in places],
        "settings": [row for row in _differing(configs) if row[0] not in WITHOUT_EFFECT],
        "surroundings": _differing(sessions),
        "pairs": [_pair(first, one) for one in others],
        "keys": keys,
        "share": share,
        "missing": list(missing),
    }


def _session(place: Place) -> dict[str, Any]:
    """The newest session's versions and machine by dotted keys."""
    try:
        newest = dict(flattened((read_sessions(place.path) or [{}])[-1]))
    except GreenwardError:
        return {}
    return {key: newest[key] for key in newest if key in _OF_THE_MACHINE or key.startswith("packages.")}


def _differing(records: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """[key, value of each record, in text] where they are not all equal; None where one lacks the key."""
    keys = dict.fromkeys(key for record in records for key in record)
    found = []
    for key in keys:
        values = [None if key not in one else visible(str(one[key]), 300) for one in records]
        if len(set(values)) > 1:
            found.append([visible(key, 200), *values])
    return found


def _pair(a: Place, b: Place) -> dict[str, Any]:
    from greenward.evaluation.compare import compare, read_evaluation  # a tenth of the time to start

    try:
        found = compare(read_evaluation(a.path), read_evaluation(b.path))
    except (GreenwardError, OSError) as error:
        return {"a": a.id, "b": b.id, "reason": str(error).partition("\n")[0]}
    return {
        "a": a.id,
        "b": b.id,
        "claim": found.claim,
        "significant": found.significant,
        "problems": found.problems,
        "rates": [to_json(vars(found.a)), to_json(vars(found.b))],
        "difference": to_json(vars(found.difference)),
        "p_value": found.p_value,
        "test": found.test,
        "detectable": found.detectable,
        "won": [visible(one, 300) for one in found.won[:MAX_FLIPS]],
        "lost": [visible(one, 300) for one in found.lost[:MAX_FLIPS]],
        "flips": [len(found.won), len(found.lost)],
        "unpaired": [len(found.unpaired_a), len(found.unpaired_b)],
        "remarks": found.differences,
    }


def _common_keys(pages: Pages, places: Sequence[Place]) -> tuple[list[str], float]:
    """The keys of the curves that all runs have; the least share of the curves of one that was read."""
    found: set[str] | None = None
    share = 1.0
    for place in places:
        try:
            metrics = pages.store.metrics(place)
        except (GreenwardError, OSError):
            continue
        found = set(metrics.values) if found is None else found & set(metrics.values)
        share = min(share, metrics.share)
    return sorted(found or ()), share


def evaluated(place: Place, step: int | None, suite: str | None) -> dict[str, Any]:
    """One evaluation by problem: the newest where no step is named. Raises `RunError` where there is none."""
    files = [one for one in evaluation_files(place.path) if one[1] == suite]
    chosen = [one for one in files if step is None or one[0] == step]
    if not chosen:
        raise RunError("There is no such evaluation.")
    at, _, file = chosen[-1]
    before = next((other for other in reversed(files) if other[0] < at), None)
    record = by_problem(evaluation_record(file, place.root))
    earlier = _passed(by_problem(evaluation_record(before[2], place.root))) if before else {}
    problems = []
    for row in record.get("rows") or ():
        if counts_answers(row):
            name = row["task_id"]
            problems.append([visible(name, 300), row["samples"], row["passed"], earlier.get(name)])
    return {
        "step": at,
        "suite": suite,
        "metrics": to_json(record.get("metrics") or {}),
        "rates": to_json(record.get("rates") or {}),
        "problems": problems,
        "before": None if before is None else before[0],
        "steps": [[one, of] for one, of, _ in evaluation_files(place.path)],
    }


def _passed(record: Mapping[str, Any]) -> dict[str, float]:
    rows = [row for row in record.get("rows") or () if counts_answers(row) and row["samples"]]
    return {row["task_id"]: row["passed"] / row["samples"] for row in rows}


def evaluated_answers(
    place: Place, task: str, step: int | None = None, suite: str | None = None
) -> dict[str, Any]:
    """The answers of an evaluation to one problem, the newest evaluation where no step is named."""
    files = [one for one in evaluation_files(place.path) if one[1] == suite and step in (None, one[0])]
    for at, _, file in reversed(files):
        for row in by_problem(evaluation_record(file, place.root)).get("rows") or ():
            if isinstance(row, dict) and row.get("task_id") == task:
                answers = [one for one in row.get("answers") or () if isinstance(one, dict)]
                return {
                    "step": at,
                    "prompt": visible(str(row.get("prompt") or ""), MAX_TEXT),
                    "answers": [_evaluated(one) for one in answers[:_KEPT_ANSWERS]],
                    "count": len(answers),
                }
    return {"step": None, "prompt": "", "answers": [], "count": 0}


def _evaluated(one: Mapping[str, Any]) -> dict[str, Any]:
    failure = one.get("first_failure") or one.get("extraction_failure") or one.get("error_message") or ""
    return {
        "status": visible(str(one.get("status") or "unknown"), 200),
        "code": highlighted(str(one.get("code") or "")),
        "failure": visible(str(failure), 4000),
    }


def group(pages: Pages, place: Place, step: int, name: str) -> dict[str, Any]:
    """The answers that were compared with each other at a step, the best first, with what differs from it."""
    found = pages.answers_with(place, step)
    columns = found.columns
    number = columns.codes["group"].get(name)
    places = np.flatnonzero((columns.steps == step) & (columns.names["group"] == number))
    contents = dict(found.read(places[:64]))
    if number is None or not contents:
        raise RunError("There is no such group, or its answers are still being read.")
    rewards = columns.numbers["reward"][places]
    order = places[np.argsort(-np.nan_to_num(rewards, nan=-np.inf), kind="stable")]
    best = str(contents.get(int(order[0]), {}).get("answer", ""))
    cards = []
    for at in map(int, order[:MAX_GROUP]):
        row = contents.get(at, {})
        answer = str(row.get("answer", ""))
        terms = [[visible(k, 200), shown_number(v)] for k, v in numbers_in(row, "terms").items()]
        card = listed(columns, at, row)
        cards.append(
            {**card, "terms": terms, "code": highlighted(answer), "against": line_changes(best, answer)}
        )
    known = rewards[np.isfinite(rewards)]
    passed = int(columns.numbers["passed"][places].sum())
    return {
        "step": step,
        "group": visible(name, 200),
        "size": len(places),
        "passed": passed,
        "mean": shown_number(known.mean()) if len(known) else None,
        "spread": shown_number(known.std()) if len(known) else None,
        "judged": are_judged(columns),
        "reason": _no_signal(known, passed if are_judged(columns) else None, len(places)),
        "cards": cards,
    }


def _no_signal(rewards: np.ndarray, passed: int | None, size: int) -> str:
    """Why a group taught nothing; empty where its rewards differ. `passed` is None where none was judged."""
    if len(rewards) < 2:
        return "It has fewer than two rewards: there is nothing to compare with."
    if float(rewards.max() - rewards.min()) > 1e-6:
        return ""
    said = "All rewards are equal"
    if passed is not None:
        said = {size: "All answers passed", 0: "No answer passed"}.get(passed, said)
    return f"{said}, so each answer's advantage is 0 and the group taught nothing."


def line_changes(before: str, after: str) -> list[list[str]]:
    """The lines of a comparison, each with " ", "-" or "+"."""
    a, b = visible(before, MAX_TEXT).split("\n"), visible(after, MAX_TEXT).split("\n")
    if len(a) + len(b) > 600:
        return []
    found = []
    for tag, i, j, k, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag == "equal":
            found += [[" ", line] for line in a[i:j]]
        else:
            found += [["-", line] for line in a[i:j]] + [["+", line] for line in b[k:m]]
    return found


def problem(pages: Pages, place: Place, task: str) -> dict[str, Any]:
    """A problem over the run: when it was solved, what was written, and what evaluations say of it."""
    found = pages.store.answers(place)
    columns = found.columns
    number = columns.codes["task"].get(task)
    places = np.flatnonzero(columns.names["task"] == (-1 if number is None else number))
    hashes, firsts, counts = np.unique(columns.same[places], return_index=True, return_counts=True)
    order = sorted(range(len(hashes)), key=lambda one: (-counts[one], firsts[one]))[:MAX_CLUSTERS]
    heads = places[firsts[order]] if len(order) else places[:0]
    contents = dict(found.read(np.sort(heads)))
    clusters = []
    for one, at in zip(order, map(int, heads), strict=True):
        inside = places[columns.same[places] == hashes[one]]
        steps = columns.steps[inside]
        clusters.append(
            {
                **listed(columns, at, contents.get(at, {})),
                "times": int(counts[one]),
                "passed": int(columns.numbers["passed"][inside].sum()),
                "steps": [int(steps.min()), int(steps.max())],
                "same": f"{int(hashes[one]):016x}",
                "code": highlighted(str(contents.get(at, {}).get("answer", ""))),
            }
        )
    evaluations = []
    for step, suite, file in evaluation_files(place.path)[-100:]:
        for row in by_problem(evaluation_record(file, place.root)).get("rows") or ():
            if counts_answers(row) and row["task_id"] == task:
                evaluations.append([step, suite, row["samples"], row["passed"]])
    return {
        "task": visible(task, 300),
        "count": len(places),
        "judged": are_judged(columns),
        "history": history(columns, places),
        "clusters": clusters,
        "different": len(hashes),
        "evaluations": evaluations,
        "share": found.share,
    }
