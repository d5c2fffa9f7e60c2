"""Runs and evaluations in notebooks: data frames equal to the files, rich results without scripts, one live output."""

from __future__ import annotations

import base64
import html
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from synthetic_study import write_seed

from greenward import EvaluationResult, diagnose_run, read_evaluation, read_run
from greenward.common.errors import ConfigError, RunError
from greenward.evaluation.audit_report import AuditReport, Trial, TrialOutcome
from greenward.reports.recorded import report_of

ROOT = Path(__file__).parents[2]
HOSTILE = "</iframe><script>alert(1)</script>\"><img src=x onerror='alert(1)'>\x1b[2J\u202e"
ESTIMATE = {"value": 0.5, "low": 0.25, "high": 0.75, "problems": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_seed(tmp_path_factory.mktemp("frames") / "run", steps=8, problems=10)


@pytest.fixture
def evaluation(tmp_path) -> Path:
    folder = tmp_path / "evaluation"
    folder.mkdir()
    rows = [{"task_id": "a", "sample": 0, "status": "passed", "success": True, "cpu_seconds": 0.1}]
    rows += [{"task_id": "b", "sample": 0, "status": "failed", "success": False, "first_failure": HOSTILE}]
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "samples.jsonl").write_text(
        json.dumps({"task_id": "b", "sample": 0, "solution": HOSTILE}) + "\n"
    )
    summary = {
        "suite": HOSTILE,
        "metrics": {"pass@1": ESTIMATE},
        "rates": {"compile": ESTIMATE},
        "answers": 2,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_frame_of_metrics_has_the_rows_of_the_file(run):
    pytest.importorskip("pandas")
    frame, rows = read_run(run).to_frame(), lines(run / "metrics.jsonl")
    assert len(frame) == len(rows) == 8 and set(frame) == {key for row in rows for key in row}
    for index, row in enumerate(rows):
        assert {key: frame[key][index] for key in row} == row


def test_numbers_that_json_has_not_are_numbers_of_the_frame(tmp_path):
    pytest.importorskip("pandas")
    (tmp_path / "config.yaml").write_text("name: x\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": "Infinity"}\n{"step": 2, "loss": 0.5}\n{"st')
    frame = read_run(tmp_path).to_frame()
    assert frame["loss"].dtype == float and frame["loss"].tolist() == [float("inf"), 0.5]


def test_a_frame_of_evaluations_has_each_estimate_with_its_bounds(run):
    pytest.importorskip("pandas")
    frame = read_run(run).to_frame("evaluations")
    files = sorted((run / "evaluations").glob("step_*.json"))
    assert (
        frame["step"].tolist() == [json.loads(file.read_text())["step"] for file in files] and len(files) > 2
    )
    for index, file in enumerate(files):
        for name, one in json.loads(file.read_text())["metrics"].items():
            assert [frame[column][index] for column in (name, f"{name}.low", f"{name}.high")] == [
                one["value"], one["low"], one["high"],
            ]  # fmt: skip


def test_a_frame_of_rollouts_has_each_kept_answer(tmp_path):
    pytest.importorskip("pandas")
    (tmp_path / "config.yaml").write_text("name: x\n")
    (tmp_path / "rollouts").mkdir()
    rows = [{"problem": "p", "answer": f"{n}", "terms": {"tests": 0.5 * n, "m:f": None}} for n in range(3)]
    for step, part in ((1, rows[:2]), (4, rows[2:])):
        text = "".join(json.dumps(row) + "\n" for row in part)
        (tmp_path / f"rollouts/step_{step:06d}.jsonl").write_text(text)
    frame = read_run(tmp_path).to_frame("rollouts")
    assert frame["step"].tolist() == [1, 1, 4] and frame["answer"].tolist() == ["0", "1", "2"]
    assert frame["terms.tests"].tolist() == [0, 0.5, 1.0] and frame["terms.m:f"].isna().all()


def test_frames_of_an_evaluation_have_its_figures_and_answers(evaluation):
    pytest.importorskip("pandas")
    found = read_evaluation(evaluation)
    figures = found.to_frame().set_index("name")
    assert figures.loc["pass@1"].tolist() == figures.loc["compile"].tolist() == [0.5, 0.25, 0.75]
    answers = found.to_frame("answers")
    assert answers["task_id"].tolist() == ["a", "b"] and answers["success"].tolist() == [True, False]
    with pytest.raises(ConfigError, match="in memory keeps no answers"):
        EvaluationResult(found.summary).to_frame("answers")


def test_without_pandas_and_without_a_run_the_error_says_what_to_do(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"pandas(.|\n)*pip install pandas"):
        read_run(run).to_frame()
    with pytest.raises(ConfigError, match="'metrics', 'rollouts' or 'evaluations'"):
        read_run(run).to_frame("metric")
    for read in (read_run, read_evaluation):
        with pytest.raises(RunError, match="holds no"):
            read(tmp_path)


def page_of(bundle: dict[str, str]) -> str:
    """The page in the frame of a bundle, which lets no script run; beside it are a line and images."""
    assert bundle.keys() == {"text/plain", "text/html"}
    head, _, rest = bundle["text/html"].partition('srcdoc="')
    page, _, tail = rest.partition('"')
    assert tail == "></iframe></details>" and "<" not in page
    tags = re.sub(r'<img src="data:image/svg\+xml;base64,[A-Za-z0-9+/=]+" alt="[^"<>]*">', "", head)
    assert re.fullmatch(
        r"<p><b>[^<>]*</b> [^<>]*</p><details><summary>[\w ]+</summary><iframe sandbox style=[^<>]*", tags
    )
    assert "\x1b" not in bundle["text/plain"] + bundle["text/html"]
    return html.unescape(page)


def images_of(bundle: dict[str, str]) -> list[str]:
    """The texts in each image of a bundle, which is a drawing that loads and runs nothing."""
    found = []
    for content in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', bundle["text/html"]):
        drawing = ElementTree.fromstring(base64.b64decode(content))
        inside = list(drawing.iter())
        assert not any(one.tag.endswith(("script", "image", "foreignObject")) for one in inside)
        assert not any(name.startswith("on") or "href" in name for one in inside for name in one.attrib)
        found.append(" ".join(drawing.itertext()))
    return found


def test_a_notebook_shows_runs_evaluations_diagnoses_and_reports_without_scripts(run, evaluation):
    pages = {
        "run": page_of(read_run(run)._repr_mimebundle_(include=None, exclude=None)),
        "report": page_of(report_of(run)._repr_mimebundle_()),
        "diagnosis": page_of(diagnose_run(run)._repr_mimebundle_()),
        "evaluation": page_of(read_evaluation(evaluation)._repr_mimebundle_()),
        "in memory": page_of(EvaluationResult(read_evaluation(evaluation).summary)._repr_mimebundle_()),
    }
    for name, page in pages.items():
        assert "<script" not in page and "<img" not in page and "default-src 'none'" in page, name
    assert pages["run"] == pages["report"] and "<svg" in pages["run"]
    images = images_of(read_run(run)._repr_mimebundle_())
    assert 1 <= len(images) <= 4 and images == images_of(report_of(run)._repr_mimebundle_())
    assert "&lt;script&gt;" in pages["evaluation"] and "50.0 % [25.0, 75.0]" in pages["in memory"]
    assert "pass@1" in read_run(run)._repr_mimebundle_()["text/plain"]


def test_an_audit_is_shown_as_it_is_printed():
    trial = Trial(HOSTILE, "forms", "audit/gcd", TrialOutcome.ACCEPTED, 1.0, "", HOSTILE)
    right = Trial("reference", "honest", "audit/gcd", TrialOutcome.ACCEPTED, 1.0, "", "it is right")
    bundle = AuditReport("mine:reward", "ours", "code", (trial,), (right,))._repr_mimebundle_()
    assert bundle["text/plain"].startswith("NOT SOUND") and "accepted 1 of 1" in bundle["text/plain"]
    assert bundle["text/html"] == f"<pre>{html.escape(bundle['text/plain'])}</pre>"
    assert "\x1b" not in bundle["text/plain"]


_FAKE = """
import builtins, json, sys, types
class ZMQInteractiveShell: pass
builtins.get_ipython = ZMQInteractiveShell
shown = []
class Handle:
    def __init__(self, place): self.place = place
    def update(self, bundle, raw): shown[self.place].append(bundle)
def display(*given, **how):
    shown.append(list(given))
    return Handle(len(shown) - 1)
package, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
module.display = display
sys.modules |= {"IPython": package, "IPython.display": module}
"""


@pytest.mark.slow
def test_a_training_in_a_notebook_has_one_output_that_is_updated_and_a_report(tmp_path):
    """IPython itself is no dependency of the tests: its `display` is replaced by one that records."""
    cells = json.loads((ROOT / "examples/own_loss.ipynb").read_text("utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    text = f"{_FAKE}\n{code}\nprint(json.dumps(shown), file=open('shown.json', 'w'))\n"
    (tmp_path / "notebook.py").write_text(text, "utf-8")
    done = subprocess.run(
        [sys.executable, "notebook.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (outputs,) = json.loads((tmp_path / "shown.json").read_text())
    texts = [bundle["text/plain"] for bundle in outputs]
    assert len(texts) > 3 and any("/3" in text for text in texts) and "3/3" in texts[-1]
    for bundle in outputs:
        assert (
            html.unescape(bundle["text/html"].removeprefix("<pre>").removesuffix("</pre>"))
            == bundle["text/plain"]
        )
    assert "Report: runs/own_loss/report.html" in done.stdout
