"""`greenward train` stopped by Ctrl-C at chosen points inside of steps and evaluations, and resumed exactly."""

from __future__ import annotations

import importlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from recording import call
from safetensors.torch import load_file

from greenward.common import interruption
from greenward.runs.reading import read_metrics, without_timing
from nested_states import equal
from tiny_model import DATA, ON_THE_STARTER, REINFORCED

STEPS = 3
RL = (*REINFORCED, f"training.max_steps={STEPS}", "training.checkpoint_interval_steps=2",
      "evaluation={num_questions: 4, samples: 2, k: [1, 2], eval_interval_steps: 2}")  # fmt: skip
KINDS = {
    "grpo": ("quickstart", *RL, "algorithm.minibatches=1"),
    "minibatches": ("quickstart", *RL, "algorithm.minibatches=4"),
    "rejection": ("rejection_sampling", *RL, "algorithm.batch_size=4", "algorithm.min_reward=0.0"),
    "ppo": ("ppo_code_fix", *RL, "problems.train=bugs:" + str(DATA / "problems.json"),
            "problems.held_out=bugs:" + str(DATA / "held_out.json")),
    "sft": ("sft", *ON_THE_STARTER, f"warm_start.data={DATA / 'pairs.jsonl'}", f"warm_start.max_steps={STEPS}",
            "warm_start.batch_size=4", "evaluation.at_start=true", "training.checkpoint_interval_steps=2"),
}  # fmt: skip
SAMPLING, FORWARD, SCORES, GRADING = (
    "models.sampler",
    "models.decoder",
    "models.scoring",
    "sandbox.pool",
)


def train(kind: str, run: Path, *arguments: str) -> int:
    """The exit code of the command, in this process."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DATA)
        patch.setenv("HF_HUB_OFFLINE", "1")
        code, _ = call("train", *KINDS[kind], "--quiet", "--output", str(run), *arguments)
    torch.set_num_threads(threads)
    return code


@contextmanager
def interrupted_at(module: str, number: int, after: Path | None = None) -> Iterator[list[int]]:
    """Sends Ctrl-C at call `number` of `check` in a module, from 1; gives a list with the number of calls.

    Calls are counted once the run `after` has finished a step.
    """
    calls = [0]

    def check() -> None:
        calls[0] += after is None or bool(read_metrics(after / "metrics.jsonl").rows)
        if calls[0] == number:
            os.kill(os.getpid(), signal.SIGINT)
            deadline = time.monotonic() + 20
            while not interruption.requested() and time.monotonic() < deadline:
                time.sleep(0.001)
            assert interruption.requested()
        interruption.check()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module(f"greenward.{module}"), "check", check)
        yield calls


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Runs without interruption, by kind."""
    folder = tmp_path_factory.mktemp("whole")

    def make(kind: str) -> Path:
        run = folder / kind
        if not run.is_dir():
            assert train(kind, run) == 0
        return run

    return make


def content(run: Path) -> dict[str, Any]:
    """All that a resumed run must repeat."""
    found: dict[str, Any] = {
        "metrics": [without_timing(row) for row in read_metrics(run / "metrics.jsonl").rows]
    }
    for file in sorted((run / "rollouts").iterdir()):
        found[file.name] = file.read_text()
    for file in sorted((run / "evaluations").iterdir()):
        record = json.loads(file.read_text())
        found[f"evaluation {file.name}"] = {key: record[key] for key in ("metrics", "prompts")}
    return found


def state(run: Path) -> dict[str, Any]:
    found = torch.load(run / "checkpoints/last/trainer.pt", weights_only=True)
    kept = {key: found[key] for key in ("trainer", "steps_done", "policy_version")}
    return {**kept, "weights": load_file(run / "checkpoints/last/model.safetensors")}


def stop_and_go_on(
    kind: str,
    module: str,
    number: int,
    run: Path,
    expected: Path,
    capsys: pytest.CaptureFixture[str],
    after: Path | None = None,
) -> str:
    """Stops a run, goes on, and compares; what was said."""
    with interrupted_at(module, number, after) as calls:
        assert train(kind, run) == 130, f"there are {calls[0]} calls"
    said = capsys.readouterr().err
    assert said.count("Stopping") == 1 and "Traceback" not in said
    done = len(read_metrics(run / "metrics.jsonl").rows)
    assert not done or (run / f"checkpoints/step_{done:06}/manifest.json").is_file()
    assert train(kind, run, "--resume") == 0
    assert content(run) == content(expected)
    assert equal(state(run), state(expected))
    return said


def test_stopped_while_step_2_is_sampled_the_step_is_repeated(whole, tmp_path, capsys):
    """Step 1 is not a step of a checkpoint: it is saved by the stop."""
    run = tmp_path / "run"
    said = stop_and_go_on("grpo", SAMPLING, 2, run, whole("grpo"), capsys, after=run)
    assert (
        "Stopping; this step will be repeated. Ctrl-C again stops now.\nLast checkpoint: none; step 1 is"
        in said
    )


def test_stopped_in_the_first_evaluation_the_same_command_starts_again(whole, tmp_path, capsys):
    run = tmp_path / "run"
    with interrupted_at(SAMPLING, 3):
        assert train("grpo", run) == 130
    said = capsys.readouterr().err
    assert "this evaluation will be repeated" in said and "the same command starts again" in said
    assert train("grpo", run) == 0
    assert content(run) == content(whole("grpo"))


@pytest.mark.slow
def test_stopped_in_the_first_step_it_starts_again_and_resumed_it_keeps_the_evaluation(
    whole, tmp_path, capsys
):
    for arguments in ((), ("--resume",)):
        run = tmp_path / f"run{len(arguments)}"
        with interrupted_at(SCORES, 1):
            assert train("grpo", run) == 130
        evaluation = run / "evaluations/step_000000.json"
        before = evaluation.stat().st_mtime_ns
        assert train("grpo", run, *arguments) == 0
        assert (evaluation.stat().st_mtime_ns == before) == bool(arguments)
        assert content(run) == content(whole("grpo"))
    assert "this step will be repeated" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "number"), [(SCORES, 4), pytest.param(GRADING, 5, marks=pytest.mark.slow)]
)
def test_stopped_in_the_update_and_while_answers_are_graded(whole, tmp_path, capsys, module, number):
    stop_and_go_on("grpo", module, number, tmp_path / "run", whole("grpo"), capsys)


MODULES = (SAMPLING, FORWARD, SCORES, GRADING)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_stopped_anywhere_every_kind_of_run_resumes_exactly(whole, tmp_path, capsys, kind):
    with ExitStack() as stack:
        calls = {module: stack.enter_context(interrupted_at(module, 0)) for module in MODULES}
        expected = whole(kind)  # made by this test or by one before
        if not calls[SAMPLING][0]:
            assert train(kind, tmp_path / "counted") == 0
    for module, part in zip(MODULES, (0.3, 0.6, 0.85, 0.45), strict=True):
        if number := round(part * calls[module][0]):
            stop_and_go_on(kind, module, number, tmp_path / module, expected, capsys)
