"""Labels of vulnerable functions: what an answer says, the verdict on it, and whether its reason fits the fix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenward.common.errors import RewardError
from greenward.config.sections import RewardTermConfig
from greenward.grading.extraction import extract_code
from greenward.grading.judge import Grader
from greenward.grading.reward_terms import make_reward
from greenward.grading.rewards import GradedAnswer
from greenward.grading.verdict import Family, Status, Verdict
from greenward.problems.problem import Assertion, Problem
from greenward.tasks.vulnerability.data import pair, vulnerability_pairs
from greenward.tasks.vulnerability.labels import Label, evidence, parse_label

CODE = "import os\n\ndef f(x):\n    os.system('ls ' + x)\n    return x\n"
FIXED = "import os\n\ndef f(x):\n    os.listdir(x)\n    return x\n"
BAD, GOOD = pair("p", CODE, FIXED, "CWE-78")
VULNERABLE, SAFE = BAD.label, GOOD.label
assert VULNERABLE is not None and SAFE is not None


def answer(text: str, problem: Problem = BAD) -> GradedAnswer:
    code = extract_code(text, problem, "chat").code
    with_label = problem.label.judge(code) if problem.label else Verdict(Status.PASSED)
    return GradedAnswer(problem, "", text, code, with_label)


def term_score(name: str, text: str, problem: Problem = BAD) -> float | None:
    term = make_reward(RewardTermConfig(name=name))
    return term.score([answer(text, problem)], None)[0]  # type: ignore[arg-type]


def test_the_versions_of_a_pair_know_the_lines_in_which_they_differ() -> None:
    assert (VULNERABLE.lines, SAFE.lines) == ((4,), (4,))
    assert (BAD.task_id, GOOD.task_id) == ("p/vulnerable", "p/fixed")


def test_an_answer_is_read_with_its_reason_and_confidence() -> None:
    found = parse_label(
        "<think>\nline 4: os.system gets x; lines 1, 3-5 and 9\n</think>\n<answer>Vulnerable CWE-078, 85 %</answer>"
    )
    assert (found.said, found.cwe, found.confidence) == ("vulnerable", "CWE-78", 0.85)
    assert found.lines == {1, 3, 4, 5, 9} and found.sinks == ("os.system",) and found.strict


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        ("vulnerable CWE-78, 55.5 %", 0.555),
        ("vulnerable to CWE-78", None),
        ("vulnerable - CWE-78 (confidence: 90%)", 0.9),
        ("vulnerable [CWE-078]", None),
        ("vulnerable: CWE 78, in 2 places, 100 %", 1.0),
    ],
)
def test_a_weakness_and_a_confidence_are_found_in_common_forms(text: str, confidence: float | None) -> None:
    found = parse_label(f"<answer>{text}</answer>")
    assert (found.said, found.cwe, found.confidence) == ("vulnerable", "CWE-78", confidence)


@pytest.mark.parametrize(
    ("text", "said", "confidence", "strict"),
    [
        ("<answer>safe</answer>", "safe", None, False),
        ("<think>a</think><answer>safe (60%)</answer>", "safe", 0.6, True),
        ("<think>a</think><answer>unsure</answer>", "unsure", None, True),
        ("<think>a</think>\n<answer>safe</answer> or so", "safe", None, False),
        ("<answer>safe</answer><answer>vulnerable</answer>", "vulnerable", None, False),  # the last one holds
        ("<think><answer>safe</answer>", None, None, False),  # reasoning that never ends
        ("<think><answer>safe</answer></think>", None, None, False),
        ("<think>a</think><answer>perhaps</answer>", None, None, False),
        ("safe", None, None, False),
        ("<answer>safely</answer>", None, None, False),
        ("", None, None, False),
    ],
)
def test_forms_of_answers(text: str, said: str | None, confidence: float | None, strict: bool) -> None:
    found = parse_label(text)
    assert (found.said, found.confidence, found.strict) == (said, confidence, strict)


@pytest.mark.parametrize(
    ("problem", "said", "status", "tests"),
    [
        (BAD, "vulnerable CWE-78", Status.PASSED, (True, True)),
        (BAD, "vulnerable CWE-89", Status.FAILED, (True, False)),
        (BAD, "vulnerable", Status.FAILED, (True, False)),
        (BAD, "safe", Status.FAILED, (False, False)),
        (BAD, "unsure", Status.ABSTAINED, (False, False)),
        (BAD, "maybe", Status.NO_LABEL, (False, False)),
        (GOOD, "safe", Status.PASSED, (True,)),
        (GOOD, "vulnerable CWE-78", Status.FAILED, (False,)),
    ],
)
def test_verdicts(problem: Problem, said: str, status: Status, tests: tuple[bool, ...]) -> None:
    with Grader(workers=1) as grader:
        (verdict,) = grader.grade([(problem, f"<think>\n</think><answer>{said}</answer>")])
    assert (verdict.status, verdict.tests_passed) == (status, tests)
    assert verdict.status.family is Family.JUDGED


def test_rewards_of_detection_and_weakness() -> None:
    def scores(name: str, problem: Problem) -> list[float | None]:
        said = ("vulnerable CWE-78", "vulnerable CWE-22", "safe", "unsure", "?")
        return [term_score(name, f"<think></think><answer>{one}</answer>", problem) for one in said]

    assert scores("detection", BAD) == [1, 1, -1, 0, -1]
    assert scores("detection", GOOD) == [-1, -1, 1, 0, -1]
    assert scores("weakness", BAD) == [1, 0, 0, 0, 0]
    assert scores("weakness", GOOD) == [None] * 5


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("line 4: os.system", 1.0),
        ("line 4", 0.7),
        ("line 4: os.remove", 0.7),
        ("line 4: system.", 1.0),
        ("line 4: os", 0.7),  # stands there, but is not called
        ("line 4: x", 0.7),
        ("line 4: ls", 0.7),
        ("line 3: return", 0.0),
        ("line 3: os.system", 0.3),
        ("lines 3 and 4: os.system", 0.7 * 2 / 3 + 0.3),
        ("line 4: os.system, line 5: f", 0.7 * 2 / 3 + 0.3 / 2),  # cited beside: one of two names is there
        ("lines 1-5", 0.7 * 2 / 6),
        ("Line 4: os.system", 1.0),
        ("lines 4, 5, and 6", 0.7 * 2 / 4),
        ("Lines 3–5", 0.7 * 2 / 4),
        ("lines 3 to 5", 0.7 * 2 / 4),
        ("it looks dangerous", 0.0),
    ],
)
def test_a_reason_is_checked_against_the_lines_that_the_fix_changed(reason: str, expected: float) -> None:
    found = parse_label(f"<think>\n{reason}\n</think>\n<answer>vulnerable CWE-78</answer>")
    assert evidence(VULNERABLE, found, CODE) == pytest.approx(expected)


def test_where_nothing_is_called_on_the_changed_lines_names_count_for_nothing() -> None:
    label = Label(True, "CWE-78", "p", (1,))
    for reason, expected in (("line 1", 1.0), ("line 1: import", 1.0), ("line 2: import", 0.0)):
        found = parse_label(f"<think>{reason}</think><answer>vulnerable CWE-78</answer>")
        assert evidence(label, found, CODE) == expected


def test_where_no_line_of_a_version_changed_its_reason_is_not_scored() -> None:
    label = Label(True, "CWE-78", "p", ())
    assert evidence(label, parse_label("<think>line 1</think><answer>safe</answer>"), CODE) is None


def test_a_reason_outside_of_its_tags_does_not_count() -> None:
    assert term_score("evidence", "line 4: os.system <answer>vulnerable CWE-78</answer>") == 0.0


def test_terms_of_labels_refuse_problems_with_tests() -> None:
    problem = Problem("add", "", "add", tests=(Assertion("assert add(1, 1) == 2"),))
    with pytest.raises(RewardError, match="has tests and no label"):
        make_reward(RewardTermConfig(name="weakness")).score(
            [GradedAnswer(problem, "", "", "", Verdict(Status.PASSED))],
            None,  # type: ignore[arg-type]
        )


def test_written_answers_are_read_as_they_were_meant() -> None:
    for problem in (*vulnerability_pairs("train")[:120], *vulnerability_pairs("held_out")[:64]):
        assert problem.label is not None
        text = problem.label.written(problem.prompt)
        found = parse_label(text)
        assert found.strict and problem.label.judge(text).passed
        assert found.lines <= set(problem.label.lines or ())
        assert (evidence(problem.label, found, problem.prompt) or 1) > 0.6


@given(st.text(alphabet="<>/thinkaswerlsfvub 0123456789,-%:CWE\n", max_size=300))
def test_any_text_is_read(text: str) -> None:
    found = parse_label(text)
    assert found.said in ("vulnerable", "safe", "unsure", None)
    assert found.confidence is None or 0 <= found.confidence <= 1


def test_hostile_answers_are_read_in_linear_time() -> None:
    for text in (
        "<answer>vulnerable" * 50_000,
        "line 1" * 100_000,
        "line " + "1," * 200_000,
        "<think>" * 90_000,
    ):
        assert parse_label(text).said is None
    assert len(parse_label("<think>line 1-999999</think><answer>safe</answer>").lines) <= 201
