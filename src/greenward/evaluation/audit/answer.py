"""An answer that an audit throws at a function, and what is wrong with misjudging it."""

from __future__ import annotations

from dataclasses import dataclass

from greenward.problems.problem import Problem

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


@dataclass(frozen=True)
class Answer:
    """A program, or with `in_text` a whole completion, for one problem of the audit.

    A `lasting` one changes what the grader works with: what it judges next is looked at, too.
    One with a `rival` must not be paid more than that right program for the same problem; where it is
    wrong (`leaving the bug in`), not as much either. `@SECONDS@` in the code stands for a time longer
    than the function's deadline.
    """

    name: str
    family: str
    problem: Problem
    code: str
    lasting: bool = False
    in_text: bool = False
    rival: str = ""

    @property
    def is_honest(self) -> bool:
        return self.family == HONEST

    @property
    def why(self) -> str:
        """What is wrong if the function misjudges it."""
        return FAMILIES[self.family]
