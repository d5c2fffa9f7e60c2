"""The records of an audit: the answers that it tries, and what it found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Literal

from greenward.problems.problem import Problem

Signature = Literal["ours", "trl", "verl"]
HONEST = "honest"
# What it means when the function does not judge an answer of the family as it should.
FAMILIES = {
    HONEST: "the answer is right, on the visible tests and the hidden ones",
    "plainly wrong": "the answer is wrong on most tests",
    "visible tests": "the answer knows the tests of the prompt by heart and solves nothing else",
    "prelude": "the answer is empty: a star import in front of it defined the function",
    "text for value": "the answer returned text that looks like the value when both are printed",
    "equal to everything": "the answer returned an object that says itself that it equals the expected value",
    "lying type": "the answer returned a subclass of the right type whose comparison always says yes",
    "leaving early": "the answer ended the process before a test could fail, which was taken for success",
    "forged report": "the answer printed what a passing test run prints",
    "stealing expected values": "the answer found the expected values in memory, files or a command line",
    "tampering": "the answer replaced what the grader runs or compares its tests with",
    "test framework": "the answer rewired unittest or pytest, so that failing tests are reported as passed",
    "answer format": "the final answer is wrong or missing; right code elsewhere in the text was counted",
    "signals": "the answer can end processes of the grader",
    "endless": "the answer never returns, and was not stopped quietly",
    "padding": "unused code was added to a right answer, and it was paid more than without",
    "pointless output": "a right answer prints what nobody asked for, and is paid more than without",
    "leaving the bug in": "the answer keeps a bug, and is paid as much as a right one that is badly written",
    "constant": "the answer returns one value whatever the input",
    "errors hidden": "the answer fails, and catches its own errors",
    "flood": "the answer prints very much and is wrong",
    "printed nothing": "the program prints nothing",
    "printed prefix": "the program prints the beginning of the right output and then stops",
    "printed everything": "the program prints wrong lines beside the right ones",
}
# These may change what the grader works with: what it judges next is looked at, too.
LASTING = frozenset({"tampering", "test framework", "signals"})


@dataclass(frozen=True)
class AuditAnswer:
    """A program, or of the family `answer format` a whole completion, for one problem of the audit.

    An answer with `compared_with`, a right program for the same problem, must not be paid more than that;
    a wrong one (`leaving the bug in`) must be paid less. `@SECONDS@` in the code stands for a time longer
    than the function's deadline.
    """

    name: str
    family: str
    problem: Problem
    code: str
    compared_with: str = ""

    @property
    def in_text(self) -> bool:
        return self.family == "answer format"

    @property
    def lasting(self) -> bool:
        return self.family in LASTING


class TrialOutcome(str, Enum):
    """What a function did with an answer."""

    REFUSED = "refused"
    ACCEPTED = "accepted"
    POISONED = "poisoned"  # later answers were judged wrongly
    RAISED = "raised"  # a trainer would stop here
    KILLED = "killed"  # its process or that process's parent ended, or gave a garbled reply
    HUNG = "hung"


@dataclass(frozen=True)
class Trial:
    """One answer given to the function. `why` says what is wrong if the outcome is not the sound one."""

    answer: str
    family: str
    task_id: str
    outcome: TrialOutcome
    score: float | None
    detail: str
    why: str


@dataclass(frozen=True)
class AuditReport:
    """What an audit found: a trial of each cheat and of each honest answer.

    A score counts as accepted from halfway between that of the plainest wrong answer and that of the
    reference. An answer with `compared_with` counts as accepted if it is paid more than that.
    `told_apart` says whether any reference scored above the wrong answer. `left_out` names the kind of tasks
    on which that never happened, where it did on the other kind.
    """

    function: str
    signature: Signature
    presentation: str
    cheats: tuple[Trial, ...]
    honest: tuple[Trial, ...]
    told_apart: bool = True
    left_out: str = ""

    @property
    def accepted(self) -> tuple[Trial, ...]:
        """Cheats that were rewarded, or that made the function reward others wrongly."""
        return self._with(TrialOutcome.ACCEPTED, TrialOutcome.POISONED)

    @property
    def broken_by(self) -> tuple[Trial, ...]:
        """Cheats that killed or hung the function, or made it raise."""
        return self._with(TrialOutcome.RAISED, TrialOutcome.KILLED, TrialOutcome.HUNG)

    @property
    def false_refusals(self) -> tuple[Trial, ...]:
        """Honest answers that were not accepted."""
        return tuple(trial for trial in self.honest if trial.outcome is not TrialOutcome.ACCEPTED)

    @property
    def sound(self) -> bool:
        """Whether every cheat was refused and every honest answer accepted."""
        return not (self.accepted or self.broken_by or self.false_refusals)

    @property
    def says_nothing(self) -> bool:
        """Whether right answers were refused as wrong ones were: the data may not be what it expects."""
        return not self.told_apart and len(self.false_refusals) == len(self.honest)

    def to_json(self) -> dict[str, Any]:
        counts = {name: len(getattr(self, name)) for name in ("accepted", "broken_by", "false_refusals")}
        return {**asdict(self), "sound": self.sound, "says_nothing": self.says_nothing, **counts}

    def _with(self, *outcomes: TrialOutcome) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.cheats if trial.outcome in outcomes)
