"""Reads run directories; no other module knows their files by name.

The readers of single files are strict: they raise `RunError` for a file that exists and cannot be read.
`read_recorded_run` is lenient, because reports are made of broken and half-finished runs, too.
A row of metrics.jsonl or predictions.jsonl is one JSON object, appended whole and never rewritten in place.
metrics.jsonl is flat, with keys `name` or `group/name`. Everything that depends on the clock or the machine
begins with one of `TIMING_PREFIXES`, so two runs of one seed are equal exactly when their rows are equal
`without_timing`. NaN and infinities are the strings "NaN", "Infinity" and "-Infinity" in the file, and
floats again once read.
"""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from greenward.common.errors import RunError
from greenward.common.files import UNEXPECTED, read_file
from greenward.runs.files import OVERFLOWED, JsonRows, Lines, from_json_number, read_json, reading
from greenward.tasks import DEFAULT_TASK, shipped_task

if TYPE_CHECKING:
    from greenward.tasks.task import Task

CONFIG, METRICS, SUMMARY, PROVENANCE = "config.yaml", "metrics.jsonl", "summary.json", "provenance.json"
RESULTS = "results.jsonl"  # of an evaluation
WARM_START = "warm_start"
ARMS = ("grpo", "similarity", "rejection", "control")
"""Folders in a run with runs that trained from its warm start for the same time."""
FAILURE = "failure.txt"  # what a run said that failed as a part of a sweep
SHARED_SECTIONS = (
    "model", "problems", "warm_start", "sampling", "environment", "algorithm", "training", "evaluation",
)  # fmt: skip
WITHOUT_EFFECT = ("name", "output")  # keys of a config that change no number of a run
ROLLOUTS, TOKENS, EVALUATIONS, CHECKPOINTS = "rollouts", "tokens", "evaluations", "checkpoints"

MAX_STEP = 10**12
MAX_SAMPLES = 10**6  # answers to a problem
# What a run writes for each step, by the name of the folder: elsewhere such a name is the user's.
_STEP_NAMES = {
    "rollouts": re.compile(r"step_(\d{6,12})\.jsonl"),
    "tokens": re.compile(r"step_(\d{6,12})\.jsonl"),
    "evaluations": re.compile(r"step_(\d{6,12})(?:\.\w+)?\.json"),
    "checkpoints": re.compile(r"step_(\d{6,12})"),
}


def is_step(value: Any) -> TypeGuard[int]:
    """Whether a value from a file can be the number of a step."""
    return type(value) is int and 0 <= value < MAX_STEP


def step_name(step: int) -> str:
    """The name of a step's file or folder, without suffix."""
    return f"step_{step:06d}"


def step_of(path: Path) -> int | None:
    """The step of which a run writes `path`, in a folder of rollouts, evaluations or checkpoints."""
    match = _STEP_NAMES[path.parent.name].fullmatch(path.name)
    return int(match[1]) if match else None


def steps_in(folder: Path) -> list[tuple[int, Path]]:
    """The (step, path) pairs of a folder of rollouts, evaluations or checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    found = ((step_of(path), path) for path in folder.iterdir())
    return sorted((step, path) for step, path in found if step is not None)


def is_run(path: Path) -> bool:
    """Whether a run was begun at `path`."""
    return (path / CONFIG).is_file() or (path / METRICS).is_file()


def is_evaluation(path: Path) -> bool:
    """Whether a finished evaluation of `eval` or `grade` lies at `path`."""
    return (path / RESULTS).is_file() and (path / SUMMARY).is_file()


def run_of_config(path: str | Path) -> Path | None:
    """The run whose resolved recipe the file is; None for any other file."""
    file = Path(path)
    return file.parent if file.name == CONFIG and (file.parent / PROVENANCE).is_file() else None


def runs_below(path: Path) -> list[Path]:
    """The runs of a sweep: folders in `path`, or in folders of it that are no runs; arms aside."""
    found = []
    for folder in sorted(one for one in path.glob("*") if one.is_dir()):
        inner = [folder] if is_run(folder) else sorted(folder.glob("seed_*"))
        found += [one for one in inner if is_run(one)]
    return found


def read_failure(path: Path) -> str | None:
    """What the run at `path` said when it failed as a part of a sweep."""
    file = path / FAILURE
    if not file.is_file():
        return None
    with reading(file):
        return read_file(file, within=path).decode("utf-8", "replace").strip()


def read_config(path: Path) -> dict[str, Any]:
    """The resolved config of the run at `path`, with the keys of this version.

    Raises `RunError` for none, and for what is no mapping.
    """
    import yaml  # here, because most commands read no recipe

    from greenward.common.yaml_text import MAX_YAML_CHARS, parse_yaml_text
    from greenward.config.upgrade import upgrade

    file = path / CONFIG
    if not file.is_file():
        raise RunError(f"{path} has no {CONFIG}, so it is not a run directory")
    try:
        with reading(file):
            config = parse_yaml_text(read_file(file, 4 * MAX_YAML_CHARS, within=path).decode())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RunError(f"{file} is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(config, dict):
        raise RunError(f"{file}: expected a mapping, found {type(config).__name__}")
    return upgrade(config)


def task_of_run(name: str | Path) -> type[Task] | None:
    """The task of the run at a path, or of the one that a checkpoint lies in; None for all else."""
    path = Path(name).expanduser()
    real = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for links that go in a circle
    runs = [path, *([real.parents[1]] if real.parent.name == CHECKPOINTS else [])]
    run = next((one for one in runs if is_run(one)), None)
    return task_of(read_config(run)) if run else None


def task_of(config: Mapping[str, Any]) -> type[Task] | None:
    """The shipped task of a config, the usual one where it names none; None for a stranger's."""
    return shipped_task(config.get("task", DEFAULT_TASK))


def algorithm_of(config: Mapping[str, Any]) -> str | None:
    """The name of the algorithm that a config names, which may be a stranger's."""
    algorithm = config.get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, Mapping) else None
    return name if isinstance(name, str) else None


def flattened(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of each value of a nested config; an empty mapping counts as a value."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def base_model(sessions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the newest of a run's sessions says of the model that it began from; empty without one."""
    found = sessions[-1].get("model") if sessions else None
    return dict(found) if isinstance(found, Mapping) else {}


def stored_as(model: Mapping[str, Any]) -> str:
    """How a result's `model` was quantised, or the one that its training began from; empty for neither."""
    if quantization := model.get("quantization"):
        return str(quantization)
    base = model.get("base")
    return f"trained from {base['quantization']}" if base and base.get("quantization") else ""


def read_sessions(path: Path) -> list[dict[str, Any]]:
    """The sessions of the run at `path` as provenance.json has them, oldest first."""
    sessions = (read_json(path / PROVENANCE) or {}).get("sessions")
    return [one for one in sessions if isinstance(one, dict)] if isinstance(sessions, list) else []


def read_summary(path: Path) -> dict[str, Any] | None:
    """The summary of the run at `path`, None while there is none."""
    return read_json(path / SUMMARY)


def evaluation_name(step: int, suite: str | None = None) -> str:
    """The file name of the evaluation after `step` steps on a suite, or on what the run holds out."""
    return f"{step_name(step)}.json" if suite is None else f"{step_name(step)}.{suite}.json"


def evaluation_files(path: Path) -> list[tuple[int, str | None, Path]]:
    """(step, suite, file) of each evaluation of the run at `path`, oldest first; no suite: held out."""
    found = []
    for step, file in steps_in(path / EVALUATIONS):
        suite = file.name.removeprefix(step_name(step)).removesuffix("json").strip(".") or None
        if file.name == evaluation_name(step, suite):
            found.append((step, suite, file))
    return found


def read_evaluations(path: Path, suite: str | None = None) -> list[dict[str, Any]]:
    """The evaluations of the run at `path` on its held-out problems, or on a suite, oldest first.

    Their rows are grouped by problem (`by_problem`).
    """
    records = (read_json(file, within=path) for _, of, file in evaluation_files(path) if of == suite)
    return [by_problem(record) for record in records if record is not None]


_OF_AN_ANSWER = (
    "code", "status", "first_failure", "error_class", "error_message", "extraction_failure", "truncated",
)  # fmt: skip


def by_problem(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of an evaluation with its rows grouped by problem, as readers of runs want them.

    Each has task_id, prompt, samples, passed, greedy_passed (None if not measured), and answers with their
    code, status, first_failure, error_class, error_message, extraction_failure, and whether they were
    truncated. Records of earlier versions hold their rows like that and are not changed.
    """
    rows = record.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "success" in row for row in rows):
        return dict(record)
    prompts = record.get("prompts", {})
    greedy = {row["task_id"]: row["success"] is True for row in record.get("greedy_rows", ())}
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(row["task_id"], []).append(row)
    problems = [
        {
            "task_id": task_id,
            "prompt": prompts.get(task_id, ""),
            "samples": len(answers),
            "passed": sum(row["success"] is True for row in answers),
            "greedy_passed": greedy.get(task_id),
            "answers": [{key: row.get(key) for key in _OF_AN_ANSWER} for row in answers],
        }
        for task_id, answers in grouped.items()
    ]
    return {**record, "rows": problems}


def evaluated_suites(path: Path) -> list[str]:
    """The suites that the run at `path` was evaluated on, as its files name them."""
    return sorted({suite for _, suite, _ in evaluation_files(path) if suite})


def read_rollouts(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(step, row) of each answer that the run at `path` kept, oldest first.

    One row is in memory at a time. Raises `RunError` for a broken line that is not the last one of its file.
    """
    for step, file in steps_in(path / ROLLOUTS):
        for row in JsonRows(file, within=path):
            yield step, row


def read_prompts(path: Path, wanted: Collection[str] | None = None) -> dict[str, str]:
    """The prompts of the answers that the run at `path` kept, by `prompt_id`: all, or those that are wanted.

    No link may lead out of the run.
    """
    found: dict[str, str] = {}
    for row in JsonRows(path / PROMPTS, lenient=True, within=path):
        key, prompt = row.get("prompt_id"), row.get("prompt")
        if isinstance(key, str) and isinstance(prompt, str) and (wanted is None or key in wanted):
            found[key] = prompt
            if wanted is not None and len(found) == len(wanted):
                break
    return found


@dataclass(frozen=True)
class RecordedRun:
    """What a run directory holds: rows of metrics and evaluations, oldest first.

    `evaluations` are on the held-out problems, `suites` those on public suites by name. Each has a step
    and, as `metrics` and `rates`, estimates with finite bounds only.
    """

    path: Path
    config: Mapping[str, Any]
    metrics: tuple[Mapping[str, Any], ...]
    evaluations: tuple[Mapping[str, Any], ...]
    suites: Mapping[str, tuple[Mapping[str, Any], ...]]
    summary: Mapping[str, Any]
    sessions: tuple[Mapping[str, Any], ...]

    @property
    def steps(self) -> int:
        """Steps done so far."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @property
    def task(self) -> type[Task] | None:
        """As `task_of` its config."""
        return task_of(self.config)


def read_recorded_run(path: Path, notes: list[str]) -> RecordedRun:
    """Read the run at `path`; what cannot be read is left out and named in `notes`."""

    def lenient(read: Any, file: Path, argument: Any) -> Any:
        try:
            return read(argument) if file.exists() else None
        except (RunError, *UNEXPECTED):
            notes.append(f"{_short(file)} cannot be read and was left out.")
            return None

    evaluations: dict[str | None, list[Mapping[str, Any]]] = {None: []}
    for _, suite, file in evaluation_files(path):
        if (record := lenient(partial(read_json, within=path), file, file)) is None:
            continue
        if (evaluation := sound_evaluation(record)) is not None:
            evaluations.setdefault(suite, []).append(evaluation)
        else:
            notes.append(f"{_short(file)}: not an evaluation (no metrics, or no step); left out.")
    config = lenient(read_config, path / CONFIG, path) or {}
    sections = (*SHARED_SECTIONS, str(config.get("task")))  # that of a task has its name
    wrong = [key for key in sections if not isinstance(config.get(key), Mapping | None)]
    notes += [f"{CONFIG}: {key} is no section and was left out." for key in wrong]
    return RecordedRun(
        path=path,
        config={key: value for key, value in config.items() if key not in wrong},
        metrics=_read_rows_with_step(path / METRICS, notes),
        evaluations=tuple(evaluations.pop(None)),
        suites={str(suite): tuple(records) for suite, records in evaluations.items()},
        summary=lenient(read_summary, path / SUMMARY, path) or {},
        sessions=tuple(lenient(read_sessions, path / PROVENANCE, path) or ()),
    )


def _read_rows_with_step(path: Path, notes: list[str]) -> tuple[Mapping[str, Any], ...]:
    source = JsonRows(path, lenient=True)
    kept = []
    without_step = 0
    for row in source:
        if is_step(row.get("step")):
            kept.append(_measured(row))
        else:
            without_step += 1
    if left_out := without_step + source.broken:
        notes.append(f"{_short(path)}: {left_out} line(s) cannot be read and were left out.")
    return tuple(kept)


def _measured(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its numbers; rows share their names, which would else take as much memory as these."""
    return {sys.intern(key): from_json_number(value) for key, value in row.items()}


def sound_evaluation(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record by problem, with what in it is sound; None without metrics or step.

    Kept are the metrics and rates that are estimates, and the rows that count the answers to a problem.
    """
    if not isinstance(record.get("metrics"), dict) or not is_step(record.get("step")):
        return None
    found = by_problem(record)
    rows = found["rows"] if isinstance(found.get("rows"), list) else ()
    sound = {key: _estimates(found.get(key)) for key in ("metrics", "rates")}
    return {**found, **sound, "rows": list(filter(counts_answers, rows))}


def counts_answers(row: Any) -> bool:
    """Whether a row of `by_problem` counts the answers to a problem."""
    if not isinstance(row, dict) or not isinstance(row.get("task_id"), str):
        return False
    samples, passed = row.get("samples"), row.get("passed")
    return type(samples) is type(passed) is int and 0 <= passed <= samples <= MAX_SAMPLES


def _estimates(found: Any) -> dict[str, dict[str, Any]]:
    """The entries that are estimates with finite bounds."""
    kept = {}
    for name, estimate in found.items() if isinstance(found, dict) else ():
        if isinstance(estimate, dict):
            bounds = {key: from_json_number(estimate.get(key)) for key in ("value", "low", "high")}
            if all(isinstance(bound, (int, float)) and abs(bound) <= OVERFLOWED for bound in bounds.values()):
                kept[name] = {**estimate, **bounds}
    return kept


def _short(path: Path) -> str:
    return "/".join(path.parts[-3:])


TIMING_PREFIXES = ("time/", "perf/")
PREDICTIONS = "predictions.jsonl"
PROMPTS = "prompts.jsonl"


def without_timing(row: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a row that a second run with the same seed must repeat."""
    return {key: value for key, value in row.items() if not key.startswith(TIMING_PREFIXES)}


def read_metrics(path: Path) -> Lines:
    """The rows of a metrics.jsonl, oldest first. Raises `RunError` for a broken line that is not the last."""
    rows = JsonRows(path)
    return Lines(tuple(map(_measured, rows)), rows.torn)


@dataclass(frozen=True)
class Predictions:
    """All predictions of a run, one entry each, in the order of the file."""

    steps: tuple[int, ...]
    predicted: tuple[float, ...]
    passed: tuple[int, ...]


def read_predictions(run: Path, newest: int | None = None) -> Predictions:
    """The predictions of the run at `run`; empty where it made none.

    With `newest`, only the last whole steps that have about so many (all of a step or none, one step at
    least), without holding more in memory. Raises `RunError` for a row that is not of this shape.
    """
    rows: deque[tuple[int, list[float], list[int]]] = deque()
    count = 0
    for number, row in enumerate(JsonRows(run / PREDICTIONS), start=1):
        step, predicted, passed = row.get("step"), row.get("predicted"), row.get("passed")
        if not (
            is_step(step)
            and _are_numbers(predicted)
            and _are_numbers(passed)
            and len(predicted) == len(passed)
        ):
            raise RunError(
                f"{run / PREDICTIONS}, row {number}: expected a step, and predicted and passed of one length",
                remedy='A row is {"step": 3, "predicted": [0.8, 0.1], "passed": [1, 0]}.',
            )
        rows.append((step, predicted, passed))
        count += len(predicted)
        while newest is not None and len(rows) > 1 and count - len(rows[0][1]) >= newest:
            count -= len(rows.popleft()[1])
    return Predictions(
        tuple(step for step, predicted, _ in rows for _ in predicted),
        tuple(chance for _, predicted, _ in rows for chance in predicted),
        tuple(outcome for _, _, passed in rows for outcome in passed),
    )


def _are_numbers(values: object) -> TypeGuard[list[Any]]:
    return isinstance(values, list) and set(map(type, values)) <= {int, float}
