"""The pages in a browser: they show the data, run nothing that a model wrote, need no mouse, and pass axe-core."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest
from browsing import flaws, in_each_view, until
from made_runs import write_run


def hostile(served) -> str:
    import http.client
    import json

    connection = http.client.HTTPConnection("127.0.0.1", served.port)
    connection.request("GET", "/api/v1/runs")
    runs = json.loads(connection.getresponse().read())["runs"]
    return next(run["id"] for run in runs if run["name"] == "hostile & <odd>")


def test_the_list_says_what_is_best_and_what_is_sick_without_a_click(watched):
    page = watched.open("/")
    until(page, "document.querySelector('.tiles')?.textContent.includes('2 of 3')", 60)
    tiles = page.locator(".tile").all_inner_texts()
    assert "70.0 %" in tiles[0] and "good" in tiles[0]
    assert "study/sick" in tiles[1] and "hostile" in tiles[1] and "good" not in tiles[1]
    row = page.locator("tr.row", has_text="sick").inner_text()
    assert "critical" in row or "warning" in row
    assert page.locator("tr.row").count() == 3
    page.get_by_label("Filter runs").fill("seed:1 sick")
    until(page, "document.querySelectorAll('tr.row').length === 1")
    assert "q=" in page.url
    page.reload()
    page.wait_for_selector("tr.row")
    assert page.locator("tr.row").count() == 1


def test_a_finding_is_marked_in_its_curve_and_leads_to_the_answers(watched):
    page = watched.open("/r/study~sick", ".marks a")
    mark = page.locator(".marks a").first
    step = int(re.search(r"from step ([\d,]+)", mark.inner_text())[1].replace(",", ""))
    assert 50 <= step <= 70
    mark.click()
    page.wait_for_selector(".answers tr.row")
    assert "/rollouts?step=" in page.url
    first = page.locator(".answers tr.row .a-step").first.inner_text()
    assert int(first.split("/")[0].replace(",", "")) >= 50


def test_two_ticked_runs_lead_to_the_answers_that_one_broke(watched):
    page = watched.open("/", "tr.row")
    page.get_by_label("Compare good").check()
    page.get_by_label("Compare study/sick").check()
    page.get_by_role("button", name="Compare 2").click()
    page.wait_for_selector("text=problems broken")
    assert "worse than the first" in page.locator("main").inner_text()
    page.locator(".chip").first.click()
    page.wait_for_selector("#answers .lines")
    assert [badge.split()[-1] for badge in page.locator("#answers .badge").all_inner_texts()] == [
        "passed",
        "failed",
    ]
    page.reload()
    page.wait_for_selector("#answers .lines")


def test_a_diagnosis_counts_the_answers_behind_each_finding(watched, served):
    page = watched.open("/r/study~sick/diagnosis", "text=answers behind this")
    link = page.get_by_role("link", name=re.compile("answers behind this")).first
    number = int(re.match(r"[\d,]+", link.inner_text())[0].replace(",", ""))
    link.click()
    page.wait_for_selector(".answers tr.row")
    until(page, f"document.querySelector('p[role=status]').textContent.startsWith('{number} of')")


def test_curves_zoom_smooth_and_come_back(watched):
    page = watched.open("/r/good/curves", ".plot canvas")
    box = page.locator(".plot").first.bounding_box()
    y = box["y"] + 80
    page.mouse.move(box["x"] + 120, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 240, y, steps=4)
    page.mouse.up()
    page.wait_for_url("**from=*")
    assert "to=" in page.url
    page.get_by_role("button", name="Log axis").click()
    page.get_by_label("Smoothing window").select_option("20")
    page.wait_for_url("**smooth=20*")
    page.get_by_role("link", name=re.compile("Rollouts of steps")).click()
    page.wait_for_selector(".answers tr.row")
    page.go_back()
    page.wait_for_selector(".plot canvas")
    assert "smooth=20" in page.url and "log=1" in page.url


def test_answers_are_filtered_by_facets_text_and_conditions(watched, served):
    kept = served.answers["good"]
    page = watched.open("/r/good/rollouts", ".answers tr.row")
    page.locator(".facet button", has_text="failed").click()
    page.wait_for_url("**status=failed*")
    number = sum(row["status"] == "failed" for _, row in kept)
    until(page, f"document.querySelector('p[role=status]').textContent.startsWith('{number} of')")
    where = page.get_by_label("Conditions, as of greenward rollouts --where")
    where.fill("step=70-&stop=length&nonsense=1")
    where.press("Enter")
    page.wait_for_selector(".note:has-text('nonsense=1')")
    number = sum(step >= 70 and row["stop"] == "length" for step, row in kept)
    until(page, f"document.querySelector('p[role=status]').textContent.startsWith('{number} of')")
    page.locator(".answers tr.row a").first.click()
    page.wait_for_selector(".lines li")
    assert "def solve" in page.locator(".lines").inner_text()
    page.keyboard.press("Escape")
    page.wait_for_selector(".answers tr.row")
    assert "stop=length" in page.url


def test_everything_can_be_reached_without_a_mouse(watched):
    page = watched.open("/", "tr.row")
    page.keyboard.press("j")
    page.wait_for_selector("tr.here")
    page.keyboard.press("Enter")
    page.wait_for_selector(".tabs")
    page.keyboard.press("g")
    page.keyboard.press("c")
    page.wait_for_selector(".plot canvas")
    page.locator(".plot").first.focus()
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('#said').textContent.startsWith('step ')")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.locator("dialog[open]").count() == 1
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_selector(".tiles")


def test_what_a_model_wrote_is_text_in_every_place(watched, served):
    run = hostile(served)
    for path in (
        "/",
        f"/r/{run}",
        f"/r/{run}/curves",
        f"/r/{run}/config",
        f"/r/{run}/rollouts",
        f"/r/{run}/rollouts/1/0",
    ):
        page = watched.open(path)
        page.wait_for_timeout(150)
        assert page.evaluate("window.owned") is None
        assert page.locator("main script, main img, main iframe, main [onerror]").count() == 0
    assert "<script>window.owned=1</script>" in page.locator(".lines").inner_text()
    text = page.locator("main").inner_text()
    assert not any(hidden in text for hidden in "\u202e\u200b\x1b\x00")
    page = watched.open("/r/good/rollouts?text=%3Cimg%20src=x%20onerror=window.owned=1%3E")
    assert page.evaluate("window.owned") is None and "onerror" in page.locator(".chip").inner_text()


@pytest.mark.usefixtures("often_looked_through")
def test_a_running_run_is_followed_and_a_deleted_one_stays_on_the_page(watched, served):
    path = served.folder / "growing"
    write_run(path, 20, seed=3)
    try:
        time.sleep(0.3)  # until the folder is looked through again
        page = watched.open("/r/growing", ".plot canvas")
        (path / "summary.json").unlink()
        from greenward.runs.directory import RunDirectory

        with RunDirectory.create(path, {"name": "made"}, overwrite=True) as run:
            run.metrics.append(1, {"reward/mean": 0.5})
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
            page.wait_for_selector("text=row(s) that were here are gone", timeout=15_000)
            page.wait_for_selector(".dot.on", state="attached")
            run.metrics.append(77, {"reward/mean": 0.5})
            until(page, "document.querySelector('.facts').textContent.includes('77')", 10)
    finally:
        shutil.rmtree(path)
    page.wait_for_selector(".note:has-text('Deleted or moved')", timeout=15_000)
    assert page.locator(".plot").count() > 0


@pytest.mark.parametrize("context", [{"accept_downloads": True}], indirect=True)
def test_a_curve_is_saved_as_a_picture(watched):
    page = watched.open("/r/good", ".plot canvas")
    with page.expect_download() as saved:
        page.get_by_role("button", name="PNG").first.click()
    assert Path(saved.value.path()).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


PAGES = {
    "/": "tr.row",
    "/r/study~sick": ".plot canvas",
    "/r/good/curves": ".plot canvas",
    "/r/good/config": "main table",
    "/r/good/rollouts?status=failed": ".answers tr.row",
    "/r/good/rollouts/60/1": ".lines li",
    "/r/study~sick/diagnosis": ".plot canvas",
    "/r/good/evaluation": ".cell",
    "/r/good/groups/60/240": ".lines li",
    "/r/good/problems/families%2Ftask_3": ".lines li",
    "/compare?runs=good,study~sick": ".plot canvas",
}


@in_each_view
def test_pages_are_accessible_and_fit_a_phone(browser, served, axe, views):
    assert flaws(browser, served.url, PAGES, axe, views) == []
