"""Reads edits of files from an answer, as SEARCH/REPLACE blocks or unified diffs, and applies them.

Edits replace whole lines that occur exactly once. All are applied, or none. Each is matched against the
original text, so their order makes no difference. Reasoning (`<think>`) is dropped first. An answer of more
than 1 MiB or with more than 1,000 edits is malformed. Line ends stay as they are: an answer need not write
those of Windows, and a newline that is missing at the end of the file stays missing unless the edit is a diff
that says otherwise.

SEARCH/REPLACE blocks (aider, SWE-RL):

    path/to/file.py
    <<<<<<< SEARCH
    lines of the file
    =======
    lines in their place
    >>>>>>> REPLACE

- The path may stand in a heading or an item of a list, after `File:`, behind SEARCH, and above, inside or
  behind the opening of a fence; empty lines between do not matter. Without one, the block is of the same file
  as the block before. A program that is the only file needs none (it is called `solution.py`), and one other
  name that all edits agree on means that program, too.
- With no lines to search for, the file is new.
- The words of the markers may be lower case, or ORIGINAL and UPDATED. The three markers of a block have the
  same length, at least five, and the same indentation: where the lines themselves look like markers, longer
  ones are used.
- White space is compared exactly, but a block that is indented as a whole, as in a list, is read without the
  indentation of its markers, and a fence around each of the two sides is taken off, unless the file has the
  lines as they are written; if it has both, the block is ambiguous.
- What stands between blocks is not read.

Unified diffs are as `diff -u` and git write them, of one file or several, new and deleted files included.

- A hunk's lines must be those of the file, at the line that its head names or at the only place where they
  occur. A hunk without old lines inserts behind the line that its head names, if the head announces none.
- Read are heads without numbers (`@@ @@`, `@@ def f(): @@`), with one side alone, or, as the last, without
  lines, names without `a/` and `b/`, quoted names, the line ends of Windows, a diff that is indented as a
  whole, and a diff of the only file without `---` and `+++`. Refused are renames, links, binary files,
  combined diffs (`@@@`) and other kinds of patches (`*** Begin Patch`).
- Models count wrong, so a hunk ends where its lines do: at the next head, or at a line that has none of the
  tags. The counts decide only whether doubtful lines at its end belong to it, and a doubt that they do not
  settle is an error. A line that a file has is never left out. An answer that ends without a newline within
  a hunk that announces more lines may have been cut off, and is refused.
- What stands between files is not read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from itertools import accumulate
from types import MappingProxyType
from typing import Literal

from greenward.common.errors import GreenwardError
from greenward.grading.answers import final_text
from greenward.grading.extracted import Extracted
from greenward.grading.testcases import program_changes
from greenward.grading.verdict import Status
from greenward.problems.problem import Problem
from greenward.sandbox.inside.files import MAX_PATH_CHARS, path_error

MAX_EDITS = 1000
_MOST_COUNTED = 10
_NEAR_LINES, _NEAR_CHARS = 300, 120
_NO_FILES: Mapping[str, str] = MappingProxyType({})


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
    codes = SequenceMatcher(None, *inner, autojunk=False).get_opcodes()
    return [(i + start, j + start, k + start, m + start) for tag, i, j, k, m in codes if tag != "equal"]


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
        if problem := _forbidden(path):
            raise EditError(Status.EDIT_OUTSIDE, f"Edit {number}: {path[:80]!r} is not allowed: {problem}.")
        if edit.search == edit.replace and not edit.deletes and path in files:
            raise EditError(Status.EDIT_NO_OP, f"Edit {number} of {path} changes nothing.")
        by_path.setdefault(path, []).append((number, edit))
    changed = {path: _edited(path, files, numbered) for path, numbered in by_path.items()}
    if all(files.get(path) == text for path, text in changed.items()):
        raise EditError(Status.EDIT_NO_OP, "Together the edits change nothing.")
    return changed


def _forbidden(path: str) -> str | None:
    """Why no answer may edit a file of this path, if so."""
    # Some file systems know no case.
    return path_error(path) or ("it belongs to git" if ".git" in path.lower().split("/") else None)


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
        if stop == len(body) and any(text and text[-1] != "\n" for text in (edit.search, edit.replace)):
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


_USUAL = 7
_MARKER = re.compile(
    r"^([ \t]*)(<{5,99}(?!<)|>{5,99}(?!>)|={5,99}(?=[ \t]*\r?$)"
    r"|<{2,4}(?= ?SEARCH\b)|>{2,4}(?= ?REPLACE\b))(.*)$",  # too short to be one
    re.MULTILINE,
)
_OPENS = re.compile(r"(?:search|original)\b[\s:]*(.*)", re.IGNORECASE)
_CLOSES = re.compile(r"(?:replace|updated)(?:\s*(?:`{3,}|~{3,}))?", re.IGNORECASE)
_FENCE = ("```", "~~~")
_FENCE_TAG = re.compile(r"<(?:source|code|pre|codename|sourcecode)>")  # aider's, for files that hold fences
_FENCED = re.compile(r"(`{3,}|~{3,})[^\n`]*\n((?:.*\n)*)\1[ \t]*\n")
_PLAIN_PATH = re.compile(r"(?=.*[./\\])[\w./\\+-]*[^\W\d][\w+-]*")  # neither "Done." nor "3.11"
_SAYS_FILE = re.compile(r"(?:file|filename|path):\s*", re.IGNORECASE)
_BULLET = re.compile(r"(?:[-*+]|\d{1,9}[.)])\s+")
_LOOKS_AT = 3  # lines above a block that are not empty


def parse_blocks(text: str, files: Mapping[str, str] = _NO_FILES) -> list[Edit]:
    """The blocks in a text, in linear time. Raises `EditError` for a block that is not well-formed.

    A line above a block that is the path of one of `files` is its path, whatever characters it has. Their
    texts decide how a block is read that is indented, or whose two sides stand in fences.
    """
    blocks: list[Edit] = []
    head: re.Match[str] | None = None
    divider: re.Match[str] | None = None
    path, end = "", 0

    @cache
    def known() -> list[str]:
        return [f"\n{file}\n".replace("\r\n", "\n") for file in files.values()]

    def malformed(problem: str) -> EditError:
        return EditError(Status.EDIT_MALFORMED, f"Block {len(blocks) + 1} is malformed: {problem}.")

    for marker in _MARKER.finditer(text):
        indent, run, rest = marker.groups()
        if (indent, len(run)) != (head[1], len(head[2])) if head else run[0] == "=":
            continue  # a line of the block, or of the text between
        named = _named_behind(marker, files) if run[0] == "<" else None
        closes = run[:5] == ">>>>>" and _CLOSES.fullmatch(rest.strip()) is not None
        if head is None and named is not None:
            head, divider, path = marker, None, named
        elif head is not None and run[0] == "=" and divider is None:
            divider = marker
        elif head is not None and divider is not None and closes:
            sides = text[head.end() + 1 : divider.start()], text[divider.end() + 1 : marker.start()]
            if head[3].endswith("\r"):
                sides = sides[0].replace("\r\n", "\n"), sides[1].replace("\r\n", "\n")
            search, replacement = _unwrapped(*sides, indent, known) if len(blocks) < MAX_EDITS else sides
            path = path or _path_above(text, end, head.start(), files, creates=not search)
            blocks.append(Edit(path, search, replacement))
            head, end = None, marker.end()
        else:
            line, shown = text.count("\n", 0, marker.start()) + 1, repr(marker[0].strip()[:80])
            if run[0] != "=" and named is None and not closes:
                problem = f"{shown} is no marker: at least five characters and SEARCH or REPLACE"
            elif head is None:
                problem = "REPLACE comes without SEARCH before it"
            else:
                problem = f"{shown} comes before {('=' if divider is None else '>') * len(run)!r}"
            hint = "; use longer markers if it is a line of the file" if head else ""
            raise malformed(f"line {line}: {problem}{hint}")
    if head is not None:
        missing = "=" * len(head[2]) if divider is None else ">" * len(head[2]) + " REPLACE"
        raise malformed(f"it has no line {missing!r}")
    return blocks


def _named_behind(marker: re.Match[str], files: Mapping[str, str]) -> str | None:
    """The path behind SEARCH, empty without one; None if the line does not begin a block."""
    opens = _OPENS.fullmatch(marker[3].strip()) if marker[2][:5] == "<<<<<" else None
    path = opens[1].strip("*`()") if opens else None
    return path if not path or path in files or _is_plain_path(path) else None


def _unwrapped(search: str, replacement: str, indent: str, files: Callable[[], list[str]]) -> tuple[str, str]:
    """The two sides of a block without the indentation of its markers and without a fence around each.

    Sides that stand in the files as they are written stay so; `EditError` if both readings stand there.
    """

    def is_there(side: str) -> bool:
        return bool(side) and any(f"\n{side}" in file for file in files())

    if indent:
        lines = (lines_of(search), lines_of(replacement))
        is_even = all(line.startswith(indent) or line.isspace() for side in lines for line in side)
        bare = ["".join(line.removeprefix(indent) for line in side) for side in lines]
        if is_even and not is_there(search):
            search, replacement = bare
        elif is_even and is_there(bare[0]):
            message = (
                "the files have its lines with the indentation of its markers and without: do not indent it"
            )
            raise EditError(Status.EDIT_AMBIGUOUS, f"A block can be read in two ways: {message}.")
    if search.startswith(_FENCE) and not is_there(search):
        inner = [_FENCED.fullmatch(side) for side in (search, replacement or "```\n```\n")]
        if inner[0] and inner[1] and is_there(inner[0][2]):
            return inner[0][2], inner[1][2]
    return search, replacement


def print_blocks(blocks: Iterable[Edit]) -> str:
    """The text of blocks, which `parse_blocks` reads again."""
    return "\n".join(map(_printed, blocks))


def blocks_between(before: str, after: str, path: str = "") -> list[Edit]:
    """The shortest blocks that turn one text into another: changed lines, and others until they are unique.

    A newline that is missing at the end of a text is taken to be there.
    """
    old, new = lines_of(before), lines_of(after)
    for lines in (old, new):
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
    body = "\n" + "".join(old)
    ranges = [list(change) for change in line_changes(old, new)]
    at = 0
    while at < len(ranges):
        first, last, new_first, new_last = ranges[at]
        search = "\n" + "".join(old[first:last])
        found = body.find(search)
        if not old or (first < last and body.find(search, found + 1) < 0):
            at += 1
            continue
        lowest = ranges[at - 1][1] if at else 0
        highest = ranges[at + 1][0] if at + 1 < len(ranges) else len(old)
        if first > lowest and (last == highest or (last - first) % 2 == 0):
            ranges[at] = [first - 1, last, new_first - 1, new_last]
        elif last < highest:
            ranges[at] = [first, last + 1, new_first, new_last + 1]
        else:  # a change is all there is above and below
            at -= at > 0
            (start, _, new_start, _), (_, stop, _, new_stop) = ranges[at : at + 2]
            ranges[at : at + 2] = [[start, stop, new_start, new_stop]]
    return [Edit(path, "".join(old[i:j]), "".join(new[k:m])) for i, j, k, m in ranges]


def _printed(block: Edit) -> str:
    texts: Sequence[str] = (block.search, block.replace)
    if block.line is not None or any(text and not text.endswith("\n") for text in texts):
        raise ValueError("a SEARCH/REPLACE block holds whole lines and no line number")
    taken = {len(one[2]) for text in texts for one in _MARKER.finditer(text)}
    length = next(length for length in range(_USUAL, 100) if length not in taken)
    above = f"{block.path}\n" if _is_plain_path(block.path) else f"### `{block.path}`\n" if block.path else ""
    return (
        f"{above}{'<' * length} SEARCH\n{block.search}{'=' * length}\n{block.replace}{'>' * length} REPLACE\n"
    )


def _path_above(text: str, start: int, end: int, files: Mapping[str, str], *, creates: bool) -> str:
    """The path in the lines above a block, down from `start`; empty without one.

    Of a block that searches in one of the known files, a line is a path only if it has the ending of one, so
    that headings such as `Cart.total` are none.
    """
    endings = {".py", *(os.path.splitext(file)[1] for file in files)}
    above = filter(None, map(str.strip, text[max(start, end - 4096) : end].split("\n")))
    for line in list(above)[: -_LOOKS_AT - 1 : -1]:
        is_fence = line.startswith(_FENCE) or _FENCE_TAG.match(line) is not None
        if is_fence:
            line = re.split(r"[\s:>]", line.strip("`~"))[-1]
        elif line.startswith("### `") and line.endswith("`"):
            return line[5:-1]
        bare = _BULLET.sub("", line, count=1).lstrip("#").strip().rstrip(":").strip("*`")
        bare = bare[found.end() :].strip("*`") if (found := _SAYS_FILE.match(bare)) else bare
        path = next((one for one in (line, bare) if one in files or _is_plain_path(one)), "")
        has_ending = os.path.splitext(path)[1] in endings
        if files and path not in files and not (found or creates or has_ending):
            path = ""
        if path or not is_fence:
            return path
    return ""


def _is_plain_path(text: str) -> bool:
    return len(text) <= MAX_PATH_CHARS and _PLAIN_PATH.fullmatch(text) is not None


CONTEXT = 3
_NO_FILE = "/dev/null"
_NO_NEWLINE = "\\ No newline at end of file\n"
_HUNK = re.compile(
    r"@@(?!@)(?:[ \t]*-(\d{1,9})(?:,(\d{1,9}))?(?:[ \t]+\+(\d{1,9})(?:,(\d{1,9}))?)?(?=[ \t]*(?:@@|$)))?"
)
_REFUSED = re.compile(r"Binary files |GIT binary patch|(?:rename|copy) from |new (?:file )?mode 1[26]0000")
_OTHER_FORM = re.compile(r"\*\*\* (?:Begin Patch|(?:Add|Update|Delete) File:)|[ \t]+@@ -\d|@@@")
_BOUNDARY = (*_FENCE, "@@", "diff --git ", "--- ", "+++ ")
_PROSE = re.compile(
    r"[-+] \S|-- ?\r?$|---+\r?$"
)  # what a list, a signature or a rule of Markdown begins with
_GIT = re.compile(r"diff --git a/(.{1,200}) b/\1\r?$")
_TIME = re.compile(r"\t|(?<! ) +\d{4}-\d\d-\d\d[ T]\d\d:")
_QUOTED = re.compile(r'"((?:[^"\\]|\\(?:[0-3][0-7]{2}|[abfnrtv"\\]))*)"')
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2}|.)")
_ESCAPED = dict(zip(b'abfnrtv"\\', b'\a\b\f\n\r\t\v"\\', strict=True))
_EMPTY = re.compile(r"diff --git a/(.{1,200}) b/\1\r?\n(new|deleted) file mode 100\d+\r?\n(?!index.*\n---)")


@dataclass(frozen=True)
class Hunk:
    """Lines of one place, each after `" "`, `"-"` or `"+"`; without a newline at the end of a file.

    `start` is the number of its first old line (of the line before, if it has none), None if unknown.
    """

    start: int | None
    lines: tuple[str, ...]

    @property
    def old(self) -> tuple[str, ...]:
        return tuple([line[1:] for line in self.lines if line[0] != "+"])

    @property
    def new(self) -> tuple[str, ...]:
        return tuple([line[1:] for line in self.lines if line[0] != "-"])


@dataclass(frozen=True)
class FileDiff:
    """The hunks of one file, none for an empty one.

    `old` is None for a new file, `new` for a deleted one; empty: the only file.
    """

    old: str | None
    new: str | None
    hunks: tuple[Hunk, ...]

    def edits(self) -> Iterator[Edit]:
        """The edits that the hunks are."""
        path = (self.old if self.new is None else self.new) or ""
        for hunk in self.hunks or ([Hunk(0, ())] if None in (self.old, self.new) else []):
            line = None if self.old is None else hunk.start
            yield Edit(path, "".join(hunk.old), "".join(hunk.new), line, self.new is None)


def parse_diff(text: str, files: Mapping[str, str] = _NO_FILES) -> list[FileDiff]:
    """The files in a diff, in linear time. Raises `EditError` for what is not well-formed.

    The lines of `files` decide whether doubtful lines at the end of a hunk are lines that it deletes.
    """
    diffs: list[FileDiff] = []
    names: tuple[str | None, str | None] = ("", "")
    hunks: list[Hunk] = []
    is_indented = not re.search("^@@", text, re.MULTILINE) and re.search(r"^([ \t]+)@@", text, re.MULTILINE)
    if is_indented:  # as a whole, in the item of a list
        text = re.sub(f"^{is_indented[1]}", "", text, flags=re.MULTILINE)
    lines = lines_of(text)
    at, count = 0, len(lines)

    @cache
    def known() -> set[str]:
        return {line.rstrip("\r") for text in files.values() for line in text.split("\n")}

    def is_known(line: str) -> bool | None:
        return line[1:].rstrip("\r\n") in known() if files else None

    def finish() -> None:
        if hunks or None in names:
            diffs.append(FileDiff(*names, tuple(hunks)))

    while at < count:
        line = lines[at]
        if line.startswith("--- ") and at + 1 < count and lines[at + 1].startswith("+++ "):
            finish()
            names, hunks = _names(line, lines[at + 1]), []
            at += 2
            while at < count and _is_bare(lines[at]):
                at += 1
            is_line = (
                at < count and lines[at].startswith((" ", "+", "-")) and not lines[at].startswith("--- ")
            )
            if is_line or (None not in names and not (at < count and lines[at].startswith("@@"))):
                behind = repr(lines[at].strip()[:80]) if at < count else "the end of the answer"
                raise _malformed_diff(f"{behind} comes before the head of a hunk of {names[1] or names[0]}")
        elif line.startswith(("--- ", "+++ ")) and at + 1 < count and lines[at + 1].startswith("@@"):
            raise _malformed_diff(f"line {at + 1}, {line.strip()[:80]!r}, is one of '---' and '+++' alone")
        elif line.startswith("diff --git "):
            finish()
            hunks = []
            if empty := _EMPTY.match("".join(lines[at : at + 4])):
                names = (None, empty[1]) if empty[2] == "new" else (empty[1], None)
            else:
                names = (same[1], same[1]) if (same := _GIT.match(line)) else ("", "")
            at += 1
        elif hunks and _ends_by_head(lines[at : at + 3]):
            at += 1
        elif line.startswith("@@") and not line.startswith("@@@"):
            hunk, at = _read_hunk(lines, at, len(hunks) + 1, is_known)
            if names[0] is not None and hunk.start is None and not hunk.old:
                no_place = "has no line of the file, and its head names no line behind which it inserts"
                raise _malformed_diff(f"hunk {len(hunks) + 1} {no_place}")
            hunks.append(hunk)
        elif _REFUSED.match(line):
            raise _malformed_diff(f"{line.strip()[:80]!r}: binary files, links and renames cannot be applied")
        elif _OTHER_FORM.match(line):
            raise _malformed_diff(f"line {at + 1}, {line.strip()[:80]!r}, is not as `diff -u` writes it")
        else:
            at += 1
    finish()
    return diffs


def print_diff(files: Iterable[FileDiff]) -> str:
    """The text of a diff, which `parse_diff` reads again."""
    parts: list[str] = []
    for file in files:
        if file.old != "":
            parts += (f"--- {_printed_name('a', file.old)}\n", f"+++ {_printed_name('b', file.new)}\n")
        shift = 0
        for hunk in file.hunks:
            old, new = len(hunk.old), len(hunk.new)
            if hunk.start is None:
                parts.append("@@ @@\n")
            else:
                # Of no lines, the line before is named.
                new_start = hunk.start + shift + (not old) - (not new)
                parts.append(f"@@ -{hunk.start},{old} +{new_start},{new} @@\n")
            shift += new - old
            parts += (line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}" for line in hunk.lines)
    return "".join(parts)


def diff_between(before: str | None, after: str | None, path: str, context: int = CONTEXT) -> FileDiff:
    """The diff that turns one text of a file into another; None is a file that is not there."""
    old, new = lines_of(before or ""), lines_of(after or "")
    groups: list[list[tuple[int, int, int, int]]] = []
    for change in line_changes(old, new):
        if groups and change[0] - groups[-1][-1][1] <= 2 * context:
            groups[-1].append(change)
        else:
            groups.append([change])
    hunks = []
    for group in groups:
        first, last = max(0, group[0][0] - context), min(len(old), group[-1][1] + context)
        at, lines = first, list[str]()
        for i, j, k, m in group:
            lines += (f" {line}" for line in old[at:i])
            lines += (f"-{line}" for line in old[i:j])
            lines += (f"+{line}" for line in new[k:m])
            at = j
        lines += (f" {line}" for line in old[at:last])
        hunks.append(Hunk(first + (last > first), tuple(lines)))
    return FileDiff(None if before is None else path, None if after is None else path, tuple(hunks))


def _read_hunk(
    lines: Sequence[str], at: int, number: int, is_known: Callable[[str], bool | None]
) -> tuple[Hunk, int]:
    """The hunk whose head is line `at`, and the line behind it."""
    head = _HUNK.match(lines[at])
    assert head is not None  # the caller looks for heads
    first = stop = at + 1
    while stop < len(lines) and (lines[stop].startswith((" ", "+", "-", "\\ ")) or _is_bare(lines[stop])):
        stop += 1
    counts = (int(head[2] or 1), int(head[4] or 1)) if head[3] else None
    fits = _announced_end(lines, first, stop, counts) if counts else -1
    end = _end_of_hunk(lines, first, stop, fits, is_known)
    is_crlf, found = lines[at].endswith("\r\n"), list[str]()
    for line in lines[first:end]:
        if line[0] == "\\":
            found[-1:] = [one.removesuffix("\n") for one in found[-1:]]
        else:
            line = f" {line}" if _is_bare(line) else line  # editors strip the blank of an empty line
            found.append(line.replace("\r\n", "\n") if is_crlf else line)
    if not found:
        raise _malformed_diff(f"hunk {number} has no lines")
    old, new = (sum(line[0] != tag for line in found) for tag in "+-")
    if end == len(lines) and not lines[-1].endswith("\n"):
        if counts and (old < counts[0] or new < counts[1]):  # it may have been cut off
            announced = f"announces {counts[0]} old and {counts[1]} new lines and has {old} and {new}"
            raise _malformed_diff(f"the answer ends within hunk {number}, which {announced}")
        if lines[-1][0] != "\\":
            found[-1] += "\n"  # where the answer ends, the file need not
    # A head that announces old lines names the first of them, and else the line before the new ones.
    has_start = head[1] and (old or (counts and not counts[0] and end in (stop, fits)))
    return Hunk(int(head[1]) if has_start else None, tuple(found)), end


def _ends_by_head(lines: Sequence[str]) -> bool:
    """Whether a head ends the hunk before it: the fence around the diff is closed behind it."""
    is_last = len(lines) > 1 and lines[0].startswith("@@") and lines[1].startswith(_FENCE)
    return is_last and not any(line.startswith((" ", "+", "-", "\\")) for line in lines[2:])


def _is_bare(line: str) -> bool:
    return line in ("\n", "\r\n")


def _announced_end(lines: Sequence[str], first: int, stop: int, counts: tuple[int, int]) -> int:
    """The line behind those that a head announces, -1 if they cannot be so many."""
    old = new = 0
    for at in range(first, stop):
        if lines[at][0] != "\\":
            if (old, new) == counts:
                return at
            old += lines[at][0] != "+"
            new += lines[at][0] != "-"
    return stop if (old, new) == counts else -1


def _end_of_hunk(
    lines: Sequence[str], first: int, stop: int, fits: int, is_known: Callable[[str], bool | None]
) -> int:
    """The line behind a hunk, whose tagged lines end before `stop` and its announced ones before `fits`.

    `is_known` says whether a file has the line, None without files. Raises `EditError` where changes may
    belong to the hunk or not.
    """

    def doubtful(at: int) -> EditError:
        line = f"Line {at + 1} of the diff, {lines[at].strip()[:80]!r},"
        message = f"{line} may belong to the hunk above or not, and the counts in its head do not say which."
        return EditError(Status.EDIT_AMBIGUOUS, message)

    # A line that has lost its tag may stand in the middle of a hunk.
    for at in range(stop, len(lines)):
        if lines[at].startswith(_BOUNDARY):
            break
        if lines[at][0] in "+-" and not _PROSE.match(lines[at]):
            raise doubtful(at)
    end = stop
    if end > first and stop < len(lines) and lines[stop].startswith("@@"):
        if lines[end - 2].startswith("--- ") and lines[end - 1].startswith("+++ "):
            # Either the head of the next file, or a line "-- x" that is deleted and "++ y" that is added.
            is_line = fits == end if (known := is_known(lines[end - 2])) is None else known
            is_head = _are_names(*lines[end - 2 : end])
            if is_line and is_head and fits not in (end - 2, end):
                raise doubtful(end - 2)
            if not is_line or (is_head and fits != end):
                end -= 2
        elif lines[end - 1].startswith(("--- ", "+++ ")) and fits != end:
            raise doubtful(end - 1)
    written = end
    while end > first and _is_bare(lines[end - 1]):
        end -= 1
    prose = end
    while prose > first and (_is_bare(lines[prose - 1]) or _PROSE.match(lines[prose - 1])):
        prose -= 1
    while prose < end and lines[prose][0] == "+":  # an added line, as no empty one stands above
        prose += 1
    fits = fits if first < fits <= written else first
    # Of doubtful empty lines alone it is not known whether they stand before or behind what is added.
    has_place = any(line[0] in " -" for line in lines[first : min(prose, fits)])
    begins_list = prose < end and _is_bare(lines[prose])
    if (fits == end and not begins_list) or (end < fits and has_place):
        return fits
    if prose < end:
        item = next(at for at in range(prose, end) if not _is_bare(lines[at]))
        deleted = (line for line in lines[item:end] if line[0] == "-")
        if (fits == prose or (prose < fits <= item and has_place)) and not any(map(is_known, deleted)):
            return fits
        raise doubtful(item)
    rest = lines[fits:end] if has_place else ()
    changes_nothing = not any(line[0] in "+-" for line in rest)
    return fits if rest and changes_nothing and not all(map(is_known, rest)) else end


def _are_names(old_line: str, new_line: str) -> bool:
    try:
        return bool(_names(old_line, new_line))
    except EditError:
        return False


def _names(old_line: str, new_line: str) -> tuple[str | None, str | None]:
    old, new = (_name(line[4:]) for line in (old_line, new_line))
    if old != new:
        old, new = old.removeprefix("a/"), new.removeprefix("b/")
    if old != new and _NO_FILE not in (old, new):
        raise _malformed_diff(f"it renames {old[:80]!r} to {new[:80]!r}")
    return None if old == _NO_FILE else old, None if new == _NO_FILE else new


def _name(text: str) -> str:
    name = _TIME.split(text.rstrip("\r\n"))[0]
    if not name.startswith('"'):
        return name
    quoted = _QUOTED.fullmatch(name)  # git's way to write other characters: the escapes of C
    if quoted is None:
        raise _malformed_diff(f"the file name {name[:80]!r} cannot be read")
    return _ESCAPE.sub(
        lambda one: bytes([_ESCAPED[one[1][0]] if len(one[1]) == 1 else int(one[1], 8)]),
        quoted[1].encode("utf-8", "replace"),
    ).decode("utf-8", "replace")


def _printed_name(side: str, path: str | None) -> str:
    return _NO_FILE if path is None else f"{side}/{path}"


def _malformed_diff(problem: str) -> EditError:
    return EditError(Status.EDIT_MALFORMED, f"The diff is malformed: {problem}.")


AnswerForm = Literal["function", "search_replace", "diff"]
PATH = "solution.py"
"""What the program of a problem is called that consists of one file."""
MAX_ANSWER_CHARS = 1 << 20


def parse_edits(text: str, form: AnswerForm, files: Mapping[str, str] = _NO_FILES) -> list[Edit]:
    """The edits in a text of this form; `files` are those that are there. Raises `EditError`.

    Edits of another name are those of the only file, where that is the program of a problem without a path.
    """
    if len(text) > MAX_ANSWER_CHARS:
        raise EditError(Status.EDIT_MALFORMED, f"It is longer than {MAX_ANSWER_CHARS} characters.")
    if form == "diff":
        edits = [edit for file in parse_diff(text, files) for edit in file.edits()]
    else:
        edits = parse_blocks(text, files)
    named = {edit.path.removeprefix("./") for edit in edits if edit.path}
    are_changes = all(edit.search or edit.line is not None for edit in edits)
    if list(files) == [PATH] and len(named) == 1 and are_changes and not any(map(_forbidden, named)):
        edits = [replace(edit, path=PATH) for edit in edits]
    return edits


def form_of(text: str) -> AnswerForm:
    """The form of the edits in a text: blocks if it begins one, else a diff."""
    return "search_replace" if _begins_block(text) else "diff"


def _begins_block(text: str) -> bool:
    return any(_named_behind(one, _NO_FILES) is not None for one in _MARKER.finditer(text))


def edited_program(problem: Problem) -> str | None:
    """The program that answers edit, if the problem has one; empty text is one only as a file."""
    return problem.buggy_code or (problem.files or {}).get(problem.path or PATH)


def holds_edits(text: str) -> bool:
    """Whether a text holds the beginning of a block or of a hunk, on a line of its own."""
    return _begins_block(text) or any(line.lstrip(" \t").startswith("@@") for line in text.split("\n"))


def editable_files(problem: Problem) -> dict[str, str]:
    """The files that an answer may edit, by path, its own first. Raises `ProblemError` without a program.

    The program is the buggy one, or the file in which a function is to be written (`placement`).
    """
    own, files = problem.path or PATH, problem.files or {}
    program = edited_program(problem)
    if program is None:
        raise problem.error(
            "answers are edits, but the problem has no program to edit (buggy_code).",
            remedy="Set environment.answer=function, or take problems to repair (bugs:…).",
        )
    return {own: program, **{path: text for path, text in files.items() if path != own}}


def extract_edited(text: str, problem: Problem, form: AnswerForm, begun: str = "") -> Extracted:
    """The program after the edits of a model's answer; if they fail, no code, the reason and its status.

    Edits of what belongs to the tests count for nothing.
    """
    own, files = problem.path or PATH, {**editable_files(problem), **(problem.test_files or {})}
    try:
        edits = parse_edits(final_text(text, begun), form, files)
        changed = apply_edits(files, edits, own)
    except EditError as error:
        return Extracted(None, error.message, error.status, rule="edits")
    code = changed.pop(own, files[own])
    if code is None:
        return Extracted(None, f"The edits delete {own}.", Status.NO_CODE)
    return Extracted(code, files=tuple(program_changes(changed.items(), problem).items()), rule="edits")


def written_edits(problem: Problem, code: str, form: AnswerForm) -> str:
    """The answer of this form that turns a problem's program into `code`, as short as it can be.

    The reference comes with the other files that it changes. A problem of one file names no path, and its
    hunks no lines.
    """
    before, own = editable_files(problem), problem.path or PATH
    others = problem.reference_files or {} if code == problem.reference else {}
    after = {problem.path if not others else own: code, **others}
    if form == "search_replace":
        blocks = []
        for path, text in after.items():
            old = before.get(path or own)
            blocks += [Edit(path, "", text)] if old is None else blocks_between(old, text, path)
        return print_blocks(blocks)
    return print_diff([diff_between(before.get(path or own), text, path) for path, text in after.items()])
