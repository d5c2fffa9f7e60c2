"""Records the training of another trainer as a run folder that greenward reads: metrics and some answers.

`record(trainer, folder)` is for TRL and transformers, `VerlLogger` and `OpenRLHFLogger` are the loggers of
those trainers, and `Recorder.log` is for any other loop. The folder holds `metrics.jsonl` and
`rollouts/step_000012.jsonl`, as the runs of our trainer do.
"""

from __future__ import annotations

import atexit
import inspect
import math
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias

from greenward.common.errors import Closeable, RunError
from greenward.common.text import visible, without_keys
from greenward.diagnostics.monitor import logged_number
from greenward.integrations.rewards import content_of, texts_of
from greenward.runs.directory import MetricsFile, has_steps
from greenward.runs.files import append_row, dump_json, write_atomically, writing
from greenward.runs.output import RunLock, check_folder, claim_folder
from greenward.runs.reading import METRICS, ROLLOUTS, is_step, step_name

BEST, WORST, OTHERS = 2, 2, 4  # answers of a step that are kept
CHARACTERS = 20_000  # of a text that are kept; readers take no more
_WAITING = 256  # entries that may wait for the disk
_SECONDS = 10.0  # that a flush may take
_COPIED = ("group", "tokens", "status", "stop")


class _Candidate(NamedTuple):
    """An answer of a step: its place among them, its reward, and a random number that chooses it or not."""

    place: int
    reward: float
    lot: float
    row: Mapping[str, Any]


_Entry: TypeAlias = tuple[int, dict[str, float], list[_Candidate]]


class Recorder(Closeable):
    """Writes metrics and a part of the answers of each step into the run folder at `folder`.

    Of the answers of a step it keeps the 2 of the highest and the 2 of the lowest reward, and 4 others by
    chance (`seed`). Texts end after 20,000 characters.

    - TRL: what it logs (set `logging_steps=1`), and what its reward functions were given in training;
      advantages of `GRPOTrainer`. A reward *model* is no function: its term is missing.
    - transformers: what it logs; no answers.
    - verl: what goes to `Tracking.log`; `trainer.rollout_data_dir=runs/mine/rollouts` makes verl write all
      answers, which `diagnose` reads.
    - OpenRLHF: what goes to `log_train` and `log_eval`, and the one answer a step that OpenRLHF gives its
      loggers.
    - A loop of one's own: the first argument of `log` after the step, and `answers=`.

    Only the process of `rank` 0 writes (default: the environment variable RANK, or what the trainer says). A
    thread writes, and `log` never waits for it: where the disk is too slow, entries are dropped and counted
    in `dropped`. What was logged is on disk after `flush`, `close`, the end of the process by itself or by
    an exception, and SIGTERM, where the main thread made the recorder (a handler of the program's own is
    called afterwards). SIGKILL loses what waits for the disk. Nothing but the constructor raises: the first
    failure is printed, and the training goes on. `resume=True` appends to the folder of a run; the last
    value of a repeated step counts.

    Raises:
        RunError: the folder holds a run and `resume` is not given, it is not greenward's, or it cannot be
        written.
    """

    def __init__(
        self, folder: str | Path, *, resume: bool = False, seed: int = 0, rank: int | None = None
    ) -> None:
        self.path, self.dropped = Path(folder), 0
        self._seed, self._step, self._places = seed, -1, 0
        self._lots = random.Random()
        self._kept_step, self._kept = -1, list[_Candidate]()  # of the newest file of answers
        self._has_failed = False
        self._process: int | None = None  # that writes
        if str(os.environ.get("RANK", 0) if rank is None else rank) != "0":
            return
        check_folder(self.path, "run")
        if has_steps(self.path) and not resume:
            raise RunError(
                f"{self.path} already holds a run",
                remedy="Append to it by resume=True, or choose another folder.",
            )
        claim_folder(self.path, "run")
        self._lock = RunLock(self.path)
        try:
            with writing(str(self.path)):
                (self.path / ROLLOUTS).mkdir(exist_ok=True)
            MetricsFile(self.path / METRICS)  # cuts off a torn line that a kill left
        except BaseException:
            self._lock.release()
            raise
        self._queue: SimpleQueue[_Entry | threading.Event | None] = SimpleQueue()  # `put` in a signal handler
        self._thread = threading.Thread(target=self._work, name="greenward-recorder", daemon=True)
        self._thread.start()
        self._process = os.getpid()
        atexit.register(self.close)
        self._catches_sigterm = threading.current_thread() is threading.main_thread()
        if self._catches_sigterm:
            self._before = signal.signal(signal.SIGTERM, self._on_sigterm)

    @property
    def writes(self) -> bool:
        """Whether this process writes: that of rank 0, no fork of it, until it is closed."""
        return self._process == os.getpid()

    def log(
        self, step: int, metrics: Mapping[str, Any] | None = None, answers: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        """Record metrics, answers or both of a step; it may be called several times for a step.

        Of metrics, numbers of Python, NumPy and torch count. An answer is a mapping with `answer` (its text),
        and where they are known `task` (an id), `prompt`, `reward`, `terms` (a number by name), `advantage`,
        `group`, `tokens`, `status` and `stop`.
        """
        if not self.writes:
            return
        try:
            step = int(step)
            if not is_step(step):
                raise ValueError(f"expected a step from 0 on, found {step}")
            if step != self._step:
                self._step, self._places = step, 0
                self._lots = random.Random(f"{self._seed} {step}")
            numbers = {str(name): logged_number(value) for name, value in (metrics or {}).items()}
            candidates = [self._candidate(one) for one in answers]
            if self._queue.qsize() >= _WAITING:
                self.dropped += 1
                return
            row = {name: number for name, number in numbers.items() if number is not None and name != "step"}
            self._queue.put((step, row, _chosen(candidates)))
        except Exception as error:  # a training must not die of its recorder
            self._report(error)

    def flush(self, seconds: float = _SECONDS) -> bool:
        """Wait until all that was logged is on disk, `seconds` at most; whether it is."""
        if not self.writes:
            return True
        written = threading.Event()
        self._queue.put(written)
        return written.wait(seconds)

    def close(self) -> None:
        """Flush, and let others write the folder. Later calls of `log` do nothing."""
        if not self.writes:
            return
        self.flush()
        self._process = None
        self._queue.put(None)
        atexit.unregister(self.close)
        if self._catches_sigterm and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, self._before)
        self._lock.release()
        if self.dropped:
            self._say(f"{self.dropped} entries were dropped, because the disk was too slow for them.")

    def _candidate(self, answer: Mapping[str, Any]) -> _Candidate:
        reward, advantage = (logged_number(answer.get(name)) for name in ("reward", "advantage"))
        terms = {str(name): logged_number(value) for name, value in (answer.get("terms") or {}).items()}
        row: dict[str, Any] = {name: answer[name] for name in _COPIED if answer.get(name) is not None}
        for name, text in (("problem", answer.get("task")), ("prompt", answer.get("prompt"))):
            if text is not None:
                row[name] = str(text)[:CHARACTERS]
        row["answer"] = str(answer.get("answer", ""))[:CHARACTERS]
        row["rewards"] = {} if reward is None else {"policy": reward}
        row["terms"] = {name: number for name, number in terms.items() if number is not None}
        if advantage is not None:
            row["advantage"] = advantage
        self._places += 1
        return _Candidate(self._places, math.nan if reward is None else reward, self._lots.random(), row)

    def _work(self) -> None:
        """What the thread does: write what waits, until None does."""
        while (entry := self._queue.get()) is not None:
            if isinstance(entry, threading.Event):
                entry.set()
                continue
            try:
                self._write(*entry)
            except Exception as error:
                self._report(error)

    def _write(self, step: int, metrics: Mapping[str, float], answers: list[_Candidate]) -> None:
        if metrics:
            append_row(self.path / METRICS, {"step": step, **metrics})
        if answers:
            earlier = self._kept if step == self._kept_step else []
            self._kept_step, self._kept = step, _chosen([*earlier, *answers])
            content = "".join(f"{dump_json(one.row)}\n" for one in self._kept)
            file = self.path / ROLLOUTS / f"{step_name(step)}.jsonl"
            write_atomically(file, content.encode(), forced=False)

    def _on_sigterm(self, number: int, frame: Any) -> None:
        self.flush()  # nothing in a fork, such as a worker of a data loader
        if callable(self._before):
            self._before(number, frame)
        elif self._before == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _report(self, error: Exception) -> None:
        """Say the first failure."""
        if not self._has_failed:
            self._has_failed = True
            self._say(f"the recorder failed, and the training goes on: {type(error).__name__}: {error}")

    def _say(self, text: str) -> None:
        print(visible(without_keys(f"greenward, {self.path}: {text}"), 500), file=sys.stderr)


def _chosen(answers: list[_Candidate]) -> list[_Candidate]:
    """The answers that are kept, in their order; of two such selections together, again those of all."""
    ranked = sorted((one for one in answers if math.isfinite(one.reward)), key=lambda one: one.reward)
    extreme = {one.place for one in (*ranked[:WORST], *ranked[max(0, len(ranked) - BEST) :])}
    others = sorted((one for one in answers if one.place not in extreme), key=lambda one: one.lot)
    kept = extreme | {one.place for one in others[:OTHERS]}
    return [one for one in answers if one.place in kept]


def record(trainer: Any, folder: str | Path, *, resume: bool = False, seed: int = 0) -> Recorder:
    """Record a trainer of TRL or transformers, or all runs of a class like verl's `Tracking`.

    Of a trainer, a callback records what it logs, and its reward functions are wrapped to record answers in
    training; a reward that is a model has no function to wrap. Of `verl.utils.tracking.Tracking`, each object
    made from now on gets a `VerlLogger`. Raises as `Recorder` does.
    """
    if isinstance(trainer, type):
        logger = VerlLogger(folder, resume=resume, seed=seed)
        _add_to_tracking(trainer, logger)
        return logger.recorder
    recorder = Recorder(folder, resume=resume, seed=seed, rank=0 if trainer.is_world_process_zero() else 1)
    if recorder.writes:
        seen = _TRLAnswers(trainer)
        trainer.add_callback(_callback(recorder, seen))
    return recorder


def _callback(recorder: Recorder, seen: _TRLAnswers) -> Any:
    from transformers import TrainerCallback

    class RecorderCallback(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "train_runtime" not in logs:
                recorder.log(state.global_step, logs)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            recorder.log(state.global_step, answers=seen.taken())

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            recorder.flush()

    return RecorderCallback()


class _Batch(NamedTuple):
    """The answers that a reward function was given, its columns, and the rewards of each function."""

    answers: Sequence[Any]
    columns: Mapping[str, Any]
    rewards: dict[str, Sequence[Any]]


class _TRLAnswers:
    """The answers that the reward functions of a TRL trainer are given while it trains."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._batches = trainer, list[_Batch]()
        functions = getattr(trainer, "reward_funcs", [])
        self._names = [str(name) for name in getattr(trainer, "reward_func_names", range(len(functions)))]
        for place, (name, function) in enumerate(zip(self._names, functions, strict=True)):
            if not hasattr(function, "state_dict"):  # a model is called otherwise
                functions[place] = self._wrapped(name, function)

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
        if inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(function):

            @wraps(function)
            async def awaited(*args: Any, **columns: Any) -> Any:
                rewards = await function(*args, **columns)
                self._note(name, columns, rewards)
                return rewards

            return awaited

        @wraps(function)
        def wrapped(*args: Any, **columns: Any) -> Any:
            rewards = function(*args, **columns)
            self._note(name, columns, rewards)
            return rewards

        return wrapped

    def _note(self, name: str, columns: Mapping[str, Any], rewards: Any) -> None:
        answers = columns.get("completions")
        if answers is None or not self._trainer.model.training:  # TRL tells an evaluation by this as well
            return
        if not self._batches or self._batches[-1].answers is not answers:
            self._batches.append(_Batch(answers, columns, {}))
        self._batches[-1].rewards[name] = rewards

    def taken(self) -> Iterable[Mapping[str, Any]]:
        """The answers since the last call. What raises, raises while they are taken."""
        batches, self._batches = self._batches, []
        weights = getattr(self._trainer, "reward_weights", None)
        weight_of = dict(
            zip(self._names, [1.0] * len(self._names) if weights is None else weights, strict=True)
        )
        each = max(int(getattr(self._trainer, "num_generations", 1)), 1)
        before = 0
        for batch in batches:
            prompts = batch.columns.get("prompts", [None] * len(batch.answers))
            advantages = self._advantages(batch)
            for place, text in enumerate(texts_of(batch.answers)):
                terms = {name: logged_number(rewards[place]) for name, rewards in batch.rewards.items()}
                given = {name: value for name, value in terms.items() if value is not None}
                answer = {
                    "answer": text,
                    "prompt": _asked(prompts[place]),
                    "terms": given,
                    "group": (before + place) // each,
                    "advantage": advantages[place] if advantages else None,
                }
                if given:
                    answer["reward"] = sum(float(weight_of[name]) * value for name, value in given.items())
                if "task_id" in batch.columns:
                    answer["task"] = batch.columns["task_id"][place]
                if "completion_ids" in batch.columns:
                    answer["tokens"] = len(batch.columns["completion_ids"][place])
                yield answer
            before += len(batch.answers)

    def _advantages(self, batch: _Batch) -> list[float] | None:
        """Those that TRL keeps for its own log, where its newest answers are the ones of the batch.

        That log holds the answers of all processes in the order of their ranks. We are the first.
        """
        logs = getattr(self._trainer, "_logs", {})
        newest = len(batch.answers) * self._trainer.accelerator.num_processes
        answers, advantages = (list(logs.get(name, ()))[-newest:] for name in ("completion", "advantages"))
        count = len(batch.answers)
        return advantages[:count] if answers[:count] == list(batch.answers) else None


def _asked(prompt: Any) -> str | None:
    """The text of a prompt, or of its last message."""
    return content_of(prompt[-1]) if isinstance(prompt, list) and prompt else prompt


class VerlLogger:
    """A logger with the methods of verl's tracking backends, for `tracking.logger["greenward"]`.

    `record(verl.utils.tracking.Tracking, folder)` adds one to each `Tracking`. Arguments as of `Recorder`.
    """

    def __init__(self, folder: str | Path, **options: Any) -> None:
        self.recorder = Recorder(folder, **options)

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Record the metrics of a step."""
        self.recorder.log(step, data)

    def finish(self, **_: Any) -> None:
        """End the recording."""
        self.recorder.close()


def _add_to_tracking(tracking: Any, logger: VerlLogger) -> None:
    made = tracking.__init__

    @wraps(made)
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        self.logger["greenward"] = logger

    tracking.__init__ = __init__


class OpenRLHFLogger:
    """A logger with the methods of OpenRLHF's: `trainer.wandb_logger = OpenRLHFLogger("runs/x")`.

    Arguments as of `Recorder`. OpenRLHF hands over one answer of each step with its reward.
    """

    def __init__(self, folder: str | Path, **options: Any) -> None:
        self.recorder = Recorder(folder, **options)

    def log_train(self, global_step: int, logs_dict: Mapping[str, Any]) -> None:
        """Record the metrics of a step, and its answer."""
        sample = logs_dict.get("generated_samples")
        answers = [dict(zip(("answer", "reward"), sample, strict=False))] if sample else []
        self.recorder.log(global_step, logs_dict, answers)

    def log_eval(self, global_step: int, logs_dict: Mapping[str, Any]) -> None:
        """Record the metrics of an evaluation, with the prefix that OpenRLHF gives them."""
        self.recorder.log(global_step, {f"eval/{name}": value for name, value in logs_dict.items()})

    def close(self) -> None:
        """End the recording."""
        self.recorder.close()
