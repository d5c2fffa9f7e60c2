"""The figures, EvalPlus's record and the look at one task, from results made by hand."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenward.common.errors import RunError, SandboxError
from greenward.evaluation.evaluate import usual_ks
from greenward.evaluation.figures import mean_pass_at_k, rates_of, summarise
from greenward.evaluation.samples import MAX_FAILED_TESTS, EvaluationRow, EvaluationRows, Sample
from greenward.evaluation.store import PROMPTS, RESULTS, SAMPLES, evalplus_results, text_of
from greenward.grading.extracted import Extracted
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Case, Problem

ALL = ("namespaces", "resources", "privileges", "landlock", "seccomp")
PROBLEM = Problem(
    "Suite/1",
    "Add.",
    "add",
    tests=(Case((1, 2), 3), Case(((1, 2), {3}), 4), Case((0, 0), 0)),
    base_tests=1,
    tags=("easy", "sums"),
)


def judged(sample: int, status: Status, passed: tuple[bool, ...] = (False,) * 3, **facts) -> EvaluationRow:
    truncated = facts.pop("truncated", False)
    answer = Sample(
        facts.pop("problem", PROBLEM), sample, "text", Extracted(facts.pop("code", "code")), truncated
    )
    return EvaluationRow.of(answer, Verdict(status, passed, layers=facts.pop("layers", ALL), **facts))


def test_a_row_survives_the_file_and_rows_of_earlier_versions_are_read():
    result = judged(3, Status.FAILED, (True, False, False), error_class="ValueError", cpu_seconds=0.25)
    assert EvaluationRow.from_json(json.loads(json.dumps(result.to_json()))) == result
    earlier = {name: value for name, value in result.to_json().items() if name not in ("success", "tokens")}
    assert EvaluationRow.from_json(json.loads(json.dumps(earlier))) == result
    assert result.failed_tests == (1, 2)
    assert result.base_passed is True


def test_only_the_first_failed_tests_are_kept():
    result = judged(0, Status.TIMEOUT, (False,) * 5000)
    assert len(result.failed_tests) == MAX_FAILED_TESTS
    assert (result.tests, result.tests_passed) == (5000, 0)


def test_summary_counts_statuses_errors_reasons_and_tags():
    plain = Problem("Suite/2", "", "f", tests=(Case((1,), 1),), tags=("easy",))
    rows = [
        judged(0, Status.PASSED, (True,) * 3),
        judged(1, Status.FAILED, (True, False, True)),
        judged(0, Status.ERROR, (False,), problem=plain, error_class="KeyError"),
        judged(1, Status.ERROR, (False,), problem=plain, error_class="KeyError"),
    ]
    found = summarise(rows, (1, 2, 5), problems=164)
    counts = {"problems": 164, "answered": 2, "answers": 4, "problems_passed": 1}
    assert {name: found[name] for name in counts} == counts
    assert found["metrics"]["pass@1"]["value"] == pytest.approx(0.25)
    assert found["metrics"]["pass@2"]["value"] == pytest.approx(0.5)
    assert "pass@5" not in found["metrics"]  # undefined, not guessed
    assert found["metrics"]["base_pass@1"]["value"] == pytest.approx(0.5)
    assert found["statuses"] == {"error": 2, "passed": 1, "failed": 1}
    assert found["errors"] == {"KeyError": 2}
    assert found["tags"]["easy"]["problems"] == 2
    assert found["tags"]["sums"]["pass@1"]["value"] == pytest.approx(0.5)
    assert found["isolation"]["level"] == "A"
    json.dumps(found)


def answers(*statuses: Status) -> list[EvaluationRow]:
    return [judged(0, status, ()) for status in statuses]


GROUPS = st.lists(st.lists(st.sampled_from(list(Status)), min_size=1, max_size=6), min_size=1, max_size=5)


@given(GROUPS, st.integers(1, 4))
def test_pass_at_k_is_the_share_of_subsets_with_a_passing_answer(statuses, k):
    groups = [answers(*group) for group in statuses]
    shares = []
    for group in statuses:
        subsets = list(combinations(group, k))
        if subsets:
            shares.append(fmean(Status.PASSED in subset for subset in subsets))
    found = mean_pass_at_k(groups, k)
    if not shares:
        assert found is None
        return
    estimate, problems = found
    assert problems == len(shares)
    assert estimate.value == pytest.approx(fmean(shares))
    assert estimate.low <= estimate.value + 1e-12
    assert estimate.value <= estimate.high + 1e-12


def test_rates_count_all_answers_and_a_lost_one_counts_as_lost_only():
    groups = [
        [
            judged(0, Status.PASSED, (True,)),
            judged(0, Status.TIMEOUT, (True, False), truncated=True),
            *answers(Status.INFRASTRUCTURE),
        ],
        [
            judged(0, Status.NO_CODE, (), code=None),
            *answers(Status.NO_CODE, Status.SYNTAX_ERROR, Status.CHEATING),  # code without the entry point
        ],
    ]
    values = {name: rate.value for name, rate in rates_of(groups).items()}
    names = ("compile", "tests_passed", "timeout", "cheating", "extraction_failure", "truncated")
    expected = dict(zip((*names, "infrastructure"), (3, 1.5, 1, 1, 1, 1, 1), strict=True))
    assert values == pytest.approx({name: count / 7 for name, count in expected.items()})


def test_lost_answers_have_neither_compiled_nor_failed():
    rates = rates_of([answers(Status.INFRASTRUCTURE)])
    assert {name for name, rate in rates.items() if rate.value} == {"infrastructure"}


def test_the_weakest_isolation_under_which_any_answer_ran_is_told():
    rows = [judged(0, Status.PASSED), judged(1, Status.PASSED, layers=("resources", "landlock"))]
    assert summarise(rows, (1,), problems=1)["isolation"] == {
        "level": "C",
        "layers": ["resources", "landlock"],
    }
    never_ran = [judged(0, Status.NO_CODE, code=None, layers=())]
    assert summarise(never_ran, (1,), problems=1)["isolation"] is None


def test_usual_ks_are_those_with_enough_samples():
    assert [usual_ks(count) for count in (1, 10, 99)] == [(1,), (1, 5, 10), (1, 5, 10)]
    assert [usual_ks(count) for count in (2, 4, 5)] == [(1, 2), (1, 4), (1, 5)]


def test_no_answer_is_not_a_lost_evaluation():
    found = EvaluationRows()
    found.demand_any_judged()
    found.add_row(judged(0, Status.INFRASTRUCTURE, error_message="no worker"))
    with pytest.raises(SandboxError, match="none of 1 answers could be judged") as caught:
        found.demand_any_judged()
    assert "no worker" in str(caught.value.remedy)


def test_evalplus_record_tells_original_from_added_tests():
    rows = [
        judged(0, Status.FAILED, (True, False, True)),
        judged(1, Status.TIMEOUT, (False, False, False)),
        judged(2, Status.PASSED, (True,) * 3),
        judged(3, Status.INFRASTRUCTURE),
    ]
    summary = summarise(rows, (1,), problems=1) | {"data_hash": "abc"}
    found = EvaluationRows()
    found.add_samples(Sample(PROBLEM, row.sample, "t", Extracted(f"code {row.sample}")) for row in rows)
    for row in rows:
        found.add_row(row)
    record = json.loads(json.dumps(evalplus_results(found, summary)))
    assert record["hash"] == "abc"
    assert record["pass_at_k"] == {
        "base": {"pass@1": pytest.approx(2 / 4)},
        "plus": {"pass@1": pytest.approx(1 / 4)},
    }
    answers = record["eval"]["Suite/1"]
    assert [(a["base_status"], a["plus_status"]) for a in answers] == [
        ("pass", "fail"),
        ("timeout", "timeout"),
        ("pass", "pass"),
        ("fail", "fail"),  # lost by the infrastructure
    ]
    assert answers[0] == {
        "task_id": "Suite/1",
        "solution": "code 0",
        "base_status": "pass",
        "plus_status": "fail",
        "base_fail_tests": [],
        "plus_fail_tests": [[[1, 2], "{3}"]],
    }
    assert answers[1]["base_fail_tests"] == [[1, 2]]


@pytest.fixture
def folder(tmp_path) -> Path:
    answers = [Sample(PROBLEM, number, f"text {number}", Extracted(f"code {number}")) for number in range(2)]
    verdicts = [
        Verdict(Status.PASSED, (True,) * 3),
        Verdict(Status.FAILED, (True, False, True), first_failure="add((1, 2), {3}): expected 4, got 5"),
    ]
    rows = {
        SAMPLES: (answer.to_json() for answer in answers),
        RESULTS: (EvaluationRow.of(*pair).to_json() for pair in zip(answers, verdicts, strict=True)),
        PROMPTS: [{"task_id": "Suite/1", "prompt": "def add(a, b):\n"}],
    }
    for name, found in rows.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in found))
    return tmp_path


def test_a_task_is_shown_by_its_first_failing_answer(folder):
    text = text_of(folder, "Suite/1")
    assert "answer 1: failed (1 of 2 answers pass)" in text
    for part in ("def add(a, b):", "text 1", "code 1", "expected 4, got 5", "2 of 3"):
        assert part in text
    assert "answer 0: passed" in text_of(folder, "Suite/1", 0)


def test_what_cannot_be_shown_is_said(folder, tmp_path_factory):
    with pytest.raises(RunError, match="no answer to 'Suite/2'") as caught:
        text_of(folder, "Suite/2")
    assert "Suite/1" in str(caught.value.remedy)
    with pytest.raises(RunError, match="no answer 7"):
        text_of(folder, "Suite/1", 7)
    with pytest.raises(RunError, match="holds no evaluation"):
        text_of(tmp_path_factory.mktemp("empty"), "Suite/1")
    with (folder / RESULTS).open("a") as results:
        results.write('{"task_id": 7}\n{"task_id": "Suite/1"}\n')
    with pytest.raises(RunError, match=f"{RESULTS}: not the results of an evaluation .*'status'"):
        text_of(folder, "Suite/1")
