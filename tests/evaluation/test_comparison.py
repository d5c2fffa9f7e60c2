"""Two evaluations side by side: what is paired, what is left out, what may be claimed."""

from __future__ import annotations

import json

import pytest

from greenward.common.errors import RunError
from greenward.evaluation.compare import (
    MCNEMAR,
    SIGN_FLIP,
    AnswerCounts,
    StoredEvaluation,
    compare,
    read_evaluation,
)
from greenward.evaluation.samples import EvaluationRow, Sample
from greenward.grading.extracted import Extracted
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Problem


def single(name, passed, *, prefix="mbpp", **settings):
    """One answer per problem; None is an answer lost to infrastructure."""
    counts = {
        f"{prefix}/{i}": AnswerCounts(1, 0, 1) if one is None else AnswerCounts(1, int(one))
        for i, one in enumerate(passed)
    }
    return StoredEvaluation(name, "mbpp", counts, settings)


def write_results(folder, rows, settings=None):
    folder.mkdir()
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if settings is not None:
        (folder / "settings.json").write_text(json.dumps(settings))
    return folder


def row(task_id, sample, status):
    answer = Sample(Problem(task_id, "", "f"), sample, "text", Extracted("code"))
    return EvaluationRow.of(answer, Verdict(Status.PASSED)).to_json() | {"status": status}


def test_a_claim_too_small_for_its_size_is_said_to_be_so():
    found = compare(single("a", [1, 1, 0, 0, 0]), single("b", [1] * 5))
    assert found.claim == "2/5 → 5/5: p = 0.25 (exact McNemar); cannot be told from chance"
    assert not found.significant
    assert found.detectable is None


def test_a_large_difference_is_claimed_for_the_better_side():
    better, worse = single("x", [1] * 40), single("y", [1] * 25 + [0] * 15)
    assert compare(worse, better).claim.endswith("B is better")
    assert compare(better, worse).claim.endswith("A is better")


def test_flips_are_listed_by_id():
    found = compare(single("a", [1, 0, 1, 0]), single("b", [0, 1, 1, 0]))
    assert (found.won, found.lost) == (("mbpp/1",), ("mbpp/0",))
    assert found.test == MCNEMAR


def test_answers_lost_to_infrastructure_count_as_not_passed_and_are_counted():
    found = compare(single("a", [1, None, 0]), single("b", [1, 1, None]))
    assert (found.problems, found.infrastructure) == (3, 2)
    assert found.too_few == ()
    assert (found.won, found.lost) == (("mbpp/1",), ())


def test_only_common_problems_are_compared_and_the_others_named():
    found = compare(single("a", [1, 1, 0]), single("b", [1, 0, 0, 1, 1]))
    assert found.problems == 3
    assert (found.unpaired_a, found.unpaired_b) == ((), ("mbpp/3", "mbpp/4"))


def test_suites_without_a_common_problem_are_refused():
    with pytest.raises(RunError, match="no problem in common"):
        compare(single("a", [1, 1]), single("b", [1], prefix="HumanEval"))


def test_k_above_the_number_of_answers_is_refused():
    with pytest.raises(RunError, match=r"pass@5 needs 5 answers .* at most 1"):
        compare(single("a", [1]), single("b", [1]), k=5)


def test_settings_that_move_scores_are_named_and_others_are_not():
    a = single("a", [1], temperature=0.2, style="chat", data_hash="x", seed=1, model="m")
    b = single("b", [1], temperature=0.8, style="chat", data_hash="y", seed=2, model="n")
    assert compare(a, b).other_settings == {"temperature": (0.2, 0.8), "data_hash": ("x", "y")}


def test_several_answers_are_compared_by_unbiased_pass_at_k():
    a = StoredEvaluation("a", None, {str(i): AnswerCounts(4, 1) for i in range(30)})
    b = StoredEvaluation("b", None, {str(i): AnswerCounts(4, 2 if i % 3 else 0) for i in range(30)})
    found = compare(a, b, k=2)
    # 1 - C(3,2)/C(4,2) = 1/2; 1 - C(2,2)/C(4,2) = 5/6 on two thirds of the problems.
    assert found.a.value == pytest.approx(1 / 2)
    assert found.b.value == pytest.approx(5 / 6 * 2 / 3)
    assert found.difference.value == pytest.approx(5 / 9 - 1 / 2)
    assert found.difference.low < found.difference.value < found.difference.high
    assert (found.test, found.mid_p) == (SIGN_FLIP, None)
    assert found.lost == tuple(str(i) for i in range(0, 30, 3))


def test_a_folder_of_results_is_read_with_its_settings(tmp_path):
    rows = [row("a", 0, "passed"), row("a", 1, "timeout"), row("b", 0, "infrastructure")]
    settings = {"suite": "mbpp", "temperature": 0.2, "data_hash": "abc"}
    found = read_evaluation(write_results(tmp_path / "e", rows, settings))
    assert found.problems == {"a": AnswerCounts(2, 1), "b": AnswerCounts(1, 0, 1)}
    assert found.suite == "mbpp"
    assert found.settings == settings


def test_a_torn_last_line_is_left_out(tmp_path):
    folder = write_results(tmp_path / "e", [row("a", 0, "passed")])
    with open(folder / "results.jsonl", "a") as file:
        file.write('{"task_id": "b", "sta')
    assert read_evaluation(folder).problems == {"a": AnswerCounts(1, 1)}


def test_evalplus_results_pass_only_with_the_added_tests(tmp_path):
    evaluated = {
        "Mbpp/2": [{"base_status": "pass", "plus_status": "pass"}],
        "Mbpp/3": [{"base_status": "pass", "plus_status": "fail"}],
        "Mbpp/4": [{"base_status": "pass", "plus_status": None}],
        "Mbpp/6": [{"base_status": "timeout", "plus_status": "fail"}],
    }
    (tmp_path / "eval_results.json").write_text(json.dumps({"date": "x", "hash": "y", "eval": evaluated}))
    passed = {"Mbpp/2": 1, "Mbpp/3": 0, "Mbpp/4": 1, "Mbpp/6": 0}
    expected = {task_id: AnswerCounts(1, one) for task_id, one in passed.items()}
    assert read_evaluation(tmp_path / "eval_results.json").problems == expected
    assert read_evaluation(tmp_path).problems == expected


def test_the_last_evaluation_of_a_run_is_read(tmp_path):
    (tmp_path / "evaluations").mkdir()
    for step, passed in ((0, 0), (20, 2)):
        answers = [{"status": "passed"}] * 2 + [{"status": "infrastructure"}]
        record = {
            "suite": "families",
            "samples": 3,
            "temperature": 0.8,
            "rows": [{"task_id": "a", "passed": passed, "samples": 2, "answers": answers}],
        }
        (tmp_path / "evaluations" / f"step_{step:06d}.json").write_text(json.dumps(record))
    found = read_evaluation(tmp_path)
    assert found.problems == {"a": AnswerCounts(3, 2, 1)}
    assert found.settings == {"samples": 3, "temperature": 0.8}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row("a", 0, "passed"), row("a", 0, "failed")], "answer 0 to a occurs twice"),
        ([row("a", 0, "splendid")], "'splendid' is not a valid Status"),
        ([{"status": "passed"}], "not the results of an evaluation"),
    ],
)
def test_rows_that_cannot_be_right_are_refused(tmp_path, rows, message):
    with pytest.raises(RunError, match=message):
        read_evaluation(write_results(tmp_path / "e", rows))


@pytest.mark.parametrize(
    "record",
    [
        {"rows": [{"task_id": "a", "samples": 1, "passed": 1}]},
        {"eval": {"a": [{"base_status": "pass"}, 3]}},
        {"eval": {"a": 3}},
    ],
)
def test_a_record_of_another_form_is_refused(tmp_path, record):
    (tmp_path / "record.json").write_text(json.dumps(record))
    with pytest.raises(RunError, match="not of the form of an evaluation"):
        read_evaluation(tmp_path / "record.json")


@pytest.mark.parametrize(
    "row",
    [{"task_id": "a"}, 7, {"task_id": 7, "samples": 1, "passed": 1}]
    + [
        {"task_id": "a", "samples": n, "passed": c} for n, c in ((3, 5), (3, -1), (10**15, 10**15), (True, 0))
    ],
)
def test_a_row_that_counts_what_cannot_be_is_refused(tmp_path, row):
    (tmp_path / "record.json").write_text(json.dumps({"rows": [row]}))
    with pytest.raises(RunError, match="does not count the answers"):
        read_evaluation(tmp_path / "record.json")


def test_many_problems_are_compared_in_time_in_proportion():
    many = {f"p{number}": AnswerCounts(1 + number % 2, 1) for number in range(200_000)}
    found = compare(StoredEvaluation("a", None, many), StoredEvaluation("b", None, many), k=2)
    assert len(found.too_few) == found.problems == 100_000


def test_a_record_may_keep_fewer_answers_than_it_counts(tmp_path):
    row = {"task_id": "a", "samples": 7, "passed": 5, "answers": [{"status": "passed"}] * 3}
    (tmp_path / "record.json").write_text(json.dumps({"rows": [row]}))
    assert read_evaluation(tmp_path / "record.json").problems == {"a": AnswerCounts(7, 5, 0)}


def test_a_path_without_an_evaluation_is_refused(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    for path, message in (
        (tmp_path, "no evaluation in this folder"),
        (tmp_path / "none", "no such file or folder"),
        (tmp_path / "other.json", "neither an evaluation of ours"),
    ):
        with pytest.raises(RunError, match=message):
            read_evaluation(path)
