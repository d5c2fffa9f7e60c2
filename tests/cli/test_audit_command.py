"""`greenward audit` as a user sees it."""

from __future__ import annotations

import functools
import json

import pytest
from click.testing import CliRunner

from greenward.cli.main import cli
from greenward.common.errors import RewardError
from greenward.evaluation.audit import audit as audit_function
from greenward.evaluation.audit_report import AuditReport, Trial, TrialOutcome

GRADERS = """
def everything(completions):
    return [1.0] * len(completions)


def for_one_source(data_source, solution_str, ground_truth, extra_info=None):
    return float(data_source == "mine" and "return None" not in solution_str)


def for_gold(completions, gold):
    return [float(one.strip() in completion) for one, completion in zip(gold, completions)]
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "some_graders.py").write_text(GRADERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])


@pytest.fixture(scope="module")
def of_everything(tmp_path_factory):
    """The audit of a function that pays for every answer."""
    folder = tmp_path_factory.mktemp("audited")
    (folder / "some_graders.py").write_text(GRADERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        return audit_function("some_graders:everything")


@pytest.fixture
def audited(monkeypatch, of_everything):
    """The audit is made once, by the function itself; the command gets its report."""
    fake = functools.wraps(audit_function)(lambda *_, **__: of_everything)
    monkeypatch.setattr("greenward.evaluation.audit.audit", fake)


def test_what_is_accepted_is_named_with_the_reason_and_the_exit_code_is_1(audited):
    done = CliRunner().invoke(cli, ["audit", "some_graders:everything"])
    assert done.exit_code == 1
    assert "trl signature" in done.output
    assert done.output.startswith("NOT SOUND, pays for any text: accepted ")
    assert len(done.output.splitlines()) <= 25
    assert "mock.ANY" not in done.output
    done = CliRunner().invoke(cli, ["audit", "some_graders:everything", "--all"])
    assert "leaving early: the answer ended the process before a test could fail" in done.output
    assert "accepted mock.ANY, audit/gcd" in done.output


def test_a_sound_function_gives_exit_code_0(monkeypatch):
    def refused(family, outcome):
        return Trial("an answer", family, "audit/gcd", outcome, 0.0, "", "why")

    report = AuditReport(
        "m:f",
        "trl",
        "bare code",
        cheats=(refused("prelude", TrialOutcome.REFUSED),),
        honest=(refused("honest", TrialOutcome.ACCEPTED),),
    )
    fake = functools.wraps(audit_function)(lambda *_, **__: report)
    monkeypatch.setattr("greenward.evaluation.audit.audit", fake)
    done = CliRunner().invoke(cli, ["audit", "m:f"])
    assert done.exit_code == 0, done.output
    assert "Sound: accepted 0 of 1 wrong or cheating answers" in done.output


def test_json_holds_every_trial(audited):
    done = CliRunner().invoke(cli, ["audit", "some_graders:everything", "--json"])
    report = json.loads(done.output)
    assert (report["sound"], report["accepted"]) == (False, len(report["cheats"]))
    fields = {"answer", "family", "task_id", "outcome", "score", "detail", "why", "text", "is_partial"}
    assert fields == set(report["cheats"][0])
    assert (report["version"], report["findings"][0]["kind"]) == (1, "pays for any text")


def test_a_function_that_cannot_be_used_is_an_error(here):
    done = CliRunner().invoke(cli, ["audit", "some_graders:nothing_there"])
    assert isinstance(done.exception, RewardError)  # `main` makes exit code 2 of it


def test_a_function_that_never_tells_right_from_wrong_is_asked_about_its_data_with_exit_code_2(here):
    done = CliRunner().invoke(cli, ["audit", "some_graders:for_one_source"])
    assert done.exit_code == 2
    assert "never told right from wrong: is the data of the shape it expects?" in done.output
    assert "refused 15 of 15" not in done.output
    done = CliRunner().invoke(cli, ["audit", "some_graders:for_one_source", "--json"])
    report = json.loads(done.output)
    assert (done.exit_code, report["told_apart"], report["says_nothing"]) == (2, False, True)
    done = CliRunner().invoke(cli, ["audit", "some_graders:for_one_source", "--data-source", "mine"])
    assert done.exit_code == 1
    assert "never told" not in done.output


def test_a_column_can_have_the_name_that_the_function_gives_it(here):
    done = CliRunner().invoke(cli, ["audit", "some_graders:for_gold", "--column", "gold=reference"])
    assert done.exit_code == 1  # it refuses right answers that are not the reference
    assert "accepted 0 of" not in done.output or "refused" in done.output
    assert "trl signature" in done.output


@pytest.mark.parametrize("column", ["gold", "=reference", "gold="])
def test_a_column_without_both_names_is_an_error(here, column):
    done = CliRunner().invoke(cli, ["audit", "some_graders:for_gold", "--column", column])
    assert done.exit_code == 2
    assert "expected THEIRS=OURS" in done.output
