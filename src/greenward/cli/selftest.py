"""Defines the command that tests an installation: diagnosis, sandbox and audit, in seconds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import click

from greenward.cli.options import json_option
from greenward.common.control_groups import usable_cores
from greenward.common.terminal import echo, echo_json

_STEPS = 240  # of a simulated run
_HEALTHY_RUNS = 2
_REPORT = "Report it with the output of greenward doctor --json; do not rely on this area meanwhile."


@dataclass
class Area:
    """What was tried: how many of how many held, what to know of it, and what failed, with advice."""

    name: str
    tried: str
    held: int = 0
    of: int = 0
    remark: str = ""
    failures: list[tuple[str, str]] = field(default_factory=list)

    def count(self, holds: bool, failure: str, remedy: str = _REPORT) -> None:
        """Count something that was tried, and what failed if it does not hold."""
        self.of += 1
        self.held += holds
        if not holds:
            self.failures.append((failure, remedy))


class Example(NamedTuple):
    """A simulated run: a kind of a task, or of all, and the finding that it shows; None: it is healthy."""

    finding: str | None
    kind: str | None
    task: str | None = None
    seed: int = 0


def examples() -> Iterator[Example]:
    """A run for each finding, and healthy ones. A finding for which there is none has no kind."""
    from greenward.diagnostics.findings import FINDINGS
    from greenward.diagnostics.simulation import example_of
    from greenward.tasks import TASKS, find_task

    yield from (Example(None, None, seed=seed) for seed in range(_HEALTHY_RUNS))
    yield from (Example(name, example_of(name)) for name in FINDINGS)
    for task in TASKS:
        found = find_task(task)
        kinds = found.simulated()
        yield from (Example(None, name, task) for name, kind in kinds.items() if not kind.names)
        for topic in found.findings():
            yield from (Example(one.name, example_of(one.name, kinds), task) for one in topic.findings)


def findings_of(example: Example) -> list[str]:
    """Play a simulated run, and return the findings of a diagnosis that reads its files. Of remarks, only the
    one that it shows counts.
    """
    import tempfile
    from pathlib import Path

    import numpy as np

    from greenward.diagnostics.diagnose import diagnose_run
    from greenward.diagnostics.simulation import HEALTHY, World, every_kind, simulate, write
    from greenward.tasks import find_task

    kinds = every_kind(find_task(example.task).simulated() if example.task else {})
    chosen = kinds[example.kind] if example.kind else HEALTHY
    world = World(np.random.default_rng((example.seed, sum(map(ord, example.kind or "")))), _STEPS)
    with tempfile.TemporaryDirectory(prefix="greenward-") as folder:
        run = write(world, simulate(chosen, world, _STEPS // 2), Path(folder, "run"))
        found = diagnose_run(run).findings
        return [one.name for one in found if one.severity != "info" or one.name == example.finding]


def _compute_alone() -> None:
    """Let NumPy, which a new process has not loaded yet, compute by one thread: each core has a process."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def diagnosis() -> Area:
    """Whether each finding is found in a run that has it, and none in healthy ones."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    area = Area("diagnosis", "findings fire on a log of their own, and none on healthy logs")
    every = list(examples())
    played = [one for one in every if one.kind or one.finding is None]
    workers = min(4, usable_cores())
    with ProcessPoolExecutor(workers, get_context("spawn"), _compute_alone) as pool:
        found = dict(zip(played, pool.map(findings_of, played), strict=True))
    for one in every:
        if one.finding is None:
            said = ", ".join(found[one])
            area.count(not said, f"{said} on a healthy log ({one.kind or f'seed {one.seed}'})")
        elif one.kind is None:
            area.count(False, f"there is no log for {one.finding}")
        else:
            area.count(one.finding in found[one], f"{one.finding} did not fire on {one.kind!r}")
    return area


def sandbox() -> Area:
    """Whether the layers of isolation hold that this machine offers; level B is the least."""
    from greenward.sandbox.isolation import Layer, Level
    from greenward.sandbox.pool import inspect_sandbox

    area = Area("sandbox", "layers of isolation hold")
    isolation, answer_ms = inspect_sandbox()
    level = isolation.level
    area.remark = f"level {level.value}, {answer_ms:.1f} ms for a trivial answer"
    for layer in Layer:
        if layer in isolation.layers or layer in Level.B.layers:
            failure = f"{layer.value}: {isolation.reason(layer)}"
            area.count(layer in isolation.layers, failure, f"To have it, {layer.remedy}.")
        else:
            area.remark += f"; without {layer.value}: {isolation.reason(layer)}"
    return area


def equals_the_reference(
    prompts: Sequence[Any], completions: Sequence[str], reference: Sequence[str], **columns: Any
) -> list[float]:
    """A broken grader, for the audit: it pays for the text of the reference and runs nothing."""
    return [float(text.strip() == one.strip()) for text, one in zip(completions, reference, strict=True)]


def audit() -> Area:
    """Whether an audit tells a right grader from a broken one."""
    import greenward

    area = Area("audit", "graders are told right from broken")
    right = greenward.audit("greenward.grading.reward_terms:tests", timeout_seconds=2.0)
    wrong = (*right.accepted, *right.broken_by, *right.false_refusals)
    names = ", ".join(one.answer for one in wrong[:3])
    area.count(
        right.sound, f"the grader that runs the tests is called broken, by {len(wrong)} answers: {names}"
    )
    broken = greenward.audit(equals_the_reference, timeout_seconds=2.0)
    area.count(not broken.sound, "a grader that compares texts is called sound")
    area.remark = f"{len(right.cheats)} cheating and {len(right.honest)} right answers"
    return area


def attempted(test: Callable[[], Area]) -> Area:
    """The area of a test. One that raises has failed."""
    try:
        return test()
    except Exception as error:
        area = Area(test.__name__, "could be tested")
        area.count(False, f"{type(error).__name__}: {error}")
        return area


@click.command()
@json_option
def selftest(as_json: bool) -> None:
    """Test this installation in seconds: diagnosis, sandbox and audit. Needs neither torch nor a network.

    Each finding of a diagnosis must fire on a simulated log with its fault, and none on healthy ones; the
    layers of isolation around answers must hold; and an audit must tell a right grader from a broken one.
    Exit code: 0 all of it holds, 1 something does not.
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:  # the diagnosis computes, the audit waits
        waiting = pool.submit(attempted, audit)
        areas = [attempted(diagnosis), attempted(sandbox), waiting.result()]
    failed = [(area.name, *failure) for area in areas for failure in area.failures]
    if as_json:
        echo_json(json.dumps({"passed": not failed, "areas": list(map(asdict, areas))}, indent=2))
    else:
        for area in areas:
            remark = f" ({area.remark})" if area.remark else ""
            echo(f"{area.name:10} {area.held} of {area.of} {area.tried}{remark}")
        for name, failure, remedy in failed:
            echo(f"FAILED     {name}: {failure}. {remedy}")
    raise SystemExit(1 if failed else 0)
