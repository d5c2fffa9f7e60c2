"""Implements the training loop: step, record, evaluate, checkpoint, stop cleanly, resume exactly.

It works for every trainer. Everything random in a step is seeded by the step's number, so a run that was cut
at any point and resumed writes the same metrics as one that was not. A stop leaves the step or evaluation
that is under way, and saves the state at the end of the last finished step.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from greenward.common import interruption
from greenward.common.errors import CheckpointError, ConfigError, EngineError
from greenward.common.files import expecting
from greenward.common.interruption import Stopped
from greenward.common.seeding import seed_everything
from greenward.models.policy import Policy
from greenward.rollouts.protocols import Episode
from greenward.runs.checkpoints import checkpoint_step, latest_checkpoint, save_checkpoint
from greenward.runs.directory import RunDirectory
from greenward.runs.files import OVERFLOWED
from greenward.runs.machine import available_mb, probe_seconds, resident_mb
from greenward.runs.progress import Progress, eta_in, evaluation_line
from greenward.runs.publish import model_card
from greenward.runs.reading import EVALUATIONS, evaluation_name, step_name, steps_in
from greenward.runs.trackers import MetricSink, evaluation_values, sample_rows, suite_group
from greenward.training import distributed
from greenward.training.protocols import Callback, Evaluator, NoSignalWarning, rollout_row

_MOST_NUMBERS = 1 << 16
_MOST_BYTES = 4 << 30
_MOST_OF_AVAILABLE = 0.25


class StepStart:
    """Keeps what `read` gives, the state of a trainer, while a step goes on.

    Plain values and small tensors are copied. Large tensors (weights, moments) are kept as they are: they
    change when an optimizer steps, near the end of most steps, and `is_kept` is false from then on. Where the
    step before took several optimizer steps, they are copied ahead of the first one, if they have at most 4
    GiB and a quarter of the available memory. A context manager, inside which optimizers are watched; nothing
    is kept unless it is `enabled`.
    """

    def __init__(self, read: Callable[[], dict[str, Any]], *, enabled: bool) -> None:
        self._read = read
        self._enabled = enabled
        self._optimizer_steps = 0
        self.has_copies = False

    def __enter__(self) -> StepStart:
        self._hook = register_optimizer_step_pre_hook(self._before_optimizer_step)
        self.keep()
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def keep(self) -> None:
        """Keep the state as it is now."""
        if not self._enabled:
            return
        self._is_to_be_copied, self._optimizer_steps, self.has_copies = self._optimizer_steps > 1, 0, False
        self._large: list[Tensor] = []
        self.state = self._copied(self._read(), _MOST_NUMBERS)
        self._versions = [tensor._version for tensor in self._large]

    @property
    def is_kept(self) -> bool:
        """Whether `state` is still that of the start."""
        if not self._enabled or self.has_copies:
            return self.has_copies
        unchanged = (one._version == was for one, was in zip(self._large, self._versions, strict=True))
        return self._optimizer_steps == 0 and all(unchanged)

    def _before_optimizer_step(self, *_: Any) -> None:
        if self._enabled and self._is_to_be_copied and self.is_kept and not self.has_copies:
            size = sum(one.numel() * one.element_size() for one in self._large)
            if size <= min(_MOST_BYTES, _MOST_OF_AVAILABLE * available_mb() * 2**20):
                self.state, self.has_copies = self._copied(self.state, None), True
        self._optimizer_steps += 1

    def _copied(self, value: Any, most: int | None) -> Any:
        """A copy, but for tensors of more than `most` numbers."""
        if isinstance(value, Tensor):
            if most is None or value.numel() <= most:
                return value.detach().to("cpu", copy=True)
            self._large.append(value)
            return value
        if isinstance(value, Mapping):
            return {key: self._copied(item, most) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._copied(item, most) for item in value)
        return value


class WeightAverage(Callback):
    """Keeps `policy`, the exponential moving average of the weights of `trained`, in float32.

    Of an adapted policy it averages the adapter's factors, whose product is nearly the average of the change.

    After step t, counted from 1, it becomes d * average + (1 - d) * weights, d = min(`decay`, (1 + t) /
    (10 + t)), so that the weights of the start are soon forgotten.
    """

    name = "weight_average"

    def __init__(self, trained: Policy, decay: float) -> None:
        self.policy = trained.trainable_copy()
        self._trained = trained
        self._decay = decay

    @torch.no_grad()
    def on_step_end(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        decay = min(self._decay, (1 + step) / (10 + step))
        for average, newest in zip(self.policy.parameters(), self._trained.parameters(), strict=True):
            if newest.requires_grad:
                average.lerp_(newest, 1 - decay)
        self.policy.version = self._trained.version

    def state_dict(self) -> dict[str, Any]:
        return dict(self.policy.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.policy.load_state_dict(state)


STATE_FILE = "trainer.pt"
MAX_STATE_VALUES = 10_000_000  # tensors count as one


@dataclass(frozen=True)
class StepRecord:
    """The metrics of one training step, and the episodes it was made from (none for supervised training)."""

    metrics: dict[str, float]
    episodes: Sequence[Episode] = ()


class Trained(Protocol):
    """What is trained: weights that can be saved and restored. `version` counts the updates behind them.

    With `saves_exactly`, `load_weights` restores from a folder of `save` what `state_dict` gave then.
    """

    version: int

    @property
    def device(self) -> torch.device: ...

    @property
    def saves_exactly(self) -> bool: ...

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...

    def save(self, folder: Path, /) -> None: ...

    def load_weights(self, folder: Path, /) -> None: ...


class Trainer(Protocol):
    """A way of learning: one step at a time, counted from 0, with a state that can be saved."""

    @property
    def policy(self) -> Trained: ...

    def train_step(self, step: int) -> StepRecord: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(eq=False)
class TrainingLoop:
    """Drives a trainer in a run directory.

    `max_seconds` bounds the training time (evaluation aside). `evaluators` each evaluate a suite, by the
    name that files and trackers use; None stands for the held-out problems. `callbacks` act at each step,
    in their order, and are saved with the trainer. `evaluated` is the policy that is evaluated and that
    checkpoints hold, in place of the trained one: an average of its weights, which a callback keeps.
    Every `log_interval_steps` steps have a row of metrics. `keep_best` keeps the checkpoint of the best
    evaluation beside the newest `keep_checkpoints`. `sinks` mirror metrics and warnings; each evaluation
    gives them `tracked_samples` of its answers and of the newest episodes. With `finishes_steps`, a stop
    waits for the end of the step, which must be short.
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
    finishes_steps: bool = False
    progress: Progress

    def __post_init__(self) -> None:
        self._evaluated: Trained = self.evaluated or self.trainer.policy
        self._rollouts: list[dict[str, Any]] = []  # of the newest step
        self._signal = NoSignalWarning(self.directory.config, self._warn)
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
        self._repeats_steps = distributed.size() == 1 and not self.finishes_steps
        self._under_way: Literal["step", "evaluation"] | None = None

    def run(self) -> None:
        """Train to the end, or to a clean stop (`interrupted`); the last step is checkpointed.

        A rollout engine that has failed ends the run in the same way, and is kept as `failure`: no step was
        made of what it did not answer.
        """
        self._restore()
        gc.freeze()  # a collection of garbage need not look through all that was imported
        with (
            interruption.stoppable(self._what_follows, may_stop=self._may_stop),
            StepStart(self._state, enabled=self._repeats_steps) as self._step_start,
        ):
            try:
                self._train()
            except Stopped:
                self.interrupted = True
            except EngineError as error:
                if distributed.size() > 1:  # the others are in the step, and cannot stop after it
                    raise
                # The interrupt that ends a training may have ended its engine, too.
                self.failure = None if interruption.requested() else error
                self.interrupted = True
            if self.interrupted and self.steps_done:
                self._checkpoint()

    def _train(self) -> None:
        while True:
            if self._is_evaluation_due():
                with self._unfinished("evaluation"):
                    self._evaluate()
            finished = self._finished()
            if self.steps_done and (finished or self.steps_done % self.checkpoint_interval_steps == 0):
                self._checkpoint()
            if finished:
                return
            if any(distributed.all_gather_object([interruption.requested()])):
                raise Stopped
            with self._unfinished("step"):
                started, computed = time.perf_counter(), time.process_time()
                seed_everything(self.seed, self.steps_done)
                for callback in self._callbacks:
                    callback.on_step_begin(self.steps_done + 1)
                record = self.trainer.train_step(self.steps_done)
            self._finish_step(record, started, computed)

    @contextmanager
    def _unfinished(self, what: Literal["step", "evaluation"]) -> Iterator[None]:
        """Inside, a stop leaves `what` to be repeated."""
        self._under_way = what
        try:
            yield
        finally:
            self._under_way = None

    def _may_stop(self) -> bool:
        """Whether `Stopped` may be raised here. Several processes stop together, between two steps."""
        if self._under_way == "evaluation":
            return distributed.size() == 1
        return self._under_way == "step" and self._step_start.is_kept

    def _what_follows(self) -> str:
        """What a stop brings about now."""
        if not distributed.is_first():
            return ""
        checkpoints = [path for _, path in steps_in(self.directory.checkpoints)]
        if self._finished() and self._under_way is None:
            return "Stopping; all steps are finished."
        what = f"; this {self._under_way} will be repeated" if self._may_stop() else " after this step"
        says = f"Stopping{what}. {interruption.AGAIN}"
        if not self.steps_done:
            return f"{says}\nNo step is finished: the same command starts again."
        newest = str(checkpoints[-1]) if checkpoints else "none"
        is_saved = bool(checkpoints) and checkpoints[-1].name == step_name(self.steps_done)
        saves = "" if is_saved else f"; step {self.steps_done} is being saved"
        return f"{says}\nLast checkpoint: {newest}{saves}."

    @property
    def wall_seconds(self) -> float:
        """Wall time of the run so far, over all sessions, evaluation included."""
        return time.perf_counter() - self._session_started

    def _finished(self) -> bool:
        out_of_time = self.max_seconds is not None and self.training_seconds >= self.max_seconds
        return self.steps_done >= self.max_steps or out_of_time

    def _is_evaluation_due(self) -> bool:
        """Whether an evaluation belongs to this step, and is missing for at least one suite."""
        is_due = self._finished() or self.steps_done % self.eval_interval_steps == 0
        if not self.steps_done:
            is_due = self.evaluate_at_start
        return is_due and any(map(self._is_missing, self.evaluators))

    def _is_missing(self, suite: str | None) -> bool:
        return not (self.directory.path / EVALUATIONS / evaluation_name(self.steps_done, suite)).is_file()

    def _finish_step(self, record: StepRecord, started: float, computed: float) -> None:
        """What follows a step that began at `started` (wall) and `computed` (CPU seconds)."""
        self.steps_done += 1
        metrics = record.metrics | {  # callbacks watch them, too
            "time/step": time.perf_counter() - started,
            "perf/cpu_seconds": time.process_time() - computed,
            "perf/probe_seconds": probe_seconds(),
            "perf/rss_mb": resident_mb(),
        }
        for callback in self._callbacks:
            callback.on_step_end(self.steps_done, record.episodes, metrics)
        # Those of the first process, so that all stop at once.
        seconds, *_ = distributed.all_gather_object([time.perf_counter() - started])
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
        self._step_start.keep()
        eta = None
        if self.max_seconds is not None:
            left = self.max_seconds - self.training_seconds
            if left < seconds * (self.max_steps - self.steps_done):  # the time ends before the steps do
                eta = eta_in(left)
        self.progress.advance(self.steps_done, metrics, warning=self._signal.brief, eta=eta)

    def _warn(self, text: str) -> None:
        self.progress.message(text)
        for sink in self.sinks:
            sink.alert(self.steps_done, f"{self.directory.path.name}: little to learn from", text)

    def _evaluate(self) -> None:
        for suite, evaluator in self.evaluators.items() if distributed.is_first() else ():
            if not self._is_missing(suite):
                continue
            interruption.check()
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

    def _state(self) -> dict[str, Any]:
        return {
            "trainer": self.trainer.state_dict(),
            "callbacks": {one.name: one.state_dict() for one in self._callbacks},
            "steps_done": self.steps_done,
            "training_seconds": self.training_seconds,
            "weights": self.trainer.policy.state_dict(),
            "policy_version": self.trainer.policy.version,
        }

    def _checkpoint(self) -> None:
        """Save the state at the end of the last finished step, if it is not saved yet."""
        if distributed.broadcast_from_rank0((self.directory.checkpoints / step_name(self.steps_done)).is_dir):
            return
        state = self._step_start.state if self._repeats_steps else self._state()
        state = state | {"wall_seconds": self.wall_seconds}
        if self._step_start.has_copies:
            self.trainer.policy.load_state_dict(state["weights"])
        policy = self.trainer.policy
        if distributed.size() == 1 and self._evaluated is policy and policy.saves_exactly:
            del state["weights"]  # the largest part of the state would be written twice

        def write(folder: Path) -> None:
            # A model replaces the folder that it is saved to, while the state is written beside it.
            with (
                tempfile.TemporaryDirectory(prefix=folder.name, dir=folder.parent) as beside,
                ThreadPoolExecutor(1) as other,
            ):
                saved = other.submit(_save_state, state, Path(beside, STATE_FILE))
                self._evaluated.save(folder)  # in this thread: glibc gives another one a heap of its own
                saved.result()
                os.replace(Path(beside, STATE_FILE), folder / STATE_FILE)
            card = model_card(self.directory.path, self.steps_done)
            (folder / "README.md").write_text(card, encoding="utf-8")

        kept = self.keep_checkpoints, self.keep_spaced_checkpoints
        distributed.broadcast_from_rank0(
            partial(save_checkpoint, self.directory, self.steps_done, write, *kept, keep_best=self.keep_best)
        )

    def _restore(self) -> None:
        """Restore the newest sound checkpoint and remove what was written after it."""
        checkpoint = distributed.broadcast_from_rank0(lambda: latest_checkpoint(self.directory))
        if checkpoint is None:
            self.directory.truncate_after(0)
            return
        state = load_trainer_state(checkpoint)
        with expecting("the state of this training", checkpoint / STATE_FILE, CheckpointError, RuntimeError):
            if (steps := checkpoint_step(checkpoint)) != state["steps_done"]:
                raise ValueError(f"it is of step {state['steps_done']}, in the checkpoint of step {steps}")
            seconds = [float(state[name]) for name in ("training_seconds", "wall_seconds")]
            if not all(0 <= number < OVERFLOWED for number in seconds):
                raise ValueError(f"it has trained for {seconds} seconds")
            if "weights" in state:
                self.trainer.policy.load_state_dict(state["weights"])
            else:
                self.trainer.policy.load_weights(checkpoint)
            self.trainer.policy.version = state["policy_version"]
            self.trainer.load_state_dict(state["trainer"])
            for callback in self._callbacks:
                callback.load_state_dict(state["callbacks"].get(callback.name, {}))
        self.steps_done, self.training_seconds = steps, seconds[0]
        self._session_started -= seconds[1]
        self.directory.truncate_after(steps)


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


def _save_state(state: dict[str, Any], file: Path) -> None:
    """Write it without CRC-32; the manifest of a checkpoint has a SHA-256 of each file."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state, file)
    finally:
        torch.serialization.set_crc32_options(before)


def load_trainer_state(checkpoint: Path) -> dict[str, Any]:
    """The trainer's state in a checkpoint folder. Raises `CheckpointError` if it is not there."""
    file = checkpoint / STATE_FILE
    if not file.is_file():
        raise CheckpointError(
            f"{checkpoint} holds a model but no {STATE_FILE}: training cannot be resumed from it.",
            remedy="Start a new run with model.id set to this folder.",
        )
    others = RuntimeError, EOFError, UnpicklingError, zipfile.BadZipFile
    with expecting("the state of a training", file, CheckpointError, *others):
        with zipfile.ZipFile(file) as parts:
            if any(part.compress_type != zipfile.ZIP_STORED for part in parts.infolist()):
                raise ValueError("its parts are compressed, which those of torch are not")
        state = torch.load(file, map_location="cpu", weights_only=True)
        _measure(state, {})
        return state


def _measure(value: Any, measured: dict[int, int]) -> int:
    """The values that a state stands for; one that occurs in several places counts in each.

    Raises `ValueError` for more than `MAX_STATE_VALUES`, `RecursionError` for a state that contains itself.
    """
    if not isinstance(value, dict | list | tuple | set):
        return 1
    if id(value) not in measured:
        inner = chain(value, value.values()) if isinstance(value, dict) else value
        measured[id(value)] = 1 + sum(_measure(one, measured) for one in inner)
        if measured[id(value)] > MAX_STATE_VALUES:
            raise ValueError(f"it stands for more than {MAX_STATE_VALUES} values")
    return measured[id(value)]
