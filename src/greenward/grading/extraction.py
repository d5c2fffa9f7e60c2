"""Extracts the code from the text of a model. It takes linear time for any text and runs nothing."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import Literal

from greenward.grading.verdict import Status
from greenward.problems.problem import Problem, hole_of, place
from greenward.problems.python_source import parse_or_none

Style = Literal["completion", "chat"]

_MOST_LINES_OF_PROSE, _MOST_CHARS_WITH_PROSE = 20, 1 << 15

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*([\w.+-]*)")
_FENCE_BEHIND_TEXT = re.compile(r"[^`~]{1,500}:[ \t]*(`{3,}|~{3,})[ \t]*([\w.+-]*)\Z")
_PYTHON = ("python", "py", "python3")
_LINE_END = re.compile(r"\r\n|\r|\n")  # what ends a line in Python, and no other character
_STATEMENT = (
    r"(?:async[ \t]+)?def[ \t]+\w+[ \t]*\(|class[ \t]+\w+[ \t]*[(:]|@\w"
    r"|from[ \t]+[\w.]+[ \t]+import\b|import[ \t]+[\w.]+(?:[ \t]+as[ \t]+\w+)?[ \t]*(?:[,;#].*)?$"
)
_CODE_START = re.compile(rf"^(?:{_STATEMENT})", re.MULTILINE)
# How a program that defines nothing may begin; prose hardly ever begins a line like this.
_PROGRAM_START = re.compile(
    rf"^(?:{_STATEMENT}|(?:for|while|if|with|try)\b.*:[ \t]*$|@|print\("
    r"|[A-Za-z_][\w.\[\]]*(?:[ \t]*,[ \t]*[A-Za-z_]\w*)*[ \t]*=[^=])",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Extracted:
    """The code of an answer, or None, the reason why there is none, and the status that this is.

    `files` are further files that the answer changes, with their text; None deletes one.
    """

    code: str | None
    reason: str = ""
    status: Status = Status.NO_CODE
    files: tuple[tuple[str, str | None], ...] = ()

    @property
    def answer(self) -> str | Extracted | None:
        """What a grader is given: the code, where that is all."""
        return self if self.files or self.status is not Status.NO_CODE else self.code


def extract_code(text: str, problem: Problem, style: Style) -> Extracted:
    """The program in a model's answer.

    `completion`: the starter code followed by the answer, unchanged. `chat`: reasoning (`<think>` …
    `</think>`) is dropped; of the fenced blocks, the last that defines the entry point (or a method of that
    name) counts, Python's and untagged ones before others, else the last of those; a block that was never
    closed ends with the text. An answer without such a block counts from its first line of code on, without
    the prose below. Where a whole program is required (no entry point), it is the last block that is tagged
    as Python, else the last that looks like a program, or everything from the first line of code on. Where a
    function of a file is required, the code is that file with the answer's function in its place
    (`placement`).
    """
    if problem.label is not None:  # the answer itself is judged
        return Extracted(text if text.strip() else None, "" if text.strip() else "the answer is empty")
    extracted = _extract(text, problem, style)
    if extracted.code is None or (hole := hole_of(problem)) is None:
        return extracted
    continues = style == "completion"
    code = place(text if continues else extracted.code, problem, hole, continues=continues)
    return Extracted(code, "" if code else f"no definition of {problem.entry_point} that is Python")


def _extract(text: str, problem: Problem, style: Style) -> Extracted:
    if style == "completion":
        if not text.strip():
            return Extracted(None, "the completion is empty")
        return Extracted(problem.starter_code + text)
    final_text = without_reasoning(text)
    if not final_text.strip():
        return Extracted(None, "nothing follows the reasoning" if text.strip() else "the answer is empty")
    blocks = [(language, code) for language, code in _fenced_blocks(final_text) if code.strip()]
    tagged = [code for language, code in blocks if language in _PYTHON]
    untagged = [code for language, code in blocks if not language]
    if not problem.entry_point:
        programs = tagged or list(filter(_PROGRAM_START.search, untagged)) or untagged  # and no sample output
        start = _PROGRAM_START.search(final_text)
        code = programs[-1] if programs else final_text[start.start() :] if start else None
        return Extracted(code, "" if code else "no Python block and no line that begins a program")
    name = re.escape(problem.entry_point.rpartition(".")[2])
    defines = re.compile(rf"^[ \t]*(?:async\s+def|def|class)\s+{name}\b", re.MULTILINE)
    python = [code for language, code in blocks if language in ("", *_PYTHON)]
    for those in (python, [code for _, code in blocks]):  # models tag blocks by text or a file's name, too
        if code := next(filter(defines.search, reversed(those)), None):
            return Extracted(code)
    if python:
        return Extracted(python[-1])
    if defines.search(final_text):
        start = _CODE_START.search(final_text)
        return Extracted(_without_prose_below(final_text[start.start() if start else 0 :], defines))
    return Extracted(None, f"no Python block and no definition of {problem.entry_point}")


def _without_prose_below(code: str, defines: re.Pattern[str]) -> str:
    """Code up to the last of its unindented lines before which all is Python; unchanged without one."""
    if len(code) > _MOST_CHARS_WITH_PROSE:
        return code
    ends = [line.start() for line in re.finditer(r"^(?=\S)", code, re.MULTILINE)][1:]
    prefixes = (code[:end] for end in (len(code), *ends[: -_MOST_LINES_OF_PROSE - 1 : -1]))
    return next((one for one in prefixes if defines.search(one) and parse_or_none(one)), code)


def last_block(text: str, *, dedent: bool = True) -> str | None:
    """The contents of the last fenced block after the reasoning; None without one.

    `dedent` takes away the indentation that all lines of the block have.
    """
    blocks = _fenced_blocks(without_reasoning(text), dedent=dedent)
    return blocks[-1][1] if blocks else None


def holds_fence(text: str) -> bool:
    """Whether a line of the text opens a fenced block."""
    return any(map(_FENCE.match, _LINE_END.split(text)))


def continues_starter(text: str, problem: Problem) -> bool:
    """Whether a text goes on after the starter code: it has neither a block nor an unindented definition."""
    name = re.escape(problem.entry_point.partition(".")[0])
    defined = name and re.search(rf"^(?:async\s+def|def|class)\s+{name}\b", text, re.MULTILINE)
    return not holds_fence(text) and not (problem.starter_code and defined)


def without_reasoning(text: str) -> str:
    """The text after the last closed reasoning block, up to a block that was never closed."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


def _fenced_blocks(text: str, *, dedent: bool = True) -> list[tuple[str, str]]:
    """(language, code) of each fenced block, by lines, in one pass."""
    blocks: list[tuple[str, str]] = []
    fence, language, lines = "", "", list[str]()
    for line in _LINE_END.split(text[:-1] if text.endswith("\n") else text):
        match = _FENCE.match(line) or (None if fence else _FENCE_BEHIND_TEXT.match(line.rstrip(" \t")))
        if fence:
            if match and match[1].startswith(fence) and not line.strip(" \t" + fence[0]):
                blocks.append((language, _joined(lines, dedent)))
                fence = ""
            else:
                lines.append(line)
        elif match:
            fence, language, lines = match[1], match[2].lower(), []
    if fence:
        blocks.append((language, _joined(lines, dedent)))
    return blocks


def _joined(lines: list[str], dedent: bool) -> str:
    """The lines of a block, if asked for without the indentation that all of them have."""
    block = "\n".join(lines) + "\n"
    is_indented = all(line[0] in " \t" for line in lines if line.strip())
    return textwrap.dedent(block) if dedent and is_indented else block  # it would empty blank lines of texts
