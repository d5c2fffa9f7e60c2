"""Says what a training taught: how much of a gain is form, how much content, and which problems are new.

An answer has its form if there is a program in it that can be run: one was found, it is whole, it parses, it
has the name that was asked for, and it imports what it uses. Everything else that can go wrong is content. If
a share f of the answers has its form and a share c of these passes, pass@1 is f·c. Its gain is split as
(f' - f)(c + c')/2 for the form and (c' - c)(f + f')/2 for the content, which add up to it. An answer that
has its form only now is so counted as passing as often as others that have it: a problem on which the form
is lost more often may be harder or easier than the rest.

A problem that was never solved before may have been unlucky. If training had changed nothing, all answers to
a problem, before and after, could have been drawn in any order: among n and m answers of which s pass, none
of the n passes with the chance C(m, s) / C(n + m, s). Its sum over problems is what chance alone gives.
"""

from __future__ import annotations

import collections
import functools
import heapq
import itertools
import math
import re
import sys
import typing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from greenward.common import statistics
from greenward.common.statistics import Estimate
from greenward.reports.document import (
    PRIMARY,
    Block,
    Chart,
    Charts,
    Paragraph,
    Series,
    Table,
    percent,
    points,
    share,
    words,
)
from greenward.reports.pooled import Evaluation, Evaluations, paired_difference
from greenward.reports.runs import Runs

TORN, NO_PROGRAM, SYNTAX, WRONG_NAME, IMPORT, EDITS = (
    "cut off at the limit of tokens",
    "no program found in the answer",
    "syntax error",
    "another name than asked for",
    "import missing or failing",
    "edits that cannot be applied",
)
FORM = (TORN, NO_PROGRAM, SYNTAX, WRONG_NAME, IMPORT, EDITS)
VALUE, EXCEPTION, LOST = "wrong value", "exception", "lost to the infrastructure"
_VALUES = ("failed", "wrong_type")
_NO_FORM = ("no_code", "no_label", "syntax_error")
_MOST_POINTS = 64  # of a curve
_RESAMPLES, _SEED = 2000, 0
_NAME = re.compile(r"name '(\w+)' is not defined")
_IMPORTED = {
    *sys.stdlib_module_names, *typing.__all__, *collections.__all__, *functools.__all__, *heapq.__all__,
    *(name for name in (*vars(itertools), *vars(math)) if not name.startswith("_") and len(name) > 2),
}  # fmt: skip


def failure_kind(answer: Mapping[str, Any]) -> str | None:
    """What is wrong with an answer of `by_problem`, one of `FORM` or another kind; None if it passed."""
    status, message = str(answer.get("status")), str(answer.get("error_message") or "")
    if status == "passed":
        return None
    if answer.get("truncated") and (status in _NO_FORM or status.startswith("edit_")):
        return TORN
    if status.startswith("edit_"):
        return EDITS
    if status in ("no_code", "no_label"):
        is_missing = answer.get("extraction_failure") or status == "no_label" or not answer.get("code")
        return NO_PROGRAM if is_missing else WRONG_NAME
    if status == "syntax_error":
        return SYNTAX
    if answer.get("error_class") in ("ImportError", "ModuleNotFoundError"):
        return IMPORT
    if answer.get("error_class") == "NameError" and (found := _NAME.search(message)):
        return IMPORT if found[1] in _IMPORTED else EXCEPTION
    kinds = {**dict.fromkeys(_VALUES, VALUE), "error": EXCEPTION, "infrastructure": LOST}
    return kinds.get(status, words(status))


@dataclass(frozen=True)
class Gain:
    """The gain of pass@1 and its parts, with 95 % intervals (resampled over problems).

    `formed` and `passing` are the shares of answers that have their form and of these that pass, before and
    after.
    """

    whole: Estimate
    form: Estimate
    content: Estimate
    formed: tuple[float, float]
    passing: tuple[float, float]


@dataclass(frozen=True)
class Solved:
    """Problems (of each seed) that no answer solved on one side, and how many one solved on the other.

    `samples` are the answers to a problem before and after; `by_chance` are the `newly` solved ones that
    chance alone gives.
    """

    samples: tuple[int, int]
    never_before: int
    newly: int
    before: int
    no_longer: int
    by_chance: float


@dataclass(frozen=True)
class Learned:
    """What a training taught, of the first and the newest evaluation on the held-out problems.

    `kinds` counts the failing answers before and after by kind; it and `gain` are None where the files hold
    less of the answers. `curve` has pass@k before and after for each k. `lead` is pass@1 after minus pass@k
    before at the largest k, paired by problem.
    """

    answers: tuple[int, int]
    kinds: Mapping[str, tuple[int, int]] | None
    gain: Gain | None
    solved: Solved
    curve: Mapping[int, tuple[Estimate, Estimate]]
    lead: Estimate | None


def learned(before: Evaluations, after: Evaluations) -> Learned | None:
    """What the evaluations of the seeds say; None without two of a seed that asked the same problems."""
    pairs = [
        (one, other)
        for first, second in zip(before, after, strict=True)
        if first and second
        for one, other in _same_problems(first, second)
    ]
    if not pairs:
        return None
    answered = all(_has_answers(row) for pair in pairs for row in pair)
    kinds = [[_kinds(row) for row in pair] for pair in pairs] if answered else None
    sides = [Counter[str](), Counter[str]()]
    for pair in kinds or ():
        for side, counted in zip(sides, pair, strict=True):
            side.update(counted)
    names = sorted(
        sides[0] | sides[1], key=lambda name: (name not in FORM, -max(s[name] for s in sides), name)
    )
    by_seed = list(zip(before, after, strict=True))
    curve = _curve([(a, b) for a, b in by_seed if a and b])
    return Learned(
        answers=(sum(one["samples"] for one, _ in pairs), sum(other["samples"] for _, other in pairs)),
        kinds={name: (sides[0][name], sides[1][name]) for name in names} if kinds else None,
        gain=_gain(pairs, kinds) if kinds else None,
        solved=_solved(pairs),
        curve=curve,
        lead=paired_difference(
            [a for a, _ in by_seed], [b for _, b in by_seed], f"pass@{max(curve)}", PRIMARY
        ),
    )


def blocks(runs: Runs) -> Iterator[Block]:
    """What a report says of it; nothing without an evaluation before and after."""
    found = learned(runs.main.at(0), runs.main.ends)
    if found is None:
        return
    yield from map(Paragraph, _sentences(found))
    if found.kinds:
        rows = [
            (f"{'form' if name in FORM else 'content'}: {name}", *map(_counted, counts, found.answers))
            for name, counts in found.kinds.items()
        ]
        passed = tuple(
            whole - sum(counts[side] for counts in found.kinds.values())
            for side, whole in enumerate(found.answers)
        )
        rows.append(("passed", *map(_counted, passed, found.answers)))
        yield Table("What was wrong with the answers", ("Kind", "Before", "After"), tuple(rows))
    if len(found.curve) > 1:
        yield Charts((_chart(found),))


def data(runs: Runs) -> dict[str, Any] | None:
    """The same for JSON."""
    found = learned(runs.main.at(0), runs.main.ends)
    return None if found is None else asdict(found)


def _sentences(found: Learned) -> Iterator[str]:
    if gain := found.gain:
        # The interval of the whole gain, paired by problem, is in the table of results.
        whole = f"{100 * gain.whole.value:+.1f}".replace("-", "−")
        yield (
            f"Of the gain of pass@1, {whole} points, {points(gain.form)} are form and "
            f"{points(gain.content)} content: {gain.formed[0]:.1%} of the answers had their form before "
            f"(a program that can be run) and {gain.formed[1]:.1%} have it now, and of these "
            f"{gain.passing[0]:.1%} passed and {gain.passing[1]:.1%} pass."
        )
    k = max(found.curve)
    if found.lead is not None and k > 1:
        relation = {1: "above", -1: "below", 0: "not distinguishable from"}[found.lead.sign]
        first, last = found.curve[1][1], found.curve[k][0]
        yield (
            f"pass@1 after, {percent(first)}, is {relation} pass@{k} before, {percent(last)} "
            f"({points(found.lead)} points)."
        )
    solved = found.solved
    each = (
        f"{solved.samples[0]} answers"
        if solved.samples[0] == solved.samples[1]
        else f"{solved.samples[0]} answers before and {solved.samples[1]} after"
    )
    yield (
        f"{solved.newly} of {solved.never_before} problems that no answer solved before are solved by one at "
        f"least after; chance alone would give {solved.by_chance:.1f}, if training had changed nothing. "
        f"{solved.no_longer} of the {solved.before} that were solved before are solved by none after ({each} "
        "to each problem)."
    )


def _counted(count: int, whole: int) -> str:
    return f"{count:,} ({share(count, whole)})"


def _chart(found: Learned) -> Chart:
    def line(side: int) -> Series:
        estimates = [(float(k), pair[side]) for k, pair in found.curve.items()]
        return Series(
            ("before", "after")[side],
            ("control", "main")[side],
            tuple((k, one.value) for k, one in estimates),
            band=tuple((k, one.low, one.high) for k, one in estimates),
            hints=tuple(f"{('before', 'after')[side]}, k = {k:.0f}: {percent(one)}" for k, one in estimates),
        )

    caption = "One of k answers passes. Bands are 95 % intervals over problems."
    return Chart("pass@k before and after", "k", (line(0), line(1)), "share", caption)


def _same_problems(
    first: Evaluation, second: Evaluation
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    later = {row["task_id"]: row for row in second.get("rows", ())}
    for row in first.get("rows", ()):
        other = later.get(row["task_id"])
        if other is not None and row["samples"] and other["samples"]:
            yield row, other


def _has_answers(row: Mapping[str, Any]) -> bool:
    """Whether each answer to a problem has a status, which says as often as counted that it passed."""
    answers = row.get("answers")
    if not isinstance(answers, list) or len(answers) != row["samples"]:
        return False
    has_status = all(isinstance(one, Mapping) and "status" in one for one in answers)
    return has_status and sum(one["status"] == "passed" for one in answers) == row["passed"]


def _kinds(row: Mapping[str, Any]) -> Counter[str]:
    return Counter(kind for one in row["answers"] if (kind := failure_kind(one)) is not None)


def _gain(
    pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], kinds: Sequence[Sequence[Counter[str]]]
) -> Gain:
    """The gain and its parts; intervals by resampling problems."""
    counts_P23 = np.array(
        [
            [
                (row["samples"], row["samples"] - sum(counted[name] for name in FORM), row["passed"])
                for row, counted in zip(pair, sides, strict=True)
            ]
            for pair, sides in zip(pairs, kinds, strict=True)
        ],
        dtype=float,
    )
    drawn_RP = np.random.default_rng(_SEED).multinomial(
        len(pairs), np.full(len(pairs), 1 / len(pairs)), size=_RESAMPLES
    )
    formed, passing, parts = _parts(counts_P23.sum(0))
    resampled_3R = _parts(np.einsum("rp,pij->ijr", drawn_RP, counts_P23))[2]
    bounds = np.quantile(resampled_3R, (0.025, 0.975), axis=1)
    whole, form, content = (
        Estimate(float(value), float(low), float(high))
        for value, low, high in zip(parts, *bounds, strict=True)
    )
    before, after = ((float(one[0]), float(one[1])) for one in (formed, passing))
    return Gain(whole, form, content, before, after)


def _parts(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of counts (2 sides, 3 for answers, formed, passed, …): f, c, and the whole gain with its two parts."""
    answers, formed, passed = counts[:, 0], counts[:, 1], counts[:, 2]
    f, c = formed / answers, passed / np.maximum(formed, 1)
    form, content = (f[1] - f[0]) * (c[0] + c[1]) / 2, (c[1] - c[0]) * (f[0] + f[1]) / 2
    return f, c, np.array([form + content, form, content])


def _solved(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Solved:
    never = [(one, other) for one, other in pairs if not one["passed"]]
    newly = sum(other["passed"] > 0 for _, other in never)
    lost = sum(one["passed"] > 0 and not other["passed"] for one, other in pairs)
    by_chance = sum(_chance_of_none(one, other) for one, other in pairs)
    samples = (max(one["samples"] for one, _ in pairs), max(other["samples"] for _, other in pairs))
    return Solved(samples, len(never), newly, len(pairs) - len(never), lost, by_chance)


def _chance_of_none(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """The chance that none of the answers that pass is one of those before; 0 if none passes at all."""
    n, m, passed = before["samples"], after["samples"], before["passed"] + after["passed"]
    if not 0 < passed <= m:
        return 0.0
    return math.exp(sum(math.log((m - i) / (n + m - i)) for i in range(passed)))


def _curve(pairs: Sequence[tuple[Evaluation, Evaluation]]) -> dict[int, tuple[Estimate, Estimate]]:
    """pass@k before and after over the problems of both, the mean of the seeds and of their bounds."""
    rows = [list(_same_problems(*pair)) for pair in pairs]
    most = min(row["samples"] for seed in rows for pair in seed for row in pair)
    ks = (
        {round(k) for k in np.geomspace(1, most, _MOST_POINTS)} if most > _MOST_POINTS else range(1, most + 1)
    )
    return {k: (_pass_at(rows, 0, k), _pass_at(rows, 1, k)) for k in sorted(ks)}


def _pass_at(
    seeds: Sequence[Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]], side: int, k: int
) -> Estimate:
    found = [
        statistics.rate(
            np.array([statistics.pass_at_k(pair[side]["samples"], pair[side]["passed"], k) for pair in rows])
        )
        for rows in seeds
    ]
    return Estimate(*(fmean(getattr(one, bound) for one in found) for bound in ("value", "low", "high")))
