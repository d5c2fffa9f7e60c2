"""One page for several evaluations: scores as stored, comparisons as `compare` makes them, flips with both answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from greenward.cli.main import cli
from greenward.evaluation.compare import compare, read_evaluation
from greenward.evaluation.samples import EvaluationRow, Sample
from greenward.grading.extracted import Extracted
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Problem

PASSED = {"base": "110010", "tuned": "111101", "other": "000000"}
HOSTILE = "</pre><script>alert(1)</script>\x1b[2J"


def write_evaluation(folder: Path, passed: str) -> Path:
    folder.mkdir(parents=True)
    rows, samples, prompts = [], [], []
    for number, mark in enumerate(passed):
        task, solved = f"t/{number}", mark == "1"
        answer = Sample(Problem(task, "", "f"), 0, "text", Extracted("code"))
        verdict = Verdict(Status.PASSED if solved else Status.FAILED, (solved,))
        failure = "" if solved else f"failure of {folder.name} {number}{HOSTILE}"
        rows.append(EvaluationRow.of(answer, verdict).to_json() | {"first_failure": failure})
        samples.append({"task_id": task, "sample": 0, "solution": f"# {folder.name} {number} {HOSTILE}"})
        prompts.append({"task_id": task, "prompt": f"Question {number}"})
    for name, records in (("results", rows), ("samples", samples), ("prompts", prompts)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    share = passed.count("1") / len(passed)
    metric = {"value": share, "low": share / 2, "high": (1 + share) / 2, "problems": len(passed)}
    summary = {"suite": "mbpp", "metrics": {"pass@1": metric}, "rates": {}, "answered": 6, "answers": 6}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "settings.json").write_text(json.dumps({"suite": "mbpp"}))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    ev = tmp_path_factory.mktemp("compared") / "ev"
    return {name: write_evaluation(ev / name, passed) for name, passed in PASSED.items()}


def shown(*arguments, code=0) -> str:
    result = CliRunner().invoke(cli, ["report", *map(str, arguments)])
    assert result.exit_code == code, result.output + str(result.exception)
    return result.output if code == 0 else str(result.exception)


def blocks(report):
    return {one["title"]: one["blocks"] for one in report["sections"]}


def test_two_evaluations_have_scores_the_paired_comparison_and_both_answers_of_each_flip(folders):
    report = json.loads(shown(folders["base"], folders["tuned"], "--format", "json"))
    found = compare(read_evaluation(folders["base"]), read_evaluation(folders["tuned"]))
    assert report["comparisons"] == [json.loads(json.dumps(found.to_json()))]
    assert report["headline"] == f"A is base, B tuned. {found.claim}."
    parts = blocks(report)
    assert [row[:2] for row in parts["Scores"][0]["rows"]] == [
        ["base", "50.0 % [25.0, 75.0]"],
        ["tuned", "83.3 % [41.7, 91.7]"],
    ]
    (row,) = parts["Paired comparison with the first"][0]["rows"]
    assert row[2:4] == [f"{found.p_value:.2g}", "3 / 1"]
    won = parts["Solved by tuned, not by base"][0]["tasks"]
    assert [one["task_id"] for one in won] == ["t/2", "t/3", "t/5"] and won[0]["prompt"] == "Question 2"
    for task in won:
        number = task["task_id"][-1]
        before, after = task["answers"]
        assert (before["title"], before["status"]) == ("base", "failed")
        assert before["failure"].startswith(f"failure of base {number}")
        assert before["code"].startswith(f"# base {number}")
        assert (after["title"], after["status"], after["failure"]) == ("tuned", "passed", "")
        assert after["code"].startswith(f"# tuned {number}")
    (lost,) = parts["Solved by base, not by tuned"][0]["tasks"]
    assert lost["task_id"] == "t/4" and [one["title"] for one in lost["answers"]] == ["tuned", "base"]


def test_several_are_compared_with_the_first_in_every_form(folders, tmp_path):
    report = json.loads(shown(*folders.values(), "--format", "json"))
    assert [one["name_b"] for one in report["comparisons"]] == [
        str(folders[name]) for name in ("tuned", "other")
    ]
    rows = blocks(report)["Paired comparison with the first"][0]["rows"]
    assert [row[0] for row in rows] == ["tuned", "other"] and [row[3] for row in rows] == ["3 / 1", "0 / 3"]
    text = shown(*folders.values())
    assert (
        "base, tuned, other on mbpp" in text and "Solved by tuned, not by base" in text and "\x1b" not in text
    )
    page = Path(
        shown(*folders.values(), "--format", "html", "--output", tmp_path / "page").strip()
    ).read_text()
    assert "<script" not in page and "failure of base 2" in page and "# tuned 2" in page


def test_equal_evaluations_have_no_flips_and_others_beside_evaluations_are_refused(folders, tmp_path):
    again = write_evaluation(tmp_path / "again", PASSED["base"])
    assert "Solved by" not in shown(folders["base"], again)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("name: x\n")
    assert "is an evaluation, and" in shown(folders["base"], run, code=1)
    assert "named twice" in shown(folders["base"], folders["base"], code=1)
