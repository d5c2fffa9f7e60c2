"""Reads edits of files from an answer, as SEARCH/REPLACE blocks or unified diffs, and applies them.

Edits replace whole lines that occur exactly once. All are applied, or none. Each is matched against the
original text, so their order makes no difference. SEARCH/REPLACE blocks (aider, SWE-RL):
    path/to/file.py
    <<<<<<< SEARCH
    lines of the file
    =======
    lines in their place
    >>>>>>> REPLACE

The path may stand in a heading, after `File:`, and above, inside or behind the opening of a fence; without
one, the block is of the same file as the block before. The three markers of a block have the same length, at
least five: where the lines themselves look like markers, longer ones are used. What stands between blocks is
not read.
Unified diffs are as `diff -u` and git write them, of one file or several. A hunk's lines must be those of
the file, at the line that its head names or at the only place where they occur. The head's counts must be
right; a head without numbers (`@@ @@`) is allowed, and so is a diff of the only file without `---` and
`+++`. What stands between files is not read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from itertools import accumulate
from typing import Literal

from greenward.common.errors import GreenwardError
from greenward.grading.extraction import Extracted, Style, without_reasoning
from greenward.grading.testcases import program_changes
from greenward.grading.verdict import Status
from greenward.problems.problem import Problem
from greenward.sandbox.inside.files import MAX_PATH_CHARS, path_error

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
_MARKER = re.compile(r"^(?:(<{5,99}) SEARCH|(={5,99})|(>{5,99}) REPLACE)[ \t]*(\r?)$", re.MULTILINE)
_FENCE = ("```", "~~~")
_PLAIN_PATH = re.compile(r"(?=.*[./\\])[\w./\\+-]*[^\W\d][\w+-]*")  # neither "Done." nor "3.11"
_SAYS_FILE = re.compile(r"(?:file|filename|path):\s*", re.IGNORECASE)
_LOOKS_AT = 3  # lines above a block that are not empty


def parse_blocks(text: str, files: Collection[str] = ()) -> list[Edit]:
    """The blocks in a text, in linear time. Raises `EditError` for a block that is not well-formed.

    A line above a block that is one of `files` is its path, whatever characters it has.
    """
    blocks: list[Edit] = []
    head: re.Match[str] | None = None
    divider: re.Match[str] | None = None
    end = 0
    for marker in _MARKER.finditer(text):
        start, divides, ends, _ = marker.groups()
        if head is None:
            if ends:
                raise _malformed_block(len(blocks), "REPLACE comes without SEARCH before it")
            if start:
                head, divider = marker, None
        elif len(start or divides or ends) != len(head[1]):
            continue  # a line of the block
        elif divides and divider is None:
            divider = marker
        elif ends and divider is not None:
            search = text[head.end() + 1 : divider.start()]
            replace = text[divider.end() + 1 : marker.start()]
            if head[4]:
                search, replace = search.replace("\r\n", "\n"), replace.replace("\r\n", "\n")
            path = _path_above(text, end, head.start(), files, creates=not search)
            blocks.append(Edit(path, search, replace))
            head, end = None, marker.end()
        else:
            expected = "=" if divider is None else ">"
            problem = f"{marker[0].strip()!r} comes before {expected * len(head[1])!r}"
            raise _malformed_block(len(blocks), f"{problem}; use longer markers if it is a line of the file")
    if head is not None:
        missing = "=" * len(head[1]) if divider is None else ">" * len(head[1]) + " REPLACE"
        raise _malformed_block(len(blocks), f"it has no line {missing!r}")
    return blocks


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
    taken = {len(next(filter(None, one.groups()))) for text in texts for one in _MARKER.finditer(text)}
    length = next(length for length in range(_USUAL, 100) if length not in taken)
    above = f"{block.path}\n" if _is_plain_path(block.path) else f"### `{block.path}`\n" if block.path else ""
    return (
        f"{above}{'<' * length} SEARCH\n{block.search}{'=' * length}\n{block.replace}{'>' * length} REPLACE\n"
    )


def _path_above(text: str, start: int, end: int, files: Collection[str], *, creates: bool) -> str:
    """The path in the lines above a block, down from `start`; empty without one.

    Of a block that searches in one of the known files, a line is a path only if it has the ending of one, so
    that headings such as `Cart.total` are none.
    """
    endings = {".py", *(os.path.splitext(file)[1] for file in files)}
    above = filter(None, map(str.strip, text[max(start, end - 4096) : end].split("\n")))
    for line in list(above)[: -_LOOKS_AT - 1 : -1]:
        is_fence = line.startswith(_FENCE)
        if is_fence:
            line = re.split(r"[\s:]", line.strip("`~"))[-1]
        elif line.startswith("### `") and line.endswith("`"):
            return line[5:-1]
        bare = line.lstrip("#").strip().rstrip(":").strip("*`")
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


def _malformed_block(blocks: int, problem: str) -> EditError:
    return EditError(Status.EDIT_MALFORMED, f"Block {blocks + 1} is malformed: {problem}.")


CONTEXT = 3
_NO_FILE = "/dev/null"
_NO_NEWLINE = "\\ No newline at end of file\n"
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@|@@(?: \.\.\.)?(?: @@)?\s*$")
_REFUSED = re.compile(r"Binary files |GIT binary patch|(?:rename|copy) from |new (?:file )?mode 1[26]0000")
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


def parse_diff(text: str) -> list[FileDiff]:
    """The files in a diff, in linear time. Raises `EditError` for what is not well-formed."""
    files: list[FileDiff] = []
    names: tuple[str | None, str | None] = ("", "")
    hunks: list[Hunk] = []
    lines = lines_of(text)
    at, count = 0, len(lines)

    def finish() -> None:
        if hunks or None in names:
            files.append(FileDiff(*names, tuple(hunks)))

    while at < count:
        line = lines[at]
        if line.startswith("--- ") and at + 1 < count and lines[at + 1].startswith("+++ "):
            finish()
            names, hunks = _names(line, lines[at + 1]), []
            at += 2
            if at < count and lines[at].startswith((" ", "+", "-")) and not lines[at].startswith("--- "):
                raise _malformed_diff(f"{lines[at].strip()[:80]!r} comes before the head of a hunk")
        elif line.startswith("diff --git ") and (empty := _EMPTY.match("".join(lines[at : at + 4]))):
            finish()
            names, hunks = ((None, empty[1]) if empty[2] == "new" else (empty[1], None)), []
            at += 2
        elif line.startswith("@@"):
            hunk, at = _read_hunk(lines, at, len(hunks) + 1)
            hunks.append(hunk)
        elif _REFUSED.match(line):
            raise _malformed_diff(f"{line.strip()[:80]!r}: binary files, links and renames cannot be applied")
        else:
            at += 1
    finish()
    return files


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


def _read_hunk(lines: list[str], at: int, number: int) -> tuple[Hunk, int]:
    head = _HUNK.match(lines[at])
    if head is None:
        raise _malformed_diff(f"the head of hunk {number}, {lines[at].strip()[:80]!r}, is not a hunk's")
    is_crlf = lines[at].endswith("\r\n")
    has_counts = head[1] is not None
    counts = tuple(1 if one is None else int(one) for one in head.group(2, 3)) if has_counts else (-1, -1)
    found, old, new, count = list[str](), 0, 0, len(lines)
    at += 1
    while at < count and not (old == counts[0] and new == counts[1]):
        line = lines[at]
        tag = line[0]
        if tag in "\r\n" and line in ("\n", "\r\n"):
            tag, line = " ", f" {line}"  # editors strip the space of an empty line
        if tag not in " +-" or (not has_counts and line.startswith(("--- ", "+++ "))):
            break
        old += tag != "+"
        new += tag != "-"
        found.append(line.replace("\r\n", "\n") if is_crlf else line)
        at += 1
        if at < count and lines[at][0] == "\\":
            found[-1] = found[-1].removesuffix("\n")
            at += 1
    if has_counts and (old, new) != counts:
        announced = f"it announces {counts[0]} old and {counts[1]} new lines and has {old} and {new}"
        raise _malformed_diff(f"hunk {number}: {announced}")
    if found and not found[-1].endswith("\n") and lines[at - 1][0] != "\\":
        found[-1] += "\n"  # where the answer ends, the file need not
    while not has_counts and found and found[-1] == " \n":
        found.pop()  # an empty line between the diff and what follows
    return Hunk(int(head[1]) if has_counts else None, tuple(found)), at


def _names(old_line: str, new_line: str) -> tuple[str | None, str | None]:
    old, new = (_name(line[4:]) for line in (old_line, new_line))
    if old.startswith("a/") and new in (_NO_FILE, f"b/{old[2:]}"):
        old, new = old[2:], new.removeprefix("b/")
    elif old == _NO_FILE:
        new = new.removeprefix("b/")
    if old != new and _NO_FILE not in (old, new):
        raise _malformed_diff(f"it renames {old[:80]!r} to {new[:80]!r}")
    return None if old == _NO_FILE else old, None if new == _NO_FILE else new


def _name(text: str) -> str:
    name = text.rstrip("\r\n").partition("\t")[0]  # after a tab stands the time
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


def edited_program(problem: Problem) -> str | None:
    """The program that answers edit, if the problem has one; empty text is one only as a file."""
    return problem.buggy_code or (problem.files or {}).get(problem.path or PATH)


def holds_edits(text: str) -> bool:
    """Whether a text holds the beginning of a block or of a hunk, on a line of its own."""
    return any(one[1] for one in _MARKER.finditer(text)) or any(map(_HUNK.match, text.splitlines()))


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


def extract_edited(text: str, problem: Problem, style: Style, form: AnswerForm) -> Extracted:
    """The program after the edits of a model's answer; if they fail, no code, the reason and its status.

    Edits of what belongs to the tests count for nothing.
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
