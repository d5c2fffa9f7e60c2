"""The audit finds what is known to be wrong with naive graders, and nothing in ours."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest

from greenward.common.errors import RewardError
from greenward.evaluation.audit import audit
from greenward.evaluation.audit_programs import CHEATS, FAMILIES, FUNCTIONS, HONEST, RIGHT_ANSWERS
from greenward.evaluation.audit_report import TrialOutcome
from greenward.grading.user_rewards import assertions
from greenward.problems.problem import StdioCase

OF_FUNCTIONS = [answer for answer in RIGHT_ANSWERS if answer.problem.entry_point]
QUICK = 3.0  # seconds; endless answers take this long, and those of `exit_status` end before


@pytest.fixture(autouse=True)
def graders_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def of(*families):
    return [cheat for cheat in CHEATS if cheat.family in families]


def outcomes(report):
    return {(trial.family, trial.answer): trial.outcome for trial in report.cheats}


def families(trials):
    return {trial.family for trial in trials}


@pytest.mark.slow
def test_our_default_reward_accepts_no_cheat_and_refuses_no_right_answer():
    report = audit("greenward.grading.reward_terms:tests")
    assert report.signature == "ours"
    assert {trial.family for trial in report.cheats} >= {cheat.family for cheat in CHEATS}
    assert len(report.cheats) > len(CHEATS) >= 55
    assert len(report.honest) >= 15
    assert report.sound, report.to_json()


@pytest.mark.slow
def test_execution_in_the_trainer_is_killed_hung_poisoned_and_fooled():
    report = audit(
        "audited_graders:exec_and_assert",
        timeout_seconds=0.7,
        cheats=[cheat for cheat in CHEATS if cheat.family != "flood"],
    )
    assert report.signature == "trl"
    assert not report.false_refusals
    found = outcomes(report)
    assert found["leaving early", "sys.exit(0) at the top"] is TrialOutcome.KILLED
    assert found["leaving early", "os._exit(0) in the function"] is TrialOutcome.KILLED
    assert found["endless", "loop"] is TrialOutcome.HUNG
    assert found["equal to everything", "mock.ANY"] is TrialOutcome.ACCEPTED
    assert found["lying type", "list that equals everything"] is TrialOutcome.ACCEPTED
    assert (
        found["stealing expected values", "expected values from the callers' frames"] is TrialOutcome.ACCEPTED
    )
    assert found["tampering", "exec does nothing"] is TrialOutcome.ACCEPTED
    assert found["tampering", "the tests of all frames are emptied"] is TrialOutcome.ACCEPTED
    assert found["signals", "parent killed"] is TrialOutcome.KILLED
    # What it does right: no prelude, no trust in output or text, and it has the hidden tests.
    assert not families(report.accepted) & {"prelude", "forged report", "text for value", "visible tests"}
    assert not families(report.accepted) & {"plainly wrong"}


@pytest.mark.slow
def test_a_trusted_exit_status_is_fooled_by_leaving_early_and_by_the_prelude():
    report = audit(
        "audited_graders:exit_status",
        timeout_seconds=QUICK,
        cheats=of(
            "leaving early", "prelude", "lying type", "endless", "signals", "plainly wrong", "visible tests",
            "text for value", "tampering",
        ),
    )  # fmt: skip
    assert (report.signature, report.presentation.rpartition(" ")[2]) == ("verl", "assertions")
    accepted = collections.Counter(trial.family for trial in report.accepted)
    assert accepted == {"leaving early": 8, "prelude": 3, "lying type": 3}
    assert {trial.family for trial in report.broken_by} == {"signals"}
    # Pasting text in front breaks a legal program.
    assert [trial.answer for trial in report.false_refusals] == ["future import in front"]


def test_comparing_printed_text_is_fooled_by_text():
    report = audit(
        "audited_graders:printed_text",
        timeout_seconds=QUICK,
        cheats=of("text for value", "leaving early", "equal to everything", "lying type", "visible tests"),
    )
    assert families(report.accepted) == {"text for value"}
    assert {trial.task_id for trial in report.accepted} == {"audit/gcd", "audit/running_max"}
    assert not report.false_refusals


def test_judging_by_the_shown_tests_is_fooled_by_knowing_them():
    report = audit(
        "audited_graders:shown_tests_only",
        timeout_seconds=QUICK,
        cheats=of("visible tests", "plainly wrong", "leaving early"),
    )
    assert "in a message" in report.presentation
    assert families(report.accepted) == {"visible tests"}
    assert {trial.task_id for trial in report.accepted} == {problem.task_id for problem in FUNCTIONS}


def test_the_shape_that_a_function_reads_is_found_by_trying():
    report = audit(
        "audited_graders:bare_code_only", timeout_seconds=QUICK, cheats=of("prelude", "answer format")
    )
    assert report.presentation == "bare code, ground truth: assertions as JSON"
    assert report.sound
    assert families(report.cheats) == {"prelude"}  # bare code has no blocks to play tricks with


@pytest.mark.slow
def test_a_function_that_accepts_or_refuses_everything_is_not_sound():
    generous = audit("audited_graders:everything", cheats=CHEATS[::12])
    assert len(generous.accepted) == len(generous.cheats)
    assert not generous.says_nothing
    strict = audit("audited_graders:nothing", cheats=CHEATS[::12])
    assert not strict.accepted
    assert len(strict.false_refusals) == len(OF_FUNCTIONS)
    assert not generous.sound
    assert not strict.sound


def test_a_function_of_our_signature_that_ignores_the_verdict_is_caught():
    report = audit("audited_graders:one_for_any_code", cheats=of("plainly wrong", "equal to everything"))
    assert report.signature == "ours"
    assert len(report.accepted) == len(report.cheats)


PRINTED = ("printed nothing", "printed prefix", "printed everything", "visible tests", "leaving early")


def test_programs_that_read_standard_input_are_thrown_too():
    report = audit("audited_graders:same_output", data_source="codecontests", cheats=of(*PRINTED))
    assert report.sound, report.to_json()
    assert report.left_out == "functions"
    assert {trial.task_id for trial in (*report.cheats, *report.honest)} == {
        "audit/running_sums",
        "audit/larger",
    }
    assert len(report.cheats) >= 10


@pytest.mark.parametrize(
    ("function", "family", "accepted"),
    [
        ("prefix_of_output", "printed prefix", 4),
        pytest.param("output_is_somewhere", "printed everything", 3, marks=pytest.mark.slow),
    ],
)
def test_graders_that_see_a_part_of_the_output_are_fooled_by_programs(function, family, accepted):
    report = audit(f"audited_graders:{function}", cheats=of(*PRINTED))
    assert families(report.accepted) == {family}
    assert len(report.accepted) == accepted


def test_right_programs_print_what_is_expected_and_wrong_ones_do_not():
    import subprocess
    import sys

    def passes(answer):
        return all(
            subprocess.run(
                [sys.executable, "-c", answer.code], input=case.stdin, capture_output=True, text=True
            ).stdout.split()
            == case.stdout.split()
            for case in answer.problem.tests_of(StdioCase)
        )

    assert all(passes(answer) for answer in RIGHT_ANSWERS if answer.problem.tests_of(StdioCase))
    assert not any(passes(answer) for answer in CHEATS if answer.problem.tests_of(StdioCase))


def test_another_data_source_than_the_function_knows_says_nothing():
    report = audit("audited_graders:same_output", cheats=of("printed nothing", "prelude"))
    assert (report.told_apart, report.says_nothing) == (False, True)


def test_the_ground_truth_can_be_json_lines():
    report = audit("audited_graders:lines_of_cases", cheats=of("visible tests", "plainly wrong"))
    assert (report.sound, report.presentation) == (True, "a fenced block, ground truth: cases as JSON lines")
    fixed = audit("audited_graders:lines_of_cases", ground_truth="json-lines", cheats=of("prelude"))
    assert (fixed.sound, fixed.told_apart) == (True, True)
    with pytest.raises(RewardError, match=r"gave no score to right answers.*JSONDecodeError"):
        audit("audited_graders:lines_of_cases", ground_truth="assertions")


def test_trl_functions_get_what_they_get_in_training():
    report = audit(
        "audited_graders:awaited_with_logs",
        columns={"gold": "reference"},
        cheats=of("plainly wrong", "prelude"),
    )
    assert (report.signature, report.told_apart, report.accepted) == ("trl", True, ())
    assert "in a message" in report.presentation
    ids = audit(
        "audited_graders:token_ids_only", cheats=of("equal to everything", "visible tests", "prelude")
    )
    assert (ids.signature, ids.sound) == ("trl", True)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("audited_graders:needs_environments", "needs environments, the tool environments of TRL"),
        ("audited_graders:awaited_with_logs", "needs gold, which the audit does not have"),
        ("audited_graders:raises", "gave no score to right answers.*KeyError: 'tests_of_mine'"),
        pytest.param(
            "audited_graders:leaves", r"gave no score to right answers.*status 3", marks=pytest.mark.slow
        ),
        ("audited_graders:needs_more", "needs rubric, which the audit does not have"),
        ("audited_graders:missing", "has no function 'missing'"),
        ("no_such_graders:f", "could not be imported"),
    ],
)
def test_a_function_that_cannot_be_audited_is_refused(function, message):
    with pytest.raises(RewardError, match=message):
        audit(function)


def test_every_family_has_a_reason_and_answers():
    assert {cheat.family for cheat in CHEATS} | {HONEST} == set(FAMILIES)
    names = [(cheat.name, cheat.problem.task_id) for cheat in CHEATS]
    assert len(set(names)) == len(names)


def test_right_answers_are_right_by_pythons_own_judgement():
    for answer in OF_FUNCTIONS:
        namespace = {"__name__": "answer"}
        exec(answer.code, namespace)
        for assertion in assertions(answer.problem):
            exec(assertion, namespace)
