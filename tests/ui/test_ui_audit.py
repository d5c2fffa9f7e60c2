"""The page of an audit: what the audit found, with the texts, and which answers of a run have them."""

from __future__ import annotations

import json
import os

import pytest
from browsing import Watched, flaws, in_each_view
from made_runs import HOSTILE, Served, answers_of, get, request, serving, write_run

from greenward.evaluation.audit_report import AuditReport, Pair, Trial, TrialOutcome

CHEAT = "def solve(x):\n    return x + 3\n"  # which some answers of the made run have, too


def trial(answer: str, family: str, outcome: TrialOutcome, text: str = "", score: float = 1.0) -> Trial:
    return Trial(answer, family, "audit/one", outcome, score, "", f"why {family}", text)


def report(cheats: list[Trial], pairs: tuple[Pair, ...] = ()) -> AuditReport:
    honest = (
        trial("reference", "honest", TrialOutcome.ACCEPTED),
        trial("spaced", "honest", TrialOutcome.REFUSED),
    )
    return AuditReport("rewards:own", "trl", "plain", tuple(cheats), honest, pairs=pairs)


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited") / "runs"
    answers = write_run(folder / "run", 60, seed=0)
    found = report(
        [
            trial("shotgun", "shotgun", TrialOutcome.ACCEPTED, CHEAT),
            trial("poison", "tampering", TrialOutcome.POISONED, HOSTILE.replace("\ud800", "")),
            trial("killer", "signals", TrialOutcome.KILLED, "os.kill"),
            trial("nothing", "empty", TrialOutcome.REFUSED, "refused text", 0.0),
        ],
        (Pair("short and wrong", "long and right", 0.9, 0.4),),
    )
    (folder / "audit.json").write_text(json.dumps(found.to_json()))
    (folder / "run" / "audit of another version.json").write_text(
        json.dumps({**found.to_json(), "version": 99})
    )
    hostile = json.dumps(
        {"version": 1, "cheats": [1, {"family": [HOSTILE]}], "findings": {}, "pairs": [{}], "sound": 7}
    )
    (folder / "hostile-audit.json").write_text(hostile)
    (folder / "my_audit_notes.json").write_text("[1, 2")
    with (folder / "audit-large.json").open("wb") as file:
        file.truncate(1 << 30)
    os.symlink("/etc/passwd", folder / "linked-audit.json")
    with serving([folder], None) as port:
        yield Served(folder, port, {"run": answers}), found


def test_an_audit_says_what_the_report_says(audited):
    served, report = audited
    answers_of(served, "run")
    found = get(served, "/api/v1/audits/audit.json?run=run")
    assert found["share"] == 1.0
    assert found["sound"] is False and found["kinds"] == [one.kind.value for one in report.findings]
    assert found["counts"] == [len(report.accepted), 4, 2, 0, 1]
    families = {one["family"]: one for one in found["accepted"]["families"]}
    assert families.keys() == {"shotgun", "tampering"} and families["shotgun"]["trials"][0]["text"] == CHEAT
    assert found["broken_by"]["count"] == found["false_refusals"]["count"] == 1
    assert found["pairs"] == [
        {"worse": "short and wrong", "better": "long and right", "worse_score": 0.9, "better_score": 0.4}
    ]
    same = sum(row["answer"] == CHEAT for _, row in served.answers["run"])
    assert same and [(name, times) for name, _, times in found["in_run"]["same"]] == [("shotgun", same)]
    hash_ = found["in_run"]["same"][0][1]
    assert answers_of(served, "run", f"same={hash_}&first=0&count=1")["matching"] == same


def test_files_that_are_no_audits_say_so_and_hide_nothing(audited):
    served, _ = audited
    briefs = {one["name"]: one for one in get(served, "/api/v1/runs")["audits"]}
    assert "error" not in briefs["audit.json"] and "error" not in briefs["hostile-audit.json"]
    assert "version" in briefs["run/audit of another version.json"]["error"]
    assert "bytes" in briefs["audit-large.json"]["error"] and briefs["my_audit_notes.json"]["error"]
    assert "linked-audit.json" not in briefs and len(briefs) == 5
    assert request(served, "/api/v1/audits/..%2frun")[0] == 404


def test_the_page_leads_from_a_run_to_the_texts_that_were_paid(audited, browser):
    served, _ = audited
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    watched = Watched(context.new_page(), served.url)
    page = watched.open("/r/run", ".tabs")
    page.get_by_role("link", name="Audit", exact=True).click()
    page.wait_for_selector("article")
    assert "not sound" in page.locator("main").inner_text()
    page.locator("summary", has_text="shotgun").click()
    assert page.locator("details[open] pre").inner_text().rstrip() == CHEAT.rstrip()
    page.locator("summary", has_text="poison").click()
    assert "<script>window.owned=1</script>" in page.locator("details[open] pre").last.inner_text()
    assert page.evaluate("window.owned") is None
    page.get_by_role("link", name="shotgun ×").click()
    page.wait_for_selector(".answers tr.row")
    watched.open("/audit/hostile-audit.json", "main h1")
    context.close()
    assert watched.wrong == []


@in_each_view
def test_the_page_is_accessible_and_fits_a_phone(browser, audited, axe, views):
    pages = {"/": "tr.row", "/audit/audit.json": "article", "/r/run/audit?audit=audit.json": "article"}
    assert flaws(browser, audited[0].url, pages, axe, views) == []


def test_audits_of_folders_with_the_same_name_are_told_apart(tmp_path):
    folders = [tmp_path / name / "runs" for name in ("a", "b")]
    for folder in folders:
        write_run(folder / "run", 12, seed=0)
        record = {**report([]).to_json(), "function": str(folder)}
        (folder / "audit.json").write_text(json.dumps(record))
    with serving(folders, None) as port:
        served = Served(folders[0], port, {})
        found = get(served, "/api/v1/runs")["audits"]
        assert {one["function"] for one in found} == set(map(str, folders))
        for one in found:
            assert get(served, f"/api/v1/audits/{one['id']}")["function"] == one["function"]
