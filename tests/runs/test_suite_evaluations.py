"""Evaluations on public suites in a run directory, and what trackers get of an evaluation."""

from __future__ import annotations

import pytest

from greenward.runs.directory import RunDirectory, write_summary
from greenward.runs.reading import evaluated_suites, read_evaluations
from greenward.runs.trackers import evaluation_values, tracker_name


@pytest.mark.parametrize(
    ("suite", "name"),
    [
        ("mbpp", "mbpp"),
        ("mbpp:test", "mbpp_test"),
        ("humaneval", "humaneval"),
        ("humaneval+", "humaneval_plus"),
        ("humaneval+mini", "humaneval_plus_mini"),
        ("../../etc/passwd", "etc_passwd"),
        ("…", "suite"),
    ],
)
def test_suites_have_names_that_trackers_and_file_systems_take(suite, name):
    assert tracker_name(suite) == name


def test_trackers_get_pass_rate_with_interval_and_problems_passed():
    metric = {"value": 0.4, "low": 0.1, "high": 0.8}
    record = {"suite": "mbpp", "metrics": {"pass@1": metric}, "problems_passed": 2}
    assert evaluation_values(record) == {
        "mbpp_eval/pass@1": 0.4,
        "mbpp_eval/pass@1_low": 0.1,
        "mbpp_eval/pass@1_high": 0.8,
        "mbpp_eval/pass_rate": 0.4,
        "mbpp_eval/pass_rate_low": 0.1,
        "mbpp_eval/pass_rate_high": 0.8,
        "mbpp_eval/problems_passed": 2,
    }


def test_each_suite_has_files_of_its_own_and_a_resumed_run_forgets_the_newer_ones(tmp_path):
    with RunDirectory.create(tmp_path / "run", {"seed": 0}) as run:
        for step in (0, 20, 40):
            for suite in (None, "mbpp", "humaneval_plus"):
                run.write_evaluation(step, {"step": step, "metrics": {"of": suite}}, suite)
        names = {path.name for path in (run.path / "evaluations").iterdir()}
        assert {"step_000020.json", "step_000020.mbpp.json"} <= names
        assert evaluated_suites(run.path) == ["humaneval_plus", "mbpp"]
        assert [record["metrics"]["of"] for record in read_evaluations(run.path)] == [None] * 3
        run.truncate_after(20)
        assert [record["step"] for record in read_evaluations(run.path, "mbpp")] == [0, 20]
        summary = write_summary(run, status="finished", steps=20, wall_seconds=1.0)
    assert summary["after"] == {"of": None}
    assert summary["suites"]["mbpp"] == {"before": {"of": "mbpp"}, "after": {"of": "mbpp"}}
