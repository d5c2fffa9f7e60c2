"""Reward terms of repair against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from difflib import SequenceMatcher

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greenward.config.sections import RewardTermConfig
from greenward.grading.edits import Edit, extract_edited
from greenward.grading.judge import Grader
from greenward.grading.reward_terms import make_reward, similarity, similarity_of_edits, swe_rl_similarity
from greenward.grading.rewards import GradedAnswer, combine
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Case, Problem

BUGGY = "def double(n):\n    m = n\n    return 3 * m\n"
RIGHT = "def double(n):\n    m = n\n    return 2 * m\n"
PROBLEM = Problem(
    "double", "", "double", tests=(Case((0,), 0), Case((3,), 6)), buggy_code=BUGGY, reference=RIGHT
)


def block(search, replacement, length=7):
    return f"{'<' * length} SEARCH\n{search}{'=' * length}\n{replacement}{'>' * length} REPLACE\n"


ORACLE = block("    return 3 * m\n", "    return 2 * m\n")


def answered(text, problem=PROBLEM):
    found = extract_edited(text, problem, "diff" if "@@" in text else "search_replace")
    status = Status.PASSED if found.code == RIGHT else Status.FAILED if found.code else found.status
    return GradedAnswer(problem, "", text, found.code, Verdict(status), files=found.files)


def score(name, text, problem=PROBLEM, **options):
    term = make_reward(RewardTermConfig(name=name, options=options))
    (found,) = term.score([answered(text, problem)], None)
    return found


TAGGED = "<think>\nIt is 3.\nNot 2.\n</think>\n<answer>\n{}\n</answer>"


@pytest.mark.parametrize(
    ("text", "partial", "strict"),
    [
        (TAGGED.format("a"), 1.0, 1.0),
        (TAGGED.format("a\nb\n\nc"), 1.0, 1.0),
        (TAGGED.format("a") + "\n", 1.0, 1.0),
        ("0123456789" + TAGGED.format("a"), 1.0 - 0.01, 0.0),
        (TAGGED.format("a") + "0123456789", 1.0 - 0.01, 0.0),
        (TAGGED.format("a").replace("It is 3.\nNot 2.", " "), 1.0, 0.0),
        (TAGGED.format(""), 1.0, 0.0),
        (TAGGED.format("a<think>"), 0.75, 0.0),
        ("<think>\na\n</think>\n\n<answer>\nb\n</answer>", 1.0, 0.0),
        ("a" * 5000 + "<think>\n", 0.0, 0.0),
        (TAGGED.format("a").replace("<answer>", "0123456789\n<answer>"), 1.0 - 0.01, 0.0),
        (TAGGED.format("a").replace("<answer>", "0<answer>\n23456789\n<answer>"), 1.0 - 0.018, 0.0),
        ("a", 0.0, 0.0),
        ("<think>\na\n</think>\n<answer>vulnerable CWE-78</answer>", 1.0, 1.0),
        ("<think>\na\n</think>\n<answer> </answer>", 1.0, 0.0),
        ("<think>\na\n</think>\nIt is <answer>safe</answer>", 0.75, 0.0),
    ],
)
def test_the_format_terms_read_tags_around_answers_of_any_number_of_lines(text, partial, strict):
    assert score("format_partial", text) == pytest.approx(partial)
    assert score("format_strict", text) == strict


@pytest.mark.parametrize(
    ("text", "form", "alike"),
    [
        (ORACLE, 1.0, 1.0),
        # In the published term a block with a blank line was lost.
        (block("    m = n\n    return 3 * m\n", "    m = n\n\n    return 2 * m\n"), 1.0, None),
        ("SEARCH ======= REPLACE", 0.0, 0.0),
        (block("", ""), 0.0, 0.0),
        (block(BUGGY, BUGGY), 0.0, 0.0),
        (ORACLE + block("    m = n\n", "    m = n\n"), 0.0, 0.5),
        # One of two lines (the empty one at the end) is equal on the side of the replacement.
        (block("    return 3 * m\n", "    return 4 * m\n"), 1.0, 0.75),
        (block("    return 9 * m\n", "    return 2 * m\n"), 0.5, 0.75),
        # Two of three and two of two lines; 2 M / T = 4 / 5.
        (block("    m = n\n    return 3 * m\n", "    return 2 * m\n"), 1.0, 0.9),
        ("@@ -1,3 +1,3 @@\n def double(n):\n     m = n\n-    return 3 * m\n+    return 2 * m\n", 1.0, 1.0),
    ],
)
def test_the_terms_of_edits(text, form, alike):
    assert score("edit_format", text) == form
    if alike is not None:
        assert score("edit_similarity", text) == pytest.approx(alike)


@pytest.mark.parametrize("text", [f"<think>{ORACLE}</think>", f"<think>{ORACLE}</think>\nNothing to do.\n"])
def test_edits_in_the_reasoning_are_none(text):
    found = extract_edited(text, PROBLEM, "search_replace")
    answer = GradedAnswer(PROBLEM, "", text, found.code, Verdict(found.status))
    for name in ("edit_format", "edit_similarity"):
        assert make_reward(RewardTermConfig(name=name)).score([answer], None) == [0.0]


@pytest.mark.parametrize(
    "text",
    ["<think>" + block("    m = n\n", "    m = 1\n") + "</think>\n", "<think>\n<<<<<<< SEARCH\n</think>\n"],
)
def test_edits_after_the_reasoning_are_those_that_count(text):
    found = extract_edited(text + ORACLE, PROBLEM, "search_replace")
    assert found.code == RIGHT
    answer = GradedAnswer(PROBLEM, "", text + ORACLE, found.code, Verdict(Status.PASSED))
    for name in ("edit_format", "edit_similarity"):
        assert make_reward(RewardTermConfig(name=name)).score([answer], None) == [1.0]


def test_edits_of_another_form_than_the_one_that_was_applied_are_none():
    text = "@@ @@\n-    m = n\n+    m = 1\n\n" + ORACLE
    found = extract_edited(text, PROBLEM, "diff")
    answer = GradedAnswer(PROBLEM, "", text, found.code, Verdict(found.status))
    assert make_reward(RewardTermConfig(name="edit_similarity")).score([answer], None) == [0.0]


def test_the_order_of_edits_makes_no_difference_to_their_similarity():
    known = [Edit("", "a\n", "b\n"), Edit("", "c\n", "d\n"), Edit("x.py", "a\n", "b\n")]
    given = [Edit("x.py", "a\n", "b\n"), Edit("main.py", "c\n", "d\n"), Edit("", "a\n", "b\n")]
    assert similarity_of_edits(given, known, "main.py") == 1.0
    assert similarity_of_edits(given[:1], known, "main.py") == pytest.approx(1 / 3)
    assert similarity_of_edits([], known, "main.py") == 0.0
    assert similarity_of_edits(known * 100, known, "main.py") == 0.0


BEFORE = {"a.py": "one\ntwo\n", "b.py": "x\n"}
# The diffs that follow, without their first two lines: "@@ -1,2 +1,2 @@\n-one\n+1\n two" and "@@ -1 +1 @@\n-x\n+y".


@pytest.mark.parametrize(
    ("oracle", "predicted", "expected"),
    [
        ({"a.py": "1\ntwo\n"}, {"a.py": "1\ntwo\n"}, 1.0),
        # One character of 28 in each diff differs: 2 · 27 / 56.
        ({"a.py": "1\ntwo\n"}, {"a.py": "2\ntwo\n"}, 54 / 56),
        # The union has two files, of which one is not changed by both.
        ({"a.py": "1\ntwo\n"}, {"a.py": "1\ntwo\n", "b.py": "y\n"}, 0.5),
        ({"a.py": "1\ntwo\n", "b.py": "y\n"}, {"a.py": "1\ntwo\n"}, 0.5),
        ({"a.py": "1\ntwo\n"}, {"b.py": "y\n"}, 0.0),
        # A file that both leave as it is belongs to neither.
        ({"a.py": "1\ntwo\n", "b.py": "x\n"}, {"a.py": "1\ntwo\n", "b.py": "x\n"}, 1.0),
        ({"a.py": "1\ntwo\n", "b.py": "y\n"}, {"a.py": "2\ntwo\n", "b.py": "y\n"}, (54 / 56 + 1) / 2),
        # A new file is one whose text was empty.
        ({"c.py": "new\n"}, {"c.py": "new\n"}, 1.0),
        # Published: two patches that are both empty are equal.
        ({"a.py": "one\ntwo\n"}, {}, 1.0),
    ],
)
def test_the_similarity_of_swe_rl_is_the_mean_over_all_files_that_are_changed(oracle, predicted, expected):
    assert len("@@ -1,2 +1,2 @@\n-one\n+1\n two") == 28
    assert swe_rl_similarity(BEFORE, oracle, predicted) == pytest.approx(expected)


WRONG = block("    return 3 * m\n", "    return 4 * m\n")
SOLVED = "<think>Why.</think><solution>{}</solution>"
# "@@ -1,3 +1,3 @@\n def double(n):\n     m = n\n-    return 3 * m\n+    return 2 * m" has 78 characters.


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (SOLVED.format("\n" + ORACLE), {}, 1.0),
        (SOLVED.format("\n" + WRONG), {}, 154 / 156),
        (ORACLE, {}, -1.0),
        (ORACLE, {"tags": False}, 1.0),
        (SOLVED.format("\n" + ORACLE).replace("Why.", " "), {}, -1.0),
        (SOLVED.format("\n" + ORACLE) + "<think>", {}, -1.0),
        (block("    return 9 * m\n", "    return 2 * m\n"), {"tags": False}, -1.0),
        (block("    m = n\n", "    m = n\n"), {"tags": False}, -1.0),
        ("no edit", {"tags": False}, -1.0),
        # A diff of another place: worked out below.
        (block("    m = n\n", "    m = 2\n"), {"tags": False}, None),
    ],
)
def test_the_reward_of_swe_rl(text, options, expected):
    if expected is None:
        wanted = "@@ -1,3 +1,3 @@\n def double(n):\n     m = n\n-    return 3 * m\n+    return 2 * m"
        found = "@@ -1,3 +1,3 @@\n def double(n):\n-    m = n\n+    m = 2\n     return 3 * m"
        assert len(wanted) == 78
        expected = SequenceMatcher(None, found, wanted, autojunk=False).ratio()
    assert score("swe_rl", text, **options) == pytest.approx(expected)


def test_terms_that_need_a_reference_do_not_apply_without_one():
    bare = replace(PROBLEM, reference="")
    assert score("edit_similarity", ORACLE, bare) is None
    assert score("swe_rl", ORACLE, bare) is None


def test_regression_is_the_share_of_the_tests_that_passed_before():
    problem = replace(PROBLEM, tests=(Case((0,), 0), Case((3,), 6), Case((0,), 0)))
    texts = [ORACLE, WRONG, block("    return 3 * m\n", "    return 6 // m\n"), "no edit"]
    found = [extract_edited(text, problem, "search_replace") for text in texts]
    never = replace(problem, task_id="never", tests=(Case((1,), 2),))
    term = make_reward(RewardTermConfig(name="regression", weight=0.5))
    with Grader(workers=1) as grader:
        verdicts = grader.grade([(problem, one.answer) for one in found])
        answers = [GradedAnswer(problem, "", "", None, verdict) for verdict in verdicts]
        lost = GradedAnswer(problem, "", "", None, Verdict(Status.INFRASTRUCTURE))
        inapplicable = GradedAnswer(never, "", "", None, Verdict(Status.FAILED, (False,)))
        rewards = combine([term], [*answers, lost, inapplicable], grader)
    assert [reward.terms.get("regression") for reward in rewards] == [1.0, 1.0, 0.0, 0.0, None, None]
    assert [reward.total for reward in rewards] == [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]


@settings(max_examples=150, deadline=None)
@given(st.text("ab ", max_size=30), st.text("abc", max_size=30))
def test_similarity_is_that_of_difflib(first, second):
    assert similarity(first, second) == SequenceMatcher(None, first, second, autojunk=False).ratio()


def test_what_is_longer_than_the_bound_is_not_compared():
    assert similarity("a" * 10**7, "b") is None and similarity("b", "a" * 10**7) is None
    assert similarity("a" * 10**7, "a" * 10**7) == 1.0


def test_similarity_is_not_the_indel_ratio():
    assert similarity("aba", "bca") == pytest.approx(
        2 / 6
    )  # the longest common subsequence, "ba", gives 4 / 6


@pytest.mark.parametrize(
    "text",
    [
        block("    return 3 * m\n", "    x = 1\n" * 4_000),
        block("    return 3 * m\n", "    " + " m" * 200_000 + "\n"),
        block("    return 3 * m\n", "".join(f"    {'ab' * (n % 7)}\n" for n in range(4_000))),
        block("    m = n\n", "    x\n") * 900,
        "<think>" * 40_000,
        "\n</think>\n" * 10_000,
        pytest.param("\n</think>\n" * 40_000, marks=pytest.mark.slow),
        "x" * 2_000_000,
    ],
)
def test_hostile_answers_are_scored_in_bounded_time(text):
    for name in ("format_partial", "format_strict", "edit_format", "edit_similarity", "swe_rl"):
        options = {"tags": False} if name == "swe_rl" else {}
        assert -1.0 <= score(name, text, **options) <= 1.0
