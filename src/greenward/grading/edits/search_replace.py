"""SEARCH/REPLACE blocks, the form of edits in aider and SWE-RL:

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
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence

from greenward.grading.edits.edit import Edit, EditError, line_changes, lines_of
from greenward.grading.verdict import Status
from greenward.sandbox.workspace import MAX_PATH_CHARS

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
                raise _malformed(len(blocks), "REPLACE comes without SEARCH before it")
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
            raise _malformed(len(blocks), f"{problem}; use longer markers if it is a line of the file")
    if head is not None:
        missing = "=" * len(head[1]) if divider is None else ">" * len(head[1]) + " REPLACE"
        raise _malformed(len(blocks), f"it has no line {missing!r}")
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
    path = f"{block.path}\n" if _is_plain_path(block.path) else f"### `{block.path}`\n"
    above = path if block.path else ""
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
        if (
            files
            and path not in files
            and not (found or creates)
            and os.path.splitext(path)[1] not in endings
        ):
            path = ""
        if path or not is_fence:
            return path
    return ""


def _is_plain_path(text: str) -> bool:
    return len(text) <= MAX_PATH_CHARS and _PLAIN_PATH.fullmatch(text) is not None


def _malformed(blocks: int, problem: str) -> EditError:
    return EditError(Status.EDIT_MALFORMED, f"Block {blocks + 1} is malformed: {problem}.")
