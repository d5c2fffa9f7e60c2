"""Edits of text files: replace whole lines that occur exactly once. All are applied, or none.

Every edit is matched against the original text, so that their order makes no difference. A model writes
edits as SEARCH/REPLACE blocks (`search_replace`) or as unified diffs (`unified_diff`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from itertools import accumulate

from greenward.errors import GreenwardError
from greenward.grading.verdict import Status
from greenward.sandbox.workspace import path_error

MAX_EDITS = 1000
_MOST_COUNTED = 10
_NEAR_LINES, _NEAR_CHARS = 300, 120


class EditError(GreenwardError):
    """Edits that cannot be applied: `status` is the kind of fault."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Edit:
    """Replaces the lines `search` by `replace`; both are whole lines, or empty.

    An empty `path` is that of the edit before, or the only file. `line` is where the lines stand (or after
    which line they are inserted, if `search` is empty), None if they are found by their text. A text without
    a newline at its end is the end of a file. With an empty `search` and no `line` the file is new.
    `deletes`: the file is gone afterwards.
    """

    path: str
    search: str
    replace: str
    line: int | None = None
    deletes: bool = False


def lines_of(text: str) -> list[str]:
    """The lines of a text, each with its newline."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def line_changes(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """The places in which lines differ: begin and end in the old ones, begin and end in the new ones."""
    same = enumerate(zip(old, new, strict=False))
    start = next((at for at, (one, other) in same if one != other), min(len(old), len(new)))
    rest = zip(reversed(old[start:]), reversed(new[start:]), strict=False)
    stop = next((at for at, (one, other) in enumerate(rest) if one != other), min(len(old), len(new)) - start)
    inner = (old[start : len(old) - stop], new[start : len(new) - stop])
    return [
        (i + start, j + start, k + start, m + start)
        for tag, i, j, k, m in SequenceMatcher(None, *inner, autojunk=False).get_opcodes()
        if tag != "equal"
    ]


def apply_edits(
    files: Mapping[str, str], edits: Sequence[Edit], default_path: str = ""
) -> dict[str, str | None]:
    """The new text of each file that the edits change; None for one that they delete.

    `default_path` is what edits mean that name no file. Raises `EditError`, which says which edit is wrong.
    """
    if not edits:
        raise EditError(Status.EDIT_MALFORMED, "There is no edit in the answer.")
    if len(edits) > MAX_EDITS:
        raise EditError(Status.EDIT_MALFORMED, f"{len(edits)} edits are more than {MAX_EDITS}.")
    by_path: dict[str, list[tuple[int, Edit]]] = {}
    path = default_path
    for number, edit in enumerate(edits, 1):
        path = (edit.path or path).removeprefix("./")
        if not path:
            names = ", ".join(list(files)[:10]) or "none"
            raise EditError(Status.EDIT_MALFORMED, f"Edit {number} names no file. Files: {names}.")
        problem = path_error(path) or ("it belongs to git" if ".git" in path.split("/") else None)
        if problem:
            raise EditError(Status.EDIT_OUTSIDE, f"Edit {number}: {path[:80]!r} is not allowed: {problem}.")
        if edit.search == edit.replace and not edit.deletes and path in files:
            raise EditError(Status.EDIT_NO_OP, f"Edit {number} of {path} changes nothing.")
        by_path.setdefault(path, []).append((number, edit))
    changed = {path: _edited(path, files, numbered) for path, numbered in by_path.items()}
    if all(files.get(path) == text for path, text in changed.items()):
        raise EditError(Status.EDIT_NO_OP, "Together the edits change nothing.")
    return changed


def _edited(path: str, files: Mapping[str, str], edits: Sequence[tuple[int, Edit]]) -> str | None:
    text = files.get(path)
    if text is None or (text == "" and edits[0][1].line is None and not edits[0][1].deletes):
        return _created(path, files, edits)
    # Answers hardly ever write the line ends of a file that has those of Windows.
    is_crlf = "\r\n" in text and text.count("\n") == text.count("\r\n")
    is_crlf = is_crlf and not any("\r" in edit.search + edit.replace for _, edit in edits)
    if is_crlf:
        text = text.replace("\r\n", "\n")
    is_unterminated = bool(text) and not text.endswith("\n")
    body = text + "\n" if is_unterminated else text
    has_numbers = any(edit.line is not None for _, edit in edits)
    starts = [0, *accumulate(map(len, lines_of(body)))] if has_numbers else []
    places = sorted(
        (*_find(path, body, starts, number, edit, is_unterminated), number, edit) for number, edit in edits
    )
    parts, begin, end, last = list[str](), 0, 0, 0
    for start, stop, number, edit in places:
        are_both_insertions = last and begin == end == start == stop  # their order is not defined
        if start < end or are_both_insertions:
            raise EditError(Status.EDIT_OVERLAP, f"Edits {last} and {number} of {path} overlap.")
        if edit.replace and not edit.replace.endswith("\n") and stop < len(body):
            message = f"Edit {number} ends {path} without a newline in the middle of the file."
            raise EditError(Status.EDIT_MALFORMED, message)
        if stop == len(body) and any(
            text and not text.endswith("\n") for text in (edit.search, edit.replace)
        ):
            is_unterminated = False  # the edit says itself how the file ends
        parts += (body[end:start], edit.replace)
        begin, end, last = start, stop, number
    result = "".join((*parts, body[end:]))
    if is_unterminated:
        result = result.removesuffix("\n")
    if any(edit.deletes for _, edit in edits):
        if result:
            raise EditError(Status.EDIT_MALFORMED, f"{path} is deleted, but not all of its lines are.")
        return None
    return result.replace("\n", "\r\n") if is_crlf else result


def _created(path: str, files: Mapping[str, str], edits: Sequence[tuple[int, Edit]]) -> str:
    for number, edit in edits:
        if edit.search or edit.deletes:
            near = get_close_matches(path, list(files), n=1, cutoff=0.0)
            hint = f" Nearest: {near[0]}." if near else ""
            raise EditError(Status.EDIT_NOT_FOUND, f"Edit {number}: there is no file {path}.{hint}")
    if len(edits) > 1:
        raise EditError(
            Status.EDIT_OVERLAP, f"Edits {edits[0][0]} and {edits[1][0]} both create the file {path}."
        )
    return edits[0][1].replace


def _find(
    path: str, body: str, starts: Sequence[int], number: int, edit: Edit, is_unterminated: bool
) -> tuple[int, int]:
    """Where an edit's lines begin and end in `body`, whose lines begin at `starts` and end with a newline."""
    search = edit.search
    if search and not search.endswith("\n"):
        search += "\n"
        if is_unterminated and body.endswith(f"\n{search}"):
            return len(body) - len(search), len(body)
        if is_unterminated and body == search:
            return 0, len(body)
    if edit.line is not None:
        index = edit.line if search == "" else edit.line - 1
        if 0 <= index < len(starts) and body.startswith(search, starts[index]):
            return starts[index], starts[index] + len(search)
    if not search:
        message = f"Edit {number} names no line of {path}, after which it could insert."
        raise EditError(Status.EDIT_MALFORMED, message)
    lined, wanted = "\n" + body, "\n" + search
    found = lined.find(wanted)
    if found < 0:
        message = f"Edit {number}: the lines to replace are not in {path}. {_nearest(body, search)}"
        raise EditError(Status.EDIT_NOT_FOUND, message)
    count, place = 1, found
    while count < _MOST_COUNTED and (place := lined.find(wanted, place + 1)) >= 0:
        count += 1
    if count > 1:
        many = f"{count}" if count < _MOST_COUNTED else f"at least {count}"
        message = f"Edit {number}: the lines to replace occur {many} times in {path}: add lines around them."
        raise EditError(Status.EDIT_AMBIGUOUS, message)
    return found, found + len(search)


def _nearest(body: str, search: str) -> str:
    """Which of the lines is not in the text, and the most similar one that is."""
    lines = body.split("\n")[:_NEAR_LINES]
    known = set(body.split("\n"))
    missing = next((line for line in search.split("\n") if line not in known), None)
    if missing is None:
        return "All its lines are there, but not one after the other."
    shown = f"This line is not there: {missing[:_NEAR_CHARS]!r}."
    stripped = {line.strip(): number for number, line in reversed(list(enumerate(lines, 1)))}
    if number := stripped.get(missing.strip()):
        return f"{shown} Line {number} differs in white space: {lines[number - 1][:_NEAR_CHARS]!r}."
    cut = {line[:_NEAR_CHARS]: number for number, line in reversed(list(enumerate(lines, 1)))}
    near = get_close_matches(missing[:_NEAR_CHARS], list(cut), n=1)
    return f"{shown} Nearest is line {cut[near[0]]}: {near[0]!r}." if near else shown
