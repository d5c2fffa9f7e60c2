"""The verdict on one answer: a status from a closed set, in three families that are never mixed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Family(str, Enum):
    """What a status is about: the answer, how it behaved, or grading that failed."""

    JUDGED = "judged"
    MISBEHAVED = "misbehaved"
    INFRASTRUCTURE = "infrastructure"


class Status(str, Enum):
    """The result of judging an answer.

    The answer was judged, and its reward is what the terms say:

    - `passed`: all tests passed.
    - `failed`: a test gave another value.
    - `wrong_type`: a test gave something that is not plain data.
    - `error`: an exception, while loading or in a test.
    - `syntax_error`: the answer is no Python.
    - `no_code`: there is nothing to run, or the entry point is not defined.
    - `edit_malformed`: no edit, or one that cannot be read.
    - `edit_not_found`: lines to replace that are not in the file.
    - `edit_ambiguous`: lines to replace that occur more than once, or two readings of one edit.
    - `edit_overlap`: edits that change the same lines twice.
    - `edit_no_op`: edits that change nothing.
    - `no_label`: an answer to a problem to classify that gives none.
    - `abstained`: an answer to a problem to classify that declines to give a label.

    It misbehaved, and its reward is what the terms say:

    - `timeout`, `memory`, `output_limit`: it exceeded a limit.
    - `cheating`: a malformed message on the result channel, or a lost worker that a harmless program did not
      lose.
    - `edit_outside`: an edit of a path outside of the problem's folder (absolute, `..`), or one of git
      (`.git`).

    The grading failed:

    - `infrastructure`: there is no reward, and the episode leaves the loss and the baseline.
    """

    PASSED = "passed"
    FAILED = "failed"
    WRONG_TYPE = "wrong_type"
    ERROR = "error"
    SYNTAX_ERROR = "syntax_error"
    NO_CODE = "no_code"
    EDIT_MALFORMED = "edit_malformed"
    EDIT_NOT_FOUND = "edit_not_found"
    EDIT_AMBIGUOUS = "edit_ambiguous"
    EDIT_OVERLAP = "edit_overlap"
    EDIT_NO_OP = "edit_no_op"
    EDIT_OUTSIDE = "edit_outside"
    NO_LABEL = "no_label"
    ABSTAINED = "abstained"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT_LIMIT = "output_limit"
    CHEATING = "cheating"
    INFRASTRUCTURE = "infrastructure"

    @property
    def family(self) -> Family:
        if self is Status.INFRASTRUCTURE:
            return Family.INFRASTRUCTURE
        return Family.MISBEHAVED if self in _MISBEHAVED else Family.JUDGED


_MISBEHAVED = frozenset(
    {Status.TIMEOUT, Status.MEMORY, Status.OUTPUT_LIMIT, Status.CHEATING, Status.EDIT_OUTSIDE}
)
_ANSWER_LINES = re.compile(r'^  File "<answer>", line (\d{1,9}), ', re.MULTILINE)
_SYNTAX_LINES = re.compile(r"\(<answer>, line (\d{1,9})\)$")
EDIT_ERRORS = frozenset(status for status in Status if status.value.startswith("edit_"))
"""What is wrong with edits that cannot be applied."""


@dataclass(frozen=True)
class Verdict:
    """The judgement on one answer.

    `tests_passed` has one entry per test of the problem, in order; tests that were never reached
    are False. `first_failure` describes the first failing test (what was called, what was
    expected, what came). Messages are bounded and without control characters. `traceback` has the innermost
    places at which the exception was raised, in Python's form without the lines of the source. `stdout` and
    `stderr` are those of one run: of several runs of a program, the last that counts. `layers` names the
    layers of isolation under which the answer ran.
    """

    status: Status
    tests_passed: tuple[bool, ...] = ()
    error_class: str | None = None
    error_message: str = ""
    traceback: str = ""
    first_failure: str = ""
    stdout: str = ""
    stderr: str = ""
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    layers: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.status is Status.PASSED

    @property
    def failure(self) -> str:
        """The first failing test, and the error where the answer failed before the test was reached."""
        if self.error_class is None or self.error_class in self.first_failure:
            return self.first_failure or self.status.value
        return f"{self.first_failure} ({self.error_class}: {self.error_message})".lstrip()

    @property
    def error_line(self) -> int | None:
        """The line of the answer that raised the exception or is not Python; None if unknown."""
        found = _ANSWER_LINES.findall(self.traceback) or _SYNTAX_LINES.findall(self.error_message)
        return int(found[-1]) if found else None

    @property
    def fraction_passed(self) -> float:
        return sum(self.tests_passed) / len(self.tests_passed) if self.tests_passed else 0.0
