"""Answers that other trainers wrote beside their logs: shown as those of a run, whatever is in the files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import Watched, flaws, in_each_view
from made_runs import HOSTILE, Served, answers_of, get, request, serving

from greenward.diagnostics.readers.answers import MAX_TEXT, kept_row
from greenward.ui import conversion
from greenward.ui.cache import Cache
from greenward.ui.catalog import Place
from greenward.ui.columns import Answers
from greenward.ui.conversion import keep_answers
from greenward.ui.logs import MAX_FAILURES, BesideLogs
from greenward.ui.process import WorkerProcess

STEPS, LATE = 120, 60


def prompt_of(number: int) -> str:
    return f"system\nYou solve tasks.\nuser\nWhat is {number} plus {number}?\nassistant\n"


def write_log(folder: Path) -> None:
    """A log as verl's file logger writes it, whose reward falls at a step."""
    rng = np.random.default_rng(3)
    rows = (
        {"step": step, "data": {"critic/score/mean": 0.6 - 0.5 * (step >= LATE) + rng.normal(0, 0.02),
                                "critic/rewards/mean": 0.6 - 0.5 * (step >= LATE) + rng.normal(0, 0.02),
                                "actor/grad_norm": 1 + rng.normal(0, 0.05), "actor/entropy": 0.5}}
        for step in range(1, STEPS + 1)
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def dumped(step: int) -> list[dict[str, Any]]:
    """What verl dumps of a step: two prompts with four answers each."""
    return [
        {
            "input": prompt_of(step % 5 + i // 4),
            "output": f"It is {step * 8 + i}." if step < LATE else "Sorry.",
            "gts": str(2 * (step % 5 + i // 4)),
            "score": 0.1 * (i % 4) if step < LATE else 0.0,
            "step": step,
            "acc": bool(i % 2),
            "format": 0.5,
        }
        for i in range(8)
    ]


def write_verl(folder: Path, steps: range = range(1, STEPS + 1)) -> None:
    write_log(folder)
    (folder / "rollout_data").mkdir(exist_ok=True)
    for step in steps:
        text = "\n".join(json.dumps(row, ensure_ascii=False) for row in dumped(step)) + "\n"
        (folder / "rollout_data" / f"{step}.jsonl").write_text(text)


def write_trl(folder: Path, steps: range = range(10, STEPS + 1, 10)) -> None:
    """As `log_completions=True` does: a column for each reward function, by its name."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder.mkdir(parents=True)
    state = [
        {"step": step, "reward": 0.6 - 0.5 * (step >= LATE) + step / 1000, "kl": 0.01, "loss": 0.1}
        for step in steps
    ]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": state}))
    (folder / "completions").mkdir()
    for step in steps:
        table = {
            "step": [str(step)] * 4,
            "prompt": [f"<|im_start|>user\nSort {step}<|im_end|>\n<|im_start|>assistant\n"] * 4,
            "completion": [f"answer {step} {i}" for i in range(4)],
            "correctness": [1.0, 0.0, None, 0.5],
            "format_reward": [0.25] * 4,
            "advantage": [1.0, -1.0, 0.0, 0.25],
        }
        parquet.write_table(pyarrow.table(table), folder / "completions" / f"completions_{step:05d}.parquet")


def diagnosed(served: Served, run: str) -> dict[str, Any]:
    end = time.monotonic() + 120
    while not (found := get(served, f"/api/v1/runs/{run}"))["verdict"] or not found["verdict"].get("read"):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


@pytest.fixture(scope="module")
def verl(tmp_path_factory) -> Any:
    base = tmp_path_factory.mktemp("verl")
    write_verl(base / "outputs")
    before = sorted((path, os.lstat(path).st_mtime_ns) for path in (base / "outputs").rglob("*"))
    with serving([base / "outputs" / "train.jsonl"], base / "cache") as port:
        yield Served(base / "outputs", port, {})
    assert before == sorted((path, os.lstat(path).st_mtime_ns) for path in (base / "outputs").rglob("*"))


RUN = "train.jsonl"


def test_the_answers_of_verl_are_those_of_its_files(verl):
    found = answers_of(verl, RUN)
    assert found["total"] == 8 * STEPS and not found["unread"]
    rows = [row for step in range(1, STEPS + 1) for row in dumped(step)]
    shown = [get(verl, f"/api/v1/runs/{RUN}/rollouts?first={at}&count=1")["rows"][0] for at in (0, 9, 700)]
    for at, one in zip((0, 9, 700), shown, strict=True):
        assert one["step"] == rows[at]["step"] and one["preview"] == rows[at]["output"]
        assert one["reward"] == pytest.approx(rows[at]["score"], abs=1e-6)
        assert "What is" in one["task"] and one["length"] == len(rows[at]["output"])
    one = get(verl, f"/api/v1/runs/{RUN}/rollouts/12/5")
    row = dumped(12)[5]
    assert one["answer"] == row["output"] and one["prompt"] == row["input"] and one["group_size"] == 4
    assert {term["name"]: term["value"] for term in one["terms"]} == {"acc": 1.0, "format": 0.5}
    assert dict(one["fields"]) == {"gts": row["gts"]} and one["source"] == "rollout_data/12.jsonl, row 6"
    number = sum("18" in row["output"] + row["input"] for row in rows)
    assert answers_of(verl, RUN, "text=18&count=1")["matching"] == number
    group = get(verl, f"/api/v1/runs/{RUN}/group?step=12&group={one['group']}")
    assert group["size"] == 4 and group["cards"][0]["reward"] == pytest.approx(0.3)
    history = get(
        verl, f"/api/v1/runs/{RUN}/problem?task={one['task'].replace(' ', '%20').replace('#', '%23')}"
    )
    assert history["count"] == sum(row["input"] == dumped(12)[5]["input"] for row in rows)
    _, _, body = request(verl, f"/api/v1/runs/{RUN}/rollouts.jsonl?step=3")
    assert [json.loads(line)["answer"] for line in body.splitlines()] == [row["output"] for row in dumped(3)]


def test_answers_stand_beside_a_log_that_has_the_name_of_greenwards(tmp_path):
    """Loops of one's own often write `metrics.jsonl`; such a folder without others' answers stays as it is."""
    for name in ("with", "without"):
        write_verl(tmp_path / name, range(1, 4))
        rows = [json.loads(line) for line in (tmp_path / name / "train.jsonl").read_text().splitlines()]
        (tmp_path / name / "train.jsonl").unlink()
        flat = ({"step": row["step"], "reward/mean": row["data"]["critic/score/mean"]} for row in rows)
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in flat))
    shutil.rmtree(tmp_path / "without/rollout_data")
    with serving([tmp_path], None) as port:
        served = Served(tmp_path, port, {})
        states = {run["id"]: run["state"] for run in get(served, "/api/v1/runs")["runs"]}
        assert states["with"] == "log" and states["without"] != "log"
        assert answers_of(served, "with")["total"] == 24
        assert get(served, "/api/v1/runs/with/rollouts/2/3")["answer"] == dumped(2)[3]["output"]


def test_a_finding_in_a_log_leads_to_the_answers_beside_it(verl):
    found = diagnosed(verl, RUN)
    assert found["has_answers"]
    finding = found["verdict"]["causes"][0]["finding"]
    assert abs(finding["onset"]["step"] - LATE) <= 5 and finding["selection"]
    behind = answers_of(verl, RUN, f"{finding['selection']}&count=60")
    assert behind["matching"] and all(row["preview"] == "Sorry." for row in behind["rows"])


def test_the_pages_lead_from_the_curve_of_a_log_to_an_answer(verl, browser):
    diagnosed(verl, RUN)
    answers_of(verl, RUN)
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    watched = Watched(context.new_page(), verl.url)
    page = watched.open(f"/r/{RUN}", ".plot canvas")
    assert "Rollouts" in page.locator(".tabs a").all_inner_texts()
    page.locator(".marks a").first.click()
    page.wait_for_url("**/rollouts?**")
    page.wait_for_selector("tr.row")
    page.locator("tr.row a").first.click()
    page.wait_for_selector(".lines li")
    text = page.locator("main").inner_text()
    assert "Sorry." in text and "rollout_data/" in text and "gts" in text
    page.get_by_role("link", name="Its group").click()
    page.wait_for_url("**/groups/**")
    page.wait_for_selector("main .lines")
    context.close()
    assert watched.wrong == []


@in_each_view
def test_the_pages_are_accessible_and_fit_a_phone(browser, verl, axe, views):
    answers_of(verl, RUN)
    pages = {f"/r/{RUN}/rollouts": "tr.row", f"/r/{RUN}/rollouts/12/5": ".lines li"}
    assert flaws(browser, verl.url, pages, axe, views) == []


@pytest.mark.parametrize("steps", [6, pytest.param(STEPS, marks=pytest.mark.slow)])
def test_a_bundle_has_the_answers_beside_a_log(tmp_path, steps):
    server = pytest.importorskip("greenward.ui.server")
    write_verl(tmp_path / "outputs", range(1, steps + 1))
    server.write_pages([tmp_path / "outputs" / "train.jsonl"], tmp_path / "site")
    index = json.loads((tmp_path / "site" / "data" / "index.json").read_text())
    kept = json.loads((tmp_path / "site" / "data" / index[f"/api/v1/runs/{RUN}/rollouts"]).read_text())
    assert kept["total"] == 8 * steps and kept["rows"][0]["preview"] == dumped(1)[0]["output"]
    single = [name for name in index if name.startswith(f"/api/v1/runs/{RUN}/rollouts/")]
    one = json.loads((tmp_path / "site" / "data" / index[single[0]]).read_text())
    assert one["prompt"] == dumped(one["step"])[one["row"]]["input"] and len(single) == min(8 * steps, 300)


@pytest.mark.parametrize("cached", [True, False])
def test_new_changed_and_deleted_files_are_followed(tmp_path, monkeypatch, cached):
    monkeypatch.setattr("greenward.ui.logs.SECONDS_BETWEEN", 0.2)
    folder = tmp_path / "outputs"
    write_verl(folder, range(1, 4))
    with serving([folder / "train.jsonl"], tmp_path / "cache" if cached else None) as port:
        served = Served(folder, port, {})
        assert answers_of(served, RUN)["total"] == 24
        cursor = get(served, f"/api/v1/changes?run={RUN}")["cursor"]
        write_verl(folder, range(4, 5))
        (folder / "rollout_data" / "2.jsonl").write_text(json.dumps({**dumped(2)[0], "output": "new"}) + "\n")
        (folder / "rollout_data" / "1.jsonl").unlink()
        time.sleep(0.3)
        assert get(served, f"/api/v1/changes?run={RUN}")["cursor"] != cursor
        found = answers_of(served, RUN)
        assert found["total"] == 17 and found["rows"][0]["preview"] == "new"
        write_verl(folder, range(0))
    if cached:  # what was converted is not read anew
        kept = next((tmp_path / "cache").glob("*.answers")) / "rollouts" / "step_000003.jsonl"
        before = kept.stat().st_mtime_ns
        with serving([folder / "train.jsonl"], tmp_path / "cache") as port:
            assert answers_of(Served(folder, port, {}), RUN)["total"] == 17
        assert kept.stat().st_mtime_ns == before


def test_the_answers_of_trl_are_those_of_its_tables(tmp_path):
    write_trl(tmp_path / "outputs" / "run")
    with serving([tmp_path / "outputs"], None) as port:
        served = Served(tmp_path / "outputs", port, {})
        found = answers_of(served, "run")
        assert found["total"] == 4 * STEPS // 10 and not found["unread"]
        assert [row["reward"] for row in found["rows"][:4]] == [1.25, 0.25, 0.25, 0.75]
        assert [row["advantage"] for row in found["rows"][:4]] == [1.0, -1.0, 0.0, 0.25]
        assert found["rows"][0]["task"].startswith("Sort 10 #") and found["rows"][0]["step"] == 10
        assert found["columns"]["terms"] == ["term.correctness", "term.format_reward"]
        assert answers_of(served, "run", "term.correctness>=0.5&count=1")["matching"] == 2 * STEPS // 10


def test_without_pyarrow_it_is_said_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "run" / "completions").mkdir(parents=True)
    (tmp_path / "run" / "completions" / "completions_00010.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    found = keep_answers(tmp_path / "run", tmp_path, tmp_path / "out", 1.0)
    assert found["share"] == 1.0 and "pip install pyarrow" in found["problems"][0]


def many(count: int) -> list[dict[str, Any]]:
    return [
        {"global_step": i // 4, "prompt": f"p{i // 2}", "response": f"r{i}", "reward": [i / 8]}
        for i in range(count)
    ]


def test_a_file_of_many_steps_is_read_on_where_it_grows(tmp_path):
    write_log(tmp_path / "run")
    file = tmp_path / "run" / "train_samples.jsonl"
    text = [json.dumps(row) + "\n" for row in many(40)]
    file.write_text("".join(text[:20]) + "no row\n" + text[20][:9])
    kept = partial(keep_answers, tmp_path / "run", tmp_path, tmp_path / "out", 5.0)
    assert kept() == {"share": 1.0, "problems": ["1 line(s) are no answers of a step and were left out."]}
    rollouts = tmp_path / "out" / "rollouts"
    assert sum(len(one.read_text().splitlines()) for one in rollouts.iterdir()) == 20
    (rollouts / "step_000005.jsonl").write_text("left by a worker that was ended")
    file.write_text("".join(text[:20]) + "no row\n" + "".join(text[20:]))
    kept()
    lines = [json.loads(line) for one in sorted(rollouts.iterdir()) for line in one.read_text().splitlines()]
    assert [(one["answer"], one["rewards"]["policy"], one["prompt"]) for one in lines] == [
        (row["response"], row["reward"][0], row["prompt"]) for row in many(40)
    ]
    assert lines[0]["group"] == lines[1]["group"] != lines[2]["group"]
    answers, place = Answers(), Place("run", tmp_path / "out", tmp_path / "out", "run")
    os.utime(rollouts, (10**9, 10**9))
    answers.update(place, float("inf"))
    with file.open("a") as opened:
        opened.write(text[0])  # of a step in the middle of the others
    kept()
    answers.update(place, float("inf"))
    assert len(answers.columns) == 41 and int((answers.columns.steps == 0).sum()) == 5
    file.write_text("".join(text[:3]))  # it was cut
    kept()
    assert sum(len(one.read_text().splitlines()) for one in rollouts.iterdir()) == 3


def test_hostile_files_are_text_bounded_and_hide_nothing(tmp_path, browser):
    folder, secret = tmp_path / "outputs", tmp_path / "secret"
    write_log(folder)
    secret.mkdir()
    (secret / "5.jsonl").write_text(json.dumps(dumped(5)[0]) + "\n")
    data = folder / "rollout_data"
    data.mkdir()
    (data / "1.jsonl").write_text(
        json.dumps({"input": HOSTILE, "output": HOSTILE, "score": 1.0, HOSTILE: HOSTILE, f"{HOSTILE}x": 1.0})
        + "\n"
    )
    odd = [7, None, [], "x", {"output": {"a": 1}}, {"input": [[[]]], "output": [1, {"content": {}}], "score": "NaN"},
           {"output": "y", "score": 10**400, "tokens": -1e999, "step": "z", "group": True, "terms": [1]}]  # fmt: skip
    (data / "2.jsonl").write_text("".join(json.dumps(row) + "\n" for row in odd) + "[" * 5000 + "\n\0\xff")
    (data / "3.jsonl").write_text(json.dumps({"output": "a" * 3_000_000, "score": 0.5}) + "\n")
    (data / "4.jsonl").mkdir()
    (data / "5.jsonl").symlink_to(secret / "5.jsonl")
    os.mkfifo(data / "6.jsonl")
    (data / "999999999999999.jsonl").write_text(json.dumps(dumped(5)[0]) + "\n")
    with serving([folder / "train.jsonl"], tmp_path / "cache") as port:
        served = Served(folder, port, {})
        found = answers_of(served, RUN)
        assert {row["step"] for row in found["rows"]} == {1, 2, 3} and len(found["unread"]) == 2
        assert get(served, f"/api/v1/runs/{RUN}/rollouts/3/0")["rest"] == MAX_TEXT - (64 << 10)
        context = browser.new_context()
        watched = Watched(context.new_page(), served.url)
        for path in ("rollouts", "rollouts/1/0", "rollouts/2/0", "rollouts/3/0"):
            page = watched.open(f"/r/{RUN}/{path}", "tr.row, .lines, main h2")
            page.wait_for_timeout(150)
            assert page.evaluate("window.owned") is None
            assert page.locator("main script, main img, main iframe, main [onerror]").count() == 0
        context.close()
        assert watched.wrong == []


@pytest.mark.usefixtures("often_looked_through")
def test_files_of_answers_are_no_logs_and_those_beside_several_logs_are_of_no_certain_one(tmp_path):
    folder = tmp_path / "outputs"
    write_log(folder)
    (folder / "generations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in many(80)))
    with serving([folder], None) as port:
        served = Served(folder, port, {})
        while get(served, "/api/v1/runs")["waiting"]:
            time.sleep(0.1)
        assert {run["name"] for run in get(served, "/api/v1/runs")["runs"]} == {"train.jsonl"}
        found = answers_of(served, RUN)
        assert found["total"] == 80 and not found["unread"]
        printed = "".join(f"step {i}: reward={i / 50:.3f} loss={1 / i:.4f}\n" for i in range(1, 60))
        (folder / "second.log").write_text(printed)
        end = time.monotonic() + 60
        while not (found := answers_of(served, RUN))["unread"] and time.monotonic() < end:
            get(served, "/api/v1/runs")
            time.sleep(0.3)
        assert "(second.log)" in found["unread"][0]


def test_a_folder_that_is_a_link_out_has_no_answers(tmp_path):
    write_verl(tmp_path / "secret", range(1, 4))
    write_log(tmp_path / "outputs")
    (tmp_path / "outputs" / "rollout_data").symlink_to(tmp_path / "secret" / "rollout_data")
    assert conversion.sources(tmp_path / "outputs", tmp_path / "outputs") == {}
    (tmp_path / "outputs" / "samples.jsonl").symlink_to(tmp_path / "secret" / "rollout_data" / "1.jsonl")
    assert conversion.sources(tmp_path / "outputs", tmp_path / "outputs") == {}


def test_hostile_parquet_files_are_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "run" / "completions"
    folder.mkdir(parents=True)
    (folder / "completions_00001.parquet").write_bytes(b"PAR1" + b"\xff" * 64 + b"PAR1")
    parquet.write_table(
        pyarrow.table({"completion": ["same"] * 3_000_000, "advantage": [0.0] * 3_000_000}),
        folder / "completions_00002.parquet",
    )
    table = {
        "prompt": [[{"role": "user", "content": "Add."}]], "completion": [[{"role": "assistant", "content": "a"}]],
        "images": [[b"\0" * 100]], "nested": [{"a": {"b": [1]}}], "own": [float("nan")], "other": [True],
        "advantage": [float("inf")], "\ud7ff name": [1],
    }  # fmt: skip
    parquet.write_table(pyarrow.table(table), folder / "completions_00003.parquet")
    found = keep_answers(tmp_path / "run", tmp_path, tmp_path / "out", 5.0)
    assert found["share"] == 1.0 and len(found["problems"]) == 2
    assert "cannot be read as parquet" in found["problems"][0] and "at most" in found["problems"][1]
    (line,) = (tmp_path / "out" / "rollouts" / "step_000003.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert row["answer"] == "a" and row["prompt"] == "Add." and row["problem"].startswith("Add. #")
    assert row["rewards"] == {"policy": 2.0} and row["advantage"] == "Infinity"


def test_a_file_that_ends_the_process_hides_no_other(tmp_path):
    """Some damaged parquet files end it from within the library that reads them."""
    pytest.importorskip("pyarrow")
    write_trl(tmp_path / "run")
    code = """
import os, sys
from pathlib import Path
from greenward.ui import conversion
read = conversion.rows_in
conversion.rows_in = lambda file, within: os._exit(9) if "00030" in file.name else read(file, within)
found = conversion.keep_answers(Path(sys.argv[1]), Path(sys.argv[1]), Path(sys.argv[2]), 60.0)
print(found["share"], *found["problems"])
"""
    ends = [
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "run"), str(tmp_path / "out")],
            capture_output=True,
            text=True,
        )
        for _ in range(4)
    ]
    assert [one.returncode for one in ends] == [9, 9, 0, 0]
    for one in ends[2:]:
        assert one.stdout.startswith(
            "1.0 completions/completions_00030.parquet: the process that read it ended"
        )
    rows = [len(one.read_text().splitlines()) for one in sorted((tmp_path / "out" / "rollouts").iterdir())]
    assert rows == [4, 4, 0, *[4] * (STEPS // 10 - 3)]


class Failing(WorkerProcess):
    """Dies of each request."""

    asked = 0

    def ask(self, request: Any) -> Any:
        self.asked += 1
        raise OSError("It was killed.")


def test_a_worker_that_dies_of_answers_is_not_asked_again_until_there_are_others(tmp_path, monkeypatch):
    monkeypatch.setattr("greenward.ui.logs.SECONDS_BETWEEN", 0.0)
    write_verl(tmp_path, range(1, 3))
    worker = Failing()
    beside = BesideLogs(Cache(None), worker)
    place = Place("x", tmp_path / "train.jsonl", tmp_path, "x", logs=(tmp_path / "train.jsonl",))
    for asked in (1, 2):
        end = time.monotonic() + 20
        while (found := beside.converted(place))[1] < 1 and time.monotonic() < end:
            time.sleep(0.02)
        for _ in range(20):
            beside.converted(place)
        assert worker.asked == asked * MAX_FAILURES and "failed" in found[2][0]
        write_verl(tmp_path, range(3, 4))
    beside.close()


def test_what_is_too_much_is_left_out_and_said(tmp_path, monkeypatch):
    write_verl(tmp_path / "run", range(1, 9))
    monkeypatch.setattr(conversion, "MAX_ROWS", 20)
    found = keep_answers(tmp_path / "run", tmp_path, tmp_path / "out", 5.0)
    assert found["share"] == 1.0 and "5 file(s) were left out" in found["problems"][0]
    assert len(list((tmp_path / "out" / "rollouts").iterdir())) == 3
    monkeypatch.setattr(conversion, "MAX_ROWS_OF_FILE", 3)
    found = keep_answers(tmp_path / "run", tmp_path, tmp_path / "other", 5.0)
    assert "rollout_data/1.jsonl: the answers after the first 3 are not shown." in found["problems"]


def test_a_converted_log_that_was_not_looked_at_for_longest_is_dropped_first(tmp_path, monkeypatch):
    monkeypatch.setattr("greenward.ui.cache.MAX_CACHE_BYTES", 3000)
    for age, name in enumerate(("a" * 32, "b" * 32)):
        folder = tmp_path / f"{name}.answers" / "rollouts"
        folder.mkdir(parents=True)
        (folder / "step_000001.jsonl").write_bytes(b"x" * 2000)
        os.utime(folder / "step_000001.jsonl", (1000 - age, 1000 - age))
    (tmp_path / "theirs").mkdir()
    Cache(tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {f"{'a' * 32}.answers", "theirs"}


@pytest.mark.parametrize(
    ("row", "reward", "answer"),
    [
        ({"completion": "c", "advantage": 0.1, "a": 1, "b": 0.5, "step": "7"}, 1.5, "c"),  # TRL
        ({"input": "i", "output": "o", "answer": "gold", "score": 0.5, "a": 1}, 0.5, "o"),  # verl
        ({"prompt": "p", "response": "r", "rewards": {"x": 0.25}}, 0.25, "r"),
        ({"problem": "t", "answer": "a", "rewards": {"policy": -1.0}, "terms": {"tests": 0.5}}, -1.0, "a"),
        ({"completion": "c", "advantage": 0.1, "a": float("nan")}, None, "c"),
    ],
)
def test_each_trainers_row_has_its_reward_and_its_answer(row, reward, answer):
    found = kept_row(row)
    assert (
        found["rewards"] == ({} if reward is None else {"policy": reward})
        if "rewards" in found
        else reward is None
    )
    assert found["answer"] == answer
