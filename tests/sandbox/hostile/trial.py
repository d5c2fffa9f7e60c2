"""Runs hostile programs against a grader and says which got through, and how."""

from __future__ import annotations

import os
import re
import signal
import time
import warnings
from collections.abc import Collection, Iterable, Sequence

from greenward.grading.judge import Grader
from greenward.grading.verdict import Status, Verdict
from greenward.sandbox.isolation import Layer, Level
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Limits
from hostile.program import HostileProgram
from hostile.world import World

QUICK = Limits(cpu_seconds=0.2, wall_seconds=0.8, memory_bytes=512 << 20)
# Reading a whole process or making many files takes a while; none of these programs runs to its limit.
PATIENT = Limits(cpu_seconds=5.0, wall_seconds=10.0, memory_bytes=1 << 30)
_PATIENT_FAMILIES = ("stealing expected values elsewhere", "disk")
_SECONDS_TO_DIE = 3.0
_MAX_MESSAGE_CHARS = 4000
_UNCLEAN = re.compile(r"[^\n\t\x20-\x7e\xa0-\ud7ff\ue000-\U0010ffff]")


class Arena:
    """Workers with the given layers: two for speed, and one alone for what follows another answer."""

    def __init__(self, layers: Collection[Layer]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # little isolation is what is asked for
            self.pair = LocalExecutor(2, require=Level.D, layers=layers)
            self.single = LocalExecutor(1, require=Level.D, layers=layers)
        self.layers = frozenset(layer.value for layer in self.pair.isolation.layers)
        self.missing = {layer.value for layer in layers} - self.layers

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self.pair.close()
        self.single.close()


def let_through(
    world: World, arena: Arena, programs: Iterable[HostileProgram], *, form: str | None = None
) -> dict[str, str]:
    """Name of each program that got through, with what it achieved; `form` replaces their own."""
    chosen = list(programs)
    found: dict[str, str] = {}
    for limits in (QUICK, PATIENT):
        batch = [
            one for one in chosen if not one.then and (one.family in _PATIENT_FAMILIES) is (limits is PATIENT)
        ]
        with Grader(limits, executor=arena.pair) as grader:
            found |= _try_all(world, grader, batch, form)
    with Grader(QUICK, executor=arena.single) as grader:
        for program in chosen:
            if program.then:
                found |= _try_all(world, grader, [program], form)
                found |= _follow(world, grader, program)
    return found


def _try_all(world: World, grader: Grader, programs: Sequence[HostileProgram], form: str) -> dict[str, str]:
    problems = {
        (one.wanted, form or one.form): world.problem(one.wanted, form or one.form) for one in programs
    }
    answers = [(problems[one.wanted, form or one.form], world.code(one, grader.limits)) for one in programs]
    before = [world.state_outside(one) for one in programs]
    verdicts = grader.grade(answers)
    found = {}
    for program, verdict, state in zip(programs, verdicts, before, strict=True):
        achieved = [
            *_achieved(program, verdict, grader.limits),
            *(["changed files outside"] if world.state_outside(program) != state else []),
            *(["a process survived"] if _survived(world, program) else []),
        ]
        if achieved:
            found[program.name] = "; ".join(achieved)
    if not world.bystander_unharmed():
        found["one of these"] = "ended a bystander"
    return found


def _follow(world: World, grader: Grader, program: HostileProgram) -> dict[str, str]:
    code = world.code(program, grader.limits, then=True)
    (verdict,) = grader.grade([(world.problem("access"), code)])
    world.remove_traces(program)
    return {program.name: "reached the next answer"} if verdict.passed else {}


def _achieved(program: HostileProgram, verdict: Verdict, limits: Limits) -> list[str]:
    achieved = []
    if verdict.passed and not program.may_pass:
        achieved.append("accepted")
    if verdict.error_class == "WorkerLost":
        achieved.append("ended its worker")
    elif verdict.status is Status.INFRASTRUCTURE:
        achieved.append(f"blamed the infrastructure: {verdict.error_message}")
    messages = (verdict.error_class or "", verdict.error_message, verdict.first_failure)
    outputs = (verdict.stdout, verdict.stderr)
    if any(_UNCLEAN.search(text) for text in (*messages, *outputs)):
        achieved.append("control characters in the verdict")
    if max(map(len, messages)) > _MAX_MESSAGE_CHARS or max(map(len, outputs)) > 2 * limits.output_bytes:
        achieved.append("endless text in the verdict")
    return achieved


def _survived(world: World, program: HostileProgram) -> bool:
    deadline = time.monotonic() + _SECONDS_TO_DIE
    while survivors := world.survivors(program):
        if time.monotonic() > deadline:
            for pid in survivors:
                os.kill(pid, signal.SIGKILL)
            return True
        time.sleep(0.05)
    return False
