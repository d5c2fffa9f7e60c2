"""Runs, groups, problems and evaluations side by side, against the rows that they were made of."""

from __future__ import annotations

import json
from urllib.parse import quote

import numpy as np
import pytest
from made_runs import get, get_whole, request

from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.findings import FINDINGS, answers_behind
from greenward.evaluation.compare import compare, read_evaluation
from greenward.reports.document import Occurrence, Onset
from greenward.runs.answers import read_answer_columns
from greenward.runs.selection import parse_query
from greenward.ui.comparing import line_changes


def test_two_runs_are_compared_as_the_command_does(served):
    found = get(served, "/api/v1/compare?runs=good,study~sick,absent")
    assert found["missing"] == ["absent"]
    settings = {key: values for key, *values in found["settings"]}
    assert settings["seed"] == ["0", "1"] and "task" not in settings and "name" not in settings
    (pair,) = found["pairs"]
    expected = compare(*(read_evaluation(served.folder / name) for name in ("good", "study/sick")))
    assert pair["won"] == list(expected.won) and pair["lost"] == list(expected.lost)
    assert pair["p_value"] == expected.p_value and pair["difference"]["value"] == expected.difference.value
    answers = get(served, f"/api/v1/runs/good/evaluation?task={quote(pair['lost'][0], safe='')}")
    assert answers["step"] == 120 and answers["answers"][0]["status"] == "passed"
    assert request(served, "/api/v1/compare?runs=absent")[0] == 404


def test_an_evaluation_is_shown_by_problem_beside_the_one_before(served):
    found = get(served, "/api/v1/runs/good/evaluation")
    last, first = (
        json.loads((served.folder / f"good/evaluations/step_{step:06d}.json").read_text())
        for step in (120, 0)
    )
    after, before = ({row["task_id"]: row["success"] for row in one["rows"]} for one in (last, first))
    assert found["step"] == 120 and found["before"] == 0
    assert {task: (samples, passed, was) for task, samples, passed, was in found["problems"]} == {
        task: (1, int(after[task]), float(before[task])) for task in after
    }
    assert get(served, "/api/v1/runs/good/evaluation?step=0")["before"] is None
    assert request(served, "/api/v1/runs/good/evaluation?step=7")[0] == 422


def test_a_group_is_shown_with_the_best_answer_first(served):
    kept = [row for step, row in served.answers["good"] if step == 60]
    name = kept[0]["group"]
    rows = [row for row in kept if row["group"] == name]
    found = get(served, f"/api/v1/runs/good/group?step=60&group={name}")
    rewards = sorted((row["rewards"]["policy"] for row in rows), reverse=True)
    np.testing.assert_allclose([card["reward"] for card in found["cards"]], rewards, rtol=1e-6)
    assert found["size"] == len(rows) and found["passed"] == sum(row["status"] == "passed" for row in rows)
    assert found["reason"] == ""
    assert request(served, "/api/v1/runs/good/group?step=60&group=absent")[0] == 422


def test_changes_of_lines_make_one_text_of_the_other():
    before, after = "a\nb\nc\n", "a\nB\nc\nd\n"
    found = line_changes(before, after)
    assert "\n".join(text for sign, text in found if sign != "+") == before
    assert "\n".join(text for sign, text in found if sign != "-") == after
    assert sum(sign == " " for sign, _ in found) == 3


def test_a_problem_is_shown_over_the_run_with_its_different_answers(served):
    task = "families/task_3"
    rows = [(step, row) for step, row in served.answers["good"] if row["problem"] == task]
    found = get_whole(served, f"/api/v1/runs/good/problem?task={quote(task, safe='')}")
    texts = [row["answer"] for _, row in rows]
    assert found["count"] == len(rows) and found["different"] == len(set(texts))
    assert [one["times"] for one in found["clusters"]] == sorted(
        (texts.count(text) for text in set(texts)), reverse=True
    )
    assert sum(passed for _, _, passed, _ in found["history"]) == sum(
        row["status"] == "passed" for _, row in rows
    )


@pytest.mark.parametrize("name", FINDINGS)
def test_every_finding_has_a_query_that_means_something(name):
    onset = Onset(40.0, 35.0, 45.0)
    found = Occurrence(name, "warning", "", "", (), "", onset, signals=("status/syntax_error",))
    query = answers_behind(found)
    assert parse_query(query, strict=True).unknown == () and query
    without = Occurrence(name, "warning", "", "", (), "", signals=("reward/tests",))
    assert parse_query(answers_behind(without), strict=True).unknown == ()


def test_the_answers_behind_a_finding_show_it(served):
    path = served.folder / "study" / "sick"
    kept = served.answers["study~sick"]
    columns = read_answer_columns(path)
    seen = set()
    for one in diagnose_run(path).findings:
        places = np.flatnonzero(parse_query(answers_behind(one), strict=True).mask(columns))
        rows = [kept[place][1] for place in places]
        steps = [kept[place][0] for place in places]
        seen.add(one.name)
        if one.name == "truncated-answers":
            assert rows and all(row["stop"] == "length" for row in rows)
        if one.name == "reward-drop":
            assert one.onset is not None and rows and min(steps) >= one.onset.step - 10
    assert {"truncated-answers", "reward-drop"} <= seen
