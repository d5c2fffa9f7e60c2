"""The run directory: the local files that are the truth about a run.

    config.yaml                  the resolved recipe
    provenance.json              versions and machine, one entry per session
    metrics.jsonl                one flat object per step
    predictions.jsonl            a reward model's predictions and what grading found
    rollouts/step_000123.jsonl   the answers of a step
    evaluations/step_000020.json        of the held-out problems
    evaluations/step_000020.mbpp.json   of a suite
    checkpoints/step_000020/     and `last`, a link to the newest
    faults.json                  what was planted; diagnostics never read it
    summary.json, report.html

An arm of a run (`warm_start/`, `rejection/`, `control/`) is a run directory inside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from greenward.errors import RunError
from greenward.runs.files import dump_json, read_json, remove_tree, to_json, write_atomically, writing
from greenward.runs.lock import RunLock
from greenward.runs.metrics import MetricsFile
from greenward.runs.predictions import FILE_NAME as PREDICTIONS
from greenward.runs.predictions import PredictionsFile
from greenward.runs.provenance import collect_provenance
from greenward.runs.reading import evaluation_name, flattened, is_run, read_config, step_name, steps_in

# Keys (or whole sections) that may differ on resume: they change no number of the steps before.
MAY_CHANGE_ON_RESUME = (
    "name",
    "tracking",
    "model.cache_dir",
    "training.max_steps",
    "training.max_seconds",
    "training.checkpoint_interval_steps",
    "training.keep_checkpoints",
    "sandbox.workers",
    "sandbox.require",
)

# May differ on resume as well, but sums are then rounded in another order: the run goes on inexactly.
INEXACT_ON_RESUME = ("training.threads",)


class RunDirectory:
    """One run, opened for writing; made by `create`, given free by `close` or `with`."""

    def __init__(
        self, path: Path, config: dict[str, Any], lock: RunLock, inexact: Mapping[str, str] | None = None
    ) -> None:
        self.path = path
        self.config = config
        self.inexact = dict(inexact or {})  # key -> "old -> new", what makes a resumed run inexact
        self.metrics = MetricsFile(path / "metrics.jsonl")
        self.predictions = PredictionsFile(path / PREDICTIONS)
        self._lock = lock

    @classmethod
    def create(
        cls, path: str | Path, config: Mapping[str, Any], *, resume: bool = False, device: str | None = None
    ) -> RunDirectory:
        """Open `path` for a new run, or to go on with the run that is there.

        `resume` with nothing there starts a new run, so that one command serves a job that may
        be requeued. `device` names the accelerator for provenance.json.

        Raises:
            RunError: a run is there and `resume` is False; it was made with another config; another
                process writes it; or the folder cannot be written.
        """
        path = Path(path)
        resolved: dict[str, Any] = to_json(config)
        exists = is_run(path) and _has_recorded(path)
        if exists and not resume:
            raise RunError(
                f"{path} already holds a run",
                remedy="Go on with it by --resume, or choose another directory.",
            )
        with writing(str(path)):
            path.mkdir(parents=True, exist_ok=True)
        lock = RunLock(path)
        try:
            inexact = _compare_configs(path, read_config(path), resolved) if exists else {}
            with writing(str(path)):
                for name in ("rollouts", "evaluations", "checkpoints"):
                    (path / name).mkdir(exist_ok=True)
            _add_session(path / "provenance.json", device)
            text = yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True)
            write_atomically(path / "config.yaml", text.encode())
            run = cls(path, resolved, lock, inexact)
            if inexact:
                run.add_provenance(inexact_resume=inexact)
            return run
        except BaseException:
            lock.release()
            raise

    def add_provenance(self, **facts: Any) -> None:
        """Adds plain facts about this session to provenance.json."""
        record = read_json(self.path / "provenance.json") or {"sessions": [{}]}
        record["sessions"][-1].update(to_json(facts))
        write_atomically(self.path / "provenance.json", dump_json(record, indent=2).encode())

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def write_rollouts(self, step: int, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Write the answers of one step, one object a line; replaces the file of that step."""
        path = self.path / "rollouts" / f"{step_name(step)}.jsonl"
        write_atomically(path, "".join(dump_json(row) + "\n" for row in rows).encode())
        return path

    def write_evaluation(self, step: int, record: Mapping[str, Any], suite: str | None = None) -> Path:
        """Write the evaluation after `step` steps; replaces the file of that step (and suite).

        `suite` names a public suite (letters, digits, underscores); None is what the run holds out.
        """
        path = self.path / "evaluations" / evaluation_name(step, suite)
        write_atomically(path, dump_json(record, indent=1).encode())
        return path

    def truncate_after(self, step: int) -> None:
        """Forget everything newer than `step`, so that a resumed run repeats it exactly.

        Rollouts, evaluations, checkpoints and metrics go; the summary and the report, which
        describe a later state, go too. Safe to repeat after a kill.
        """
        for name in ("rollouts", "evaluations", "checkpoints"):
            for found, path in steps_in(self.path / name):
                if found > step:
                    remove_tree(path) if path.is_dir() else path.unlink()
        for name in ("summary.json", "report.html", "report.md", "report.json"):
            (self.path / name).unlink(missing_ok=True)
        self.metrics.truncate_after(step)
        self.predictions.truncate_after(step)

    def close(self) -> None:
        """Give the run free for other writers."""
        self._lock.release()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _has_recorded(path: Path) -> bool:
    """Whether there is anything to lose: a run that failed before its first number may be begun anew."""
    return any(path.rglob("metrics.jsonl")) or any((path / "evaluations").glob("*.json"))


def _compare_configs(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """The changes that make a resumed run inexact. Raises `RunError` for those that forbid to resume."""
    before, after = dict(flattened(old)), dict(flattened(new))
    changes = {
        key: f"{_shown(before, key)} -> {_shown(after, key)}"
        for key in {**before, **after}
        if before.get(key, _ABSENT) != after.get(key, _ABSENT) and not _may_change(key)
    }
    forbidden = [f"    {key}: {change}" for key, change in changes.items() if key not in INEXACT_ON_RESUME]
    if forbidden:
        raise RunError(
            "\n".join([f"{path} was made with another config:", *forbidden]),
            remedy="Resume with the old values, or choose another directory.",
        )
    return changes


_ABSENT = object()


def _shown(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key]) if key in values else "not set"


def _may_change(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in MAY_CHANGE_ON_RESUME)


def _add_session(path: Path, device: str | None) -> None:
    record = read_json(path) or {"sessions": []}
    record["sessions"].append(collect_provenance(device))
    write_atomically(path, dump_json(record, indent=2).encode())
