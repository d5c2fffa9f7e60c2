"""Reads a run as aligned signals under greenward's names. No reader needs the package of the tracker.

- greenward: a run directory.
- TRL, transformers: `trainer_state.json`, also in `checkpoint-N/`; `completions/*.parquet`; printed output;
  tables of notebooks (`*.ipynb`, HTML).
- verl: the file logger's `*.jsonl`; rollout dumps `N.jsonl` in `rollout_data/`; printed output.
- OpenRLHF: its TensorBoard or W&B files; its progress bars.
- prime-rl, Tinker cookbook: `metrics.jsonl`; `rollouts/step_N/**/traces.jsonl`,
  `iteration_N/train_rollout_summaries.jsonl`; printed output of prime-rl.
- verifiers: `results.jsonl`, `traces.jsonl`; a row counts as a step.
- LLaMA-Factory, ms-swift: `trainer_log.jsonl`, `logging.jsonl`.
- Stable-Baselines3: `progress.csv`; the boxes that it prints.
- RLlib: `result.json`, `progress.csv`; printed results and tables of trials.
- ML-Agents: its TensorBoard files; printed output. `training_status.json` lists checkpoints and is no log.
- d3rlpy: the folder of a run, with a CSV for each signal.
- TensorBoard: `events.out.tfevents.*`; exported curves.
- W&B: `run-*.wandb`; an exported CSV, also with a column for each run.
- MLflow, Aim: `mlruns/`, or a CSV with a row for each value.
- Trackio: `PROJECT.db`.
- Printed text: mappings and JSON, boxes, Markdown tables, bars of tqdm, and lines or blocks of names and
  numbers with a step, of minimind, rsl_rl, TF-Agents, CleanRL, Tianshou, Sample Factory, Acme, RLinf, EasyR1,
  NeMo RL, trlX, slime, DeepSpeed-Chat, nanoGPT, and the user's own loops.
- Any other: JSON lines (flat, nested, or rows with name and value), JSON documents, CSV, TSV, parquet (`pip
  install pyarrow`).

A folder that holds nothing else is read by its `*.log`, `*.txt` or `*.json`. Texts that mean numbers are
numbers (`12.5%` is 0.125, `1.2k`). No two runs are merged, and the notes say what became of each row that is
no step of its own:

- Steps that go back into the middle are a resume: the later rows count.
- Steps that begin again, rows that name a run or a seed, and several files of events that begin alike are
  different runs. Of runs without names that follow one another, the last one counts.
- Of several rows of one step the mean counts.
- Rows marked as an evaluation (`"split": "eval"`, lines that begin with `Eval` or `Test`) are series
  `eval/…`, which stand for the reward where no reward of training was logged.
- Where a counter begins again and another one rises once in each pass, as episodes do, that one counts.
- Rows between the others that count something else (episodes beside steps of the environment) have the step
  of the row before them; so have values of a signal whose steps do not lie between those around them.
- Rows without a step are set aside, and so are samples and settings printed between the rows of a trainer.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from greenward.common.errors import DiagnosticsError
from greenward.common.files import MAX_DOCUMENT_BYTES, expects, read_file
from greenward.common.text import visible
from greenward.diagnostics.readers.alignment import Columns, RunRows, Table
from greenward.diagnostics.readers.answers import find_rollouts, numbered
from greenward.diagnostics.readers.formats import GREENWARD, Found, find_logs
from greenward.diagnostics.readers.names import renamed, translated
from greenward.diagnostics.readers.rows import Format, Log
from greenward.diagnostics.signals import HELD_OUT, REWARD, RunSignals
from greenward.runs.reading import WARM_START

_CHECKPOINT = re.compile(r"(?:checkpoint-|global_step_?|step_)(\d{1,15})")
_MBPP_SUMMARY = re.compile(r"mbpp_summary_step_(\d{1,15})_\w+\.json")
_MOST_BYTES = 1 << 20  # of such a file
_SHOWN = 12
_FEW_ROWS = 3  # a run with fewer is a false start, beside one that has more
_STANDARD_INPUT = "standard input"


@expects("the log of a run", DiagnosticsError)
def read_run_signals(
    path: str | Path,
    *,
    mapping: Mapping[str, str] | None = None,
    run_name: str | None = None,
    takes_last: bool = True,
) -> RunSignals:
    """Read the run at `path`: a folder or a file of any known format (docs/diagnostics.md).

    `-` is standard input. `mapping` gives greenward's names for names of the log; `run_name` chooses one of
    several runs; with `takes_last`, the last one is taken of runs without names that follow one another.

    Raises:
        DiagnosticsError: there is no log, there are several runs to choose from, or a file is not what it
            seems.
        RunError: a file of a run directory that cannot be read.
    """
    path = Path(path)
    try:
        with _given(path) as place:
            found, form, log, columns = _chosen(find_logs(place), place, run_name, takes_last)
    except OSError as error:
        raise DiagnosticsError(f"{path} cannot be read: {error.strerror or error}") from None
    values, theirs, unknown = translated(columns.values, mapping or {})
    recorded = {ours: columns.recorded[name] for ours, name in theirs.items()}
    # A share of a status is logged where an answer has it: at other steps with a status none has.
    statuses = [name for name in values if name.startswith("status/")]
    judged = np.any([recorded[name] for name in statuses], axis=0)
    for name in statuses:
        values[name] = np.where(judged & ~recorded[name], 0.0, values[name])
    notes = [*log.notes, *columns.notes]
    own = form is GREENWARD and log.config is not None
    if unknown and not own:
        shown = ", ".join(visible(name, 60) for name in unknown[:_SHOWN])
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        notes.append(f"{len(unknown)} name(s) are not known and no check uses them: {shown}{more} (--map)")
    if HELD_OUT not in values and (points := _mbpp_summaries(found.files[0].parent)):
        # An evaluation before the first step, at step 0, has no row of its own.
        rows = np.searchsorted(columns.steps, [step for step, _ in points]).clip(max=len(columns.steps) - 1)
        values[HELD_OUT] = np.full(len(columns.steps), np.nan)
        values[HELD_OUT][rows] = [score for _, score in points]
        recorded[HELD_OUT] = ~np.isnan(values[HELD_OUT])
        notes.append(f"{HELD_OUT} is the pass rate of {len(points)} file(s) mbpp_summary_step_*.json")
    piped = str(path) == "-"
    folder = Path(_STANDARD_INPUT) if piped else found.files[0].parent
    if _CHECKPOINT.fullmatch(folder.name):  # trainer_state.json lies in checkpoints, too
        folder = folder.parent
    places = (folder, folder / "checkpoints")
    checkpoints = (one for place in places for one in numbered(place, _CHECKPOINT) if one[1].is_dir())
    return RunSignals(
        folder if own or piped else path,
        columns.steps.astype(np.int64),
        values,
        recorded,
        tuple(notes),
        log.config,
        log.session,
        log.format,
        found.files[0].name,
        {ours: name for ours, name in theirs.items() if ours != name},
        tuple(sorted(checkpoints)),
        find_rollouts(folder),
        columns.reading,
        columns.counted_by,
    )


@expects("the log of a run", DiagnosticsError)
def run_names(path: Path) -> list[str]:
    """The names that `read_run_signals` takes for the runs at `path`, in the order of their files.

    Raises:
        DiagnosticsError: there is no log.
    """
    found = find_logs(path)
    if len(found) > 1:
        return [one.name for one in found]
    rows, _, form = found[0].rows()
    return [one.name for one in Table(rows, form.step_keys).runs() if one.size >= _FEW_ROWS]


def _mbpp_summaries(folder: Path) -> list[tuple[int, float]]:
    """(step, pass rate) of the evaluations that lie beside the log of a job, each in a file of its own."""
    found = []
    for step, file in sorted(numbered(folder, _MBPP_SUMMARY)):
        try:
            said = json.loads(read_file(file, _MOST_BYTES, within=folder))
            rate = float(said["pass_rate"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if 0 <= rate <= 1:
            found.append((step, rate))
    return found


@contextmanager
def _given(path: Path) -> Iterator[Path]:
    """The file or the folder at `path`, or a file with what standard input gives."""
    if str(path) != "-":
        yield path
        return
    content = sys.stdin.buffer.read(MAX_DOCUMENT_BYTES + 1)
    if len(content) > MAX_DOCUMENT_BYTES:
        raise DiagnosticsError(
            f"standard input has more than {MAX_DOCUMENT_BYTES} bytes", remedy="Name a file."
        )
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        place = Path(folder, _STANDARD_INPUT)
        place.write_bytes(content)
        try:
            yield place
        except DiagnosticsError as error:
            said = error.message.replace(str(place), _STANDARD_INPUT)
            raise DiagnosticsError(said, remedy=error.remedy) from None


def _chosen(
    found: list[Found], path: Path, run: str | None, takes_last: bool
) -> tuple[Found, Format, Log, Columns]:
    """The run that is named, or the only one, and its columns."""
    chosen, inner = [one for one in found if one.name == run], None
    if not chosen and run is not None:
        name, _, inner = run.rpartition(":")
        chosen = found if len(found) == 1 else [one for one in found if one.name == name]
        inner = run if len(found) == 1 else inner
    if run is None and len(own := _without_warm_starts(found)) == 1:
        chosen = own
    if not chosen:
        several = _several(found)
        if run is not None:
            raise DiagnosticsError(f"{path} has no run {run!r}", remedy=f"It has {several}.")
        raise DiagnosticsError(
            f"{path} has {len(found)} runs", remedy=f"Name one by --run, or by its path: {several}"
        )
    (one,) = chosen
    rows, log, form = one.rows()
    table = Table(rows, form.step_keys)
    runs = table.runs(is_one=bool(log.session))  # what greenward writes into a folder is of one run
    if not runs:
        reasons = "; ".join(f"{count} row(s): {reason}" for reason, count in table.set_aside.items())
        raise DiagnosticsError(f"{one.files[0]} has no row with a step", remedy=reasons)
    picked, others = _of_one_log(runs, path, inner, table, takes_last and not table.names_runs)
    for reason, count in log.set_aside.items():
        table.set_aside[reason] += count
    columns = table.aligned(picked)
    aside = 0 if inner is not None else sum(other.size for other in others)
    notes = []
    if aside:
        one_of = "" if len(_of_weight(runs)) == 1 else f"the last of {len(runs)} runs is judged, {picked}; "
        notes.append(
            f"{one_of}{aside} row(s) of other runs were set aside: {_list(others)}; --run takes one of them"
        )
    notes += [f"{count} row(s) were set aside: {reason}" for reason, count in table.set_aside.items()]
    read = columns.reading
    read = replace(
        read, rows=read.rows + aside, set_aside=read.set_aside + aside, runs=max(len(found), len(runs))
    )
    return one, form, log, columns._replace(notes=[*notes, *columns.notes], reading=read)


def _without_warm_starts(found: list[Found]) -> list[Found]:
    """The runs but for those that are the warm start of another, in whose folder they lie."""
    folders = {one.files[0].parent for one in found}
    return [
        one
        for one in found
        if (place := one.files[0].parent).name != WARM_START or place.parent not in folders
    ]


def _of_one_log(
    runs: list[RunRows], path: Path, name: str | None, table: Table, takes_last: bool
) -> tuple[RunRows, list[RunRows]]:
    """The run that is meant, and the others."""
    if name is not None:
        if not (chosen := [one for one in runs if one.name == name]):
            raise DiagnosticsError(f"{path} has no run {name!r}", remedy=f"It has {_list(runs)}.")
    else:
        chosen = _of_weight(runs)
        if not chosen or (len(chosen) > 1 and not takes_last):
            raise DiagnosticsError(
                f"{path} has {len(runs)} runs",
                remedy=f"Name one by --run: {_list(runs)}{_without_reward(table.columns)}",
            )
    return chosen[-1], [one for one in runs if one is not chosen[-1]]


def _of_weight(runs: list[RunRows]) -> list[RunRows]:
    return [one for one in runs if one.size >= _FEW_ROWS] if len(runs) > 1 else runs


def _list(runs: list[RunRows]) -> str:
    return _joined([visible(str(one), 120) for one in runs[:_SHOWN]], len(runs))


def _several(found: list[Found]) -> str:
    """The names of runs, each with the number of its rows, and whether they lack a reward."""
    shown = []
    signals: set[str] = set()
    for one in found[:_SHOWN]:
        runs: list[RunRows] = []
        with suppress(DiagnosticsError, OSError):
            rows, _, form = one.rows()
            table = Table(rows, form.step_keys)
            runs = table.runs()
            signals.update(table.columns)
        rows_of = " + ".join(f"{part.size:,}" for part in runs) or "no"
        shown.append(f"{visible(one.name, 80)} ({rows_of} row(s))")
    return _joined(shown, len(found)) + _without_reward(signals)


def _without_reward(signals: Iterable[str]) -> str:
    """What is said of runs in which no name is known as one of a reward."""
    if any(ours == REWARD for ours, *_ in renamed(signals, {})[0].values()):
        return ""
    return (
        ". None of their names is known as a reward: name it by --map, or, if the training is supervised, "
        "expect findings about the loss and the gradients only"
    )


def _joined(shown: list[str], count: int) -> str:
    return ", ".join(shown) + (f" and {count - len(shown)} more" if count > len(shown) else "")


__all__ = ["read_run_signals", "run_names"]
