from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import joint_updates
import pytest
import torch

from greenward.runs.reading import without_timing

SCRIPT = Path(joint_updates.__file__)


def free_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


def run_together(results: Path, count: int = 2, timeout: float = 300, **variables: str) -> None:
    """Run the updates in several processes, with what a launcher sets; fails where one of them does."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(results)],
        env={
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": free_port(),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
            **variables,
        },
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said = process.communicate(timeout=timeout)[1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said[-4000:]


def comparable(metrics: dict[str, float]) -> dict[str, float]:
    """Metrics without timings, and without counts of tokens beyond a bound, which rounding decides."""
    return {
        name: value
        for name, value in without_timing(metrics).items()
        if not name.startswith("clip/") and name != "value/clipped"
    }


VARIABLES = {
    "ddp": {},
    "fsdp2": {"ACCELERATE_USE_FSDP": "true"},
    "zero3": {"ACCELERATE_USE_DEEPSPEED": "true", "DS_ACCELERATOR": "cpu"},
}


@pytest.fixture(
    scope="module", params=["ddp", *(pytest.param(one, marks=pytest.mark.slow) for one in ("fsdp2", "zero3"))]
)
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if request.param == "zero3":
        pytest.importorskip("deepspeed", reason="make test-distributed installs DeepSpeed")
    results = tmp_path_factory.mktemp("joint") / "results.pt"
    run_together(results, **VARIABLES[request.param])
    found: dict[str, Any] = torch.load(results, weights_only=True)
    return found


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as in each of the two processes: products of several threads round otherwise
    try:
        return {name: case() for name, case in joint_updates.CASES.items()}
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("case", joint_updates.CASES)
def test_two_processes_make_the_updates_of_one(
    alone: dict[str, Any], together: dict[str, Any], case: str
) -> None:
    if case not in together:
        pytest.skip("DeepSpeed clips one gradient, and PPO has two")
    for name, weight in alone[case]["weights"].items():
        torch.testing.assert_close(together[case]["weights"][name], weight, atol=1e-5, rtol=0)
    for ours, theirs in zip(alone[case]["metrics"], together[case]["metrics"], strict=True):
        assert comparable(theirs) == pytest.approx(comparable(ours), abs=1e-4, rel=1e-3)


@pytest.mark.parametrize("case", joint_updates.CASES)
def test_checkpoints_hold_whole_tensors(alone: dict[str, Any], together: dict[str, Any], case: str) -> None:
    if "parts" in together.get(case, {"trainer": {"optimizer": "parts"}})["trainer"]["optimizer"]:
        pytest.skip("ZeRO-3 keeps the parts of its processes")
    ours, theirs = (each[case]["trainer"]["optimizer"]["state"] for each in (alone, together))
    assert ours.keys() == theirs.keys()
    for at, moments in ours.items():
        torch.testing.assert_close(theirs[at]["exp_avg"], moments["exp_avg"], atol=1e-5, rtol=1e-3)
        assert torch.equal(theirs[at]["step"], moments["step"])


@pytest.mark.parametrize("case", ["grpo", "ppo", "ppo, own trunk"])
def test_a_state_that_is_loaded_is_the_one_that_was_saved(together: dict[str, Any], case: str) -> None:
    def assert_equal(ours: Any, theirs: Any) -> None:
        if isinstance(ours, torch.Tensor):
            assert torch.equal(ours, theirs)
        elif isinstance(ours, dict):
            assert ours.keys() == theirs.keys()
            for key, value in ours.items():
                assert_equal(value, theirs[key])
        elif isinstance(ours, list):
            for one, other in zip(ours, theirs, strict=True):
                assert_equal(one, other)
        else:
            assert ours == theirs

    if case not in together:
        pytest.skip("DeepSpeed clips one gradient, and PPO has two")
    for part in ("weights", "trainer"):
        assert_equal(together[case][part], together[case]["again"][part])
