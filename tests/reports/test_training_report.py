"""The report of a training: complete in every form, small, closed to what a model writes."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from synthetic_study import write_seed, write_study
from test_report_document import HOSTILE, Page, terminal

from greenward.reports.document import Answers, Report, Table
from greenward.reports.page import render_html
from greenward.reports.render import render_json, render_markdown
from greenward.reports.training import training_report
from greenward.reports.write import write_report


def blocks(report: Report, title: str):
    return next(section.blocks for section in report.sections if section.title == title)


def table(report: Report, title: str) -> Table:
    return next(block for block in blocks(report, title) if isinstance(block, Table))


def sample_answers(report: Report):
    found = [block for block in blocks(report, "Sample answers") if isinstance(block, Answers)]
    return found[0].tasks if found else ()


def test_a_report_is_called_by_its_run_and_names_the_recipe(tmp_path):
    write_seed(tmp_path / "bold attempt", steps=20, problems=20)
    report = training_report(tmp_path / "bold attempt")
    assert report.title == "bold attempt"
    assert [one.value for one in report.facts if one.label == "recipe"] == ["quickstart"]
    write_seed(tmp_path / "quickstart", steps=20, problems=20)
    assert not any(one.label == "recipe" for one in training_report(tmp_path / "quickstart").facts)


def test_every_form_is_written_and_says_the_headline(study, tmp_path):
    report = training_report(study)
    paths = write_report(report, tmp_path / "report")
    assert set(paths) == {"html", "markdown", "json"}
    assert report.headline in Page(paths["html"].read_text()).text
    assert report.headline.split(":")[0] in paths["markdown"].read_text()
    assert json.loads(paths["json"].read_text())["headline"] == report.headline
    assert " ".join(report.headline.split()) in " ".join(terminal(report).split())


@pytest.mark.parametrize("seeds", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_a_long_study_stays_under_300_kb(tmp_path, seeds):
    write_study(tmp_path, seeds=seeds, steps=1500, problems=20)
    assert len(render_html(training_report(tmp_path)).encode()) < 300_000


def test_what_a_model_or_a_file_says_is_shown_and_never_acts(tmp_path):
    run = write_seed(tmp_path / "run", problems=5)
    for path in (run / "evaluations").iterdir():
        record = json.loads(path.read_text())
        for row in record["rows"]:
            row["task_id"] = row["prompt"] = HOSTILE
            row["passed"] = 8 if record["step"] else 0
            status = "passed" if record["step"] else HOSTILE
            row["answers"] = [{"code": HOSTILE, "status": status, "first_failure": HOSTILE}]
        record["statuses"] = {HOSTILE: 3}
        path.write_text(json.dumps(record))
    config = (run / "config.yaml").read_text().replace("name: quickstart", f"name: {json.dumps(HOSTILE)}")
    (run / "config.yaml").write_text(config)
    report = training_report(run)
    assert sample_answers(report)
    page = Page(render_html(report))
    assert not [tag for tag, _ in page.tags if tag in {"script", "img"}]
    assert page.text.count("<script>alert(1)</script>") > 5
    for shown in (page.text, terminal(report), render_markdown(report)):
        assert "\x1b[2J" not in shown and "\u202e" not in shown
    json.loads(render_json(report))


@pytest.mark.parametrize(
    "missing",
    [
        "evaluations",
        "metrics.jsonl",
        "warm_start",
        "rejection",
        "control",
        "summary.json",
        "provenance.json",
        "config.yaml",
    ],
)
def test_a_missing_piece_leaves_a_report_of_the_rest(tmp_path, missing):
    run = write_seed(tmp_path / "run", steps=12, problems=5)
    target = run / missing
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    report = training_report(run)
    Page(render_html(report))
    assert render_markdown(report) and json.loads(render_json(report)) and terminal(report)


def test_a_run_that_has_only_begun_has_a_report(tmp_path):
    (tmp_path / "config.yaml").write_text("algorithm: {name: sft}\n")
    report = training_report(tmp_path)
    assert "training has not begun" in Page(render_html(report)).text
    assert "training has not begun" in terminal(report)


def test_sample_answers_are_the_first_of_their_outcome(study):
    report = training_report(study)
    rows = [
        json.loads((study / f"seed_0/evaluations/step_{step:06d}.json").read_text())["rows"]
        for step in (0, 80)
    ]
    fixed = [a["task_id"] for a, b in zip(*rows, strict=True) if a["passed"] < 4 <= b["passed"]]
    assert [task.task_id for task in sample_answers(report) if task.label == "fixed"] == fixed[:3]
    assert f"3 of {len(fixed)} fixed" in blocks(report, "Sample answers")[0].text


def test_a_sample_called_fixed_shows_an_answer_that_fails_and_then_one_that_passes(tmp_path):
    run = write_seed(tmp_path / "run", problems=60)
    wanted = {"fixed": (False, True), "still failing": (False, False), "broken": (True, False)}
    shown = sample_answers(training_report(run))
    assert {task.label for task in shown} >= {"fixed"}
    for task in shown:
        assert tuple(answer.status == "passed" for answer in task.answers) == wanted[task.label]
    path = run / "evaluations/step_000080.json"
    record = json.loads(path.read_text())
    for row in record["rows"]:  # the answers that passed were not recorded
        row["answers"] = [answer for answer in row["answers"] if answer["status"] != "passed"]
    path.write_text(json.dumps(record))
    assert not any(task.label == "fixed" for task in sample_answers(training_report(run)))


@pytest.mark.parametrize(("step", "tone"), [(0, "neutral"), (80, "good")])
def test_only_a_change_whose_interval_excludes_zero_is_coloured(tmp_path, step, tone):
    run = write_seed(tmp_path / "run", problems=60)
    same = json.loads((run / f"evaluations/step_{step:06d}.json").read_text())
    (run / "evaluations/step_000080.json").write_text(json.dumps({**same, "step": 80}))
    tiles = re.findall(r'<h3>GRPO, ([^<]*)</h3>.*?class="(to[^"]*)"', render_html(training_report(run)))
    assert tiles == [(name, f"to {tone}") for name in ("sampled pass@1", "greedy pass@1", "pass@8")]


def test_every_form_has_the_three_arms_side_by_side(study):
    report = training_report(study)
    labels = ["Before", "After GRPO", "Rejection sampling", "Control"]
    rows = table(report, "Before and after").rows
    differences = ["Gain of GRPO"]
    for label in labels[2:]:
        differences += [f"Change of {label}", f"GRPO minus {label}"]
    assert [row[0] for row in rows if not row[0].startswith(" ")] == [*labels, *differences]
    forms = (render_markdown(report), render_json(report), Page(render_html(report)).text, terminal(report))
    for text in forms:
        assert all(label in text for label in labels)


def test_an_evaluation_at_the_end_alone_is_not_called_one_of_before(tmp_path):
    run = write_seed(tmp_path / "run", problems=60)
    (run / "evaluations/step_000000.json").unlink()
    for other in sorted((run / "evaluations").glob("*.json"))[:-1]:
        other.unlink()
    report = training_report(run)
    first, *others = (row[0] for row in table(report, "Before and after").rows)
    assert first == "Step 80" and "Before" not in others
    assert re.fullmatch(r"Held-out sampled pass@1 is .* at step 80; there is no second .*", report.headline)


def test_times_add_up_to_their_total(study):
    costs = table(training_report(study), "Time and memory")
    rows = [
        json.loads(line)
        for seed in (0, 1)
        for line in (study / f"seed_{seed}/metrics.jsonl").read_text().splitlines()
    ]
    seconds = {row[0]: value for row, value in zip(costs.rows, costs.shares, strict=False)}
    assert seconds["Sampling"] == pytest.approx(sum(row["time/sampling"] for row in rows) / 2)
    assert seconds["Warm start"] == pytest.approx(78.0)
    assert costs.rows[-1][0] == "Total"


def test_eighty_columns_hold_every_figure(study):
    report = training_report(study)
    shown = terminal(report, width=80)
    assert "…" not in shown
    after = report.data["results"]["arms"][0]["after"]["pass@1"]
    value, low, high = (100 * after[key] for key in ("value", "low", "high"))
    assert f"{value:.1f}% [{low:.1f}, {high:.1f}]" in shown


def test_each_term_of_the_reward_has_a_curve_unless_it_is_the_reward(tmp_path):
    run = write_seed(tmp_path / "run", problems=20)
    file = run / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        row |= {
            "reward/tests": row["reward/mean"],
            "reward/brevity": -0.1 * row["step"],
            f"reward/{HOSTILE}": 1.0,
        }
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = training_report(run)
    charts = {one.title: one for block in blocks(report, "Training, step by step") for one in block.charts}
    assert [title for title in charts if title.startswith("Reward: ")] == [
        "Reward: " + HOSTILE,
        "Reward: brevity",
    ]
    faint = charts["Reward: brevity"].series[0].points
    assert list(faint) == [(row["step"], -0.1 * row["step"]) for row in rows]
    assert "<script>alert" not in render_html(report)
