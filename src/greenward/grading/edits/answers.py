"""Answers that edit a problem's files: the program that comes out, or why the edits cannot be applied."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from greenward.grading.answer_files import program_changes
from greenward.grading.edits.edit import Edit, EditError, apply_edits
from greenward.grading.edits.search_replace import blocks_between, parse_blocks, print_blocks
from greenward.grading.edits.unified_diff import diff_between, parse_diff, print_diff
from greenward.grading.extraction import Extracted, Style, without_reasoning
from greenward.grading.verdict import Status
from greenward.problems.problem import Problem

AnswerForm = Literal["function", "search_replace", "diff"]
PATH = "solution.py"
"""What the program of a problem is called that consists of one file."""
MAX_ANSWER_CHARS = 1 << 20


def parse_edits(text: str, form: AnswerForm, files: Collection[str] = ()) -> list[Edit]:
    """The edits in a text of this form; `files` are the paths that are there. Raises `EditError`."""
    if len(text) > MAX_ANSWER_CHARS:
        raise EditError(Status.EDIT_MALFORMED, f"It is longer than {MAX_ANSWER_CHARS} characters.")
    if form == "diff":
        return [edit for file in parse_diff(text) for edit in file.edits()]
    return parse_blocks(text, files)


def form_of(text: str) -> AnswerForm:
    """The form of the edits in a text: blocks if it begins one, else a diff."""
    return "search_replace" if "<<<<< SEARCH" in text else "diff"


def editable_files(problem: Problem) -> dict[str, str]:
    """The files that an answer may edit, by path, its own first. Raises `ProblemError` without a program.

    The program is the buggy one, or the file in which a function is to be written (`placement`).
    """
    own, files = problem.path or PATH, problem.files or {}
    program = problem.buggy_code or files.get(own)  # empty text is a program only as a file
    if program is None:
        raise problem.error(
            "answers are edits, but the problem has no program to edit (buggy_code).",
            remedy="Set environment.answer=function, or take problems to repair (bugs:…).",
        )
    return {own: program, **{path: text for path, text in files.items() if path != own}}


def extract_edited(text: str, problem: Problem, style: Style, form: AnswerForm) -> Extracted:
    """The program after the edits of a model's answer; if they fail, no code, the reason and its status.

    Edits of what belongs to the tests count for nothing (`answer_files`).
    """
    own, files = problem.path or PATH, {**editable_files(problem), **(problem.test_files or {})}
    try:
        edits = parse_edits(without_reasoning(text) if style == "chat" else text, form, files)
        changed = apply_edits(files, edits, own)
    except EditError as error:
        return Extracted(None, error.message, error.status)
    code = changed.pop(own, files[own])
    if code is None:
        return Extracted(None, f"The edits delete {own}.", Status.NO_CODE)
    return Extracted(code, files=tuple(program_changes(changed.items(), problem).items()))


def written_edits(problem: Problem, code: str, form: AnswerForm) -> str:
    """The answer of this form that turns a problem's program into `code`, as short as it can be.

    A problem of one file names no path, and its hunks no lines.
    """
    before = editable_files(problem)[problem.path or PATH]
    if form == "search_replace":
        return print_blocks(blocks_between(before, code, problem.path))
    return print_diff([diff_between(before, code, problem.path)])
