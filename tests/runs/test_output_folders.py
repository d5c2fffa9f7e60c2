"""Folders and files that greenward writes: claimed where nobody else's are, and nothing else is touched."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from greenward.common.errors import RunError
from greenward.evaluation.store import EvaluationFolder
from greenward.problems.problem import ProblemSet
from greenward.reports.document import Report
from greenward.reports.write import usual_folder, write_report
from greenward.runs.directory import RunDirectory, fork_run, write_summary
from greenward.runs.files import append_line, write_atomically
from greenward.runs.output import MARK, check_file, check_folder, claim_folder, replace_folder

CONFIG = {"algorithm": {"name": "grpo"}, "name": "mine"}
OLD_FORMATS = Path(__file__).parents[1] / "system" / "old_formats"


def make_run(path: Path, steps: int = 2) -> Path:
    with RunDirectory.create(path, CONFIG) as run:
        for step in range(1, steps + 1):
            run.metrics.append(step, {"loss": 1.0})
            run.write_rollouts(step, [{"answer": "x"}])
        write_summary(run, status="finished", steps=steps, wall_seconds=1.0)
        write_report(Report("run", "mine", "It ran."), path)
    return path


class TestFolders:
    def test_absent_and_empty_folders_are_claimed_and_known_again(self, tmp_path):
        (tmp_path / "empty").mkdir()
        for name in ("empty", "new/and/deep"):
            assert check_folder(tmp_path / name, "run") is None
            claim_folder(tmp_path / name, "run")
            assert check_folder(tmp_path / name, "run") == "run"
            assert json.loads((tmp_path / name / MARK).read_text()) == {"kind": "run"}
        assert not (tmp_path / "absent").exists()

    def test_another_kind_is_refused_but_for_reports(self, tmp_path):
        claim_folder(tmp_path / "one", "evaluation")
        with pytest.raises(RunError, match="expected a run, found an evaluation"):
            claim_folder(tmp_path / "one", "run")
        claim_folder(tmp_path / "one", "report")
        assert check_folder(tmp_path / "one", "evaluation") == "evaluation"

    def test_a_run_is_resumed_and_overwritten(self, tmp_path):
        path = make_run(tmp_path / "run")
        with pytest.raises(RunError, match="--overwrite"):
            RunDirectory.create(path, CONFIG)
        with RunDirectory.create(path, CONFIG, resume=True) as run:
            assert run.metrics.last_step == 2
        with RunDirectory.create(path, CONFIG, overwrite=True) as run:
            assert run.metrics.last_step is None
            assert not list((path / "rollouts").iterdir()) and not (path / "report.html").exists()

    def test_overwrite_spares_what_greenward_has_not_written(self, tmp_path):
        path = make_run(tmp_path / "run")
        (path / "notes.md").write_text("mine")
        before = {one.name for one in path.iterdir()}
        with pytest.raises(RunError, match=r"notes\.md"):
            claim_folder(path, "run", overwrite=True)
        assert {one.name for one in path.iterdir()} == before

    def test_overwrite_spares_a_run_that_is_written(self, tmp_path):
        with RunDirectory.create(tmp_path / "run", CONFIG) as run:
            run.metrics.append(1, {"loss": 1.0})
            with pytest.raises(RunError, match="being written"):
                claim_folder(tmp_path / "run", "run", overwrite=True)
        assert (tmp_path / "run" / "metrics.jsonl").stat().st_size

    def test_overwrite_of_several_runs_takes_the_runs_alone(self, tmp_path):
        claim_folder(tmp_path, "runs")
        make_run(tmp_path / "seed_0")
        make_run(tmp_path / "training.learning_rate=1e-4" / "seed_0")
        (tmp_path / "seed_0" / "plot.py").write_text("mine")
        with pytest.raises(RunError, match=r"seed_0/plot\.py"):
            claim_folder(tmp_path, "runs", overwrite=True)
        (tmp_path / "seed_0" / "plot.py").unlink()
        claim_folder(tmp_path, "runs", overwrite=True)
        assert [one.name for one in tmp_path.iterdir()] == [MARK]

    def test_overwrite_deletes_a_link_and_not_what_it_leads_to(self, tmp_path):
        path = make_run(tmp_path / "run")
        (path / "checkpoints" / "step_000002").mkdir()
        (path / "checkpoints" / "last").symlink_to("step_000002")
        claim_folder(path, "run", overwrite=True)
        assert [one.name for one in path.iterdir()] == [MARK]

    @pytest.mark.parametrize(
        ("name", "kind"), [("run_0", "run"), ("study", "runs"), ("evaluation_1", "evaluation")]
    )
    def test_folders_of_earlier_versions_are_known(self, tmp_path, name, kind):
        shutil.copytree(OLD_FORMATS / name, tmp_path / name)
        assert check_folder(tmp_path / name, kind) == kind
        others = {"run", "runs", "evaluation", "problems", "model", "report"} - {kind}
        for other in others:
            with pytest.raises(RunError, match="expected"):
                check_folder(tmp_path / name, other)

    def test_a_sweep_of_an_earlier_version_may_hold_runs_that_failed_at_once(self, tmp_path):
        shutil.copytree(OLD_FORMATS / "run_0", tmp_path / "seed_0")
        (tmp_path / "seed_1").mkdir()
        (tmp_path / "seed_1" / "failure.txt").write_text("It stopped.")
        assert check_folder(tmp_path, "runs") == "runs"
        (tmp_path / "seed_1" / "thesis.tex").write_text("years of work")
        with pytest.raises(RunError, match="seed_0, seed_1"):
            check_folder(tmp_path, "runs")

    def test_an_evaluation_goes_on_and_is_overwritten(self, tmp_path):
        with EvaluationFolder(tmp_path / "e", {"suite": "s"}, ProblemSet([])) as folder:
            folder.write_prompts({"a": "b"})
        EvaluationFolder(tmp_path / "e", {"suite": "s"}, ProblemSet([])).close()
        assert (tmp_path / "e" / "prompts.jsonl").exists()
        EvaluationFolder(tmp_path / "e", {"suite": "t"}, ProblemSet([]), overwrite=True).close()
        assert not (tmp_path / "e" / "prompts.jsonl").exists()

    def test_a_folder_is_replaced_whole_unless_it_holds_more(self, tmp_path):
        for text in ("[1]", "[2]"):
            replace_folder(
                tmp_path / "mined",
                "problems",
                lambda draft, text=text: (draft / "train.json").write_text(text),
            )
        assert (tmp_path / "mined" / "train.json").read_text() == "[2]"
        (tmp_path / "mined" / "split.py").write_text("mine")
        with pytest.raises(RunError, match=r"split\.py"):
            replace_folder(tmp_path / "mined", "problems", lambda draft: None)
        assert {one.name for one in (tmp_path / "mined").iterdir()} == {MARK, "train.json", "split.py"}
        assert [one.name for one in tmp_path.iterdir()] == ["mined"]

    @pytest.mark.parametrize("name", ["rollouts", "metrics.jsonl", "checkpoints/step_000001", "report.html"])
    def test_a_link_that_leads_out_of_a_run_is_refused(self, tmp_path, name):
        path = make_run(tmp_path / "run")
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        (theirs / "step_000009.jsonl").write_text("theirs")
        place = path / name
        if place.is_dir():
            place.rename(tmp_path / "old")
        place.unlink(missing_ok=True)
        place.symlink_to(theirs)
        for way in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(RunError, match="leads out of it"):
                RunDirectory.create(path, CONFIG, **way)
        assert (theirs / "step_000009.jsonl").read_text() == "theirs"

    def test_a_pipe_in_a_run_is_refused(self, tmp_path):
        path = make_run(tmp_path / "run")
        (path / "metrics.jsonl").unlink()
        os.mkfifo(path / "metrics.jsonl")
        with pytest.raises(RunError, match="neither a file nor a folder"):
            RunDirectory.create(path, CONFIG, resume=True)

    def test_a_hostile_mark_is_none(self, tmp_path):
        for number, make in enumerate(
            (
                lambda mark: mark.write_text('{"kind": "everything"}'),
                lambda mark: mark.write_text("[" * 100_000),
                lambda mark: os.mkfifo(mark),
                lambda mark: mark.symlink_to("/dev/zero"),
            )
        ):
            (tmp_path / str(number)).mkdir()
            make(tmp_path / str(number) / MARK)
            with pytest.raises(RunError, match="expected a run"):
                check_folder(tmp_path / str(number), "run")

    def test_a_fork_shares_checkpoints_and_no_log(self, tmp_path):
        path = make_run(tmp_path / "run")
        make_run(path / "warm_start")
        fork_run(path, 0, tmp_path / "fork")
        append_line(tmp_path / "fork" / "warm_start" / "metrics.jsonl", "{}")
        assert len((path / "warm_start" / "metrics.jsonl").read_text().splitlines()) == 2

    def test_a_fork_that_fails_leaves_nothing(self, tmp_path):
        path = make_run(tmp_path / "run")
        (path / "checkpoints/step_000001").mkdir(parents=True)
        (path / "metrics.jsonl").write_text('{"step": "x"}\n{"step": 1}\n{"step": 2}\n{}\n')
        fork_run(path, 1, tmp_path / "fork")
        assert (tmp_path / "fork/metrics.jsonl").read_text() == '{"step": 1}\n'
        os.mkfifo(path / "checkpoints/step_000001/model.safetensors")
        with pytest.raises(RunError):
            fork_run(path, 1, tmp_path / "other")
        assert not (tmp_path / "other").exists()

    def test_a_fork_copies_nothing_from_outside_of_the_run(self, tmp_path):
        path = make_run(tmp_path / "run")
        (tmp_path / "secret").mkdir()
        (tmp_path / "secret" / "key").write_text("secret")
        (path / "warm_start").symlink_to(tmp_path / "secret")
        (path / "checkpoints").mkdir(exist_ok=True)
        (path / "checkpoints/step_000001").symlink_to(tmp_path / "secret")
        for step in (0, 1):
            with pytest.raises(RunError, match="leads out of the run"):
                fork_run(path, step, tmp_path / "fork")
        (path / "warm_start").unlink()
        (path / "warm_start").mkdir()
        os.mkfifo(path / "warm_start/pipe")
        with pytest.raises(RunError, match="expected a regular file"):
            fork_run(path, 0, tmp_path / "fork")

    @pytest.mark.parametrize(
        "place",
        [
            *("checkpoints", "rollouts", "evaluations", "checkpoints/step_000001", "notes", "tensorboard"),
            *("warm_start", "control", "grpo/.git", "rollouts/step_000001", "evaluations/step_000001"),
            *("alarms.jsonl", "checkpoints/step_000007"),
        ],
    )
    def test_overwriting_deletes_nothing_of_the_users(self, tmp_path, place):
        path = make_run(tmp_path / "run")
        (path / place).mkdir(parents=True, exist_ok=True)
        if place == "checkpoints/step_000001":
            (path / place / "manifest.json").write_text('{"step": 1, "files": {"weights": {}}}')
            (path / place / "weights").write_text("ours")
        (path / place / "thesis.txt").write_text("years of work")
        with pytest.raises(RunError, match="holds more than greenward wrote"):
            RunDirectory.create(path, CONFIG, overwrite=True)
        assert (path / place / "thesis.txt").read_text() == "years of work"
        (path / place / "thesis.txt").unlink()
        if place in ("checkpoints", "checkpoints/step_000001", "warm_start", "tensorboard"):
            RunDirectory.create(path, CONFIG, overwrite=True).close()

    def test_a_refusal_leaves_no_mark_in_an_older_run(self, tmp_path):
        path = make_run(tmp_path / "run")
        (path / MARK).unlink(missing_ok=True)
        before = os.stat(path).st_mtime_ns
        with pytest.raises(RunError, match="already holds a run"):
            RunDirectory.create(path, CONFIG)
        assert not (path / MARK).exists() and os.stat(path).st_mtime_ns == before

    def test_a_mark_alone_makes_no_folder_ours(self, tmp_path):
        (tmp_path / MARK).write_text('{"kind": "run"}')
        check_folder(tmp_path, "run")
        (tmp_path / "thesis.txt").write_text("years of work")
        with pytest.raises(RunError, match="holds more than greenward wrote"):
            RunDirectory.create(tmp_path, CONFIG)


class TestFiles:
    def test_a_link_is_not_followed(self, tmp_path):
        (tmp_path / "theirs").write_text("theirs")
        (tmp_path / "link").symlink_to("theirs")
        (tmp_path / "dangling").symlink_to("nothing")
        for name in ("link", "dangling"):
            with pytest.raises(RunError, match=name):
                write_atomically(tmp_path / name, b"ours")
            with pytest.raises(RunError, match=name):
                append_line(tmp_path / name, "ours")
        assert (tmp_path / "theirs").read_text() == "theirs" and not (tmp_path / "nothing").exists()

    def test_what_is_no_regular_file_is_refused_at_once(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        for path in (tmp_path / "pipe", Path("/dev/null"), tmp_path):
            with pytest.raises(RunError, match=path.name):
                write_atomically(path, b"ours")
            with pytest.raises(RunError, match=path.name):
                append_line(path, "ours")
        assert stat.S_ISCHR(os.stat("/dev/null").st_mode)

    def test_a_second_name_keeps_its_content(self, tmp_path):
        (tmp_path / "theirs").write_text("theirs\n")
        (tmp_path / "ours").hardlink_to(tmp_path / "theirs")
        with pytest.raises(RunError, match="another name"):
            append_line(tmp_path / "ours", "ours")
        write_atomically(tmp_path / "ours", b"ours")
        assert (tmp_path / "theirs").read_text() == "theirs\n"

    def test_the_temporary_name_is_new_each_time_and_nothing_is_left(self, tmp_path, monkeypatch):
        names = []
        replace = os.replace
        monkeypatch.setattr(os, "replace", lambda old, new: (names.append(Path(old).name), replace(old, new)))
        for _ in range(20):
            write_atomically(tmp_path / "file", b"content", forced=False)
        assert len(set(names)) == 20 and not any(str(os.getpid()) == name.split(".")[-2] for name in names)
        assert [one.name for one in tmp_path.iterdir()] == ["file"]

    def test_the_mode_is_that_of_the_umask(self, tmp_path):
        before = os.umask(0o027)
        try:
            write_atomically(tmp_path / "file", b"")
            append_line(tmp_path / "lines", "")
        finally:
            os.umask(before)
        for name in ("file", "lines"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o640

    def test_a_long_name_can_be_written(self, tmp_path):
        write_atomically(tmp_path / ("ü" * 120), b"content")

    def test_files_are_new_or_appended_to_what_is_alike(self, tmp_path):
        check_file(tmp_path / "new")
        (tmp_path / "alarms").write_text('{"severity": "critical"}\n')
        check_file(tmp_path / "alarms", appended="severity")
        with pytest.raises(RunError, match="exists"):
            check_file(tmp_path / "alarms")
        for text in ("years of work", "", "[1]", '{"step": 1}'):
            (tmp_path / "notes").write_text(text)
            with pytest.raises(RunError, match="notes"):
                check_file(tmp_path / "notes", appended="severity")


def test_reports_of_what_is_only_read_lie_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert usual_folder(Path("runs/mine")) == Path("reports/mine")
    assert usual_folder(Path("runs/demo/seed_0")) == Path("reports/demo-seed_0")
    assert usual_folder(tmp_path / "theirs") == Path("reports/theirs")
    assert usual_folder(Path("/somewhere/else")) == Path("reports/else")
    assert usual_folder(Path()) == Path("reports") / tmp_path.name
