"""`greenward audit` as a user sees it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from greenward.cli.audit import audit
from greenward.errors import RewardError
from greenward.evaluation.audit.audit import AuditReport, Outcome, Trial

GRADERS = """
def everything(completions, **columns):
    return [1.0] * len(completions)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "some_graders.py").write_text(GRADERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])


def test_what_is_accepted_is_named_with_the_reason_and_the_exit_code_is_1(here):
    done = CliRunner().invoke(audit, ["some_graders:everything"])
    assert done.exit_code == 1
    assert "trl signature" in done.output
    assert "leaving early: the answer ended the process before a test could fail" in done.output
    assert "accepted mock.ANY, audit/gcd" in done.output
    assert "NOT SOUND: accepted " in done.output


def test_a_sound_function_gives_exit_code_0(monkeypatch):
    def refused(family, outcome):
        return Trial("an answer", family, "audit/gcd", outcome, 0.0, "", "why")

    report = AuditReport(
        "m:f",
        "trl",
        "bare code",
        cheats=(refused("prelude", Outcome.REFUSED),),
        honest=(refused("honest", Outcome.ACCEPTED),),
    )
    monkeypatch.setattr("greenward.evaluation.audit.audit.audit", lambda *_, **__: report)
    done = CliRunner().invoke(audit, ["m:f"])
    assert done.exit_code == 0, done.output
    assert "Sound: accepted 0 of 1 cheating answers" in done.output


def test_json_holds_every_trial(here):
    done = CliRunner().invoke(audit, ["some_graders:everything", "--json"])
    report = json.loads(done.output)
    assert (report["sound"], report["accepted"]) == (False, len(report["cheats"]))
    assert {"answer", "family", "task_id", "outcome", "score", "detail", "why"} == set(report["cheats"][0])


def test_a_function_that_cannot_be_used_is_an_error(here):
    done = CliRunner().invoke(audit, ["some_graders:nothing_there"])
    assert isinstance(done.exception, RewardError)  # `main` makes exit code 2 of it
