"""Jobs on a real Slurm of one node: interrupted by their time limit, requeued, resumed; and arrays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from slurm_cluster import ask, needs_slurm, slurm_cluster, states, wait_for

from greenward.cli.main import cli
from greenward.reports.runs import read_runs
from greenward.runs.reading import read_metrics, read_sessions, read_summary, without_timing
from tiny_model import REINFORCED

pytestmark = [needs_slurm, pytest.mark.slow]
TESTS = Path(__file__).resolve().parents[1]
# Stands for the Python of a virtual environment: greenward, but the fourth step of the first session waits.
WAITING = """
import pathlib, sys, time
from greenward.training.loop import TrainingLoop
from greenward.cli.main import main
step, folder = TrainingLoop._step, pathlib.Path({folder!r})
def wait_in_the_fourth_step(loop):
    if loop.steps_done == 3 and not (folder / "signalled").exists():
        (folder / "waits").touch()
        while not (folder / "signalled").exists():
            time.sleep(0.05)
    step(loop)
TrainingLoop._step = wait_in_the_fourth_step
main(sys.argv[3:])
"""
# Stands for the launcher of Accelerate: it starts two processes and fails when one of them does.
LAUNCHER = """
import pathlib, signal, subprocess, sys, time
folder = pathlib.Path({folder!r})
if sys.argv[1] == "rank":
    stopped = []
    signal.signal(signal.SIGUSR1, lambda *_: stopped.append(1))
    (folder / f"started_{{sys.argv[2]}}").touch()
    if (folder / f"stopped_{{sys.argv[2]}}").exists():
        sys.exit(0)
    while not stopped:
        time.sleep(0.05)
    time.sleep(1)  # a checkpoint
    (folder / f"stopped_{{sys.argv[2]}}").touch()
    sys.exit(130)
(folder / "arguments").write_text(" ".join(sys.argv[1:]))
ranks = [subprocess.Popen([sys.executable, __file__, "rank", str(rank)]) for rank in range(2)]
sys.exit(1 if any([rank.wait() for rank in ranks]) else 0)
"""

# Stands for trainings, of which the one with seed 1 must be told to stop in its first session.
TASK = """
import pathlib, signal, sys, time
folder, name, stopped = pathlib.Path({folder!r}), sys.argv[-1], []
with open(folder / name, "a") as file:
    print("session", file=file)
if name == "seed=1" and (folder / name).read_text().count("session") == 1:
    signal.signal(signal.SIGUSR1, lambda *_: stopped.append(1))
    (folder / "waits").touch()
    while not stopped:
        time.sleep(0.05)
    sys.exit(130)
"""


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory):
    with slurm_cluster(tmp_path_factory.mktemp("slurm")):
        yield


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def submit(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["slurm", "submit", "quickstart", *arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output.strip()


def environment(folder: Path, program: str) -> list[str]:
    """`--venv` of an environment whose Python runs `program`."""
    (folder / "my env/bin").mkdir(parents=True)
    (folder / "my env/bin/activate").write_text(f"PATH='{folder}/my env/bin':$PATH\n")
    (folder / "program.py").write_text(program.format(folder=str(folder)))
    python = folder / "my env/bin/python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} '{folder}/program.py' \"$@\"\n")
    python.chmod(0o755)
    return ["--venv", str(folder / "my env")]


def limit_is_near(job: str, log: Path) -> None:
    """Shortens the time limit, so that Slurm sends its signal; waits until the job has it."""
    ask("scontrol", "update", f"JobId={job}", "TimeLimit=25")
    wait_for(lambda: "the time limit is near" in log.read_text(), "the signal")


def has_gone_back(job: str) -> bool:
    """Whether the job waits in the queue again; its time limit is then what it was at first, and it starts soon.

    Not at once: times of credentials are whole seconds, and a node refuses a job that starts in the second in
    which it ended ("Job credential revoked"). Slurm by itself waits for two minutes.
    """
    if states(job) != ["PENDING"]:
        return False
    ask("scontrol", "update", f"JobId={job}", "TimeLimit=120", "StartTime=now+3")
    return True


def rows(run: Path) -> list[dict]:
    return [without_timing(row) for row in read_metrics(run / "metrics.jsonl").rows]


def test_a_run_is_interrupted_by_its_time_limit_requeued_and_resumed_exactly_to_its_end(folder):
    settings = [*REINFORCED, "training.max_steps=6"]
    options = [*environment(folder, WAITING), "--time", "120", "--stop-before", "1800", "--output", "a run"]
    job = submit(*settings, *options)
    log = folder / f"logs/job_{job}/training_output.log"
    wait_for((folder / "waits").exists, "the fourth step")
    limit_is_near(job, log)
    (folder / "signalled").touch()
    wait_for(lambda: has_gone_back(job), "the requeue")
    assert read_summary(folder / "a run")["status"] == "interrupted"
    assert len(rows(folder / "a run")) == 4
    wait_for(lambda: not states(job), "the end of the job")
    assert read_summary(folder / "a run")["status"] == "finished", log.read_text()
    assert len(read_sessions(folder / "a run")) == 2
    assert "restart 0" in log.read_text() and "restart 1" in log.read_text()

    command = [
        sys.executable,
        "-m",
        "greenward",
        "train",
        "quickstart",
        *settings,
        "--output",
        "alone",
        "--quiet",
    ]
    subprocess.run(command, check=True)
    assert rows(folder / "a run") == rows(folder / "alone") and len(rows(folder / "alone")) == 6


def test_the_tasks_of_an_array_are_seeds_of_one_record(folder):
    job = submit(*REINFORCED, "training.max_steps=1", "seed=0..2", "--output", "a sweep", "--time", "60")
    wait_for(lambda: not states(job), "the end of the array")
    runs = read_runs(folder / "a sweep")
    assert runs.seeds == ("seed 0", "seed 1", "seed 2")
    assert [run.summary["status"] for run in runs.main.runs] == ["finished"] * 3
    for task in range(3):
        assert (folder / f"logs/job_{job}_{task}/training_output.log").is_file()


def test_a_task_of_an_array_goes_back_to_the_queue_alone(folder):
    """The last task of an array has the array's own id as well, which stands for all tasks."""
    job = submit("seed=0..1", *environment(folder, TASK), "--time", "120", "--stop-before", "1800")
    wait_for((folder / "waits").exists, "the task that waits")
    wait_for(lambda: states(f"{job}_0") == [], "the other one")
    limit_is_near(f"{job}_1", folder / f"logs/job_{job}_1/training_output.log")
    wait_for(lambda: has_gone_back(f"{job}_1"), "the requeue")
    wait_for(lambda: not states(job), "the end of the array")
    sessions = [(folder / f"seed={seed}").read_text().count("session") for seed in (0, 1)]
    assert sessions == [1, 2]


def test_the_processes_of_several_gpus_are_signalled_and_their_launcher_is_not(folder):
    options = [*environment(folder, LAUNCHER), "--gpus", "2", "--time", "120", "--stop-before", "1800"]
    job = submit("seed=1", "model.device=cpu", *options)
    log = folder / f"logs/job_{job}/training_output.log"
    wait_for(lambda: all((folder / f"started_{rank}").exists() for rank in range(2)), "both processes")
    limit_is_near(job, log)
    wait_for(lambda: has_gone_back(job), "the requeue")
    assert all((folder / f"stopped_{rank}").exists() for rank in range(2)), log.read_text()
    wait_for(lambda: not states(job), "the end of the job")
    assert "restart 1" in log.read_text() and log.read_text().count("back to the queue") == 1
    launched = (folder / "arguments").read_text()
    assert "--num_processes 2 --num_machines 1" in launched and launched.endswith(
        "-- quickstart seed=1 model.device=cpu"
    )


def test_a_cancelled_job_stops_at_a_checkpoint_and_does_not_come_back(folder):
    options = environment(folder, LAUNCHER.replace("SIGUSR1", "SIGTERM"))
    job = submit("seed=1", "model.device=cpu", *options, "--gpus", "2", "--time", "120")
    wait_for(lambda: all((folder / f"started_{rank}").exists() for rank in range(2)), "both processes")
    ask("scancel", job)
    wait_for(lambda: not states(job), "the end of the job")
    assert all((folder / f"stopped_{rank}").exists() for rank in range(2))
