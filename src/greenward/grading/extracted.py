"""Records what was taken out of an answer: its code, and the rules by which it was found.

`answers` finds it; its expressions take time to compile, which answers that are programs do not need.
"""

from __future__ import annotations

from dataclasses import dataclass

from greenward.grading.verdict import Status
from greenward.problems.python_source import parse_or_none

MOST_PARSED = 1 << 16  # characters of an answer

RULES = {
    "given": "the text as it was given",
    "label": "the answer itself",
    "edits": "the program after the edits",
    "workspace": "the repository as the agent left it",
    "starter": "the starter code with the text that continues it",
    "indented": "with the indentation that its first line had lost",
    "block": "the last block that defines the entry point",
    "closed": "the text before the fence that closes it",
    "body": "the last block, as the body of the starter code",
    "last_block": "the last Python block, since none defines the entry point",
    "program": "the last block that is a program",
    "text": "the text from its first line of code on",
    "joined": "with what it uses from other blocks",
    "cut": "without what is not Python behind it",
    "tests_dropped": "without the tests behind the entry point",
}
"""The rules by which programs are found, and what was done to them (`Extracted.rule`)."""


@dataclass(frozen=True)
class Extracted:
    """The code of an answer, or None, the reason why there is none, and the status that this is.

    `files` are further files that the answer changes, with their text; None deletes one. `rule` holds the
    names of the `RULES` that led to the code, separated by spaces.
    """

    code: str | None
    reason: str = ""
    status: Status = Status.NO_CODE
    files: tuple[tuple[str, str | None], ...] = ()
    rule: str = ""

    @property
    def answer(self) -> str | Extracted | None:
        """What a grader is given: the code, where that is all."""
        return self if self.files or self.status is not Status.NO_CODE else self.code


def is_prose(text: str | None) -> bool:
    """Whether a text is no Python as it stands; of one that is too long to be parsed it is not known."""
    return text is not None and len(text) <= MOST_PARSED and parse_or_none(text) is None


def explained(rule: str) -> str:
    """The `RULES` of an answer in words."""
    return ", ".join(RULES[name] for name in rule.split() if name in RULES)
