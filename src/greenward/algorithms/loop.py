"""The training loop: step, record, evaluate, checkpoint, stop cleanly, resume exactly.

It works for every trainer. Everything random in a step is seeded by the step's number, so a run
that was cut at any point and resumed writes the same metrics as one that was not.
"""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from types import FrameType
from typing import Any, Protocol

import torch

from greenward.algorithms import distributed
from greenward.algorithms.callbacks import Callback, SignalWarning, rollout_row
from greenward.environments.episode import Episode
from greenward.errors import CheckpointError, ConfigError, EngineError
from greenward.reports.model_card import model_card
from greenward.runs.checkpoints import latest_checkpoint, save_checkpoint
from greenward.runs.directory import RunDirectory
from greenward.runs.machine import probe_seconds, resident_mb
from greenward.runs.progress import Progress, evaluation_line
from greenward.runs.tracker_sinks import MetricSink
from greenward.runs.trackers import evaluation_values, sample_rows, suite_group
from greenward.seeding import seed_everything
from greenward.user_files import expecting

STATE_FILE = "trainer.pt"


@dataclass(frozen=True)
class StepRecord:
    """The metrics of one training step, and the episodes it was made from (none for supervised training)."""

    metrics: dict[str, float]
    episodes: Sequence[Episode] = ()


class Trained(Protocol):
    """What is trained: weights that can be saved and restored. `version` counts the updates behind them."""

    version: int

    @property
    def device(self) -> torch.device: ...

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...

    def save(self, folder: Path, /) -> None: ...


class Trainer(Protocol):
    """A way of learning: one step at a time, counted from 0, with a state that can be saved."""

    @property
    def policy(self) -> Trained: ...

    def train_step(self, step: int) -> StepRecord: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


Evaluator = Callable[[Any, int, float], dict[str, Any]]
"""(policy, step, training seconds so far) -> an evaluation as plain data."""


class StopRequest:
    """Turns Ctrl-C, SIGTERM or SIGUSR1 into a clean stop after the step; a second Ctrl-C ends at once.

    A further SIGTERM changes nothing: a launcher passes on the Ctrl-C that the terminal already sent.
    Schedulers send SIGUSR1 when the time limit of a job is near.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> StopRequest:
        self._previous = {number: signal.signal(number, self._handle) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def in_any_process(self) -> bool:
        """Whether any of the processes that train together is to stop."""
        return any(distributed.gathered([self.requested]))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True


@dataclass(eq=False)
class TrainingLoop:
    """Drives a trainer in a run directory.

    `max_seconds` bounds the training time (evaluation aside). `evaluators` each evaluate a suite, by the
    name that files and trackers use; None stands for the held-out problems. `callbacks` act at each step,
    in their order, and are saved with the trainer. `evaluated` is the policy that is evaluated and that
    checkpoints hold, in place of the trained one: an average of its weights, which a callback keeps.
    Every `log_interval_steps` steps have a row of metrics. `keep_best` keeps the checkpoint of the best
    evaluation beside the newest `keep_checkpoints`. `sinks` mirror metrics and warnings; each evaluation
    gives them `tracked_samples` of its answers and of the newest episodes.
    """

    trainer: Trainer
    directory: RunDirectory
    _: KW_ONLY
    seed: int
    max_steps: int
    max_seconds: float | None = None
    evaluators: Mapping[str | None, Evaluator] = field(default_factory=dict)
    evaluate_at_start: bool = True
    eval_interval_steps: int = 20
    checkpoint_interval_steps: int = 20
    keep_checkpoints: int = 2
    keep_best: bool = False
    log_interval_steps: int = 1
    keep_spaced_checkpoints: int = 0
    callbacks: Sequence[Callback] = ()
    evaluated: Trained | None = None
    sinks: Sequence[MetricSink] = ()
    tracked_samples: int = 4
    progress: Progress

    def __post_init__(self) -> None:
        self._evaluated: Trained = self.evaluated or self.trainer.policy
        self._rollouts: list[dict[str, Any]] = []  # of the newest step
        self._signal = SignalWarning(self.directory.config, self._warn)
        self._callbacks = [*self.callbacks, self._signal]
        names = [callback.name for callback in self._callbacks]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"callbacks need names of their own, under which checkpoints keep their state, found {names}."
            )
        self.steps_done = 0
        self.training_seconds = 0.0
        self.interrupted = False
        self.failure: EngineError | None = None
        self._session_started = time.perf_counter()

    def run(self) -> None:
        """Train to the end, or to a clean stop (`interrupted`); the last step is checkpointed.

        A rollout engine that has failed ends the run in the same way, and is kept as `failure`: no step was
        made of what it did not answer.
        """
        self._restore()
        gc.freeze()  # a collection of garbage need not look through all that was imported
        with StopRequest() as stop:
            if self.steps_done == 0 and self.evaluate_at_start:
                self._evaluate()
            stopping = stop.in_any_process()
            while not self._finished() and not stopping:
                try:
                    self._step()
                except EngineError as error:
                    if distributed.size() > 1:  # the others are in the step, and cannot stop after it
                        raise
                    # The interrupt that ends a training may have ended its engine, too.
                    self.failure = None if stop.requested else error
                    stopping = True
                    if self.steps_done % self.checkpoint_interval_steps:
                        self._checkpoint()
                    break
                finished = self._finished()
                if finished or self.steps_done % self.eval_interval_steps == 0:
                    self._evaluate()
                stopping = stop.in_any_process()
                if finished or stopping or self.steps_done % self.checkpoint_interval_steps == 0:
                    self._checkpoint()
            self.interrupted = stopping and not self._finished()

    @property
    def wall_seconds(self) -> float:
        """Wall time of the run so far, over all sessions, evaluation included."""
        return time.perf_counter() - self._session_started

    def _finished(self) -> bool:
        out_of_time = self.max_seconds is not None and self.training_seconds >= self.max_seconds
        return self.steps_done >= self.max_steps or out_of_time

    def _step(self) -> None:
        started, computed = time.perf_counter(), time.process_time()
        seed_everything(self.seed, self.steps_done)
        for callback in self._callbacks:
            callback.on_step_begin(self.steps_done + 1)
        record = self.trainer.train_step(self.steps_done)
        self.steps_done += 1
        metrics = record.metrics | {  # callbacks watch them, too
            "time/step": time.perf_counter() - started,
            "perf/cpu_seconds": time.process_time() - computed,
            "perf/probe_seconds": probe_seconds(),
            "perf/rss_mb": resident_mb(),
        }
        for callback in self._callbacks:
            callback.on_step_end(self.steps_done, record.episodes, metrics)
        seconds = distributed.gathered([time.perf_counter() - started])[0]  # by which all stop at once
        self.training_seconds += seconds
        metrics |= {"time/step": seconds, "time/training": self.training_seconds}
        if torch.cuda.is_initialized() and (device := self.trainer.policy.device).type == "cuda":
            metrics["perf/device_memory_mb"] = torch.cuda.max_memory_allocated(device) / 2**20
            torch.cuda.reset_peak_memory_stats(device)
        logs = self.steps_done % self.log_interval_steps == 0
        if logs:
            self.directory.metrics.append(self.steps_done, metrics)
        self._rollouts = list(map(rollout_row, record.episodes[: self.tracked_samples]))
        for sink in self.sinks if logs else ():
            sink.log(self.steps_done, metrics | _names_of_others(metrics, record.episodes))
        self.progress.advance(self.steps_done, metrics, warning=self._signal.brief)

    def _warn(self, text: str) -> None:
        self.progress.message(text)
        for sink in self.sinks:
            sink.alert(self.steps_done, f"{self.directory.path.name}: little to learn from", text)

    def _evaluate(self) -> None:
        for suite, evaluator in self.evaluators.items() if distributed.is_first() else ():
            result = evaluator(self._evaluated, self.steps_done, self.training_seconds)
            self.directory.write_evaluation(self.steps_done, result, suite)
            values, table = evaluation_values(result), f"{suite_group(result)}/samples"
            if suite is None and "greedy_pass@1" in result["metrics"]:
                values["SuccessRate/Test"] = result["metrics"]["greedy_pass@1"]["value"]
            for sink in self.sinks:
                sink.log(self.steps_done, values)
                sink.log_table(
                    self.steps_done, table, sample_rows(result.get("rows", ()), self.tracked_samples)
                )
            self.progress.message(evaluation_line(result, suite or "held-out"))
        for sink in self.sinks:
            sink.log_table(self.steps_done, "rollouts", sample_rows(self._rollouts, self.tracked_samples))

    def _checkpoint(self) -> None:
        state = {
            "trainer": self.trainer.state_dict(),
            "callbacks": {one.name: one.state_dict() for one in self._callbacks},
            "steps_done": self.steps_done,
            "training_seconds": self.training_seconds,
            "wall_seconds": self.wall_seconds,
            # The folder holds weights in the model's dtype; resuming needs the exact ones.
            "weights": self.trainer.policy.state_dict(),
            "policy_version": self.trainer.policy.version,
        }

        def write(folder: Path) -> None:
            self._evaluated.save(folder)
            card = model_card(self.directory.path, self.steps_done)
            (folder / "README.md").write_text(card, encoding="utf-8")
            torch.save(state, folder / STATE_FILE)

        kept = self.keep_checkpoints, self.keep_spaced_checkpoints
        distributed.from_first(
            partial(save_checkpoint, self.directory, self.steps_done, write, *kept, keep_best=self.keep_best)
        )

    def _restore(self) -> None:
        """Restore the newest sound checkpoint and remove what was written after it."""
        checkpoint = distributed.from_first(lambda: latest_checkpoint(self.directory))
        if checkpoint is None:
            self.directory.truncate_after(-1)
            return
        state = load_trainer_state(checkpoint)
        self.trainer.policy.load_state_dict(state["weights"])
        self.trainer.policy.version = state["policy_version"]
        self.trainer.load_state_dict(state["trainer"])
        for callback in self._callbacks:
            callback.load_state_dict(state["callbacks"].get(callback.name, {}))
        self.steps_done = state["steps_done"]
        self.training_seconds = state["training_seconds"]
        self._session_started -= state["wall_seconds"]
        self.directory.truncate_after(self.steps_done)


def _names_of_others(metrics: Mapping[str, float], episodes: Sequence[Episode]) -> dict[str, float]:
    """The names under which users of other trainers look for a step's rewards on a tracker.

    A successful prediction is an episode that passed or, in a game, earned the policy more than it lost: a
    program in the game of code whose output the opponent did not predict.
    """
    if "reward/mean" not in metrics:
        return {}
    if "epsilon" in metrics:  # Q-learning
        known = {"Reward/Episode": "reward/mean", "Loss/Train": "loss", "SuccessRate/Train": "pass_rate"}
        return {name: metrics[own] for name, own in known.items() if own in metrics}
    scored = [episode for episode in episodes if episode.scored]
    successes = sum(one.reward > 0 if one.success is None else one.success for one in scored)
    return {
        "reward/avg_batch_reward": metrics["reward/mean"],
        "reward/successful_predictions_count": float(successes),
    }


def load_trainer_state(checkpoint: Path) -> dict[str, Any]:
    """The trainer's state in a checkpoint folder. Raises `CheckpointError` if it is not there."""
    file = checkpoint / STATE_FILE
    if not file.is_file():
        raise CheckpointError(
            f"{checkpoint} holds a model but no {STATE_FILE}: training cannot be resumed from it.",
            remedy="Start a new run with model.id set to this folder.",
        )
    with expecting("the state of a training", file, CheckpointError, RuntimeError, EOFError, UnpicklingError):
        return torch.load(file, map_location="cpu", weights_only=True)
