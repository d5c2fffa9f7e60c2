"""Writes run directories. The local files are the truth about a run.

    config.yaml                  the resolved recipe: every key, defaults included
    provenance.json              versions, kind of machine, git commit and base model, one entry per session
    metrics.jsonl                one flat object per step
    own_loss.py                  the source of a loss of the user's; own_advantage.py, own_reward_NAME.py
    predictions.jsonl            a reward model's predictions and what grading found
    rollouts/step_000123.jsonl   the answers of a step: code, verdict, rewards
    prompts.jsonl                their prompts as the policy saw them, each once; rows name them by prompt_id
    tokens/step_000010.jsonl     numbers by token of some of them (`rollouts.tokens`)
    evaluations/step_000020.json (the held-out problems), step_000020.mbpp.json (a suite):
                                 rates with intervals, every problem
    checkpoints/step_000020/     model, card, optimizer, counters, and a manifest of sizes and SHA-256
    checkpoints/last             a link to the newest; a model folder (`model.id=…/checkpoints/last`)
    progress.json                what goes on now: phase, done of total, ETA; written at most once a second
    summary.json                 how it ended, before and after; time; `peak_rss_mb`, `estimated_mb`
    faults.json                  what was planted; diagnostics never read it
    report.html, report.md, report.json
    .greenward.json              the mark of a folder that greenward writes, with its kind

Arms of a run (`warm_start/`, `rejection/`, `control/`) are run directories inside it. Environment variables,
host names and keys are not recorded; paths are, where the recipe names one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from greenward.common.errors import Closeable, RunError
from greenward.common.files import expecting
from greenward.common.yaml_text import yaml_text
from greenward.runs.files import (
    JsonRows,
    append_row,
    force,
    read_json,
    read_jsonl,
    remove_tree,
    to_json,
    write_atomically,
    write_json,
    write_rows,
    writing,
)
from greenward.runs.machine import collect_provenance
from greenward.runs.no_signal import no_signal_periods
from greenward.runs.output import RunLock, check_folder, claim_folder
from greenward.runs.reading import (
    ARMS,
    CHECKPOINTS,
    CONFIG,
    EVALUATIONS,
    METRICS,
    PREDICTIONS,
    PROMPTS,
    PROVENANCE,
    ROLLOUTS,
    SUMMARY,
    TOKENS,
    WARM_START,
    base_model,
    evaluated_suites,
    evaluation_name,
    flattened,
    is_run,
    is_step,
    read_config,
    read_evaluations,
    read_metrics,
    read_prompts,
    read_sessions,
    read_summary,
    sound_evaluation,
    step_name,
    steps_in,
)

# Keys (or whole sections) that may differ on resume: they change no number of the steps before.
MAY_CHANGE_ON_RESUME = (
    "name",
    "tracking",
    "model.cache_dir",
    "model.offline",
    "preset",
    "preset_keys",
    "training.max_steps",
    "training.num_episodes",
    "training.max_seconds",
    "training.checkpoint_interval_steps",
    "training.keep_checkpoints",
    "training.keep_spaced_checkpoints",
    "monitor",
    "rollouts.server",
    "rollouts.tokens",
    "rollouts.transfer",
    "rollouts.transfer_dir",
    "rollouts.vllm",
    "sandbox.workers",
    "sandbox.require",
)

# May differ on resume as well, but sums are then rounded in another order: the run goes on inexactly.
INEXACT_ON_RESUME = ("training.threads",)

# What a session computes by, unless it says otherwise: a resumed one that differs goes on inexactly.
COMPUTED_BY = MappingProxyType({"processes": "1", "kernels": "torch"})

DECIMALS = 6  # of a prediction


class StepFile:
    """The writer of a file with rows by step. A torn last line, left by a kill, is cut off on opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = read_jsonl(path)
        if lines.torn is not None:
            write_rows(path, lines.rows)
        self.last_step: int | None = None
        for number, row in enumerate(lines.rows, start=1):
            if not is_step(row.get("step")):
                raise RunError(f"{path}, row {number}: expected a step, found {str(row.get('step'))[:60]!r}")
            self.last_step = row["step"]

    def truncate_after(self, step: int) -> None:
        """Drop every row newer than `step`, atomically; the rows before keep their bytes' meaning."""
        rows = read_jsonl(self.path).rows
        kept = tuple(row for row in rows if row["step"] <= step)
        if len(kept) < len(rows):
            write_rows(self.path, kept)
        self.last_step = kept[-1]["step"] if kept else None

    def _append(self, row: Mapping[str, Any]) -> None:
        append_row(self.path, row)
        self.last_step = row["step"]


class MetricsFile(StepFile):
    """The writer of metrics.jsonl."""

    def append(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one row. `values` is flat: numbers, booleans, strings or None (else `TypeError`).

        Raises `RunError` for a step older than the newest one, and when the file system refuses.
        """
        if self.last_step is not None and step < self.last_step:
            raise RunError(
                f"{self.path}: step {step} comes after step {self.last_step}",
                remedy=f"Call truncate_after({step - 1}) before going on from an earlier step.",
            )
        for key, value in values.items():
            if isinstance(value, (Mapping, list, tuple)):
                raise TypeError(f"metric {key!r} is a {type(value).__name__}; a row is flat")
        self._append({"step": step, **values})


class PredictionsFile(StepFile):
    """The writer of predictions.jsonl: what a reward model predicted, and what grading then found.

    Predictions are made before the answers of the step are trained on.
    """

    def append(self, step: int, predicted: Sequence[float], passed: Sequence[bool]) -> None:
        """Append the row of `step`: a probability of passing for each graded answer, and whether it passed.

        A step without predictions has no row.
        """
        if len(predicted):
            chances = [round(float(value), DECIMALS) for value in predicted]
            self._append({"step": step, "predicted": chances, "passed": [int(value) for value in passed]})


class PromptsFile(StepFile):
    """The writer of prompts.jsonl: each prompt once, under the key that rows of answers have."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._known = set(read_prompts(path.parent))

    def add(self, step: int, prompt: str) -> str:
        """The key of a prompt, which is written if it is new."""
        key = hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        if key not in self._known:
            self._append({"step": step, "prompt_id": key, "prompt": prompt})
            self._known.add(key)
        return key

    def truncate_after(self, step: int) -> None:
        super().truncate_after(step)
        self._known = set(read_prompts(self.path.parent))


class RunDirectory(Closeable):
    """One run, open for writing: made by `create`, closed by `close` or `with`."""

    def __init__(
        self, path: Path, config: dict[str, Any], lock: RunLock, inexact: Mapping[str, str] | None = None
    ) -> None:
        self.path = path
        self.config = config
        self.inexact = dict(inexact or {})  # key -> "old -> new", what makes a resumed run inexact
        self.metrics = MetricsFile(path / METRICS)
        self.predictions = PredictionsFile(path / PREDICTIONS)
        self.prompts = PromptsFile(path / PROMPTS)
        self._lock = lock

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: Mapping[str, Any],
        *,
        resume: bool = False,
        overwrite: bool = False,
        device: str | None = None,
        computed_by: Mapping[str, str] = COMPUTED_BY,
        complete: Callable[[dict[str, Any]], Mapping[str, Any]] = dict,
        sources: Mapping[str, str] = MappingProxyType({}),
    ) -> RunDirectory:
        """Open `path` for a new run, or to go on with the run that is there.

        `resume` with nothing there starts a new run, so that one command serves a job that may be requeued.
        A run that ended before its first step can be started again without it. `overwrite` deletes the run
        that is there. `device` names the accelerator for provenance.json. `computed_by` says how many
        processes train together and how they hold the weights, and whose kernels compute: another session
        that differs resumes inexactly.
        `complete` gives the config of a run that is there the keys that were added since (`with_defaults`).
        `sources` are those of the user's functions by name. They are kept as `own_NAME.py`, and
        provenance.json has their hashes.
        Raises `RunError` for a run that is there without `resume`, one that was made with another config or
        other sources, one that another process writes, and a folder that is not greenward's or cannot be
        written.
        """
        path = Path(path)
        check_folder(path, "run")
        if has_steps(path) and not (resume or overwrite):
            raise RunError(
                f"{path} already holds a run",
                remedy="Go on with it by --resume, replace it by --overwrite, or choose another directory.",
            )
        claim_folder(path, "run", overwrite=overwrite)
        resolved: dict[str, Any] = to_json(config)
        evaluations = list((path / EVALUATIONS).glob("*.json")) if is_run(path) else []
        exists = has_steps(path) or (resume and bool(evaluations))
        lock = RunLock(path)
        try:
            inexact = compare_configs(path, complete(read_config(path)), resolved) if exists else {}
            with writing(str(path)):
                for name in (ROLLOUTS, EVALUATIONS, CHECKPOINTS):
                    (path / name).mkdir(exist_ok=True)
                for evaluation in () if exists else evaluations:
                    evaluation.unlink()
            record = read_json(path / PROVENANCE) or {}
            record["sessions"] = read_sessions(path)
            sessions = record["sessions"] if exists else []
            facts: dict[str, Any] = {**COMPUTED_BY, **computed_by}
            for key, value in facts.items():
                before = sessions[-1].get(key, COMPUTED_BY[key]) if sessions else value
                if before != value:
                    inexact[key] = f"{before} -> {value}"
            if inexact:
                facts["inexact_resume"] = inexact
            if sources:
                own = {name: hashlib.sha256(source.encode()).hexdigest() for name, source in sources.items()}
                compare_sources(path, sessions[-1].get("own") if sessions else None, own)
                facts["own"] = own
            record["sessions"].append(collect_provenance(device) | facts)
            write_json(path / PROVENANCE, record)
            text = yaml_text(resolved)
            write_atomically(path / CONFIG, text.encode())
            for name, source in sources.items():
                write_atomically(path / f"own_{name}.py", source.encode())
            return cls(path, resolved, lock, inexact)
        except BaseException:
            lock.release()
            raise

    def add_provenance(self, **facts: Any) -> None:
        """Add plain facts about this session to provenance.json."""
        record = read_json(self.path / PROVENANCE) or {"sessions": [{}]}
        record["sessions"][-1].update(to_json(facts))
        write_json(self.path / PROVENANCE, record)

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def write_rollouts(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the answers of one step, one object a line; replaces the file of that step."""
        write_rows(self.path / ROLLOUTS / f"{step_name(step)}.jsonl", rows)

    def write_tokens(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write numbers by token of answers of one step, a turn a line; replaces the file of that step."""
        with writing(str(self.path)):
            (self.path / TOKENS).mkdir(exist_ok=True)
        write_rows(self.path / TOKENS / f"{step_name(step)}.jsonl", rows)

    def write_evaluation(self, step: int, record: Mapping[str, Any], suite: str | None = None) -> Path:
        """Write the evaluation after `step` steps; replaces the file of that step (and suite).

        `suite` names a public suite (letters, digits, underscores); None is what the run holds out.
        """
        path = self.path / EVALUATIONS / evaluation_name(step, suite)
        write_json(path, record, indent=None)
        return path

    def truncate_after(self, step: int) -> None:
        """Remove everything newer than `step`, and summary and reports, so that a resumed run repeats it.

        Safe to repeat after a kill.
        """
        for name in (ROLLOUTS, TOKENS, EVALUATIONS, CHECKPOINTS):
            for found, path in steps_in(self.path / name):
                if found > step:
                    remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for name in (SUMMARY, "report.html", "report.md", "report.json"):
            (self.path / name).unlink(missing_ok=True)
        for file in (self.metrics, self.predictions, self.prompts):
            file.truncate_after(step)

    def sync(self) -> None:
        """Force the rows of all steps onto the disk, before a checkpoint that relies on them."""
        files = (self.metrics.path, self.predictions.path, self.prompts.path)
        with writing(str(self.path)):
            force([*(file for file in files if file.exists()), self.path])

    def close(self) -> None:
        """Let others write the run."""
        self._lock.release()


class _Dropped:
    """A file of steps that another process writes."""

    def append(self, *_: Any) -> None: ...

    def add(self, *_: Any) -> str:
        return ""

    truncate_after = append


class FollowedRun(RunDirectory):
    """A run that another process writes, while this one trains with it: what is written here is dropped."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path, self.config, self.inexact = path, config, {}
        self.metrics: Any = _Dropped()
        self.predictions: Any = _Dropped()
        self.prompts: Any = _Dropped()

    def write_evaluation(self, step: int, record: Mapping[str, Any], suite: str | None = None) -> Path:
        return self.path / EVALUATIONS / evaluation_name(step, suite)

    def _drop(self, *_: Any, **__: Any) -> None: ...

    add_provenance = write_rollouts = write_tokens = truncate_after = sync = close = _drop


def has_steps(path: Path) -> bool:
    """Whether the run at `path`, or one inside it, has finished a step."""
    return is_run(path) and any(file.stat().st_size for file in path.rglob(METRICS))


def compare_configs(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """The changes that make a resumed run inexact. Raises `RunError` for those that forbid to resume."""
    before, after = dict(flattened(old)), dict(flattened(new))

    def shown(values: Mapping[str, Any], key: str) -> str:
        return json.dumps(values[key], default=str) if key in values else "not set"

    changes = {
        key: f"{shown(before, key)} -> {shown(after, key)}"
        for key in {**before, **after}
        if (key in before, before.get(key)) != (key in after, after.get(key))
        and not any(f"{key}.".startswith(f"{free}.") for free in MAY_CHANGE_ON_RESUME)
    }
    forbidden = [f"    {key}: {change}" for key, change in changes.items() if key not in INEXACT_ON_RESUME]
    if forbidden:
        raise RunError(
            "\n".join([f"{path} was made with another config:", *forbidden]),
            remedy="Resume with the old values, or choose another directory.",
        )
    return changes


def compare_sources(path: Path, old: Any, new: Mapping[str, str]) -> None:
    """Raises `RunError` if a function of the user's has another hash than in the last session, `old`."""
    before = old if isinstance(old, Mapping) else {}
    if changed := [name for name, digest in new.items() if before.get(name, digest) != digest]:
        kept = path / f"own_{changed[0]}.py"
        what, _, which = changed[0].partition("_")
        place = f"the reward {which}" if what == "reward" else f"algorithm.{what}"
        raise RunError(
            f"{path} was made with another {what}: the source of {place} has changed.",
            remedy=f"Resume with the old source, which is kept in {kept}, or choose another directory.",
        )


def write_summary(
    run: RunDirectory,
    *,
    status: Literal["finished", "interrupted"],
    steps: int,
    wall_seconds: float,
    peak_rss_mb: float | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write and return the summary of a run. Raises `RunError` when the file system refuses.

    `before` and `after` are the metrics of its first and newest evaluation (None without one), `suites`
    the same for each suite, `arms` the summaries of the runs inside it. `warnings` names the steps that gave
    nothing to learn from (`no_signal`). `model` is what the newest session says of the model that it began
    from, if that has a name. `wall_seconds` counts all sessions, `peak_rss_mb` becomes the highest that any
    of them recorded (None if none did); `extra` adds keys.
    """
    model = base_model(read_sessions(run.path))
    rows = read_metrics(run.path / METRICS).rows
    earlier = (read_summary(run.path) or {}).get("peak_rss_mb")
    recorded = (peak_rss_mb, earlier, *(row.get("perf/rss_mb") for row in rows))
    peaks = [peak for peak in recorded if isinstance(peak, int | float) and peak]
    summary = {
        "status": status,
        "steps": steps,
        **({"model": model} if model else {}),
        "wall_seconds": wall_seconds,
        "peak_rss_mb": max(peaks, default=None),
        **_before_and_after(run.path, None),
        "suites": {suite: _before_and_after(run.path, suite) for suite in evaluated_suites(run.path)},
        "arms": {
            name: read_summary(run.path / name) for name in (WARM_START, *ARMS) if is_run(run.path / name)
        },
        "warnings": [period.to_json() for period in no_signal_periods(rows, run.config)],
        **(extra or {}),
    }
    write_json(run.path / SUMMARY, summary)
    return summary


def _before_and_after(path: Path, suite: str | None) -> dict[str, Any]:
    with expecting("the evaluations of a run", path / EVALUATIONS, RunError):
        evaluations = list(filter(None, map(sound_evaluation, read_evaluations(path, suite))))
    return {
        "before": evaluations[0]["metrics"] if evaluations else None,
        "after": evaluations[-1]["metrics"] if evaluations else None,
    }


def fork_run(run: Path, step: int, target: Path, changes: Mapping[str, Any] = {}) -> Path:
    """Copy the run at `run` as it was after `step`, with `changes` of dotted keys of its config.

    `step` is that of a checkpoint, or 0: the run from its beginning. Checkpoints are linked and not copied.
    `greenward train TARGET/config.yaml --output TARGET --resume` goes on from there.

    Raises:
        RunError: no such checkpoint, `target` exists, a key that the config has not, a link that leads out of
        the run, or the file system refused.
    """
    if check_folder(target, "run"):
        raise RunError(f"{target} exists already", remedy="Choose another folder, or delete it.")
    config = read_config(run)
    for key, value in changes.items():
        *sections, last = key.split(".")
        place: Any = config
        for part in sections:
            place = place.get(part) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last not in place:
            raise RunError(f"{run / CONFIG} has no key {key!r}")
        place[last] = value
    checkpoint = run / CHECKPOINTS / step_name(step)
    if step and not checkpoint.is_dir():
        raise RunError(f"{run} has no checkpoint of step {step}")
    for folder in (checkpoint, run / WARM_START):
        if not os.path.realpath(folder).startswith(f"{os.path.realpath(run)}{os.sep}"):
            raise RunError(f"{folder} leads out of the run, so it is not copied")
    claim_folder(target, "run")
    try:
        with writing(str(target)):
            text = yaml_text(config)
            write_atomically(target / CONFIG, text.encode())
            if step:
                shutil.copytree(
                    checkpoint, target / CHECKPOINTS / checkpoint.name, copy_function=_link, symlinks=True
                )
                for name in (METRICS, PREDICTIONS):
                    every = JsonRows(run / name, lenient=True)
                    rows = [row for row in every if is_step(row.get("step")) and row["step"] <= step]
                    if rows:
                        write_rows(target / name, rows)
                if (provenance := read_json(run / PROVENANCE)) is not None:
                    write_json(target / PROVENANCE, provenance)
            if (run / WARM_START).is_dir():
                shutil.copytree(run / WARM_START, target / WARM_START, copy_function=_link, symlinks=True)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)  # half a run would train on without the other half
        raise
    return target


def _link(source: str, target: str) -> str:
    if not stat.S_ISREG(os.lstat(source).st_mode):
        raise RunError(f"{source}: expected a regular file")
    if CHECKPOINTS in Path(source).parts:  # a log is appended to, which must not change that of the other run
        with suppress(OSError):  # another file system
            os.link(source, target)
            return target
    return str(shutil.copy2(source, target))
