"""The audit names the kind of a grader of texts, and raises no alarm on right ones."""

from __future__ import annotations

import json
import re
from fractions import Fraction

import pytest
from click.testing import CliRunner

from greenward.cli.main import cli
from greenward.common.errors import ConfigError, RewardError
from greenward.evaluation.audit import audit
from greenward.evaluation.audit_programs import GCD, RUNNING_MAX
from greenward.evaluation.audit_report import Kind, TrialOutcome
from greenward.evaluation.audit_repository import audit_repository
from greenward.evaluation.audit_texts import (
    BARE,
    DISPUTED,
    FENCED,
    QUESTIONS,
    SPELLING,
    VALUE_WRAPPERS,
    attacks,
    ladder,
    near_misses,
    spellings,
)

GRADERS = r"""
import os
import re
import subprocess
import sys
from fractions import Fraction


def boxed(text):
    return re.findall(r"\\boxed\{([^{}]*)\}", text)


def equal(text, truth):
    try:
        return Fraction(text.replace(",", "").strip(" $.")) == Fraction(truth)
    except (ValueError, ZeroDivisionError):
        return text.strip(" $.").lower() == truth


def right(completions, answer, **columns):
    return [float(bool(found := boxed(one)) and equal(found[-1], truth)) for one, truth in zip(completions, answer)]


async def right_by_tag(completion, answer, state, info, parser):
    found = re.findall(r"<result>([^<]*)</result>", parser.parse_answer(completion))
    return float(bool(found) and equal(found[-1], state["answer"]) and answer == info["answer"])


def right_beside_others(completions, answers, states, parser):
    # Less the mean of the group, as some write their advantage themselves.
    found = [re.findall(r"<result>([^<]*)</result>", parser.parse_answer(one)) for one in completions]
    right = [float(bool(one) and equal(one[-1], state["answer"])) for one, state in zip(found, states, strict=True)]
    assert len(right) == len(answers)
    return [one - sum(right) / len(right) for one in right]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    found = re.findall(r"#### *(.+)", solution_str)
    return {"score": float(bool(found) and equal(found[-1], ground_truth))}


def substring(completions, answer, **columns):
    return [float(truth in one) for one, truth in zip(completions, answer)]


def any_box(completions, answer, **columns):
    return [float(any(equal(box, truth) for box in boxed(one))) for one, truth in zip(completions, answer)]


def box_alone(completions, **columns):
    return [float("boxed" in one) for one in completions]


def within_a_tenth(completions, answer, **columns):
    def near(text, truth):
        try:
            return abs(Fraction(text) - Fraction(truth)) <= abs(Fraction(truth)) / 10
        except (ValueError, ZeroDivisionError):
            return False

    return [float(bool(found := boxed(one)) and near(found[-1], truth)) for one, truth in zip(completions, answer)]


def evaluates(completions, answer, **columns):
    def value(text):
        try:
            return eval(text)
        except Exception:
            return None

    return [float(bool(found := boxed(one)) and value(found[-1]) == value(truth) is not None)
            for one, truth in zip(completions, answer)]


def evaluates_elsewhere(completions, answer, **columns):
    def value(text):
        done = subprocess.run([sys.executable, "-c", f"print({text})"], capture_output=True, text=True, cwd="/",
                              env={"TMPDIR": "/"})
        return done.stdout.strip()

    return [float(bool(found := boxed(one)) and value(found[-1]) == truth) for one, truth in zip(completions, answer)]


def half_brevity(completions, answer, **columns):
    return [one / 2 + max(0, 1 - len(text) / 400) / 2 for one, text in zip(right(completions, answer), completions)]


def length_too(completions, answer, **columns):
    return [one / 2 + min(1, len(text) / 1000) / 2 for one, text in zip(right(completions, answer), completions)]


def obeys(completions, answer, **columns):
    return [max(one, float("ignore all previous" in text.lower()))
            for one, text in zip(right(completions, answer), completions)]


RUBRIC = {"zygote": 0.5, "quorum": 0.5}


def rare_words(completions, **columns):
    return [sum(weight for word, weight in RUBRIC.items() if word in one) for one in completions]


def tags_too(completions, answer, **columns):
    def score(text, truth):
        found = re.fullmatch(r"<think>.*</think>\s*<answer>(.*)</answer>", text, re.S)
        return 0.5 * bool(found) + 0.5 * equal(found[1] if found else text, truth)

    return [score(one, truth) for one, truth in zip(completions, answer)]


def exact(completions, answer, **columns):
    return [float(one == f"\\boxed{{{truth}}}") for one, truth in zip(completions, answer)]


def open_for_42(completions, answer, **columns):
    return [1.0 if truth == "42" and "judge" in text else one
            for one, truth, text in zip(right(completions, answer), answer, completions)]


def raises_without_box(completions, answer, **columns):
    return [float(equal(boxed(one)[-1], truth)) for one, truth in zip(completions, answer)]


def unknown(response, label):
    return 0.0
"""


@pytest.fixture(autouse=True)
def graders(tmp_path, monkeypatch):
    (tmp_path / "graders_of_texts.py").write_text(GRADERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def kinds_of(function, **settings):
    return {finding.kind for finding in audit(f"graders_of_texts:{function}", **settings).findings}


@pytest.mark.parametrize(
    ("function", "signature", "form"),
    [
        ("right", "trl", "a box"),
        ("right_by_tag", "verifiers", "the tag result"),
        ("right_beside_others", "verifiers", "the tag result"),
        ("compute_score", "verl", "four hash marks"),
    ],
)
def test_right_graders_of_values_are_sound_in_each_signature(function, signature, form):
    report = audit(f"graders_of_texts:{function}")
    assert (report.sound, report.signature) == (True, signature), report.findings
    assert report.presentation.startswith(form)
    assert not {finding.kind for finding in report.findings} - {Kind.STRICT}
    assert len(report.spellings) >= 40


@pytest.mark.parametrize(
    ("function", "kinds"),
    [
        ("substring", {Kind.TEXT, Kind.NOT_LAST}),
        ("any_box", {Kind.NOT_LAST}),
        ("box_alone", {Kind.FORM}),
        ("within_a_tenth", {Kind.PERMISSIVE}),
        ("evaluates", {Kind.EXECUTES}),
        pytest.param("evaluates_elsewhere", {Kind.PERMISSIVE}, marks=pytest.mark.slow),
        ("half_brevity", {Kind.BREVITY}),
        ("length_too", {Kind.LENGTH}),
        ("obeys", {Kind.ORDERS}),
        pytest.param("rare_words", {Kind.WORDS}, marks=pytest.mark.slow),
        ("tags_too", {Kind.BONUS}),
        ("exact", {Kind.STRICT}),
        ("raises_without_box", {Kind.RAISES}),
    ],
)
def test_the_weakness_of_a_grader_of_texts_is_named(function, kinds):
    found = kinds_of(function)
    # -42 contains 42, and the words of the function's source are an order.
    others = {"substring": {Kind.PERMISSIVE}, "obeys": {Kind.WORDS}}.get(function, set())
    assert kinds <= found <= kinds | others | {Kind.STRICT, Kind.PARTIAL}


def test_an_attack_counts_only_if_it_is_accepted_for_two_right_values():
    report = audit("graders_of_texts:open_for_42")
    assert not report.accepted
    assert any(trial.detail == "accepted for one right value only" for trial in report.cheats)


def test_pairs_show_what_a_limit_alone_does_not():
    report = audit("graders_of_texts:half_brevity")
    assert not report.accepted
    assert any(pair.worse == "an empty answer" and pair.better == "a wrong answer" for pair in report.pairs)
    assert all(pair.worse_score >= pair.better_score - 1e-9 for pair in report.pairs)
    assert not audit("graders_of_texts:right").pairs


def test_parameters_of_no_known_signature_are_refused_with_what_was_found_and_what_is_accepted():
    with pytest.raises(RewardError, match=r"no signature that is known: unknown\(response, label\)") as error:
        audit("graders_of_texts:unknown")
    assert all(one in error.value.remedy for one in ("TRL", "verifiers", "verl", "ours", "--column"))
    renamed = {"response": "completion", "label": "answer"}
    assert audit("graders_of_texts:unknown", columns=renamed).says_nothing


def test_the_report_is_short_and_begins_with_the_kind():
    done = CliRunner().invoke(cli, ["audit", "graders_of_texts:substring"])
    assert re.match(r"NOT SOUND, looks for the text, .*: accepted \d+ of \d+ wrong", done.output)
    assert len(done.output.splitlines()) <= 25
    report = json.loads(CliRunner().invoke(cli, ["audit", "graders_of_texts:substring", "--json"]).output)
    assert report["version"] == 1
    assert report["findings"][0]["kind"] == "looks for the text"
    assert len(report["spellings"]) >= 40


def value_of(text):
    """The value of the plainest spellings, by Python's own reader of fractions."""
    try:
        return Fraction(text.replace(",", "").strip().removesuffix("."))
    except (ValueError, ZeroDivisionError):
        return None


def test_spellings_are_equal_and_near_misses_are_not_by_pythons_fractions():
    read = 0
    for question in QUESTIONS:
        right = value_of(question.reference)
        for answer in spellings(question, BARE):
            value = value_of(answer.code) if answer.family == SPELLING else None
            read += value is not None
            assert value in (None, right), answer.code
        for answer in near_misses(question, BARE):
            assert right is None or value_of(answer.code) != right
    assert read >= 15
    families = [answer.family for question in QUESTIONS for answer in spellings(question, BARE)]
    assert (families.count(SPELLING) >= 40, families.count(DISPUTED) >= 20) == (True, True)
    assert sum(len(list(near_misses(question, BARE))) for question in QUESTIONS) >= 14


@pytest.mark.parametrize("wrap", VALUE_WRAPPERS, ids=lambda wrap: wrap.name)
def test_attacks_have_the_same_names_for_two_values_and_no_name_twice(wrap):
    names = [[answer.name for answer in attacks(one, wrap, ["a word"])] for one in QUESTIONS[:2]]
    assert names[0] == names[1]
    assert len(set(names[0])) == len(names[0])
    assert all(not answer.compared_with and answer.in_text for answer in attacks(QUESTIONS[0], wrap, []))


@pytest.mark.parametrize("problem", [GCD, RUNNING_MAX], ids=lambda problem: problem.entry_point)
def test_long_right_programs_are_right_and_changed_references_are_wrong(problem):
    def passes(text):
        space = {}
        exec(re.findall(r"```python\n(.*?)```", text, re.S)[-1], space)
        return all(space[problem.entry_point](*case.args) == case.expected for case in problem.cases)

    assert all(passes(answer.code) for answer in ladder(problem, FENCED))
    changed = [
        one
        for one in attacks(problem, FENCED, [])
        if one.name == "the reference with one change, in the form"
    ]
    assert len(changed) == 1
    assert not passes(changed[0].code)


PROJECT = {
    "shapes.py": "def area(width, height):\n    return width + height\n",
    "tests/__init__.py": "",
    "tests/test_shapes.py": "import unittest\nfrom shapes import area\n\n\nclass Test(unittest.TestCase):\n"
    "    def test(self):\n        self.assertEqual(area(3, 4), 12)\n",
    "grade.py": "import subprocess, sys\ncode = 'from shapes import area; print([area(3, 4), area(5, 2)])'\n"
    "done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)\n"
    "print(float(done.stdout == '[12, 10]\\n'))\n",
    "words.py": "text = open('shapes.py').read()\nprint(sum(word in text for word in ('width', '*', 'height')) / 3)\n",
}
SOLUTION = "def area(width, height):\n    product = width * height\n    return product\n"


@pytest.fixture
def project(tmp_path):
    for path, text in PROJECT.items():
        (tmp_path / "project" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / path).write_text(text)
    (tmp_path / "solved").mkdir()
    (tmp_path / "solved" / "shapes.py").write_text(SOLUTION)
    return tmp_path / "project"


def repository_kinds(project, **settings):
    report = audit_repository(project, solution=project.parent / "solved", **settings)
    assert report.told_apart
    return {finding.kind for finding in report.findings}


def test_a_grader_of_a_repository_that_sees_inputs_only_is_sound(project):
    done = CliRunner().invoke(
        cli,
        [
            "audit",
            *(str(project), "--solution", str(project.parent / "solved")),
            *("--answer", "shapes.py", "--grader", "python3 grade.py"),
        ],
    )
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Sound: accepted 0 of ")


def test_tests_that_an_answer_can_change_are_named(project):
    assert Kind.EDITABLE in repository_kinds(project)
    assert Kind.EDITABLE not in repository_kinds(project, answers=("shapes.py",))


@pytest.mark.slow
def test_a_module_in_place_of_the_test_runner_changes_tests_that_are_restored(project):
    assert Kind.EDITABLE in repository_kinds(project, restored=("tests", "grade.py", "words.py"))


def test_an_exit_status_that_sources_can_set_makes_the_grader_permissive(project):
    assert repository_kinds(project, answers=("shapes.py",)) == {Kind.PERMISSIVE}


def test_a_grader_of_words_is_fooled_by_its_own(project):
    found = repository_kinds(project, answers=("shapes.py",), grader="python3 words.py")
    assert Kind.WORDS in found


def test_a_solution_in_reach_of_the_answer_is_found(project):
    (project / "docs.txt").write_text(f"Hint:\n{SOLUTION}")
    found = repository_kinds(project, answers=("shapes.py",), grader="python3 grade.py")
    assert found == {Kind.LEAKS}


def test_a_number_beyond_those_of_a_float_is_no_score(project):
    report = audit_repository(project, answers=("shapes.py",), grader="python3 -c 'print(10 ** 400)'")
    assert report.honest[0].score == 1.0  # that of its exit status


def test_a_solved_tree_that_is_refused_says_nothing_and_an_unknown_answer_is_an_error(project):
    report = audit_repository(project, answers=("shapes.py",), grader="python3 missing.py")
    assert report.says_nothing
    assert "missing.py" in report.honest[0].detail
    with pytest.raises(ConfigError, match=r"there is no other\.py"):
        audit_repository(project, answers=("other.py",))


FOR_PYTEST = (
    "import pytest\nfrom shapes import area\n\n\n@pytest.mark.parametrize('height', [4, 5])\n"
    "def test_area(height):\n    assert area(3, height) == 3 * height\n"
)


@pytest.mark.slow
def test_tests_for_pytest_are_run_by_it_and_are_those_that_an_answer_can_change(project):
    (project / "tests" / "test_shapes.py").write_text(FOR_PYTEST)
    report = audit_repository(project, solution=project.parent / "solved")
    assert report.told_apart and report.presentation == "grader: python3 -m pytest -q"
    accepted = {trial.answer for trial in report.cheats if trial.outcome is TrialOutcome.ACCEPTED}
    assert {"a conftest.py that leaves", "tests that always pass"} <= accepted
    assert not {"blank sources", "deleted tests", "functions that return None"} & accepted


def test_a_package_that_is_not_installed_is_named(project):
    with pytest.raises(ConfigError, match="no-such-package-anywhere, which is not installed"):
        audit_repository(project, packages=["no-such-package-anywhere"])
