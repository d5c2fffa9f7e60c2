"""The loop with a trainer whose every number is known: y_{t+1} = y_t + noise(step)."""

import json
import math
import os
import signal
import time
import zipfile

import numpy as np
import pytest
import torch

from greenward.common.errors import CheckpointError, ConfigError, EngineError
from greenward.rollouts.protocols import Episode, StopReason, Turn
from greenward.runs.checkpoints import MANIFEST
from greenward.runs.directory import RunDirectory
from greenward.runs.files import sha256_of
from greenward.runs.progress import Progress
from greenward.runs.reading import read_metrics, without_timing
from greenward.runs.trackers import MetricSink
from greenward.training.loop import STATE_FILE, StepRecord, TrainingLoop, load_trainer_state
from greenward.training.protocols import Callback


class FakePolicy:
    saves_exactly = False

    def __init__(self):
        self.weight = torch.zeros(1)
        self.version = 0

    def save(self, folder):
        (folder / "weight.json").write_text(json.dumps(self.weight.item()))

    def load_weights(self, folder):
        self.weight = torch.tensor([json.loads((folder / "weight.json").read_text())])

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight = state["weight"]


class RandomWalk:
    """Adds a random number drawn from torch's global generator at every step."""

    def __init__(self, interrupt_at=None, crash_at=None, signals=(signal.SIGINT,), crash=None):
        self.policy = FakePolicy()
        self.total = 0.0
        self._interrupt_at = interrupt_at
        self._crash_at = crash_at
        self._crash = crash or RuntimeError("power cut")
        self._signals = signals

    def train_step(self, step):
        if step == self._interrupt_at:
            for number in self._signals:
                os.kill(os.getpid(), number)
                time.sleep(0.06)  # two at once are one that a launcher has passed on
        if step == self._crash_at:
            raise self._crash
        change = torch.randn(1)
        self.policy.weight = self.policy.weight + change
        self.policy.version += 1
        self.total += change.item()
        return StepRecord({"change": change.item(), "weight": self.policy.weight.item(), "total": self.total})

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]


def evaluate(policy, step, elapsed):
    metric = {"value": policy.weight.item(), "low": 0.0, "high": 1.0}
    return {"suite": "walk", "step": step, "metrics": {"pass@1": metric}}


def run_loop(folder, trainer, *, max_steps=12, resume=False, max_seconds=None, evaluate=evaluate, **options):
    with RunDirectory.create(folder, {"seed": 7}, resume=resume) as run, Progress(quiet=True) as progress:
        loop = TrainingLoop(
            trainer,
            run,
            seed=7,
            max_steps=max_steps,
            max_seconds=max_seconds,
            evaluators={None: evaluate},
            eval_interval_steps=3,
            checkpoint_interval_steps=5,
            progress=progress,
            **options,
        )
        loop.run()
    return loop


def rows(folder):
    return [without_timing(row) for row in read_metrics(folder / "metrics.jsonl").rows]


@pytest.mark.parametrize("saves_exactly", [False, True])
@pytest.mark.parametrize("crash_at", [pytest.param(2, marks=pytest.mark.slow), 8])
def test_a_run_cut_before_or_between_checkpoints_and_resumed_writes_the_same_files(
    tmp_path, monkeypatch, crash_at, saves_exactly
):
    """Checkpoints are at steps 5 and 10; the rows after the last one are written anew."""
    monkeypatch.setattr(FakePolicy, "saves_exactly", saves_exactly)
    run_loop(tmp_path / "whole", RandomWalk())
    with pytest.raises(RuntimeError, match="power cut"):
        run_loop(tmp_path / "cut", RandomWalk(crash_at=crash_at))
    assert len(rows(tmp_path / "cut")) == crash_at
    run_loop(tmp_path / "cut", RandomWalk(), resume=True)
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")
    for name in ("step_000000", "step_000003", "step_000012"):
        file = f"evaluations/{name}.json"
        assert (tmp_path / "cut" / file).read_text() == (tmp_path / "whole" / file).read_text()
    # What the folder holds exactly is not written twice.
    assert ("weights" in load_trainer_state(tmp_path / "cut/checkpoints/last")) != saves_exactly


@pytest.mark.parametrize(
    "signals",
    [
        *((signal.SIGINT, signal.SIGTERM), (signal.SIGUSR1,)),
        pytest.param((signal.SIGINT,), marks=pytest.mark.slow),
        pytest.param((signal.SIGUSR1, signal.SIGTERM), marks=pytest.mark.slow),
    ],
)
def test_interrupt_finishes_the_step_and_leaves_a_checkpoint(tmp_path, signals):
    """Launchers may pass on the interrupt as a second signal."""
    loop = run_loop(tmp_path / "run", RandomWalk(interrupt_at=6, signals=signals))
    assert loop.interrupted and loop.steps_done == 7
    assert (tmp_path / "run/checkpoints/step_000007/weight.json").is_file()
    run_loop(tmp_path / "whole", RandomWalk())
    assert not run_loop(tmp_path / "run", RandomWalk(), resume=True).interrupted
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")


@pytest.mark.parametrize("fail_at", [0, 5, pytest.param(7, marks=pytest.mark.slow)])
def test_a_rollout_engine_that_fails_stops_the_run_at_a_checkpoint(tmp_path, fail_at):
    """Nothing was made of the step that failed: the resumed run equals an uninterrupted one."""
    loop = run_loop(tmp_path / "run", RandomWalk(crash_at=fail_at, crash=EngineError("the server has died")))
    assert loop.interrupted and loop.steps_done == fail_at and str(loop.failure) == "the server has died"
    assert fail_at == 0 or (tmp_path / f"run/checkpoints/step_{fail_at:06}/weight.json").is_file()
    assert not run_loop(tmp_path / "run", RandomWalk(), resume=True).interrupted
    run_loop(tmp_path / "whole", RandomWalk())
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")


def test_an_interrupt_that_ends_the_engine_as_well_is_an_interrupt(tmp_path):
    walk = RandomWalk(interrupt_at=6, crash_at=6, crash=EngineError("the engine got the signal, too"))
    loop = run_loop(tmp_path / "run", walk)
    assert loop.interrupted and loop.failure is None and loop.steps_done == 6
    assert (tmp_path / "run/checkpoints/step_000006/weight.json").is_file()


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_loop(tmp_path / "run", RandomWalk(interrupt_at=6, signals=(signal.SIGINT, signal.SIGINT)))
    assert len(rows(tmp_path / "run")) == 6


def test_evaluates_before_the_first_step_at_intervals_and_after_the_last(tmp_path):
    run_loop(tmp_path / "run", RandomWalk(), max_steps=7)
    names = sorted(path.name for path in (tmp_path / "run/evaluations").iterdir())
    assert names == [f"step_{step:06d}.json" for step in (0, 3, 6, 7)]


def test_time_limit_stops_after_the_step_in_which_it_passed(tmp_path):
    loop = run_loop(tmp_path / "run", RandomWalk(), max_seconds=1e-9)
    assert loop.steps_done == 1
    assert not loop.interrupted


def test_a_finished_run_resumed_does_nothing(tmp_path):
    run_loop(tmp_path / "run", RandomWalk())
    before = rows(tmp_path / "run")
    run_loop(tmp_path / "run", RandomWalk(crash_at=0), resume=True)
    assert rows(tmp_path / "run") == before


def resumed_with(folder, **changes):
    """A finished run whose newest state was changed, resumed for longer."""
    run_loop(folder, RandomWalk(), max_steps=5)
    checkpoint = folder / "checkpoints/step_000005"
    state = torch.load(checkpoint / STATE_FILE, weights_only=True) | changes
    torch.save({key: value for key, value in state.items() if value is not None}, checkpoint / STATE_FILE)
    file, manifest = checkpoint / STATE_FILE, json.loads((checkpoint / MANIFEST).read_text())
    manifest["files"][STATE_FILE] = {"bytes": file.stat().st_size, "sha256": sha256_of([file])}
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))
    return run_loop(folder, RandomWalk(), resume=True)


def many(levels=60):
    value = [1.0]
    for _ in range(levels):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "changes",
    [
        {"trainer": None}, {"trainer": 5}, {"trainer": {}}, {"weights": {}}, {"callbacks": [1]},
        {"steps_done": -1}, {"steps_done": 1}, {"steps_done": "x"}, {"training_seconds": math.inf},
        {"wall_seconds": "x"}, {"trainer": {"total": many()}}, {"callbacks": {"x": many()}},
    ],
)  # fmt: skip
def test_a_state_that_is_not_of_its_checkpoint_is_refused_and_nothing_is_removed(tmp_path, changes):
    with pytest.raises(CheckpointError, match=r"trainer\.pt: not the state of"):
        resumed_with(tmp_path / "run", **changes)
    assert [path.name for path in (tmp_path / "run/checkpoints").glob("step_*")] == ["step_000005"]
    assert len(rows(tmp_path / "run")) == 5


def test_a_state_whose_parts_are_compressed_is_refused(tmp_path):
    (tmp_path / "step").mkdir()
    torch.save({"a": torch.zeros(10)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "step" / STATE_FILE, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for part in plain.infolist():
            packed.writestr(part.filename, plain.read(part))
    with pytest.raises(CheckpointError, match="compressed"):
        load_trainer_state(tmp_path / "step")


def test_a_model_without_trainer_state_cannot_be_resumed_from(tmp_path):
    with pytest.raises(CheckpointError, match=r"no trainer\.pt"):
        load_trainer_state(tmp_path)


def test_the_time_limit_counts_training_alone_over_all_sessions(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("greenward.training.loop.time.perf_counter", lambda: now[0])

    class OneSecond(RandomWalk):
        def train_step(self, step):
            now[0] += 1.0
            return super().train_step(step)

    def slow_evaluation(policy, step, elapsed):
        now[0] += 1000.0
        return evaluate(policy, step, elapsed)

    left = []
    monkeypatch.setattr(Progress, "advance", lambda *_, eta=None, **__: left.append(eta))
    settings = {"max_steps": 50, "max_seconds": 6.0, "evaluate": slow_evaluation}
    first = run_loop(tmp_path, OneSecond(interrupt_at=2), **settings)
    assert first.interrupted and first.steps_done == 3
    second = run_loop(tmp_path, OneSecond(), resume=True, **settings)
    assert (second.steps_done, second.training_seconds) == (6, 6.0) and not second.interrupted
    assert left == [f"ETA 0:0{seconds}" for seconds in (5, 4, 3, 2, 1, 0)]


def test_callbacks_of_one_name_would_overwrite_each_other_and_are_refused(tmp_path):
    callbacks = [Callback(), Callback()]
    with (
        RunDirectory.create(tmp_path, {"seed": 7}) as run,
        Progress(quiet=True) as progress,
        pytest.raises(ConfigError, match="names of their own"),
    ):
        TrainingLoop(RandomWalk(), run, seed=7, max_steps=1, callbacks=callbacks, progress=progress)


class AllFail(RandomWalk):
    """Nothing passes: three answers that fail, one that the sandbox lost, and one game that was won."""

    def train_step(self, step):
        super().train_step(step)
        token = np.ones(1, dtype=np.int64)
        won = Turn("generator", (1,), token, np.zeros(1), np.ones(1, dtype=bool), StopReason.END, 0)
        episodes = [Episode((), {}, 0, "add", "failed", success=False, answer=f"def f{i}") for i in range(3)]
        episodes.append(Episode((), {}, 0, "add", "infrastructure", success=True, scored=False))
        episodes.append(Episode((won,), {"generator": 1.0}, 0, "code_game", "not_predicted"))
        metrics = {"reward/mean": 0.25, "reward/std": 0.0, "pass_rate": 0.0, "completion/truncated": 0.0}
        return StepRecord(metrics, episodes)


class Recorder(MetricSink):
    def __init__(self):
        self.values, self.tables, self.alerts = {}, [], []

    def log(self, step, values):
        self.values.setdefault(step, {}).update(values)

    def log_table(self, step, name, rows):
        self.tables.append((step, name, rows))

    def alert(self, step, title, text):
        self.alerts.append((step, title, text))


def test_trackers_get_the_names_of_others_tables_and_warnings(tmp_path):
    def evaluate(policy, step, elapsed):
        rows = [{"task_id": "add", "code": "x", "success": False}] * 5
        metric = {"value": 0.5, "low": 0.25, "high": 0.75}
        return {
            "suite": "mbpp",
            "step": step,
            "metrics": {"pass@1": metric},
            "problems_passed": 2,
            "rows": rows,
        }

    sink = Recorder()
    run_loop(tmp_path / "run", AllFail(), max_steps=6, evaluate=evaluate, sinks=[sink], tracked_samples=2)
    for step in range(1, 7):
        assert sink.values[step]["reward/avg_batch_reward"] == sink.values[step]["reward/mean"] == 0.25
        assert sink.values[step]["reward/successful_predictions_count"] == 1
    assert sink.values[3]["mbpp_eval/pass_rate"] == 0.5 and sink.values[3]["mbpp_eval/problems_passed"] == 2
    assert [(step, name, len(rows)) for step, name, rows in sink.tables if rows] == [
        (0, "mbpp_eval/samples", 2),
        *[(step, name, 2) for step in (3, 6) for name in ("mbpp_eval/samples", "rollouts")],
    ]
    assert sink.tables[-1][2][1]["answer"] == "def f1"
    ((step, title, text),) = sink.alerts  # once, when it begins
    assert step == 3 and "run" in title and "No answer passed" in text
    assert "reward/avg_batch_reward" not in rows(tmp_path / "run")[0]
