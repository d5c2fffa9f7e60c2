"""What a hostile program and a benign one are.

Codes are templates: `@SECRET_FILE@` and the like stand for what a `world.World` has planted.
Every program is bounded by itself, so that nothing harms the machine where nothing protects it.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent
from typing import Any

# What can stop a program. The first two are the sandbox's shape and cannot be switched off.
GRADING_OUTSIDE = "grading outside"
WATCHDOG = "watchdog"
RESOURCES = "resources"
PRIVILEGES = "privileges"
LANDLOCK = "landlock"
SECCOMP = "seccomp"
NAMESPACES = "namespaces"
ALWAYS = frozenset({GRADING_OUTSIDE, WATCHDOG})

# Where an unprotected program is certain to get through.
ANYWHERE = "anywhere"
AS_ROOT = "as root"
VARIES = "varies"  # with the kernel and its settings


@dataclass(frozen=True)
class HostileProgram:
    """An attack on the grader, the machine or the next answer.

    `wanted` names what `f` must return to pass (`World.problem`): the `secret` that no answer
    knows, `access` (True: "I got through", for probes), a random value of a type that the program
    lies about, the number behind a `hexadecimal` argument, or the `successor` of its argument, which
    anyone can compute.

    `stopped_by` are the means each of which suffices to stop it. With `may_pass` the answers are
    right and only the effects are forbidden. `then` is a second program, run next on the same
    worker, that passes only if the first left something for it. `unprotected` says where the
    program is certain to get through when only the resource limits are in force. `form` is the kind
    of tests that it meets: `cases`, `tests`, `checks`, `stdio`, `in_process`, `wrapped` (assert
    statements that do something with the value) or `loops` (test programs that loop over calls).
    """

    name: str
    family: str
    code: str
    stopped_by: frozenset[str]
    wanted: str = "secret"
    may_pass: bool = False
    then: str = ""
    unprotected: str = ANYWHERE
    form: str = "cases"

    @property
    def stopped_always(self) -> bool:
        """Whether no layer is needed against it."""
        return bool(self.stopped_by & ALWAYS)


def hostile(
    name: str, family: str, code: str, *stopped_by: str, then: str = "", prelude: str = "", **fields: Any
) -> HostileProgram:
    """A hostile program from indented code; `prelude` goes in front of it."""
    return HostileProgram(
        name,
        family,
        prelude + source(code),
        frozenset(stopped_by),
        then=then and prelude + source(then),
        **fields,
    )


@dataclass(frozen=True)
class BenignProgram:
    """A right answer that looks odd: `f` must give the expected value for each tuple of arguments."""

    name: str
    code: str
    cases: tuple[tuple[tuple[Any, ...], Any], ...]


def benign(name: str, code: str, *cases: tuple[tuple[Any, ...], Any]) -> BenignProgram:
    return BenignProgram(name, source(code), cases)


def source(code: str) -> str:
    return dedent(code).strip() + "\n"
