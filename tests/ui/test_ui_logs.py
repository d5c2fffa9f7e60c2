"""Logs of other trainers as runs: what was read is what the log says, and hostile ones harm nothing."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import sqlite3
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import Watched, flaws, in_each_view
from made_runs import HOSTILE, Served, answers_of, get, request, serving, write_run

from greenward.common.text import visible
from greenward.integrations import Recorder
from greenward.ui import catalog
from greenward.ui import logs as ui_logs
from greenward.ui.cache import Cache
from greenward.ui.logs import as_metrics, read_log
from greenward.ui.process import WorkerProcess
from greenward.ui.recognized import Recognized

SOUND, FAULTY = "trl~sound", "trl~faulty"


def write_trl(path: Path, *, faulty: bool) -> list[dict[str, Any]]:
    """A trainer_state.json of TRL; the gradients of a faulty one grow from step 60 on. Returns its rows."""
    rng = np.random.default_rng(1)
    rows = []
    for step in range(1, 121):
        late = faulty and step >= 60
        rows.append(
            {
                "step": step,
                "epoch": step / 120,
                "loss": float(rng.normal(0, 0.01)),
                "grad_norm": float(1 + rng.normal(0, 0.05)) * (1.2 ** (step - 59) if late else 1.0),
                "learning_rate": 1e-6,
                "reward": 0.3 + 0.004 * step + float(rng.normal(0, 0.02)),
                "reward_std": 0.3 + float(rng.normal(0, 0.02)),
                "rewards/accuracy/mean": 0.3 + 0.004 * step,
                "completions/mean_length": 200 + float(rng.normal(0, 5)),
                "kl": 0.01,
                "own <b>signal</b>": float(step),
            }
        )
    path.mkdir(parents=True)
    state = {"log_history": rows, "global_step": 120, "max_steps": 120}
    (path / "trainer_state.json").write_text(json.dumps(state))
    return rows


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> Any:
    base = tmp_path_factory.mktemp("logs")
    folder = base / "outputs"
    rows = {
        SOUND: write_trl(folder / "trl" / "sound", faulty=False),
        FAULTY: write_trl(folder / "trl" / "faulty", faulty=True),
    }
    write_trl(folder / "trl" / "sound" / "checkpoint-60", faulty=False)  # of the same run
    write_run(folder / "own", 40, seed=0)
    (folder / "own" / "tensorboard").mkdir()
    (folder / "own" / "tensorboard" / "events.out.tfevents.1").write_bytes(b"mirrored")
    (folder / "progress").mkdir()
    table = "\n".join(["timesteps,ep_rew_mean,loss", *(f"{100 * i},{i},{1 / i}" for i in range(1, 60))])
    (folder / "progress" / "progress.csv").write_text(table)
    printed = base / "train.log"
    printed.write_text("".join(f"step {i}: reward={i / 50:.3f} loss={1 / i:.4f}\n" for i in range(1, 60)))
    (folder / "broken").mkdir()
    (folder / "broken" / "trainer_state.json").write_text('{"log_history": [[[[')
    secret = base / "secret"
    write_trl(secret / "run", faulty=False)
    (folder / "linked").symlink_to(secret)
    (folder / "link").mkdir()
    (folder / "link" / "trainer_state.json").symlink_to(secret / "run" / "trainer_state.json")
    before = sorted((path, os.lstat(path).st_mtime_ns) for path in base.rglob("*"))
    with serving([folder, printed], base / "cache") as port:
        yield Served(folder, port, {name: list(enumerate(one)) for name, one in rows.items()})
    after = sorted((path, os.lstat(path).st_mtime_ns) for path in base.rglob("*"))
    assert before == [one for one in after if (base / "cache") not in (one[0], *one[0].parents)]


def identifier(served, part: str) -> str:
    return next(run["id"] for run in get(served, "/api/v1/runs")["runs"] if part in run["name"])


def diagnosed(served, run: str) -> dict[str, Any]:
    end = time.monotonic() + 60
    while not (found := get(served, f"/api/v1/runs/{run}"))["verdict"] or found["verdict"].get("outdated"):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def points(served, run: str, key: str) -> list[tuple[int, float]]:
    _, _, body = request(served, f"/api/v1/runs/{run}/series.csv?key={key}")
    rows = list(csv.reader(io.StringIO(body.decode())))
    return [(int(step), float(value)) for step, value in rows[1:] if value]


def test_logs_are_runs_beside_those_of_greenward(logs):
    found = {run["name"]: run for run in get(logs, "/api/v1/runs")["runs"]}
    names = {name.partition("/")[2] or name for name in found}
    assert names == {"trl/sound", "trl/faulty", "own", "progress", "broken", "train.log"}
    assert {run["state"] for name, run in found.items() if "own" not in name} == {"log"}


@pytest.mark.parametrize(("part", "verdict"), [("sound", "healthy"), ("faulty", "findings")])
def test_curves_and_diagnosis_are_those_of_the_log(logs, part, verdict):
    run = identifier(logs, part)
    found = diagnosed(logs, run)
    rows = [row for _, row in logs.answers[f"trl~{part}"]]
    read = found["verdict"]["read"]
    assert read["format"] == "HF trainer" and "TRL" in read["trainer"] and read["steps"] == 120
    assert (read["first"], read["last"]) == (1, 120) and read["names"]["reward/mean"] == "reward"
    for ours, theirs in (("reward/mean", "reward"), ("grad_norm", "grad_norm")):
        given = [(row["step"], row[theirs]) for row in rows]
        shown = points(logs, run, ours)
        assert [step for step, _ in shown] == [step for step, _ in given]
        np.testing.assert_allclose([y for _, y in shown], [y for _, y in given], rtol=1e-6)
    assert found["verdict"]["verdict"] == verdict
    if part == "faulty":
        cause = found["verdict"]["causes"][0]["finding"]
        assert "grad_norm" in cause["signals"] and abs(cause["onset"]["step"] - 60) <= 10


def test_a_loss_is_drawn_in_the_list_and_is_no_reward(tmp_path):
    rows = [{"step": step, "loss": 1 / step, "value_loss": 0.5} for step in range(1, 41)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving([tmp_path / "train.jsonl"], None) as port:
        served = Served(tmp_path, port, {})
        (run,) = get(served, "/api/v1/runs")["runs"]
        found = diagnosed(served, run["id"])
        (run,) = get(served, "/api/v1/runs")["runs"]
        assert found["verdict"]["read"]["steps"] == 40 and run["reward"] is None


def test_a_named_file_of_any_format_is_a_run(logs):
    run = identifier(logs, "train.log")
    found = diagnosed(logs, run)
    assert found["verdict"]["read"]["format"] == "printed lines" and found["rows"] == 59
    assert math.isclose(points(logs, run, "reward/mean")[-1][1], 59 / 50, rel_tol=1e-5)


def recognized(served) -> set[str]:
    """The names in the list once no file is still to be looked at, of logs of one training each."""
    end = time.monotonic() + 120
    while (found := get(served, "/api/v1/runs"))["waiting"] or time.monotonic() > end:
        time.sleep(0.1)
    return {name for run in found["runs"] for name in (run["name"], *run["also"])}


def write_foreign(folder: Path) -> set[str]:
    """Logs of several formats among other files; returns the names of the logs."""
    (folder / "deep" / "job").mkdir(parents=True)
    printed = "".join(f"step {i}: reward={i / 50:.3f} loss={1 / i:.4f}\n" for i in range(1, 60))
    table = "".join(f"{i},{i / 50},{1 / i}\n" for i in range(1, 60))
    (folder / "a.log").write_text(printed)
    (folder / "deep" / "job" / "stdout").write_text(f"Loading the model\n{printed}")
    (folder / "history.csv").write_text(f"step,reward,loss\n{table}")
    (folder / "metrics.ndjson").write_text(
        "".join(f"{json.dumps({'step': i, 'loss': 1 / i})}\n" for i in range(1, 60))
    )
    write_trl(folder / "trl", faulty=False)
    (folder / "sb3").mkdir()
    for name in ("progress.csv", "log.txt"):  # one table in two forms
        (folder / "sb3" / name).write_text(f"timesteps,ep_rew_mean,loss\n{table}")
    for tag in ("reward", "loss"):
        rows = "".join(f"{i},{i},{1 / i}\n" for i in range(1, 60))
        (folder / "deep" / f"run-a-tag-{tag}.csv").write_text(f"Wall time,Step,Value\n{rows}")
    (folder / "README.md").write_text(f"# Results\n\n```\n{printed}```\n")
    (folder / "requirements.txt").write_text("torch==2.10\ncloudpickle==3.1\n")
    (folder / "problems.jsonl").write_text("".join(f'{{"id": {i}, "score": 1}}\n' for i in range(60)))
    return {"a.log", "deep/job/stdout", "history.csv", "metrics.ndjson", "trl", "sb3", "deep"}


@pytest.mark.usefixtures("often_looked_through")
def test_a_folder_shows_every_log_below_it_and_nothing_else(tmp_path):
    names = write_foreign(tmp_path / "outputs")
    with serving([tmp_path / "outputs"], tmp_path / "cache") as port:
        served = Served(tmp_path / "outputs", port, {})
        assert recognized(served) == names
        assert diagnosed(served, identifier(served, "deep/job/stdout"))["rows"] == 59
        deep = next(run["id"] for run in get(served, "/api/v1/runs")["runs"] if run["name"] == "deep")
        found = diagnosed(served, deep)
        assert {key for section in found["keys"] for key in section["keys"]} >= {"reward/mean", "loss"}
        (tmp_path / "outputs" / "new.out").write_text((tmp_path / "outputs" / "a.log").read_text())
        end = time.monotonic() + 60
        while "new.out" not in (now := recognized(served)) and time.monotonic() < end:
            time.sleep(0.3)
        assert now == names | {"new.out"}


def test_a_run_of_wandb_is_one_run_and_logs_in_folders_of_any_name_are_found(tmp_path):
    """As W&B lays them out: its configuration has the name of greenward's, and the output repeats the run."""
    log = "".join(
        json.dumps({"step": step, "reward": step / 50, "loss": 1 / step}) + "\n" for step in range(1, 60)
    )
    for number in range(3):
        files = tmp_path / "wandb" / f"run-{number}" / "files"
        files.mkdir(parents=True)
        (files.parent / f"run-{number}.wandb").write_bytes(b":W&B\xbe\xe1\0")
        (files / "config.yaml").write_text("lr: {value: 1}\n")
        (files / "output.log").write_text(log)
    for name in ("metrics", "logs"):
        (tmp_path / name / "of_it").mkdir(parents=True)
        (tmp_path / name / "of_it" / "train.jsonl").write_text(log)
    with serving([tmp_path], None) as port:
        names = recognized(Served(tmp_path, port, {}))
    runs = {f"wandb/run-{number}" for number in range(3)}
    assert names == runs | {f"{name}/of_it/train.jsonl" for name in ("metrics", "logs")}


class Answering(WorkerProcess):
    """Counts the files that it is asked of."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def ask(self, request: Any) -> Any:
        self.asked.append(Path(request["log"]).name)
        return request["log"].endswith(".log")


def settled(found: Recognized, folder: Path, names: tuple[str, ...]) -> list[bool | None]:
    """What is known of files once all were looked at."""
    for name in names:
        found.is_log(name, folder, catalog.stamp(folder / name))
    end = time.monotonic() + 20
    while found.waiting and time.monotonic() < end:
        time.sleep(0.01)
    return [found.is_log(name, folder, catalog.stamp(folder / name)) for name in names]


def test_a_file_is_looked_at_once_and_one_that_grows_not_for_each_step(tmp_path):
    names = ("a.log", "b.txt")
    for name in names:
        (tmp_path / name).write_text("x\n")
    worker = Answering()
    found = Recognized(Cache(tmp_path / "cache"), worker)
    assert settled(found, tmp_path, names) == [True, False] and sorted(worker.asked) == sorted(names)
    for _ in range(3):
        for name in names:
            with (tmp_path / name).open("a") as file:
                file.write("more\n")
        assert settled(found, tmp_path, names) == [True, False]
    assert len(worker.asked) == 2
    found.close()
    again = Answering()  # after a restart the text that grew is asked for, and the log is not
    found = Recognized(Cache(tmp_path / "cache"), again)
    assert settled(found, tmp_path, names) == [True, False] and again.asked == ["b.txt"]
    (tmp_path / "a.log").write_text("x")  # it was cut
    found = Recognized(Cache(tmp_path / "cache"), again)
    assert settled(found, tmp_path, names) == [True, False] and again.asked[1:] == ["a.log"]
    found.close()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Any:
    """What the recorder keeps of a loop with TRL's names, whose reward falls at step 80."""
    base = tmp_path_factory.mktemp("recorded")
    rng = np.random.default_rng(4)
    rewards = [0.5 - 0.6 * (step >= 80) + float(rng.normal(0, 0.02)) for step in range(1, 151)]
    with Recorder(base / "runs" / "mine") as recorder:
        for step, reward in enumerate(rewards, 1):
            answers = [
                {"task": f"t{i // 4}", "group": i // 4, "answer": f"{'late' if step >= 80 else 'early'} {step} {i}",
                 "reward": reward + i / 100, "tokens": 7}
                for i in range(8)
            ]  # fmt: skip
            row = {"reward": reward, "completions/mean_length": 20.0, "actor/max_memory_allocated_gb": 3.0}
            recorder.log(step, row, answers=answers)
    with serving([base / "runs"], None) as port:
        yield Served(base / "runs", port, {"mine": list(enumerate(rewards, 1))})


def test_a_recorded_training_has_greenwards_names_and_leads_from_a_finding_to_its_answers(recorded):
    found = diagnosed(recorded, "mine")
    assert found["names"]["reward/mean"] == "reward"
    assert found["names"]["completion/mean_length"] == "completions/mean_length"
    assert found["curated"][0] == "reward/mean"
    shown = points(recorded, "mine", "reward/mean")
    assert [step for step, _ in shown] == list(range(1, 151))
    np.testing.assert_allclose([y for _, y in shown], [y for _, y in recorded.answers["mine"]], rtol=1e-5)
    listed = next(run for run in get(recorded, "/api/v1/runs")["runs"] if run["id"] == "mine")
    assert math.isclose(listed["reward"], recorded.answers["mine"][-1][1], rel_tol=1e-6)
    assert listed["state"] == "running"
    times = {file: file.stat().st_mtime_ns for file in (recorded.folder / "mine").iterdir()}
    for file in times:
        os.utime(file, ns=(10**18, 10**18))
    assert next(iter(get(recorded, "/api/v1/runs")["runs"]))["state"] == "log"
    for (
        file,
        time_ns,
    ) in times.items():  # a run that changed is diagnosed again after a minute at the earliest
        os.utime(file, ns=(time_ns, time_ns))
    finding = found["verdict"]["causes"][0]["finding"]
    keys = {key for section in found["keys"] for key in section["keys"]}
    assert finding["signals"][0] in keys and abs(finding["onset"]["step"] - 80) <= 5
    behind = answers_of(recorded, "mine", f"{finding['selection']}&count=60")
    assert behind["matching"] and all(row["preview"].startswith("late") for row in behind["rows"])
    assert all(row["step"] >= 75 for row in behind["rows"])


def test_the_page_of_a_recorded_training_shows_its_finding_in_the_curve(recorded, browser):
    diagnosed(recorded, "mine")
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    watched = Watched(context.new_page(), recorded.url)
    page = watched.open("/r/mine", ".plot canvas")
    assert "reward/mean" in page.locator("figure h3").first.inner_text()
    page.locator(".marks a").first.click()
    page.wait_for_url("**/rollouts?**")
    page.wait_for_selector("tr.row")
    assert "late" in page.locator("tr.row").first.inner_text()
    context.close()
    assert watched.wrong == []


def test_a_broken_log_says_so_and_a_linked_one_is_not_there(logs):
    found = diagnosed(logs, identifier(logs, "broken"))
    assert found["verdict"]["verdict"] == "cannot tell" and found["notes"] and found["rows"] == 0
    assert not any("link" in run["name"] for run in get(logs, "/api/v1/runs")["runs"])


@pytest.mark.usefixtures("often_looked_through")
def test_runs_in_one_file_are_found_once_it_is_read(tmp_path):
    with sqlite3.connect(tmp_path / "project.db") as opened:
        opened.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)"
        )
        for name in ("one", "two"):
            for step in range(30):
                row = ("2026-01-01", name, step, json.dumps({"reward": step / 30}))
                opened.execute(
                    "INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?)", row
                )
    with serving([tmp_path], None) as port:
        served = Served(tmp_path, port, {})
        assert diagnosed(served, "project.db")["verdict"]["inner"] == ["one", "two"]
        end = time.monotonic() + 20
        while len(runs := get(served, "/api/v1/runs")["runs"]) < 3 and time.monotonic() < end:
            time.sleep(0.2)
        assert {run["name"] for run in runs} == {"project.db", "project.db/one", "project.db/two"}
        assert diagnosed(served, identifier(served, "db/two"))["rows"] == 30


@pytest.mark.usefixtures("often_looked_through")
def test_runs_in_a_file_may_have_any_names(tmp_path):
    names = ["\ud800", ".", "../../etc", "a/b", "a\nb", "<b>", "r'\""]
    rows = [{"step": step, "reward": step / 30, "run_name": name} for name in names for step in range(30)]
    (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with sqlite3.connect(tmp_path / "project.db") as opened:
        opened.execute("CREATE TABLE metrics (run_name TEXT, step INTEGER, metrics TEXT)")
        for name in ("", "two"):
            rows = [(name, step, json.dumps({"reward": step / 30})) for step in range(30)]
            opened.executemany("INSERT INTO metrics VALUES (?, ?, ?)", rows)
    with serving([tmp_path / "x.jsonl", tmp_path / "project.db"], tmp_path / "cache") as port:
        served = Served(tmp_path, port, {})
        assert sorted(diagnosed(served, "x.jsonl")["verdict"]["inner"]) == sorted(names)
        assert diagnosed(served, "project.db")["verdict"]["inner"] == ["", "two"]
        end = time.monotonic() + 20
        while len(runs := get(served, "/api/v1/runs")["runs"]) < 11 and time.monotonic() < end:
            time.sleep(0.2)
        assert sorted(run["name"] for run in runs) == sorted(
            ["x.jsonl", "project.db", "project.db/", "project.db/two"]
            + [f"x.jsonl/{visible(name)}" for name in names]
        )
        inner = [run["id"] for run in runs if "/" in run["name"]]
        assert all(re.fullmatch(r"[\w.~-]+", one, re.ASCII) for one in inner)
        assert {diagnosed(served, one)["rows"] for one in inner} == {30}


def test_hostile_logs_are_text_and_bounded(tmp_path, browser):
    folder = tmp_path / "hostile"
    folder.mkdir()
    name = HOSTILE.replace("\ud800", "")[:200]
    rows = [{"step": i, "reward": 0.5, name: float(i), "x" * 100_000: 1.0} for i in range(40)]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows, "model": name}))
    many = tmp_path / "many"
    many.mkdir()
    heads = ",".join(["step", *(f"key{i}" for i in range(6000))])
    cells = "\n".join(",".join([str(step), *["1.5"] * 6000]) for step in range(12))
    (many / "progress.csv").write_text(f"{heads}\n{cells}\n")
    with serving([tmp_path], None) as port:
        served = Served(tmp_path, port, {})
        found = diagnosed(served, "many")
        assert sum(len(section["keys"]) for section in found["keys"]) == 4000
        assert any("24000 value(s)" in note for note in found["verdict"]["notes"])
        context = browser.new_context()
        watched = Watched(context.new_page(), served.url)
        for path in ("/", "/r/hostile", "/r/hostile/curves", "/r/hostile/diagnosis", "/r/hostile/config"):
            page = watched.open(path)
            page.wait_for_timeout(150)
            assert page.evaluate("window.owned") is None
            assert page.locator("main script, main img, main iframe, main [onerror]").count() == 0
        context.close()
        assert watched.wrong == []


def test_curves_asked_for_at_once_lie_in_one_folder_and_hinder_nobody(tmp_path, monkeypatch):
    class Slow(tempfile.TemporaryDirectory):
        def __init__(self, **options: Any) -> None:
            time.sleep(0.1)
            super().__init__(**options)

    monkeypatch.setattr("greenward.ui.cache.TemporaryDirectory", Slow)
    monkeypatch.setattr(ui_logs, "MAX_HELD_BYTES", 0)
    cache = Cache(None)
    store = ui_logs.LogStore(cache)
    places = [catalog.Place(str(i), tmp_path, tmp_path, str(i), logs=(tmp_path / "x",)) for i in range(64)]
    with ThreadPoolExecutor(8) as pool:
        folders = {one.parent for one in pool.map(store.file, places)}
        found = list(pool.map(store.metrics, places * 20))
    assert len(folders) == 1 and folders.pop().is_dir() and len(found) == 1280
    cache.close()


def test_what_is_too_much_to_be_shown_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "MAX_LOGS", 2)
    monkeypatch.setattr(catalog, "MAX_AUDITS", 1)
    for name in ("a", "b", "c"):
        write_trl(tmp_path / name, faulty=False)
        (tmp_path / name / "audit.json").write_text("{}")
    found = catalog.Catalog([tmp_path])
    assert len(found.places()) == 2 and len(found.audits) == 1
    assert [one.partition(" has ")[2].partition(";")[0] for one in found.problems] == ["3 logs", "3 audits"]


def test_of_too_many_files_those_with_names_of_logs_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "MAX_LOOKED_AT", 20)
    for i in range(40):
        (tmp_path / f"a{i}.txt").write_text("notes\n")
        (tmp_path / f"a{i}.json").write_text("{}")
    printed = "".join(f"step {i}: reward={i / 50:.3f} loss={1 / i:.4f}\n" for i in range(1, 60))
    (tmp_path / "z.log").write_text(printed)
    worker = Answering()
    recognized_ = Recognized(Cache(None), worker)
    found = catalog.Catalog([tmp_path], None, recognized_)
    found.places()
    end = time.monotonic() + 20
    while recognized_.waiting and time.monotonic() < end:
        time.sleep(0.01)
    monkeypatch.setattr(catalog, "SECONDS_UNTIL_SHOWN", 0.0)
    assert [one.name for one in found.places().values()] == ["z.log"] and len(worker.asked) == 20
    assert "81 files that may be logs; 20 of them are looked at" in found.problems[0]
    recognized_.close()


def test_no_more_curves_are_kept_than_fit(tmp_path, monkeypatch):
    write_trl(tmp_path / "run", faulty=False)
    run = read_log(tmp_path / "run", None)
    monkeypatch.setattr(ui_logs, "MAX_VALUES", 5 * len(run.steps))
    curves, left_out = as_metrics(run)
    assert list(curves.values) == list(run.values)[:5] and left_out == len(run.values) - 5


def test_the_page_of_a_log_says_what_was_read(logs, browser):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    watched = Watched(context.new_page(), logs.url)
    page = watched.open(f"/r/{identifier(logs, 'faulty')}", ".plot canvas")
    text = page.locator("main").inner_text()
    assert "trainer_state.json" in text and "120 steps, 1 to 120" in text and "Not in it:" in text
    assert page.locator(".tabs a").all_inner_texts() == ["Overview", "Curves", "Diagnosis", "Config"]
    page.locator(".marks a").first.click()
    page.wait_for_url("**/diagnosis")
    page.get_by_role("link", name="Curves").click()
    page.get_by_label("Find a curve").fill("completions/mean")
    page.wait_for_selector("h3:has-text('completion/mean_length')")
    assert re.search("completions/mean_length", page.locator("figure h3").first.inner_text())
    context.close()
    assert watched.wrong == []


@in_each_view
def test_pages_of_logs_are_accessible_and_fit_a_phone(browser, logs, axe, views):
    run = identifier(logs, "faulty")
    pages = {"/": "tr.row", f"/r/{run}": ".plot canvas", f"/r/{run}/diagnosis": ".plot canvas"}
    assert flaws(browser, logs.url, pages, axe, views) == []
