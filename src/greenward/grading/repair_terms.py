"""Reward terms of repair: the form of an answer, how similar edits are to known ones, what stays intact.

Formulas in docs/rewards.md. Known edits are those from the problem's program to its reference.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from greenward.errors import ProblemError
from greenward.grading.edits.answers import (
    MAX_ANSWER_CHARS,
    PATH,
    editable_files,
    form_of,
    parse_edits,
    written_edits,
)
from greenward.grading.edits.edit import Edit, EditError, apply_edits
from greenward.grading.extraction import without_reasoning
from greenward.grading.grader import Grader
from greenward.grading.rewards import AnswerTerm, GradedAnswer, ShippedTerm
from greenward.grading.sequence_similarity import similarity
from greenward.grading.verdict import EDIT_ERRORS, Family
from greenward.problems.placement import function_in

MAX_COMPARED_EDITS = 30
MAX_COMPARED_LINES = 5_000
MOST_WITHOUT_EFFECT = 0.9  # for known lines at a wrong place
MAX_DIFF_LINES = 5_000
_TAGS = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
_PENALTY_PER_CHAR = 0.001


class PartialFormat(AnswerTerm, name="format_partial"):
    """0.25 for each tag that occurs once, less 0.001 for each character outside of them, at least 0.

    Outside is what stands before `<think>`, between `</think>` and `<answer>`, and after `</answer>`; white
    space behind a tag that closes does not count.
    """

    def of_answer(self, answer: GradedAnswer) -> float:
        text = answer.completion
        there = [text.count(tag) == 1 for tag in _TAGS]
        outside = len(text.partition(_TAGS[0])[0]) if there[0] else 0
        if there[1] and there[2]:
            behind = "\n" + text.partition(_TAGS[1])[2]  # neighbouring tags share their newline
            outside += len(behind.partition(_TAGS[2])[0].strip())
        if there[-1]:
            outside += len(text.partition(_TAGS[-1])[2].strip())
        return max(0.0, 0.25 * sum(there) - _PENALTY_PER_CHAR * outside)


class StrictFormat(AnswerTerm, name="format_strict"):
    """1 for reasoning and then the answer, each once in its tags and not empty, and nothing else."""

    def of_answer(self, answer: GradedAnswer) -> float:
        text = answer.completion
        if any(text.count(tag.strip()) != 1 for tag in _TAGS):
            return 0.0
        thought, _, rest = text.rstrip().partition("\n</think>\n<answer>\n")
        start, written = _TAGS[0], rest.removesuffix(_TAGS[-1])
        is_whole = thought.startswith(start) and rest.endswith(_TAGS[-1])
        return float(is_whole and bool(thought[len(start) :].strip() and written.strip()))


class EditFormat(AnswerTerm, name="edit_format"):
    """1 for edits that can be read and applied, 0.5 for edits that can be read and each change something."""

    def of_answer(self, answer: GradedAnswer) -> float:
        edits = _edits_of(answer)
        if not edits or any(edit.search == edit.replace for edit in edits):
            return 0.0
        return 0.5 if answer.verdict.status in EDIT_ERRORS else 1.0


class EditSimilarity(AnswerTerm, name="edit_similarity"):
    """How similar the edits are to the known ones; edits that change nothing count for nothing.

    Edits are paired by similarity, the most similar first, whatever their order. A pair scores the mean of
    the similarities of its two sides, as sequences of lines; the sum is divided by the larger number of
    edits. Edits that cannot be applied score at most `MOST_WITHOUT_EFFECT`. None for a problem without a
    reference.
    """

    def of_answer(self, answer: GradedAnswer) -> float | None:
        problem = answer.problem
        if not problem.reference:
            return None
        edits = _edits_of(answer)
        form = form_of(without_reasoning(answer.completion))
        known = parse_edits(written_edits(problem, problem.reference, form), form)
        score = edit_similarity(edits, known, problem.path or PATH)
        return score if answer.code is not None else min(score, MOST_WITHOUT_EFFECT)


def edit_similarity(given: Sequence[Edit], known: Sequence[Edit], path: str) -> float:
    """The score of `EditSimilarity`; edits without a path are of the file `path`, or of the one before."""
    if max(len(given), len(known)) > MAX_COMPARED_EDITS or not (given and known):
        return 0.0
    if sum(edit.search.count("\n") + edit.replace.count("\n") for edit in given) > MAX_COMPARED_LINES:
        return 0.0

    def with_paths(edits: Sequence[Edit]) -> list[tuple[str, Edit]]:
        now, found = path, []
        for edit in edits:
            now = edit.path or now
            found.append((now, edit))
        return found

    pairs = []
    for one, (place, edit) in enumerate(with_paths(given)):
        for other, (known_place, wanted) in enumerate(with_paths(known)):
            if place == known_place and edit.search != edit.replace:
                sides = ((edit.search, wanted.search), (edit.replace, wanted.replace))
                alike = (similarity(*(side.split("\n") for side in pair)) or 0.0 for pair in sides)
                pairs.append((sum(alike) / 2, -one, -other))
    total, taken = 0.0, set[tuple[str, int]]()
    for score, one, other in sorted(pairs, reverse=True):
        if not taken & {("given", one), ("known", other)}:
            taken |= {("given", one), ("known", other)}
            total += score
    return total / max(len(given), len(known))


class FunctionSimilarity(AnswerTerm, name="function_similarity"):
    """How similar the function is to that of the reference, as sequences of characters without indentation.

    What takes too long to compare counts as unlike. None where answers are whole programs, and without a
    reference.
    """

    def of_answer(self, answer: GradedAnswer) -> float | None:
        both = (function_in(answer.problem, code) for code in (answer.code or "", answer.problem.reference))
        given, known = ("\n".join(map(str.strip, (one or "").splitlines())) for one in both)
        return (similarity(given, known) or 0.0) if known else None


@dataclass(frozen=True)
class SweRl(AnswerTerm, name="swe_rl"):
    """SWE-RL's reward (Wei et al. 2025, arXiv 2502.18449): similarity of diffs, −1 for a wrong format.

    With `tags`, the answer must have `<think>` and `<solution>` with a thought, as published. Edits that
    cannot be applied, an answer that changes nothing and one without code are a wrong format. None for a
    problem without a reference.
    """

    tags: bool = True

    def of_answer(self, answer: GradedAnswer) -> float | None:
        problem, own = answer.problem, answer.problem.path or PATH
        if not problem.reference:
            return None
        before = editable_files(problem)
        if answer.code is None or (self.tags and not _has_tags(answer.completion)):
            return -1.0
        after = {own: answer.code, **{path: text or "" for path, text in answer.files}}
        if all(before.get(path) == text for path, text in after.items()):
            return -1.0
        return swe_rl_similarity(before, {own: problem.reference}, after)


def swe_rl_similarity(
    before: Mapping[str, str], oracle: Mapping[str, str], predicted: Mapping[str, str]
) -> float:
    """The mean over all files that either changes of the similarity of the two diffs, 0 where one is empty.

    1 where neither changes a file, as published.
    The texts of files by path: at first, as they should be, as they are. A diff that is too large to be
    compared in bounded time counts as unlike.
    """
    wanted, found = ({path: _diff(before.get(path, ""), text) for path, text in one.items()}
                     for one in (oracle, predicted))  # fmt: skip
    changed = {path for diffs in (wanted, found) for path, diff in diffs.items() if diff}
    scores = [
        (similarity(found[path], wanted[path]) or 0.0) if found.get(path) and wanted.get(path) else 0.0
        for path in changed
    ]
    return sum(scores) / len(scores) if scores else 1.0


@dataclass(frozen=True)
class Regression(ShippedTerm, name="regression"):
    """The share of the tests that the program at first passes which still pass; None if it passes none."""

    _passed_before: dict[str, tuple[bool, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]:
        unknown = {
            answer.problem.task_id: answer.problem
            for answer in answers
            if answer.problem.task_id not in self._passed_before
        }
        programs = [(problem, next(iter(editable_files(problem).values()))) for problem in unknown.values()]
        for (problem, _), verdict in zip(programs, grader.grade(programs), strict=True):
            if verdict.status.family is not Family.INFRASTRUCTURE:
                self._passed_before[problem.task_id] = verdict.tests_passed
        return [self._score(answer) for answer in answers]

    def _score(self, answer: GradedAnswer) -> float | None:
        before = self._passed_before.get(answer.problem.task_id, ())
        kept = [now for now, then in zip(answer.verdict.tests_passed, before, strict=False) if then]
        return sum(kept) / len(kept) if kept else None


def _edits_of(answer: GradedAnswer) -> list[Edit]:
    """The edits of an answer, none if they cannot be read.

    They are what the extraction applied, or could not apply. Edits that lead to another program are none:
    they stand in the reasoning, or have another form than the one that was asked for.
    """
    problem, own = answer.problem, answer.problem.path or PATH
    text = without_reasoning(answer.completion)
    try:
        files = {**editable_files(problem), **(problem.test_files or {})}
        edits = parse_edits(text, form_of(text), files)
    except (EditError, ProblemError):
        return []
    try:
        program = apply_edits(files, edits, own).get(own, files[own])
    except EditError:
        program = None
    return edits if program == answer.code else []


def _has_tags(text: str) -> bool:
    if len(text) > MAX_ANSWER_CHARS:
        return False
    if any(text.count(tag) != 1 for tag in ("<think>", "</think>", "<solution>", "</solution>")):
        return False
    return bool(text.partition("<think>")[2].partition("</think>")[0].strip())


def _diff(before: str, after: str) -> str:
    """A unified diff without the names of the files, as SWE-RL makes it; empty for very long files."""
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > MAX_DIFF_LINES:
        return ""
    return "\n".join(list(difflib.unified_diff(old, new, lineterm=""))[2:])
