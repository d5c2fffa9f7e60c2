"""Scripts for Slurm: what they ask for, that bash and shellcheck read them, and that values stay what they are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from greenward.cli.main import cli
from greenward.common.errors import ConfigError, RunError
from greenward.config.loading import GridRun, grid_runs
from greenward.hardware.launch import SlurmOptions, render, seconds_of, submit

HOSTILE = [
    "a b",
    "it's",
    '"q"',
    "$HOME",
    "`id`",
    "$(touch pwned)",
    "\\",
    "!x",
    "*",
    "a\nb",
    ";ls",
    "é",
    "&",
    "-x",
    "#",
]
EVERYTHING = SlurmOptions(
    partition="gpu,big",
    account="lab@site",
    nodes=2,
    gpus="h100:4",
    cpus=16,
    memory="64G",
    time="1-12",
    modules=("cuda/12.4", "it's"),
    container=Path("my image.sif"),
    accelerate_config=Path("fsdp $2.yaml"),
    cache=Path("/scratch/$USER/ca che"),
    offline=True,
    logs=Path("lo gs/%j $x"),
    sbatch=("--constraint=a100&nvlink", "--mail-type END"),
)
SCRIPTS = {
    "plain": ([GridRun("", ())], SlurmOptions()),
    "everything": ([GridRun("", tuple(f"name={text}" for text in HOSTILE))], EVERYTHING),
    "array": (grid_runs(["seed=0..2", "name='$x',\"`y`\""]), SlurmOptions(jobs=2, venv=Path("/my venv/$v"))),
}


def script(name: str, recipe: str = "re cipe's $x.yaml") -> str:
    runs, options = SCRIPTS[name]
    return render(recipe, runs, Path("runs/o u't"), options)


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_and_shellcheck_read_every_script(name):
    done = subprocess.run(["bash", "-n"], input=script(name), text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", "-"], input=script(name), text=True, capture_output=True)
    assert done.returncode == 0, done.stdout


def run_script(text: str, folder: Path, code: int = 0, **environment: str) -> list[list[str]]:
    """Runs a script with stand-ins for what it calls: the arguments of each call, as the program got them."""
    tools = folder / "tools"
    tools.mkdir()
    for name in ("python", "apptainer", "srun", "scontrol"):
        body = 'printf "%s\\0" "$0" "$@" >>"$CALLS"; printf "\\1" >>"$CALLS"'
        if name == "scontrol":
            body += "; echo node1; echo node2"
        body += '; exit "${CODE_OF_PYTHON:-0}"' if name == "python" else ""
        (tools / name).write_text(f"#!/bin/bash\n{body}\n")
        (tools / name).chmod(0o755)
    (folder / "job.sh").write_text(text.replace(sys.executable, str(tools / "python")))
    given = {"PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(folder / "calls"), "HOME": "/home"}
    given |= {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_CPUS_PER_TASK": "16"}
    setup = 'module() { echo "module $*"; }; export -f module; exec bash ./job.sh'
    done = subprocess.run(
        ["bash", "-c", setup], cwd=folder, env={**given, **environment}, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    calls = (folder / "calls").read_bytes().decode().split("\1")
    return [call.split("\0")[:-1] for call in calls if call]


def test_values_reach_the_training_as_they_were_written_and_run_nothing(tmp_path):
    (call,) = run_script(
        render("re cipe's $x.yaml", *SCRIPTS["everything"][:1], Path("o u't"), SlurmOptions()), tmp_path
    )
    expected = ["-m", "greenward", "train", "--resume", "--output", "o u't", "--", "re cipe's $x.yaml"]
    assert call[1:] == expected + [f"name={text}" for text in HOSTILE]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calls", "job.sh", "logs", "tools"]
    log = tmp_path / "logs/job_12"
    assert "job 12 on node[1-2]" in (log / "training_output.log").read_text()
    assert (log / "job.sh").read_text() == (tmp_path / "job.sh").read_text()


def test_each_task_of_an_array_runs_its_combination_in_its_folder(tmp_path):
    runs, _ = SCRIPTS["array"]
    text = render("quickstart", runs, Path("sweep"), SlurmOptions(jobs=2))
    assert "#SBATCH --array=0-5%2\n" in text
    for number, run in enumerate(runs):
        (tmp_path / str(number)).mkdir()
        ids = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": str(number)}
        (call,) = run_script(text, tmp_path / str(number), **ids)
        assert call[4:] == ["--resume", "--output", f"sweep/{run.folder}", "--", "quickstart", *run.overrides]
        assert (tmp_path / f"{number}/logs/job_7_{number}/training_output.log").is_file()


@pytest.mark.parametrize(
    ("of_training", "restarts", "of_job", "requeued"),
    [(0, 0, 0, False), (2, 0, 2, False), (130, 0, 130, False), (75, 0, 0, True), (75, 3, 75, False)],
)
def test_a_job_ends_as_its_training_or_goes_back_where_an_engine_failed(
    tmp_path, of_training, restarts, of_job, requeued
):
    text = render("quickstart", [GridRun("", ())], None, SlurmOptions(requeues=3))
    counts = {"CODE_OF_PYTHON": str(of_training), "SLURM_RESTART_COUNT": str(restarts)}
    calls = run_script(text, tmp_path, of_job, **counts)
    assert [call[1:] for call in calls[1:]] == ([["requeue", "12"]] if requeued else [])


def test_several_gpus_are_launched_once_on_each_node_by_accelerate(tmp_path):
    options = SlurmOptions(nodes=2, gpus="h100:4", cpus=16, modules=("cuda/12.4",), logs=Path("lo gs/%j $x"))
    text = render("quickstart", [GridRun("", ("seed=1",))], None, options)
    for line in ("--nodes=2", "--gpus-per-node=h100:4", "--cpus-per-task=16", "--ntasks-per-node=1"):
        assert f"#SBATCH {line}\n" in text
    calls = run_script(text, tmp_path, SLURM_JOB_ID="40012")
    assert [Path(call[0]).name for call in calls] == ["scontrol", "srun"]
    command = calls[1]
    assert command[command.index("--num_processes") + 1] == "8"
    assert command[command.index("--main_process_ip") + 1] == "node1"
    assert command[command.index("--main_process_port") + 1] == "20012"
    assert command[-6:] == ["-m", "greenward", "train", "--resume", "--", "quickstart", "seed=1"][-6:]
    started = subprocess.run(  # what srun starts on each node
        command[command.index("bash") :],
        env={
            "PATH": f"{tmp_path}/tools:{os.environ['PATH']}",
            "CALLS": str(tmp_path / "of_node"),
            "SLURM_NODEID": "1",
        },
    )
    assert started.returncode == 0
    launched = (tmp_path / "of_node").read_text().split("\0")
    assert launched[1:5] == ["-m", "accelerate.commands.launch", "--machine_rank", "1"]


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("4:00:00", 14400),
        ("2-0", 172800),
        ("1-2:30", 95400),
        ("1-02:30:15", 95415),
    ],
)
def test_time_limits_are_read_as_slurm_writes_them(time, seconds):
    assert seconds_of(time) == seconds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time": "4h"}, "--time: expected"),
        ({"time": "1:2:3:4"}, "--time: expected"),
        ({"time": "-5"}, "--time: expected"),
        ({"time": ""}, "--time: expected"),
        ({"time": "5", "stop_before": 300}, "leaves no time"),
        ({"partition": "a b"}, "--partition: expected"),
        ({"partition": "a\n#SBATCH --wrap=x"}, "--partition: expected"),
        ({"account": "$(id)"}, "--account: expected"),
        ({"gpus": "many"}, "--gpus: expected a number"),
        ({"memory": "lots"}, "--memory: expected"),
        ({"sbatch": ("constraint=x",)}, "--sbatch: expected"),
        ({"sbatch": ("--a=b\nrm -r /",)}, "--sbatch: expected"),
        ({"nodes": 2}, "without --gpus"),
        ({"venv": Path("v"), "container": Path("c")}, "exclude each other"),
    ],
)
def test_what_slurm_would_not_take_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        SlurmOptions(**options)


def test_logs_that_cannot_be_written_are_refused_before_submission(tmp_path):
    (tmp_path / "file").write_text("")
    for logs in (tmp_path / "file", tmp_path / "file/logs", Path("/proc/none")):
        with pytest.raises(RunError, match=logs.name):
            submit("", logs)


def test_without_sbatch_the_error_says_so_and_a_refusal_is_passed_on(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match="no sbatch here"):
        submit("", tmp_path / "logs")
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition' >&2\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    with pytest.raises(RunError, match="invalid partition"):
        submit("", tmp_path / "logs")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["training.learning_rat=1"], "learning_rate"),
        (["seed=0..2", "seed=5"], "given once more"),
        (["no_recipe"], "Override 'no_recipe'"),
        (["--time", "soon"], "--time"),
    ],
)
def test_render_refuses_what_train_would_refuse(arguments, message):
    refused = CliRunner().invoke(cli, ["slurm", "render", "quickstart", *arguments])
    assert refused.exit_code != 0 and refused.output == ""
    assert message in str(refused.exception)


@pytest.mark.parametrize("recipe", ["grpo_code_execution", "grpo_code_game", "spiral_self_play"])
def test_a_job_with_a_gpu_trains_the_model_that_is_named_or_is_refused(recipe):
    """Never the small decoder from random weights, unless it is asked for on the CPU."""
    given = ["slurm", "render", recipe, "--gpus", "v100:1"]
    refused = CliRunner().invoke(cli, given)
    assert refused.exit_code != 0 and refused.output == ""
    assert f"{recipe} names no model" in str(refused.exception)
    assert "model=auto" in refused.exception.remedy
    for model in ("model=Qwen/Qwen2.5-1.5B", "model=auto", "model.device=cpu"):
        shown = CliRunner().invoke(cli, [*given, model])
        assert shown.exit_code == 0, shown.output
        assert f"run=(--resume -- {recipe} {model})" in shown.output
    assert CliRunner().invoke(cli, ["slurm", "render", recipe]).exit_code == 0


def test_render_prints_the_script_of_a_grid():
    shown = CliRunner().invoke(
        cli, ["slurm", "render", "quickstart", "model=auto", "seed=0..2", "--jobs", "1", "--gpus", "1"]
    )
    assert shown.exit_code == 0, shown.output
    assert "#SBATCH --array=0-2%1" in shown.output and "#SBATCH --gpus-per-node=1" in shown.output
    assert re.findall(r"--output (\S+) --", shown.output) == [f"runs/sweep/seed_{seed}" for seed in range(3)]
