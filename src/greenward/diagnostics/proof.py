"""Proves a cause by training again in processes and folders of their own, or by comparing weights."""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from greenward.common.errors import CheckpointError, ConfigError, DiagnosticsError
from greenward.common.files import UNEXPECTED, leads_out
from greenward.common.processes import python_module
from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.diff import TOLERANCE, setting_differences
from greenward.diagnostics.findings import topics_of
from greenward.diagnostics.monitor import PRESETS
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.signals import RunSignals
from greenward.reports.document import Fact, Occurrence, Report, Table, section
from greenward.runs.directory import fork_run
from greenward.runs.files import to_json
from greenward.runs.output import claim_folder
from greenward.runs.reading import (
    CHECKPOINTS,
    SHARED_SECTIONS,
    TIMING_PREFIXES,
    flattened,
    is_run,
    read_config,
    read_sessions,
    steps_in,
)

if TYPE_CHECKING:
    from torch import Tensor


# Variables that change numbers from one process to the next, and what to set.
_VARIABLES = {
    "PYTHONHASHSEED": "0, where the order of sets or hashes enters",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8, for deterministic CUDA matrix products",
    "OMP_NUM_THREADS": "a fixed number: sums are rounded in another order with another",
}


def audit_environment(path: Path) -> Iterator[str]:
    """Lines that say what differs between the sessions of a run, and what is not fixed here.

    Raises:
        DiagnosticsError: there is no run directory.
        RunError: a file of it that cannot be read.
    """
    if not is_run(path):
        raise DiagnosticsError(f"{path} is no run directory")
    if not (sessions := read_sessions(path)):
        yield "provenance.json is missing: versions and machine of the run are not known."
    for number, (before, after) in enumerate(pairwise(sessions), start=2):
        for one in sorted(setting_differences(before, after), key=attrgetter("key")):
            yield f"session {number}: {one.key} {_shown(one.a)} -> {_shown(one.b)}"
    if sessions:
        for key, value in sorted(flattened(sessions[-1])):
            yield f"{key}: {_shown(value)}"
    config = read_config(path) if (path / "config.yaml").is_file() else {}
    if "seed" not in config:
        yield "! the config names no seed"
    for name, advice in _VARIABLES.items():
        if name not in os.environ:
            yield f"! {name} is not set here (set it to {advice})"


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)[:100]


_SHOWN = 20


@dataclass(frozen=True)
class TensorChange:
    """The change of a tensor from A to B: norms, and the cosine of the angle between both."""

    name: str
    size: int
    norm: float
    change: float
    cosine: float

    @property
    def relative(self) -> float:
        return self.change / self.norm if self.norm else math.inf if self.change else 0.0


def open_weights(path: Path) -> dict[str, Callable[[], Tensor]]:
    """What reads the values of each tensor of a safetensors file, or of those in a folder, by name.

    Raises:
        CheckpointError: there are none, a file is not what it seems, or a link that leads out of the folder.
    """
    from safetensors import SafetensorError, safe_open

    from greenward.models.tokenizer import boundary

    files = [path] if path.is_file() else [one for one in sorted(path.glob("*.safetensors")) if one.is_file()]
    if not files:
        raise CheckpointError(f"{path} holds no safetensors file")
    found: dict[str, Callable[[], Tensor]] = {}
    for file in files:
        if file != path and leads_out(file, boundary(path)):
            raise CheckpointError(f"{file} is a link that leads out of {path}")
        try:
            opened = safe_open(file, framework="pt")
            found |= {name: partial(opened.get_tensor, name) for name in sorted(opened.keys())}
        except (SafetensorError, OSError, *UNEXPECTED) as error:
            raise CheckpointError(f"{file} is not a sound safetensors file: {str(error)[:200]}") from None
    return found


def diff_checkpoints(a: Path, b: Path) -> tuple[list[TensorChange], list[str]]:
    """(changes, the largest relative first; names that only one has, or that differ in size).

    Raises `CheckpointError`, also for values of a type that torch does not read or convert.
    """
    import torch
    from safetensors import SafetensorError

    first, second = open_weights(a), open_weights(b)
    changes, unmatched = [], sorted(first.keys() ^ second.keys())
    for name in first.keys() & second.keys():
        try:
            x, y = first[name](), second[name]()
            size = x.numel()
            if (size, x.is_complex()) != (y.numel(), y.is_complex()):
                unmatched.append(name)
                continue
            if x.is_complex():
                x, y = torch.view_as_real(x), torch.view_as_real(y)
            x, y = x.double().flatten(), y.double().flatten()
        except (SafetensorError, RuntimeError, *UNEXPECTED) as error:
            raise CheckpointError(f"the values of {name!r:.200} cannot be read: {str(error)[:200]}") from None
        norm, norms = float(x.norm()), float(x.norm() * y.norm())
        cosine = float(x @ y) / norms if norms else math.nan
        changes.append(TensorChange(name, size, norm, float((y - x).norm()), cosine))
    return sorted(changes, key=lambda one: (-one.relative, one.name)), unmatched


def _newest_checkpoint(path: Path) -> Path:
    kept = steps_in(path / CHECKPOINTS) if is_run(path) else []
    return kept[-1][1] if kept else path


def checkpoint_report(a: Path, b: Path) -> Report:
    """The change of the whole and of the tensors that moved most; of a run, its newest checkpoint's."""
    a, b = map(_newest_checkpoint, (a, b))
    changes, unmatched = diff_checkpoints(a, b)
    total = math.sqrt(sum(one.change**2 for one in changes))
    norm = math.sqrt(sum(one.norm**2 for one in changes))
    moved = sum(one.change > 0 for one in changes)
    share = total / norm if norm else 0.0
    headline = f"{moved} of {len(changes)} tensors moved; the whole by {share:.2%} of its norm."
    if not moved:
        headline = f"SAME: none of {len(changes)} tensors moved."
    rows = tuple(
        (one.name, f"{one.size:,}", f"{one.change:.3g}", f"{one.relative:.2%}", f"{one.cosine:.6f}")
        for one in changes[:_SHOWN]
    )
    return Report(
        kind="checkpoint diff",
        title=f"{a.name} to {b.name}",
        headline=headline,
        facts=(Fact("L2 of the change", f"{total:.4g}"), Fact("L2 of A", f"{norm:.4g}")),
        notes=(f"not in both, or of another size: {', '.join(unmatched[:_SHOWN])}",) if unmatched else (),
        sections=(section("Top movers", Table("", ("Tensor", "Values", "L2", "Relative", "Cosine"), rows)),),
        data=to_json(
            {"tensors": [{**vars(one), "relative": one.relative} for one in changes], "unmatched": unmatched}
        ),
    )


HORIZON = 30  # steps after the onset that a replay takes
_OUT = "{out}"
_LOG_CHARACTERS = 400
_OUTSIDE = (
    "rollouts.server.base_url", "sandbox.http", "sandbox.packages", "tracking.wandb", "tracking.trackio",
    "tracking.mlflow",
)  # fmt: skip
_KNOWN_SECTIONS = ("sandbox", "tracking", "rollouts", "monitor", "reward_model", "faults", "name")
_CODE = re.compile(r"(?!textarena:)[\w.]+:[\w.]+")
_IRRELEVANT = (
    *("name", "seed", "tracking", "preset", "evaluation", "sandbox", "monitor", "faults", "training.threads"),
    *("training.checkpoint", "training.keep", "training.max_s", "model.cache", "model.offline"),
)


class Difference(NamedTuple):
    """Where two runs first differ, and their values there."""

    step: int
    signal: str
    first: float
    other: float


def first_difference(
    a: RunSignals, b: RunSignals, tolerance: float = TOLERANCE, signals: Sequence[str] = ()
) -> Difference | None:
    """The first difference at common steps that no clock explains, of all signals or of these.

    Raises:
        DiagnosticsError: a run has no such signal, so that nothing would be compared.
    """
    wanted = {one.resolve(name) for name in signals for one in (a, b)}
    common, in_a, in_b = np.intersect1d(a.steps, b.steps, return_indices=True)
    found = []
    for name in a.values.keys() & b.values.keys():
        if name.startswith(TIMING_PREFIXES) or (wanted and name not in wanted):
            continue
        left, right = a.values[name][in_a], b.values[name][in_b]
        unequal = np.flatnonzero(~np.isclose(left, right, rtol=tolerance, atol=1e-12, equal_nan=True))
        if len(unequal):
            place = int(unequal[0])
            found.append(Difference(int(common[place]), name, float(left[place]), float(right[place])))
    return min(found, default=None)


def check_determinism(
    command: str,
    repetitions: int,
    *,
    log: str = _OUT,
    tolerance: float = TOLERANCE,
    seconds: float | None = None,
    signals: Sequence[str] = (),
) -> dict[int, Difference]:
    """Run a command several times; those repetitions whose log differs from that of the first, by number.

    `{out}` in the command and in `log` is a folder of its own for each repetition; without it, the command
    runs in that folder. `signals` are compared, all where there are none.

    Raises:
        DiagnosticsError: the command failed, or logged no metrics or no such signal: no proof of anything.
    """
    with tempfile.TemporaryDirectory() as temporary:
        runs = []
        for number in range(repetitions):
            out = Path(temporary) / str(number)
            out.mkdir()
            arguments = shlex.split(command.replace(_OUT, str(out)))
            _complete(f"repetition {number + 1}", arguments, out if _OUT not in command else None, seconds)
            try:
                runs.append(read_run_signals(out / log.replace(_OUT, str(out))))
            except DiagnosticsError as error:
                raise DiagnosticsError(
                    f"repetition {number + 1} logged no metrics: {error.message}",
                    remedy="Let the command write its log into {out}, or name the log by --log.",
                ) from None
        return {
            number: found
            for number, other in enumerate(runs[1:], start=2)
            if (found := first_difference(runs[0], other, tolerance, signals)) is not None
        }


def _complete(
    what: str, arguments: list[str], folder: Path | None = None, seconds: float | None = None
) -> None:
    """Run a command. Raises `DiagnosticsError` where it fails."""
    done = _finished(arguments, folder, seconds)
    if done.returncode:
        said = done.stderr.strip()[-_LOG_CHARACTERS:]
        raise DiagnosticsError(f"{what} ended with {done.returncode}: {said}")


def _finished(
    arguments: list[str], folder: Path | None, seconds: float | None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            arguments, cwd=folder, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DiagnosticsError(f"{shlex.join(arguments)[:200]} could not be run: {error}") from None


_PLANTED_LATE = "faults.gradient_explosion"


@dataclass(frozen=True)
class Replay:
    """A part of a run that was trained again. `finding` is the fault there, None where it is gone."""

    folder: Path
    first_step: int
    last_step: int
    finding: Occurrence | None
    difference: Difference | None


def replay(
    run: Path,
    target: Path,
    *,
    changes: Mapping[str, Any] = {},
    steps: int | None = None,
    finding: str | None = None,
    trusts_code: bool = False,
) -> Replay:
    """Train again from the last checkpoint before the onset of the cause (or of `finding`), up to `steps`.

    Functions and classes that the run's config names are imported, its rules with commands followed, and its
    servers and trackers used, only if it `trusts_code`.

    Raises:
        DiagnosticsError: nothing is wrong with the run, it names code, or the training failed.
        RunError: the run cannot be copied.
    """
    signals, fault = _fault_of(run, finding)
    if not trusts_code and (named := _named_outside(read_config(run))):
        raise DiagnosticsError(
            f"the config of {run} names {', '.join(named)}, which a replay imports, runs or connects to",
            remedy="If you trust this code, in the working folder and on the path, and these servers, add "
            "--trust-code.",
        )
    onset = fault.onset.low if fault.onset else 0
    begin = max((step for step, _ in steps_in(run / CHECKPOINTS) if step < onset), default=0)
    # From the beginning, as far as the fault was to be seen; from a checkpoint, beyond the onset.
    late = last = int(signals.steps[-1])
    if begin and fault.onset:
        late = fault.onset.high + max(HORIZON, int(0.1 * len(signals.steps)))
    last = min(steps or late, last)
    planted = dict(flattened(read_config(run))).get(f"{_PLANTED_LATE}.after_step")
    if isinstance(planted, int) and planted >= last:  # a recipe with a fault that is never reached is refused
        changes = {**changes, _PLANTED_LATE: None}
    fork_run(run, begin, target, changes)
    options = [f"training.max_steps={last}", "--output", str(target), "--resume", "--quiet"]
    _complete("the replay", python_module("greenward", "train", str(target / "config.yaml"), *options))
    again = diagnose_run(target)
    same = [one for one in again.findings if one.name == fault.name and one.severity != "info"]
    return Replay(target, begin, last, same[0] if same else None, first_difference(signals, again.run))


def _named_outside(config: Mapping[str, Any]) -> list[str]:
    """The code, files of rules, servers and trackers that a config names."""
    flat = dict(flattened(config))
    found = {key: value for key, value in flat.items() if value and key.startswith(_OUTSIDE)}
    if (rules := str(flat.get("monitor.rules", "default"))) not in PRESETS:
        found["monitor.rules"] = rules
    named = set[str]()
    known = {*SHARED_SECTIONS, *_KNOWN_SECTIONS} - {"algorithm"}
    values = [value for key, value in config.items() if key not in known]
    while values:
        value = values.pop()
        if isinstance(value, Mapping):
            values += [*value, *value.values()]
        elif isinstance(value, list):
            values += value
        elif isinstance(value, str) and (_CODE.fullmatch(value) or "://" in value):
            named.add(value)
    if flat.get("sandbox.backend", "local") != "local":
        named.add(f"sandbox.backend={flat['sandbox.backend']}")
    return sorted(named.union(f"{key}={str(value)[:80]}" for key, value in found.items()))


def _fault_of(run: Path, name: str | None) -> tuple[RunSignals, Occurrence]:
    if not is_run(run):
        raise DiagnosticsError(f"{run} is no run directory of greenward, so it cannot be trained again")
    found = diagnose_run(run)
    if name is not None:
        named = [one for one in found.findings if one.name == name]
        if not named:
            raise DiagnosticsError(f"{run} has no finding {name!r}")
        return found.run, named[0]
    if not found.causes:
        raise DiagnosticsError(f"nothing is wrong with {run}: {found.headline}")
    return found.run, found.causes[0].finding


@dataclass(frozen=True)
class Trial:
    """One setting put back to its reference: whether the fault is gone."""

    key: str
    value: Any
    reference: Any
    cured: bool


@dataclass(frozen=True)
class Bisection:
    """What a bisection tried. `cure` is the setting that cures the fault, None where none does alone."""

    fault: Occurrence
    returns: bool
    trials: tuple[Trial, ...]

    @property
    def cure(self) -> Trial | None:
        return next((trial for trial in self.trials if trial.cured), None)


def bisect_settings(
    run: Path,
    folder: Path,
    *,
    good: Path | None = None,
    finding: str | None = None,
    steps: int | None = None,
    keys: Sequence[str] = (),
    trusts_code: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Bisection:
    """Put one suspected setting after the other back to that of `good` (or the default), and train again.

    The fault must return in a replay without any change first: what does not return cannot be bisected. Ends
    with the first setting that cures it.

    Raises:
        DiagnosticsError: nothing is wrong, there is no suspect, or a training failed.
    """
    _, fault = _fault_of(run, finding)
    suspects = list(_suspects(read_config(run), _reference(run, good), fault.name, keys))
    if not suspects:
        raise DiagnosticsError(
            "no setting differs from its reference, so none is suspected", remedy="Give --good RUN."
        )
    claim_folder(folder, "runs")
    say(f"{fault.name}; suspects: {', '.join(key for key, _, _ in suspects)}")
    again = replay(run, folder / "unchanged", steps=steps, finding=fault.name, trusts_code=trusts_code)
    if again.finding is None:
        return Bisection(fault, False, ())
    trials: list[Trial] = []
    for number, (key, value, reference) in enumerate(suspects):
        found = replay(
            run,
            folder / f"{number}_{key}",
            changes={key: reference},
            steps=steps,
            finding=fault.name,
            trusts_code=trusts_code,
        )
        trials.append(Trial(key, value, reference, found.finding is None))
        outcome = "the fault is gone" if trials[-1].cured else "the fault is still there"
        say(f"{key}: {value} -> {reference}: {outcome}")
        if trials[-1].cured:
            break
    return Bisection(fault, True, tuple(trials))


def _reference(run: Path, good: Path | None) -> dict[str, Any]:
    """The config to compare with: of a good run, else of the shipped recipe of that name, or defaults."""
    if good is not None:
        return read_config(good)
    from greenward.config.loading import load_recipe, recipe_class, refuse_code, shipped_recipes

    config = read_config(run)
    if config.get("name") in shipped_recipes():
        return load_recipe(config["name"]).model_dump(mode="json")
    refuse_code(config)
    if (made := recipe_class(config)) is None:
        raise ConfigError(f"{run} has a config of an unknown task or algorithm")
    field = made.model_fields.get("warm_start")
    needed: dict[str, Any] = {"warm_start": {}} if field and field.is_required() else {}
    return made.model_validate(needed).model_dump(mode="json")


def _suspects(
    config: Mapping[str, Any], reference: Mapping[str, Any], finding: str, keys: Sequence[str]
) -> Iterator[tuple[str, Any, Any]]:
    """(key, value, reference) of the settings that differ, the likeliest first."""
    known = dict(flattened(reference))
    differ = {
        key: (value, known[key]) for key, value in flattened(config) if key in known and value != known[key]
    }
    wanted = [key for key in differ if (key in keys if keys else not key.startswith(_IRRELEVANT))]
    topics = topics_of([], config.get("task"))
    first = next(one.suspects for topic in topics for one in topic.findings if one.name == finding)

    def rank(key: str) -> tuple[int, int]:
        places = [place for place, prefix in enumerate(first) if key.startswith(prefix)]
        return (min(places) if places else len(first)), wanted.index(key)

    for key in sorted(wanted, key=rank):
        yield key, *differ[key]
