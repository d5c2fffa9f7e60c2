"""Unified diffs, as `diff -u` and git write them, of one file or several.

A hunk's lines must be those of the file, at the line that its head names or at the only place where they
occur. The head's counts must be right; a head without numbers (`@@ @@`) is allowed, and so is a diff of the
only file without `---` and `+++`. What stands between files is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from greenward.grading.edits.edit import Edit, EditError, line_changes, lines_of
from greenward.grading.verdict import Status

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
                raise _malformed(f"{lines[at].strip()[:80]!r} comes before the head of a hunk")
        elif line.startswith("diff --git ") and (empty := _EMPTY.match("".join(lines[at : at + 4]))):
            finish()
            names, hunks = ((None, empty[1]) if empty[2] == "new" else (empty[1], None)), []
            at += 2
        elif line.startswith("@@"):
            hunk, at = _read_hunk(lines, at, len(hunks) + 1)
            hunks.append(hunk)
        elif _REFUSED.match(line):
            raise _malformed(f"{line.strip()[:80]!r}: binary files, links and renames cannot be applied")
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
        raise _malformed(f"the head of hunk {number}, {lines[at].strip()[:80]!r}, is not a hunk's")
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
        raise _malformed(f"hunk {number}: {announced}")
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
        raise _malformed(f"it renames {old[:80]!r} to {new[:80]!r}")
    return None if old == _NO_FILE else old, None if new == _NO_FILE else new


def _name(text: str) -> str:
    name = text.rstrip("\r\n").partition("\t")[0]  # after a tab stands the time
    if not name.startswith('"'):
        return name
    quoted = _QUOTED.fullmatch(name)  # git's way to write other characters: the escapes of C
    if quoted is None:
        raise _malformed(f"the file name {name[:80]!r} cannot be read")
    return _ESCAPE.sub(_byte, quoted[1].encode("utf-8", "replace")).decode("utf-8", "replace")


def _byte(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    return bytes([_ESCAPED[code[0]] if len(code) == 1 else int(code, 8)])


def _printed_name(side: str, path: str | None) -> str:
    return _NO_FILE if path is None else f"{side}/{path}"


def _malformed(problem: str) -> EditError:
    return EditError(Status.EDIT_MALFORMED, f"The diff is malformed: {problem}.")
