"""The training loop: step, record, evaluate, checkpoint, stop cleanly, resume exactly.

It is blind to the method. Everything random in a step is seeded by the step's number, so a run
that was cut at any point and resumed writes the same metrics as one that was not.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch

from greenward.algorithms.seeding import seed_everything
from greenward.errors import CheckpointError
from greenward.no_signal import MIN_STEPS, spells
from greenward.policies.policy import Policy
from greenward.runs.checkpoints import latest_checkpoint, save_checkpoint
from greenward.runs.directory import RunDirectory
from greenward.runs.evaluations import evaluation_values
from greenward.runs.memory import resident_mb
from greenward.runs.progress import Progress, evaluation_line
from greenward.runs.sinks import MetricSink

STATE_FILE = "trainer.pt"


class Method(Protocol):
    """A way of learning: one step at a time, with a state that can be saved."""

    policy: Policy

    def step(self, step: int) -> dict[str, float]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


Evaluator = Callable[[Policy, int, float], dict[str, Any]]
"""(policy, step, training seconds so far) -> an evaluation as plain data."""


class StopRequest:
    """Turns Ctrl-C or SIGTERM into a clean stop after the step; a second Ctrl-C ends at once.

    A further SIGTERM changes nothing: a launcher passes on the Ctrl-C that the terminal already sent.
    """

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> StopRequest:
        self._previous = {
            number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True


class Loop:
    """Drives a method in a run directory.

    `max_seconds` bounds the training time (evaluation aside). `evaluator` measures the held-out
    problems, `suite_evaluators` each a suite, by the name that files and trackers use.
    `rollout_rows` gives the rows to be kept of the last step, if any.
    """

    def __init__(
        self,
        method: Method,
        run: RunDirectory,
        *,
        seed: int,
        max_steps: int,
        max_seconds: float | None = None,
        evaluator: Evaluator | None = None,
        suite_evaluators: Mapping[str, Evaluator] | None = None,
        evaluate_at_start: bool = True,
        eval_interval_steps: int = 20,
        checkpoint_interval_steps: int = 20,
        keep_checkpoints: int = 2,
        rollout_rows: Callable[[], Sequence[Mapping[str, Any]]] | None = None,
        sinks: Sequence[MetricSink] = (),
        progress: Progress,
    ) -> None:
        self._method = method
        self._run = run
        self._seed = seed
        self._max_steps = max_steps
        self._max_seconds = max_seconds
        self._evaluators: dict[str | None, Evaluator] = {} if evaluator is None else {None: evaluator}
        self._evaluators.update(suite_evaluators or {})
        self._evaluate_at_start = evaluate_at_start
        self._eval_interval = eval_interval_steps
        self._checkpoint_interval = checkpoint_interval_steps
        self._keep = keep_checkpoints
        self._rollout_rows = rollout_rows
        self._sinks = sinks
        self._progress = progress
        self.steps_done = 0
        self.training_seconds = 0.0
        self.interrupted = False
        self._session_started = time.perf_counter()
        self._newest_rows: deque[Mapping[str, float]] = deque(maxlen=MIN_STEPS)
        self._causes_said: set[str] = set()

    def run(self) -> None:
        """Train to the end, or to a clean stop (`interrupted`); the last step is checkpointed."""
        self._restore()
        with StopRequest() as stop:
            if self.steps_done == 0 and self._evaluate_at_start:
                self._evaluate()
            while not self._finished() and not stop.requested:
                self._step()
                finished = self._finished()
                if finished or self.steps_done % self._eval_interval == 0:
                    self._evaluate()
                if finished or stop.requested or self.steps_done % self._checkpoint_interval == 0:
                    self._checkpoint()
            self.interrupted = stop.requested and not self._finished()

    @property
    def wall_seconds(self) -> float:
        """Wall time of the run so far, over all sessions, evaluation included."""
        return time.perf_counter() - self._session_started

    def _finished(self) -> bool:
        out_of_time = self._max_seconds is not None and self.training_seconds >= self._max_seconds
        return self.steps_done >= self._max_steps or out_of_time

    def _step(self) -> None:
        started = time.perf_counter()
        seed_everything(self._seed, self.steps_done)
        metrics = self._method.step(self.steps_done)
        self.steps_done += 1
        seconds = time.perf_counter() - started
        self.training_seconds += seconds
        metrics |= {
            "time/step": seconds,
            "time/training": self.training_seconds,
            "perf/rss_mb": resident_mb(),
        }
        if torch.cuda.is_initialized() and self._method.policy.device.type == "cuda":
            metrics["perf/device_memory_mb"] = _peak_device_memory_mb(self._method.policy.device)
        self._record(metrics)
        if self._rollout_rows is not None:
            self._run.write_rollouts(self.steps_done, self._rollout_rows())
        self._progress.advance(
            self.steps_done,
            reward=metrics.get("reward/mean"),
            pass_rate=metrics.get("pass_rate"),
            loss=metrics.get("loss"),
            tokens_per_second=metrics.get("perf/tokens_per_second"),
            warning=self._no_signal(metrics),
        )

    def _no_signal(self, metrics: Mapping[str, float]) -> str | None:
        """In a few words, why the newest steps taught nothing; a message says more when that begins."""
        self._newest_rows.append({"step": self.steps_done, **metrics})
        found = spells(self._newest_rows, self._run.config)
        if not found:
            self._causes_said.clear()
            return None
        cause = found[0].cause
        if cause.brief not in self._causes_said:
            self._causes_said.add(cause.brief)
            self._progress.message(f"Step {self.steps_done}, and {MIN_STEPS - 1} before: {cause}")
        return cause.brief

    def _record(self, metrics: Mapping[str, float]) -> None:
        self._run.metrics.append(self.steps_done, metrics)
        for sink in self._sinks:
            sink.log(self.steps_done, metrics)

    def _evaluate(self) -> None:
        for suite, evaluator in self._evaluators.items():
            result = evaluator(self._method.policy, self.steps_done, self.training_seconds)
            self._run.write_evaluation(self.steps_done, result, suite)
            values = evaluation_values(result)
            for sink in self._sinks:
                sink.log(self.steps_done, values)
            self._progress.message(evaluation_line(result, suite or "held-out"))

    def _checkpoint(self) -> None:
        def write(folder: Path) -> None:
            self._method.policy.save(folder)
            torch.save(
                {
                    "method": self._method.state_dict(),
                    "steps_done": self.steps_done,
                    "training_seconds": self.training_seconds,
                    "wall_seconds": self.wall_seconds,
                    # The folder holds weights in the model's dtype; resuming needs the exact ones.
                    "weights": self._method.policy.state_dict(),
                    "policy_version": self._method.policy.version,
                },
                folder / STATE_FILE,
            )

        save_checkpoint(self._run, self.steps_done, write, keep=self._keep)

    def _restore(self) -> None:
        """Go back to the newest sound checkpoint and forget what was written after it."""
        checkpoint = latest_checkpoint(self._run)
        if checkpoint is None:
            self._run.truncate_after(-1)
            return
        state = load_trainer_state(checkpoint)
        self._method.policy.load_state_dict(state["weights"])
        self._method.policy.version = state["policy_version"]
        self._method.load_state_dict(state["method"])
        self.steps_done = state["steps_done"]
        self.training_seconds = state["training_seconds"]
        self._session_started -= state["wall_seconds"]
        self._run.truncate_after(self.steps_done)


def _peak_device_memory_mb(device: torch.device) -> float:
    """The most memory, in MiB, that tensors have held on a CUDA device since the last call."""
    peak = torch.cuda.max_memory_allocated(device) / 2**20
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def load_trainer_state(checkpoint: Path) -> dict[str, Any]:
    """The trainer's state in a checkpoint folder. Raises `CheckpointError` if it is not there."""
    file = checkpoint / STATE_FILE
    if not file.is_file():
        raise CheckpointError(
            f"{checkpoint} holds a model but no {STATE_FILE}: training cannot be resumed from it.",
            remedy="Start a new run with model.id set to this folder.",
        )
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return state
