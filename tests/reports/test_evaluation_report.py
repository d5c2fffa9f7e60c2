"""The report of one evaluation: the same figures in every view, and nothing in an answer acts in any."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from greenward.common.errors import RunError
from greenward.reports import evaluation, write
from greenward.reports.evaluation import evaluation_report
from greenward.reports.recorded import report_of
from greenward.reports.render import print_report
from greenward.runs.files import JsonRows
from greenward.runs.reading import is_evaluation

EVIL = "<script>alert(1)</script>\x1b[2J\u202e| `x` ```"


@pytest.fixture
def folder(tmp_path) -> Path:
    metric = {"value": 0.25, "low": 0.1, "high": 0.5}
    summary = {
        "suite": "mbpp+",
        "model": {"name": f"model {EVIL}", "step": 40, "weights": "ab"},
        "settings": {"temperature": 0.8, "fewshot": 3, "timeout_seconds": 10.0, "stop": ["\n\ndef "]},
        "answers": 8,
        "answered": 4,
        "problems_passed": 1,
        "metrics": {"pass@1": {**metric, "problems": 4}},
        "rates": {"compile": metric},
        "statuses": {"passed": 2, "wrong_type": 6},
        "errors": {EVIL: 1},
        "extraction_failures": {},
        "tags": {"easy": {"problems": 4, "pass@1": metric}},
        "isolation": {"level": "B", "layers": []},
        "seconds": {"wall": 62.0},
        "sessions": [{"python": "3.11", "packages": {"torch": "2"}}],
        "notes": ["scored 4 of 378 problems"],
    }
    row = {"task_id": "Mbpp/2", "sample": 0, "status": "failed", "first_failure": EVIL}
    for name, record in (
        ("summary.json", summary),
        ("results.jsonl", row),
        ("samples.jsonl", {"task_id": "Mbpp/2", "sample": 0, "solution": EVIL, "completion": ""}),
        ("prompts.jsonl", {"task_id": "Mbpp/2", "prompt": EVIL}),
    ):
        (tmp_path / name).write_text(json.dumps(record) + "\n")
    return tmp_path


def terminal(folder: Path) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_report(evaluation_report(folder), console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def render(folder: Path, form: write.Form) -> str:
    return write.render(evaluation_report(folder), form)


def failed_tasks(folder: Path) -> list[str]:
    sections = json.loads(render(folder, "json"))["sections"]
    blocks = next(one["blocks"] for one in sections if one["title"].startswith("Failing answers"))
    return [task["task_id"] for block in blocks for task in block["tasks"]]


def test_every_view_has_the_result_its_interval_and_the_notes(folder):
    views = [render(folder, "html"), render(folder, "markdown"), render(folder, "json"), terminal(folder)]
    for view in views:
        assert "25.0 % [10.0, 50.0] on 4 problems of mbpp+" in view
        assert "scored 4 of 378 problems" in view
        assert "wrong type" in view
        assert "easy" in view


def test_nothing_in_an_answer_acts(folder):
    page = render(folder, "html")
    assert "<script" not in page
    assert "default-src 'none'" in page
    for view in (page, render(folder, "markdown"), terminal(folder)):
        assert "\x1b" not in view
        assert "\u202e" not in view


def test_views_are_written_into_a_folder_of_their_own(folder, tmp_path):
    assert is_evaluation(folder)
    paths = write.write_report(report_of(folder), tmp_path / "report")
    assert {path.name for path in paths.values()} == {"report.html", "report.md", "report.json"}
    assert failed_tasks(folder) == ["Mbpp/2"]


def test_an_evaluation_that_scored_nothing_says_so(folder):
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"metrics": {}, "rates": {}, "tags": {}}))
    assert "Nothing could be scored on mbpp+." in render(folder, "markdown")


def test_results_that_are_written_anew_meanwhile_leave_out_what_is_gone(folder, monkeypatch):
    with (folder / "results.jsonl").open("a") as results, (folder / "samples.jsonl").open("a") as samples:
        for number in range(3, 20):
            row = {"task_id": f"Mbpp/{number}", "sample": 0, "status": "failed"}
            results.write(json.dumps(row) + "\n")
            samples.write(json.dumps(row | {"completion": "x"}) + "\n")
    assert failed_tasks(folder) == [f"Mbpp/{number}" for number in range(2, 7)]
    opened = []

    class Replaced(JsonRows):
        """The rows of a file of which the first is gone when samples have been read."""

        def __iter__(self):
            opened.append(self.path.name)
            rows = list(super().__iter__())
            is_gone = "samples.jsonl" in opened and self.path.name == "results.jsonl"
            yield from rows[is_gone:]

    monkeypatch.setattr(evaluation, "JsonRows", Replaced)
    assert failed_tasks(folder) == [f"Mbpp/{number}" for number in range(3, 7)]


def test_broken_lines_are_left_out_and_a_broken_summary_is_an_error(folder):
    with (folder / "samples.jsonl").open("a") as lines:
        lines.write('{"torn')
    assert failed_tasks(folder) == ["Mbpp/2"]
    (folder / "results.jsonl").write_text("{}\n")
    (folder / "prompts.jsonl").write_text('{"task_id": {}}\n')
    assert "25.0 %" in render(folder, "markdown")
    (folder / "summary.json").write_text("{")
    with pytest.raises(RunError, match="no finished evaluation"):
        evaluation_report(folder)
