"""Right answers, however odd, pass under every set of layers."""

from __future__ import annotations

import pytest

from greenward.grading.judge import Grader
from greenward.problems.problem import Case, Problem
from greenward.sandbox.protocol import Limits
from hostile.benign import BENIGN_PROGRAMS, STANDARD_TYPE_PROGRAMS
from hostile.program import BenignProgram
from hostile.trial import Arena

LIMITS = Limits(cpu_seconds=2.0, wall_seconds=6.0)


def problem(program: BenignProgram) -> Problem:
    cases = tuple(Case(arguments, expected) for arguments, expected in program.cases)
    return Problem(program.name, "", "f", tests=cases)


def turned_down(arena: Arena, programs: tuple[BenignProgram, ...]) -> dict[str, str]:
    with Grader(LIMITS, executor=arena.pair) as grader:
        verdicts = grader.grade([(problem(one), one.code) for one in programs])
    return {
        one.name: f"{verdict.status.value}: {verdict.first_failure or verdict.error_message}"
        for one, verdict in zip(programs, verdicts, strict=True)
        if not verdict.passed
    }


every_layer_set = pytest.mark.parametrize(
    "arena", ["all", pytest.param("core", marks=pytest.mark.slow), "portable"], indirect=True
)


@every_layer_set
def test_no_benign_program_is_turned_down(arena):
    assert turned_down(arena, BENIGN_PROGRAMS) == {}


@every_layer_set
def test_declared_standard_types_come_back_as_themselves(arena):
    assert turned_down(arena, STANDARD_TYPE_PROGRAMS) == {}
