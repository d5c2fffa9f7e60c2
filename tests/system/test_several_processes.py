"""`greenward launch` as a user types it: whole trainings in two processes on the processor (gloo)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recording import train
from safetensors.torch import load_file

from greenward.runs.reading import read_metrics, without_timing
from tiny_model import REINFORCED

pytest.importorskip("accelerate")
pytestmark = pytest.mark.slow

SETTINGS = (*REINFORCED, "training.prompts_per_step=5", "training.max_steps=4", "training.threads=1")


def started(
    recipe: str, output: Path, *arguments: str, config: str = "ddp", count: int = 2
) -> subprocess.Popen[str]:
    if config == "zero3":
        pytest.importorskip("deepspeed", reason="make test-distributed installs DeepSpeed")
    options = ["--processes", str(count), "--config", config, "--output", str(output)]
    return subprocess.Popen(
        [sys.executable, "-m", "greenward", "launch", recipe, *SETTINGS, *arguments, *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def launch(recipe: str, output: Path, *arguments: str, config: str = "ddp") -> str:
    """What a training in two processes wrote to standard error."""
    process = started(recipe, output, *arguments, config=config)
    try:
        said = process.communicate(timeout=500)[1]
    finally:
        end(process)
    assert process.returncode == 0, said[-4000:]
    return said


def end(process: subprocess.Popen[str]) -> None:
    """End the launcher and the processes that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def rows(run: Path) -> list[dict[str, Any]]:
    return [without_timing(row) for row in read_metrics(run / "metrics.jsonl").rows]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints/last/model.safetensors")


def answers(run: Path) -> list[Any]:
    return [
        json.loads(line)["answer"] for file in sorted((run / "rollouts").iterdir()) for line in file.open()
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run of a recipe in this process."""
    made: dict[str, Path] = {}

    def run(recipe: str) -> Path:
        if recipe not in made:
            made[recipe] = tmp_path_factory.mktemp("alone") / "run"
            train(recipe, made[recipe], *SETTINGS)
        return made[recipe]

    return run


@pytest.mark.parametrize(
    ("recipe", "config"),
    [("quickstart", "ddp"), ("quickstart", "fsdp2"), ("quickstart", "zero3"), ("ppo_code_fix", "fsdp2")],
)
def test_a_run_in_two_processes_is_that_of_one(
    alone: Callable[[str], Path], tmp_path: Path, recipe: str, config: str
) -> None:
    launch(recipe, tmp_path / "run", "--quiet", config=config)
    assert answers(tmp_path / "run") == answers(alone(recipe))
    for name, weight in weights(alone(recipe)).items():
        torch.testing.assert_close(weights(tmp_path / "run")[name], weight, atol=1e-5, rtol=0)
    session = json.loads((tmp_path / "run/provenance.json").read_text())["sessions"][-1]
    assert session["processes"] == f"2 ({config})"


@pytest.mark.parametrize("config", ["ddp", "fsdp2", "zero3"])
def test_resuming_with_as_many_processes_is_exact(tmp_path: Path, config: str) -> None:
    launch("quickstart", tmp_path / "straight", "--quiet", config=config)
    launch("quickstart", tmp_path / "cut", "--quiet", "training.max_steps=2", config=config)
    launch("quickstart", tmp_path / "cut", "--quiet", "--resume", config=config)
    assert rows(tmp_path / "cut") == rows(tmp_path / "straight")


def test_resuming_with_fewer_processes_is_declared_inexact(tmp_path: Path) -> None:
    launch("quickstart", tmp_path / "run", "--quiet", "training.max_steps=2", config="fsdp2")
    train("quickstart", tmp_path / "run", *SETTINGS, "--resume")
    session = json.loads((tmp_path / "run/provenance.json").read_text())["sessions"][-1]
    assert session["inexact_resume"] == {"processes": "2 (fsdp2) -> 1"}
    assert [row["step"] for row in rows(tmp_path / "run")] == [1, 2, 3, 4]


def test_the_others_stop_when_a_process_dies(tmp_path: Path) -> None:
    """Whatever the launcher does: here nobody but the processes themselves notices."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29871",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    command = [
        sys.executable,
        "-m",
        "greenward",
        "train",
        "quickstart",
        *SETTINGS,
        "training.max_steps=10000",
    ]
    processes = [
        subprocess.Popen(
            [*command, "--quiet", "--output", str(tmp_path / "run")],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        deadline = time.monotonic() + 300
        while not (tmp_path / "run/metrics.jsonl").exists() and processes[0].poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        processes[1].kill()
        said = processes[0].communicate(timeout=60)[1]
    finally:
        for process in processes:
            process.kill()
    assert processes[0].returncode != 0
    assert "another process has died" in said or "process 1 gave no sign of life" in said


def test_what_processes_cannot_train_is_refused_at_once(tmp_path: Path) -> None:
    process = started(
        "quickstart", tmp_path / "run", "training.prompts_per_step=1", "algorithm.minibatches=1"
    )
    said = process.communicate(timeout=200)[1]
    assert process.returncode == 2 and "Traceback" not in said
    assert "2 processes cannot train this recipe: training.prompts_per_step is 1" in said
    assert not (tmp_path / "run/config.yaml").exists()
