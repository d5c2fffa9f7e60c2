"""No hostile program gets through: none is accepted, none leaves a trace outside its process.

A program gets through when it is accepted without being right, changes a file that is not its own,
leaves a process or something for the next answer, ends its worker or a bystander, or brings
unclean text into its verdict (`trial.let_through`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict

import pytest

from greenward.grading.judge import Grader
from greenward.problems.problem import Case, Problem
from hostile import naive_grader
from hostile.attacks import FAMILIES, HOSTILE_PROGRAMS
from hostile.attacks.channel import REACH
from hostile.program import ALWAYS, ANYWHERE, AS_ROOT, HostileProgram
from hostile.trial import QUICK, let_through

IN_ONE_PROCESS = ("leaving early", "lying equality and types", "stealing expected values in the process")
FORGERS = (*IN_ONE_PROCESS, "forging the result channel", "tampering with the interpreter")


SMALL = 15


def of_family(family: str, *, every: int = 1) -> list[HostileProgram]:
    """The programs of a family: of more than `SMALL`, one in `every` of a kind (what stops it, its tests)."""
    members = [program for program in HOSTILE_PROGRAMS if program.family == family]
    kinds = defaultdict[object, list[HostileProgram]](list)
    for program in members:
        kinds[program.stopped_by, program.form, bool(program.then)].append(program)
    step = every if len(members) > SMALL else 1
    return [program for programs in kinds.values() for program in programs[::step]]


some_and_all = pytest.mark.parametrize(
    "every", [pytest.param(6, id="some"), pytest.param(1, id="each", marks=pytest.mark.slow)]
)


def certain_to_get_through(program: HostileProgram) -> bool:
    return program.unprotected == ANYWHERE or (program.unprotected == AS_ROOT and os.geteuid() == 0)


@pytest.mark.parametrize("arena", ["all"], indirect=True)
@some_and_all
@pytest.mark.parametrize("family", FAMILIES)
def test_no_program_gets_through_all_layers(world, arena, family, every):
    assert let_through(world, arena, of_family(family, every=every)) == {}


@pytest.mark.parametrize("arena", ["core"], indirect=True)
@some_and_all
@pytest.mark.parametrize("family", FAMILIES)
def test_the_layers_that_need_no_privilege_stop_all_that_they_promise(world, arena, family, every):
    programs = of_family(family, every=every)
    promised = [one for one in programs if not one.stopped_always and one.stopped_by & arena.layers]
    assert let_through(world, arena, promised) == {}


@pytest.mark.slow
@pytest.mark.parametrize("arena", ["portable"], indirect=True)
@pytest.mark.parametrize("family", FAMILIES)
def test_without_further_layers_the_promised_is_stopped_and_the_rest_is_a_real_attack(world, arena, family):
    programs = of_family(family)
    found = let_through(world, arena, programs)
    stopped = {one.name for one in programs if one.stopped_by & (ALWAYS | arena.layers)}
    certain = {one.name for one in programs if one.name not in stopped and certain_to_get_through(one)}
    assert {name: how for name, how in found.items() if name in stopped} == {}
    assert certain - found.keys() == set()


@pytest.mark.parametrize("arena", ["all"], indirect=True)
def test_forgers_reach_the_harness_and_its_nonce(world, arena):
    """Otherwise it would say little that they do not pass."""
    with Grader(QUICK, executor=arena.pair) as grader:
        (verdict,) = grader.grade([(world.problem("access"), REACH)])
    assert verdict.passed, verdict.failure


@pytest.mark.parametrize("arena", ["all"], indirect=True)
@some_and_all
@pytest.mark.parametrize("form", ["tests", "checks"])
@pytest.mark.parametrize("family", FORGERS)
def test_forgers_do_not_pass_assertions_and_check_functions_either(world, arena, family, form, every):
    assert let_through(world, arena, of_family(family, every=every), form=form) == {}


@pytest.mark.parametrize("arena", ["all", pytest.param("core", marks=pytest.mark.slow)], indirect=True)
@some_and_all
@pytest.mark.parametrize("form", ["tests", "checks", "stdio", "in_process"])
def test_no_answer_can_blame_the_infrastructure_whatever_its_tests(world, arena, form, every):
    programs = of_family("blaming the infrastructure", every=every)
    assert let_through(world, arena, programs, form=form) == {}


@pytest.mark.slow
def test_many_of_the_attacks_fool_a_grader_that_compares_in_the_process_of_the_answer(world, tmp_path):
    """Otherwise it would say little that ours is not fooled."""
    accepted = []
    for family in IN_ONE_PROCESS:
        for program in of_family(family):
            problem = world.problem(program.wanted)
            cases = [[case.args, case.expected] for case in problem.cases]
            try:
                text = json.dumps([world.code(program, QUICK), problem.entry_point, cases])
            except TypeError:
                continue  # a value that this grader's JSON cannot carry
            file = tmp_path / "job.json"
            file.write_text(text)
            command = [sys.executable, "-I", "-S", naive_grader.__file__, str(file)]
            try:
                ended = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=1)
            except subprocess.TimeoutExpired:
                continue
            if ended.returncode == 0:
                accepted.append(program.name)
    assert len(accepted) >= 35, accepted


@pytest.mark.parametrize("arena", ["all"], indirect=True)
def test_chance_that_a_seed_decides_never_changes_a_verdict_and_other_chance_is_named(arena):
    problem = Problem("successor", "", "f", tests=(Case((0,), 1),))
    seeded = [
        "import random\ndef f(i): return i + (random.random() < 0.5)",
        "def f(i): return i + hash('some text') % 2",
        "def f(i): return i + (next(iter({'a', 'b', 'c'})) == 'a')",
        "import random\nrandom.seed(None if False else 'x')\ndef f(i): return i + random.getrandbits(1)",
    ]
    unseeded = [
        "import os\ndef f(i): return i + os.urandom(1)[0] % 2",
        "import time\ndef f(i): return i + time.time_ns() // 1000 % 2",
    ]
    with Grader(QUICK, executor=arena.pair) as grader:
        flaky = grader.flaky([(problem, code) for code in (*seeded, *unseeded)], 16)
    assert [one.index for one in flaky] == [4, 5]
