"""The run directory: created once, resumed only as it was, written by one process, never harmed."""

from __future__ import annotations

import copy
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from greenward.common import interruption
from greenward.common.errors import RunError
from greenward.config.loading import load_recipe, with_defaults
from greenward.runs import files
from greenward.runs.directory import RunDirectory, write_summary
from greenward.runs.reading import evaluated_suites, read_evaluations, read_prompts, read_summary

CONFIG = {
    "name": "one",
    "seed": 0,
    "training": {"max_steps": 10, "learning_rate": 1e-5, "adam_betas": (0.9, 0.99)},
    "tracking": {"wandb": None},
}


def begin(path: Path, config: dict[str, object] = CONFIG) -> None:
    """A run with one row of metrics."""
    with RunDirectory.create(path, config) as run:
        run.metrics.append(1, {"loss": 1.0})


def changed(**updates: object) -> dict[str, object]:
    return {**CONFIG, **updates}


def test_a_new_run_records_config_and_provenance_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret-key-value")
    with RunDirectory.create(tmp_path / "run", CONFIG):
        pass
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text()) == json.loads(json.dumps(CONFIG))
    text = (tmp_path / "run/provenance.json").read_text()
    session = json.loads(text)["sessions"][0]
    assert session["packages"]["greenward"] and session["cpu_count"] >= 1
    assert "secret-key-value" not in text
    assert os.uname().nodename not in text


def test_creating_over_a_run_is_refused_and_says_how_to_go_on(tmp_path):
    begin(tmp_path / "run")
    with pytest.raises(RunError, match="already holds a run") as caught:
        RunDirectory.create(tmp_path / "run", CONFIG)
    assert "--resume" in str(caught.value) and "another directory" in str(caught.value)


def test_a_run_that_failed_before_its_first_number_may_be_begun_anew(tmp_path):
    RunDirectory.create(tmp_path / "run", CONFIG).close()
    with RunDirectory.create(tmp_path / "run", changed(seed=1)) as run:
        assert run.config["seed"] == 1
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["seed"] == 1


def test_resume_with_another_config_names_each_key(tmp_path):
    begin(tmp_path / "run")
    other = changed(seed=1, training={**CONFIG["training"], "learning_rate": 3e-4}, extra_key=True)
    with pytest.raises(RunError) as caught:
        RunDirectory.create(tmp_path / "run", other, resume=True)
    message = str(caught.value)
    assert "seed: 0 -> 1" in message
    assert "training.learning_rate: 1e-05 -> 0.0003" in message
    assert "extra_key: not set -> true" in message
    assert "max_steps" not in message
    RunDirectory.create(tmp_path / "run", CONFIG, resume=True).close()  # a refused resume keeps no lock


@pytest.mark.parametrize("sessions", [5, None, [1], [[]], {"a": 1}])
def test_a_run_whose_provenance_was_changed_resumes(tmp_path, sessions):
    begin(tmp_path / "run")
    (tmp_path / "run/provenance.json").write_text(json.dumps({"sessions": sessions, "note": "mine"}))
    with RunDirectory.create(tmp_path / "run", CONFIG, resume=True) as run:
        run.add_provenance(more=1)
    record = json.loads((tmp_path / "run/provenance.json").read_text())
    assert [one["more"] for one in record["sessions"]] == [1] and record["note"] == "mine"


def test_a_resumed_run_keeps_what_it_has_not_written(tmp_path):
    begin(tmp_path / "run")
    theirs = ["rollouts/step_000099.txt", "rollouts/step_99.jsonl", "evaluations/step_000099.my notes.json"]
    for name in theirs:
        (tmp_path / "run" / name).write_text("mine")
    (tmp_path / "run/rollouts/step_000099.jsonl").write_text("{}")
    (tmp_path / "run/evaluations/step_000099.json").write_text("{}")
    with RunDirectory.create(tmp_path / "run", CONFIG, resume=True) as run:
        run.truncate_after(0)
    left = {path.relative_to(run.path).as_posix() for path in run.path.glob("[er]*s/*")}
    assert left == set(theirs)


@pytest.mark.parametrize("value", ["2024-01-01", "!!binary aGVsbG8=", "!!set {a, b}"])
def test_a_config_with_values_that_json_has_not_is_another_config(tmp_path, value):
    begin(tmp_path / "run")
    config = tmp_path / "run/config.yaml"
    config.write_text(config.read_text() + f"extra_key: {value}\n")
    with pytest.raises(RunError, match="extra_key: "):
        RunDirectory.create(tmp_path / "run", CONFIG, resume=True)


def test_resume_allows_a_longer_run_and_other_trackers(tmp_path):
    RunDirectory.create(tmp_path / "run", CONFIG).close()
    other = changed(
        name="two",
        training={**CONFIG["training"], "max_steps": 20},
        tracking={"wandb": {"project": "p", "mode": "offline"}},
    )
    with RunDirectory.create(tmp_path / "run", other, resume=True) as run:
        assert run.config["training"]["max_steps"] == 20
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["name"] == "two"
    assert len(json.loads((tmp_path / "run/provenance.json").read_text())["sessions"]) == 2


def test_resume_with_another_number_of_threads_is_declared_inexact(tmp_path):
    one, two = ({**CONFIG["training"], "threads": threads} for threads in (None, 1))
    with RunDirectory.create(tmp_path / "run", changed(training=one)) as run:
        run.metrics.append(1, {"loss": 1.0})
    with RunDirectory.create(tmp_path / "run", changed(training=two), resume=True) as run:
        assert run.inexact == {"training.threads": "null -> 1"}
    sessions = json.loads((tmp_path / "run/provenance.json").read_text())["sessions"]
    assert [session.get("inexact_resume") for session in sessions] == [None, run.inexact]
    with RunDirectory.create(tmp_path / "run", changed(training=two), resume=True) as again:
        assert again.inexact == {}
    with pytest.raises(RunError, match="seed: 0 -> 1") as caught:
        RunDirectory.create(tmp_path / "run", changed(seed=1, training=one), resume=True)
    assert "threads" not in str(caught.value)


def test_resume_with_other_kernels_is_declared_inexact(tmp_path):
    for resume, given, change in (
        (False, {"kernels": "compiled"}, {}),
        (True, {"kernels": "compiled"}, {}),
        (True, {}, {"kernels": "compiled -> torch"}),
    ):
        run = RunDirectory.create(tmp_path / "run", CONFIG, resume=resume, computed_by=given)
        with run:
            run.metrics.append(1, {"loss": 1.0})
        assert run.inexact == change


def test_a_run_of_a_version_with_another_name_of_a_key_resumes(tmp_path):
    RunDirectory.create(tmp_path / "run", changed(warm_start={"misconception_rate": 0.7})).close()
    with RunDirectory.create(tmp_path / "run", changed(warm_start={"error_rate": 0.7}), resume=True) as run:
        assert not run.inexact


def test_a_run_of_a_version_without_a_key_resumes_with_its_default(tmp_path):
    resolved = load_recipe("quickstart").model_dump(mode="json")
    earlier = copy.deepcopy(resolved)
    del earlier["algorithm"]["importance"], earlier["warm_start"]["schedule"], earlier["rollouts"]
    begin(tmp_path / "run", earlier)
    with RunDirectory.create(tmp_path / "run", resolved, resume=True, complete=with_defaults) as run:
        assert not run.inexact
    begin(tmp_path / "other", earlier)
    resolved["warm_start"]["schedule"] = "linear"  # not what runs did before there was the key
    with pytest.raises(RunError, match="schedule"):
        RunDirectory.create(tmp_path / "other", resolved, resume=True, complete=with_defaults)


def test_resume_with_nothing_there_starts_a_run(tmp_path):
    with RunDirectory.create(tmp_path / "a/b/run", CONFIG, resume=True) as run:
        assert run.metrics.last_step is None


def test_two_writers_in_one_process_are_refused(tmp_path):
    with RunDirectory.create(tmp_path / "run", CONFIG), pytest.raises(RunError, match="already open"):
        RunDirectory.create(tmp_path / "run", CONFIG, resume=True)
    RunDirectory.create(tmp_path / "run", CONFIG, resume=True).close()


def test_another_process_is_refused_until_the_holder_is_killed(tmp_path):
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\n"
            "from greenward.runs.directory import RunDirectory\n"
            "run = RunDirectory.create(sys.argv[1], {'seed': 0})\n"
            "print('ready', flush=True)\n"
            "time.sleep(60)\n",
            str(tmp_path / "run"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "ready\n"
        with pytest.raises(RunError, match=f"pid {holder.pid}"):
            RunDirectory.create(tmp_path / "run", {"seed": 0}, resume=True)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with RunDirectory.create(tmp_path / "run", {"seed": 0}, resume=True) as run:
        run.metrics.append(0, {"loss": 1.0})


def test_a_full_disk_says_what_was_being_written_and_harms_nothing(tmp_path, monkeypatch):
    run = RunDirectory.create(tmp_path / "run", CONFIG)
    run.metrics.append(1, {"loss": 1.0})
    run.write_evaluation(0, {"metrics": {}})
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.json*")}
    real_write = os.write

    def half_write(descriptor: int, content: bytes) -> int:
        if half_write.first:  # a full disk takes part of the line before it refuses
            half_write.first = False
            return real_write(descriptor, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    half_write.first = True
    monkeypatch.setattr(files.os, "write", half_write)
    with pytest.raises(RunError, match=r"metrics\.jsonl: the disk is full"):
        run.metrics.append(2, {"loss": 0.5})
    monkeypatch.undo()

    def no_fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", no_fsync)
    with pytest.raises(RunError, match=r"step_000000\.json.*\n.*--resume"):
        run.write_evaluation(0, {"metrics": {"pass@1": 1}})
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.json*")} == before
    assert not list((tmp_path / "run").rglob("*.tmp"))
    run.metrics.append(2, {"loss": 0.5})
    run.close()


def test_large_files_are_forced_by_a_process_for_which_a_stop_does_not_wait(monkeypatch, tmp_path):
    large = tmp_path / "large.bin"
    large.write_bytes(bytes(files._LARGE_BYTES))
    files.force([large])
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        files.force([large, Path(os.devnull)])  # it cannot be forced

    may_go_on, goes_on = tmp_path / "may_go_on", tmp_path / "goes_on"
    wait = "\n".join(
        [
            "import pathlib, time",
            f"while not pathlib.Path({str(may_go_on)!r}).exists(): time.sleep(0.01)",
            f"pathlib.Path({str(goes_on)!r}).touch()",
        ]
    )
    monkeypatch.setattr(files, "_FORCE", wait)
    with interruption.stoppable(lambda: "", may_stop=lambda: False):
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        files.force([large])
        timer.join()
    may_go_on.touch()
    deadline = time.monotonic() + 60
    while not goes_on.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert goes_on.exists()


def test_an_evaluation_is_one_line_of_json(tmp_path):
    with RunDirectory.create(tmp_path / "run", CONFIG) as run:
        path = run.write_evaluation(1, {"step": 1, "metrics": {}, "rows": [{"code": "x = 1\n"}] * 3})
    assert path.read_text().count("\n") == 0
    assert len(read_evaluations(tmp_path / "run")[0]["rows"]) == 3


def test_an_unwritable_place_is_a_run_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        RunDirectory.create(tmp_path / "file/run", CONFIG)


def test_truncation_forgets_everything_newer_than_the_checkpoint(tmp_path):
    with RunDirectory.create(tmp_path / "run", CONFIG) as run:
        for step in range(5):
            run.metrics.append(step, {"loss": step / 2})
            run.write_rollouts(step, [{"answer": "x"}])
            run.write_evaluation(step, {"metrics": {}, "step": step})
            (run.checkpoints / f"step_{step:06d}").mkdir()
        write_summary(run, status="finished", steps=5, wall_seconds=1.0)
        run.truncate_after(2)
        run.truncate_after(2)
        names = [sorted(p.stem for p in (run.path / d).iterdir()) for d in ("rollouts", "evaluations")]
        assert names == [["step_000000", "step_000001", "step_000002"]] * 2
        assert len(list(run.checkpoints.iterdir())) == 3
        assert read_summary(run.path) is None
        run.metrics.append(3, {"loss": 9.0})
    assert [record["step"] for record in read_evaluations(tmp_path / "run")] == [0, 1, 2]


def test_the_summary_takes_before_and_after_from_the_evaluations_and_arms(tmp_path):
    with RunDirectory.create(tmp_path / "run", CONFIG) as run:
        with RunDirectory.create(run.path / "control", CONFIG) as control:
            write_summary(control, status="finished", steps=3, wall_seconds=4.0)
        for step, value in ((0, 0.3), (20, 0.7)):
            record = {"step": step, "metrics": {"pass@1": {"value": value, "low": 0, "high": 1}}}
            run.write_evaluation(step, record)
        summary = write_summary(run, status="finished", steps=20, wall_seconds=9.0, peak_rss_mb=512.0)
    assert summary["before"]["pass@1"]["value"] == 0.3
    assert summary["after"]["pass@1"]["value"] == 0.7
    assert summary["arms"]["control"]["steps"] == 3
    assert read_summary(Path(tmp_path / "run")) == summary


def test_the_peak_of_memory_is_that_of_all_sessions(tmp_path):
    with RunDirectory.create(tmp_path / "run", CONFIG) as run:
        run.metrics.append(1, {"perf/rss_mb": 700.0})
        killed = write_summary(run, status="interrupted", steps=1, wall_seconds=1.0, peak_rss_mb=512.0)
        write_summary(run, status="interrupted", steps=1, wall_seconds=1.0, peak_rss_mb=800.0)
        resumed = write_summary(run, status="finished", steps=1, wall_seconds=1.0, peak_rss_mb=375.0)
    assert (killed["peak_rss_mb"], resumed["peak_rss_mb"]) == (700.0, 800.0)


def test_each_suite_has_files_of_its_own_and_a_resumed_run_forgets_the_newer_ones(tmp_path):
    with RunDirectory.create(tmp_path / "run", {"seed": 0}) as run:
        for step in (0, 20, 40):
            for suite in (None, "mbpp", "humaneval_plus"):
                metrics = {f"of {suite}": {"value": 0.5, "low": 0.0, "high": 1.0}}
                run.write_evaluation(step, {"step": step, "metrics": metrics}, suite)
        names = {path.name for path in (run.path / "evaluations").iterdir()}
        assert {"step_000020.json", "step_000020.mbpp.json"} <= names
        assert evaluated_suites(run.path) == ["humaneval_plus", "mbpp"]
        assert [list(record["metrics"]) for record in read_evaluations(run.path)] == [["of None"]] * 3
        run.truncate_after(20)
        assert [record["step"] for record in read_evaluations(run.path, "mbpp")] == [0, 20]
        summary = write_summary(run, status="finished", steps=20, wall_seconds=1.0)
    assert list(summary["after"]) == ["of None"]
    assert [list(one) for one in summary["suites"]["mbpp"].values()] == [["of mbpp"]] * 2


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        '{"step": 1, "prompt_id": "first", "prom',
        '{"step": 1, "prompt_id": [], "prompt": "x"}\n',
        '{"step": 1, "prompt_id": {"a": 1}, "prompt": "x"}\n',
        '{"step": 1}\n',
        '{"step": 1, "prompt_id": "KEY", "prompt": null}\n',
    ],
)
def test_a_run_whose_prompts_were_damaged_resumes_and_writes_what_it_lacks(tmp_path, damaged):
    path = tmp_path / "run"
    with RunDirectory.create(path, CONFIG) as run:
        key = run.prompts.add(1, "a prompt")
        assert run.prompts.add(2, "a prompt") == key
        run.prompts.add(5, "a later prompt")
    assert len((path / "prompts.jsonl").read_text().splitlines()) == 2
    (path / "prompts.jsonl").write_text(damaged.replace("KEY", key))
    with RunDirectory.create(path, CONFIG, resume=True) as run:
        run.truncate_after(3)
        assert run.prompts.add(4, "a prompt") == key
    assert read_prompts(path)[key] == "a prompt"
