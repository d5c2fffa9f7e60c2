"""The four views: complete, self-contained, small, and closed to what a model writes."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console
from synthetic_study import write_seed, write_study

from greenward.reports import load_report, write_all_reports
from greenward.reports.html import render_html
from greenward.reports.json_view import render_json
from greenward.reports.markdown import render_markdown
from greenward.reports.terminal import print_report, spark_line

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202e```\n| x | [a](http://b)"


class Page(HTMLParser):
    """Checks nesting and collects tags, attributes and text."""

    VOID = frozenset({"meta"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def terminal(content, width=110) -> str:
    out = io.StringIO()
    print_report(content, Console(file=out, width=width, force_terminal=True, color_system=None))
    return out.getvalue()


def test_every_view_is_written_and_says_the_headline(study):
    paths = write_all_reports(study)
    assert set(paths) == {"html", "markdown", "json"}
    content = load_report(study)
    page = Page(paths["html"].read_text())
    assert content.headline in page.text
    assert content.headline.split(":")[0] in paths["markdown"].read_text()
    assert json.loads(paths["json"].read_text())["headline"] == content.headline
    assert " ".join(content.headline.split()) in " ".join(terminal(content).split())


def test_the_page_needs_no_network_and_no_script(study):
    html = render_html(load_report(study))
    page = Page(html)
    for tag, attributes in page.tags:
        assert tag not in {"script", "link", "img", "iframe", "object", "base", "form"}
        assert not {"src", "href", "style", "onclick", "onload"} & attributes.keys(), (tag, attributes)
    assert "url(" not in html and "@import" not in html


def test_the_policy_allows_exactly_this_style_sheet(study):
    html = render_html(load_report(study))
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policies = [a["content"] for t, a in Page(html).tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == [
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    ]


def test_a_long_study_stays_under_300_kb(tmp_path):
    write_study(tmp_path, seeds=5, steps=1500, problems=20)
    assert len(render_html(load_report(tmp_path)).encode()) < 300_000


def test_what_a_model_or_a_file_says_is_shown_and_never_acts(tmp_path):
    run = write_seed(tmp_path / "run", problems=5)
    for path in (run / "evaluations").iterdir():
        record = json.loads(path.read_text())
        for row in record["rows"]:
            row["task_id"] = row["prompt"] = HOSTILE
            row["passed"] = 8 if record["step"] else 0
            row["answers"] = [{"code": HOSTILE, "status": HOSTILE, "first_failure": HOSTILE}]
        record["statuses"] = {HOSTILE: 3}
        path.write_text(json.dumps(record))
    config = (run / "config.yaml").read_text().replace("name: quickstart", f"name: {json.dumps(HOSTILE)}")
    (run / "config.yaml").write_text(config)
    content = load_report(run)

    page = Page(render_html(content))
    assert not [tag for tag, _ in page.tags if tag in {"script", "img"}]
    assert "<script>alert(1)</script>" in page.text
    assert "\x1b" not in page.text and "\u202e" not in page.text

    shown = terminal(content)
    assert "\x1b[2J" not in shown and "\u202e" not in shown

    outside_fences = re.sub(r"^(`{3,})[a-z]*\n.*?^\1$", "", render_markdown(content), flags=re.DOTALL | re.M)
    assert not re.search(r"(?<!\\)<(?!/?details>|/?summary>)", outside_fences)
    assert "](http" not in outside_fences.replace("\\](http", "")

    json.loads(render_json(content))


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
    content = load_report(run)
    Page(render_html(content))
    assert render_markdown(content) and json.loads(render_json(content)) and terminal(content)


def test_a_run_that_has_only_begun_has_a_report(tmp_path):
    (tmp_path / "config.yaml").write_text("kind: sft\n")
    content = load_report(tmp_path)
    assert "training has not begun" in Page(render_html(content)).text
    assert "training has not begun" in terminal(content)


def test_sample_answers_are_the_first_of_their_outcome(study):
    samples = load_report(study).samples
    rows = [
        json.loads((study / f"seed_0/evaluations/step_{step:06d}.json").read_text())["rows"]
        for step in (0, 80)
    ]
    fixed = [a["task_id"] for a, b in zip(*rows, strict=True) if a["passed"] < 4 <= b["passed"]]
    shown = [problem.task_id for problem in samples.problems if problem.outcome == "fixed"]
    assert shown == fixed[:3]
    assert f"3 of {len(fixed)} fixed" in samples.caption


def test_a_sample_called_fixed_shows_an_answer_that_fails_and_then_one_that_passes(tmp_path):
    run = write_seed(tmp_path / "run", problems=60)
    wanted = {"fixed": (False, True), "still failing": (False, False), "broken": (True, False)}
    shown = load_report(run).samples.problems
    assert {problem.outcome for problem in shown} >= {"fixed"}
    for problem in shown:
        passed = tuple(answer.status == "passed" for answer in (problem.before, problem.after))
        assert passed == wanted[problem.outcome]
    path = run / "evaluations/step_000080.json"
    record = json.loads(path.read_text())
    for row in record["rows"]:  # the answers that passed were not recorded
        row["answers"] = [answer for answer in row["answers"] if answer["status"] != "passed"]
    path.write_text(json.dumps(record))
    assert not any(problem.outcome == "fixed" for problem in load_report(run).samples.problems)


@pytest.mark.parametrize(("step", "kind"), [(0, ""), (80, " good")])
def test_only_a_change_whose_interval_excludes_zero_is_coloured(tmp_path, step, kind):
    run = write_seed(tmp_path / "run", problems=60)
    same = json.loads((run / f"evaluations/step_{step:06d}.json").read_text())
    (run / "evaluations/step_000080.json").write_text(json.dumps({**same, "step": 80}))
    html = render_html(load_report(run))
    tiles = re.findall(r'<h3>GRPO, ([^<]*)</h3>.*?class="(to[^"]*)"', html)
    assert tiles == [(name, f"to{kind}") for name in ("sampled pass@1", "greedy pass@1", "pass@8")]


def test_every_view_has_the_three_arms_side_by_side(study):
    content = load_report(study)
    labels = ["Before", "After GRPO", "Rejection sampling", "Control"]
    assert [row[0] for row in content.before_after.rows if not row[0].startswith(" ")] == labels
    views = (
        render_markdown(content),
        render_json(content),
        Page(render_html(content)).text,
        terminal(content),
    )
    for view in views:
        assert all(label in view for label in labels)


def test_a_table_too_wide_for_the_terminal_loses_no_figure(study):
    content = load_report(study)
    table = content.before_after
    wide = replace(
        table, columns=(*table.columns, "pass@2"), rows=tuple((*row, row[1]) for row in table.rows)
    )
    shown = terminal(replace(content, before_after=wide), width=80)
    assert "…" not in shown
    assert all(part in shown for part in table.rows[2][1].replace(" %", "%").split(" [")[0:1])


def test_times_add_up_to_their_total(study):
    content = load_report(study)
    rows = [json.loads(line) for line in (study / "seed_0/metrics.jsonl").read_text().splitlines()]
    other = [json.loads(line) for line in (study / "seed_1/metrics.jsonl").read_text().splitlines()]
    sampling = sum(row["time/sampling"] for row in (*rows, *other)) / 2
    assert dict(content.time_parts)["Sampling"] == pytest.approx(sampling)
    assert content.costs.rows[-1][0] == "Total"


def test_eighty_columns_hold_every_figure(study):
    shown = terminal(load_report(study), width=80)
    assert "…" not in shown
    after = load_report(study).results.primary.after
    assert f"{100 * after.value:.1f}% [{100 * after.low:.1f}, {100 * after.high:.1f}]" in shown


def test_spark_lines_rise_with_their_values():
    assert spark_line([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert spark_line([5.0, 5.0]) == "▁▁"
    assert len(spark_line(list(range(1000)))) == 26
