"""A bundle shows on any static host what the server shows, and overwrites nothing."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import threading
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import pytest
from browsing import Watched, flaws, in_each_view, until
from click.testing import CliRunner
from made_runs import HOSTILE, write_hostile, write_run

from greenward.cli.main import cli
from greenward.common.errors import RunError
from greenward.ui import comparing

ODD_NAME = "a/series?b&first=3#c+d %20"  # of a problem


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    server = pytest.importorskip("greenward.ui.server", reason="the extra `ui` is not installed")
    base = tmp_path_factory.mktemp("bundle")
    folder = base / "runs"
    answers = write_run(folder / "good", 120, seed=0)
    write_run(folder / "study" / "faulty", 120, seed=1, sick=True)
    write_hostile(folder / "hostile & <odd>")
    write_run(folder / "names", 10, seed=2)
    rows = folder / "names" / "rollouts" / "step_000010.jsonl"
    rows.write_text(rows.read_text().replace("families/task_1", ODD_NAME))
    before = {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}
    (base / "host").mkdir()
    out = base / "host" / "pages"
    count = server.write_pages([folder], out)
    assert count == sum(path.is_file() for path in out.rglob("*"))
    assert before == {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}
    assert [path.name for path in (base / "host").iterdir()] == ["pages"]
    host = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=base / "host")
    )
    threading.Thread(target=host.serve_forever, args=(0.01,), daemon=True).start()
    yield folder, out, f"http://127.0.0.1:{host.server_address[1]}/pages/", answers
    host.shutdown()
    host.server_close()


def test_each_page_of_a_run_is_made_once(tmp_path, monkeypatch):
    server = pytest.importorskip("greenward.ui.server", reason="the extra `ui` is not installed")
    answers = write_run(tmp_path / "runs" / "one", 20, seed=0)
    made = []

    def noted(name, make):
        return lambda pages, place, *asked: made.append((name, *asked)) or make(pages, place, *asked)

    for name in ("group", "problem"):
        monkeypatch.setattr(comparing, name, noted(name, getattr(comparing, name)))
    server.write_pages([tmp_path / "runs"], tmp_path / "pages")
    assert len(made) == len(set(made))
    problems = {asked[0] for name, *asked in made if name == "problem"}
    assert problems == {row["problem"] for _, row in answers}


@pytest.fixture
def page(bundle, browser):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    watched = Watched(context.new_page(), bundle[2])
    yield watched
    context.close()
    assert watched.wrong == []


def test_nothing_is_overwritten_or_put_among_the_runs(bundle, tmp_path):
    server = pytest.importorskip("greenward.ui.server")
    folder, out, _, _ = bundle
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for there in (out, tmp_path / "file", tmp_path / "link"):
        with pytest.raises(RunError, match="exists"):
            server.write_pages([folder], there)
    with pytest.raises(RunError, match="folder that is shown"):
        server.write_pages([folder], folder / "site")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="no run"):
        server.write_pages([tmp_path / "empty"], tmp_path / "site")
    many = [tmp_path / "many" / str(number) for number in range(21)]
    for path in many:
        path.mkdir(parents=True)
        (path / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 1.0}\n')
    with pytest.raises(RunError, match="21 runs"):
        server.write_pages([tmp_path / "many"], tmp_path / "site")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "link", "many"]
    assert (tmp_path / "file").read_text() == "mine" and not (folder / "site").exists()


def test_no_script_and_no_data_comes_from_outside_and_no_path_goes_out(bundle):
    folder, out, _, _ = bundle
    text = (out / "index.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    assert "default-src &#x27;none&#x27;" in policy and "script-src &#x27;self&#x27;" in policy
    assert text.index("Content-Security-Policy") < text.index("<script")
    for path in out.rglob("*"):
        if path.suffix in (".js", ".html", ".css") and "vendor" not in path.parts:
            loaded = re.findall(r"""(?:from|src=|href=|url\()\s*["']?([^"'\s)>`$]+)""", path.read_text())
            assert not [one for one in loaded if one.startswith(("http", "//", "/static"))], path
        if path.suffix == ".json":
            assert str(folder.parent) not in path.read_text()


def test_what_cannot_be_read_of_a_run_hides_nothing_else_and_is_not_followed(tmp_path):
    server = pytest.importorskip("greenward.ui.server")
    folder, secret = tmp_path / "shown" / "runs", tmp_path / "secret"
    secret.mkdir()
    for name in ("metrics.jsonl", "rollouts", "prompts.jsonl", "evaluations", "fifo"):
        run = folder / f"without {name}"
        write_run(run, 20, seed=0)
        found = run / name
        if name == "fifo":
            (run / "metrics.jsonl").unlink()
            os.mkfifo(run / "metrics.jsonl")
        elif found.exists():
            found.rename(secret / name)
            found.symlink_to(secret / name)
    write_run(folder / "whole", 20, seed=0)
    rows = folder / "whole" / "rollouts" / "step_000010.jsonl"
    row = json.loads(rows.read_text().splitlines()[0])
    program = f"open('{tmp_path}/shown/x'); open('/tmp/y'); open('{folder}/z')"
    rows.write_text(json.dumps({**row, "answer": program}) + "\n")
    server.write_pages([folder], tmp_path / "out")
    data = tmp_path / "out" / "data"
    index = json.loads((data / "index.json").read_text())
    listed = json.loads((data / index["/api/v1/runs"]).read_text())
    assert len(listed["runs"]) == 6
    shown = {one["name"]: one["id"] for one in listed["runs"]}
    for name, inside in (("whole", 40), ("without evaluations", 40), ("without rollouts", 1)):
        assert sum(address.startswith(f"/api/v1/runs/{shown[name]}/") for address in index) >= inside
    for name in ("without metrics.jsonl", "without fifo"):
        assert f"/api/v1/runs/{shown[name]}/series" not in index
        assert f"/api/v1/runs/{shown[name]}" in index
    answer = json.loads((data / index[f"/api/v1/runs/{shown['whole']}/rollouts/10/0"]).read_text())
    assert answer["answer"] == program.replace(str(folder), "runs")


def test_the_pages_lead_from_the_list_to_an_answer(bundle, page):
    _, _, url, answers = bundle
    shown = page.open("", "tr.row")
    shown.get_by_role("link", name="study/faulty").last.click()
    shown.wait_for_selector(".plot canvas")
    assert shown.url.startswith(url + "#/r/study~faulty")
    shown.locator(".marks a").first.click()
    shown.wait_for_selector(".answers tr.row")
    shown.locator(".answers tr.row a").first.click()
    shown.wait_for_selector(".lines li")
    shown.go_back()
    shown.wait_for_selector(".answers tr.row")
    shown = page.open("#/r/good/rollouts?status=failed", ".answers tr.row")
    shown.reload()
    shown.wait_for_selector(".answers tr.row")
    number = sum(row["status"] == "failed" for _, row in answers)
    assert shown.locator("p[role=status]").inner_text().startswith(f"{number} of {len(answers)}")
    shown = page.open("#/r/good/rollouts?groups=constant", "[role=alert]")
    assert "not in the bundle" in shown.locator("[role=alert]").inner_text()
    assert not shown.locator(".answers tr.row").count()


@pytest.mark.parametrize(
    ("query", "holds"),
    [
        ("step=20-40&status=failed,timeout", lambda step, row: 20 <= step <= 40 and row["status"] in ("failed", "timeout")),
        ("reward>=0.5&passed=0", lambda step, row: reward_of(row) >= 0.5 and row["status"] != "passed"),
        ("tokens<30&stop=length&step=61-", lambda step, row: row["tokens"] < 30 and row["stop"] == "length" and step > 60),
        pytest.param("task=task_3&advantage<0", lambda step, row: "task_3" in row["problem"] and row["advantage"] < 0, marks=pytest.mark.slow),
        pytest.param("problem=families/task_2&step=-50", lambda step, row: row["problem"] == "families/task_2" and step <= 50, marks=pytest.mark.slow),
        pytest.param("error=NameError&step=10", lambda step, row: row["error_class"] == "NameError" and step == 10, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_other_conditions_are_answered_from_what_is_kept(bundle, page, query, holds):
    _, _, _, answers = bundle
    shown = page.open("#/r/good/rollouts", "form input")
    shown.locator("form input").fill(query)
    shown.get_by_role("button", name="Apply").click()
    expected = [row for step, row in answers if holds(step, row)]
    said = f"{len(expected)} of {len(answers)} answers in this bundle"
    until(shown, f"document.querySelector('p[role=status]')?.innerText.startsWith({json.dumps(said)})")
    assert expected and shown.locator(".answers tr.row").count() == min(len(expected), 60)
    shown.reload()
    until(shown, f"document.querySelector('p[role=status]')?.innerText.startsWith({json.dumps(said)})")


def reward_of(row: dict[str, Any]) -> float:
    return row["rewards"]["policy"]


def test_curves_are_files_and_what_is_not_there_is_said(bundle, page):
    folder, _, url, _ = bundle
    shown = page.open("#/r/good", ".plot canvas")
    figure = shown.locator("figure.chart").first
    key = figure.get_attribute("data-key")
    shown.wait_for_selector('figure a[download][href^="data/"]')
    addresses = {
        one.get_attribute("download"): one.get_attribute("href")
        for one in figure.locator("a[download]").all()
    }
    name = key.replace("/", "-")
    assert addresses.keys() == {f"{name}.csv", f"{name}.svg"}
    rows = [line.split(",") for line in fetched(url + addresses[f"{name}.csv"]).splitlines()]
    kept = [json.loads(line) for line in (folder / "good" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0] == ["step", key] and len(rows) == len(kept) + 1
    for (step, value), row in zip(rows[1:], kept, strict=True):
        assert int(step) == row["step"] and float(value) == pytest.approx(row[key], rel=1e-5)
    drawn = ElementTree.fromstring(fetched(url + addresses[f"{name}.svg"]))
    assert drawn.tag.endswith("svg") and key in "".join(drawn.itertext())
    shown = page.open("#/r/good/rollouts", ".answers tr.row")
    assert shown.locator(".only-bundled").is_visible()
    assert not any(one.is_visible() for one in shown.locator("a[download]").all())


def fetched(address: str) -> str:
    with urllib.request.urlopen(address, timeout=20) as answer:
        return answer.read().decode()


def test_other_pages_are_there_and_hostile_text_is_text(bundle, page):
    shown = page.open("#/compare?runs=good,study~faulty", ".plot canvas")
    shown.locator(".chip").first.click()
    shown.wait_for_selector("#answers .lines")
    for address, wait in {
        "#/r/good/evaluation": ".cell",
        "#/r/good/groups/60/240": ".lines li",
        "#/r/good/problems/families%2Ftask_3": ".lines li",
        f"#/r/names/problems/{quote(ODD_NAME, safe='')}": ".lines li",
        "#/r/good/config": "main table",
        "#/r/good/curves": ".plot canvas",
    }.items():
        page.open(address, wait)
    runs = json.loads((Path(bundle[1]) / "data" / "000000.json").read_text())["runs"]
    odd = next(run["id"] for run in runs if "odd" in run["name"])
    shown = page.open(f"#/r/{odd}/rollouts/1/0", ".lines li")
    assert shown.evaluate("window.owned") is None and HOSTILE[:20] in shown.locator(".lines").inner_text()


@in_each_view
def test_the_pages_are_accessible_and_fit_a_phone(browser, bundle, axe, views):
    pages = {"#/": "tr.row", "#/r/study~faulty": ".plot canvas", "#/r/good/rollouts": ".answers tr.row"}
    assert flaws(browser, bundle[2], pages, axe, views) == []


def test_who_may_frame_a_bundle_is_for_its_host_to_say(tmp_path):
    write_run(tmp_path / "runs" / "one", 3, seed=0)
    asked = [
        "ui",
        str(tmp_path / "runs"),
        "--bundle",
        str(tmp_path / "site"),
        "--frame",
        "http://localhost:8888",
    ]
    done = CliRunner().invoke(cli, asked)
    assert done.exit_code == 2 and "frame-ancestors" in done.output and not (tmp_path / "site").exists()
