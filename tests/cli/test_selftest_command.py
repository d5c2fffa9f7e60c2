"""`greenward selftest`: every finding has a simulated run that shows it, and what fails is said."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from greenward.cli import selftest
from greenward.cli.main import cli
from greenward.cli.selftest import Area, Example, examples, findings_of
from greenward.diagnostics.findings import topics_of
from greenward.sandbox import pool
from greenward.sandbox.isolation import PORTABLE_LAYERS
from greenward.sandbox.pool import LocalExecutor
from greenward.tasks import TASKS, find_task

EVERY = list(examples())
TASKS_WITH_FINDINGS = [name for name in TASKS if find_task(name).findings()]


def test_every_finding_has_a_run_that_shows_it_and_every_task_with_findings_a_healthy_one():
    topics = [*topics_of([]), *(topic for name in TASKS for topic in find_task(name).findings())]
    names = {one.name for topic in topics for one in topic.findings}
    assert names == {one.finding for one in EVERY if one.kind} - {None}, (
        "a kind in diagnostics/simulation.py, or in `simulated` of the task, shows a finding"
    )
    healthy = [one.task for one in EVERY if one.finding is None]
    assert set(healthy) == {None, *TASKS_WITH_FINDINGS}


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(
            one,
            id=f"{one.finding or 'healthy'} {one.kind or one.seed}",
            marks=pytest.mark.slow if number % 4 else (),
        )
        for number, one in enumerate(EVERY)
    ],
)
def test_a_finding_fires_on_its_run_and_none_on_a_healthy_one(example):
    found = findings_of(example)
    assert example.finding in found if example.finding else found == []


def test_what_does_not_fire_fires_wrongly_or_has_no_run_is_said(monkeypatch):
    given = [
        Example("kl-runaway", "cheating"),
        Example(None, "gradient explosion"),
        Example("cheating", "cheating"),
        Example("new", None),
    ]
    monkeypatch.setattr(selftest, "examples", lambda: iter(given))
    area = selftest.diagnosis()
    assert (area.held, area.of) == (1, 4)
    first, second, third = (failure for failure, _ in area.failures)
    assert first == "kl-runaway did not fire on 'cheating'" and third == "there is no log for new"
    assert second.startswith("gradient-explosion, ") and second.endswith(
        "on a healthy log (gradient explosion)"
    )


def test_a_layer_that_training_needs_and_the_machine_lacks_fails_with_its_remedy(monkeypatch):
    def without_the_core(workers, **options):
        return LocalExecutor(workers, layers=PORTABLE_LAYERS, **options)

    monkeypatch.setattr(pool, "LocalExecutor", without_the_core)
    area = selftest.sandbox()
    assert (area.held, area.of) == (1, 4) and "without namespaces" in area.remark
    assert any("landlock" in failure and "Linux 5.13" in remedy for failure, remedy in area.failures)


def test_the_command_says_counts_and_failures_and_exits_with_1(monkeypatch):
    def diagnosis():
        return Area("diagnosis", "findings fire", 2, 2)

    def sandbox():
        raise OSError("no worker started")

    def audit():
        return Area(
            "audit", "graders are told", 1, 2, "183 answers", [("a broken one is called sound", "Do this.")]
        )

    for test in (diagnosis, sandbox, audit):
        monkeypatch.setattr(selftest, test.__name__, test)
    done = CliRunner().invoke(cli, ["selftest"])
    assert done.exit_code == 1 and done.output.splitlines() == [
        "diagnosis  2 of 2 findings fire",
        "sandbox    0 of 1 could be tested",
        "audit      1 of 2 graders are told (183 answers)",
        f"FAILED     sandbox: OSError: no worker started. {selftest._REPORT}",
        "FAILED     audit: a broken one is called sound. Do this.",
    ]
    done = CliRunner().invoke(cli, ["selftest", "--json"])
    found = json.loads(done.output)
    assert done.exit_code == 1 and not found["passed"]
    assert [(one["name"], one["held"], one["of"]) for one in found["areas"]] == [
        ("diagnosis", 2, 2), ("sandbox", 0, 1), ("audit", 1, 2),
    ]  # fmt: skip
    monkeypatch.setattr(selftest, "audit", diagnosis)
    monkeypatch.setattr(selftest, "sandbox", diagnosis)
    assert CliRunner().invoke(cli, ["selftest"]).exit_code == 0
