"""Diagnoses runs in a process of its own: a request comes in, a record goes out, a line each.

A request is the path of a run, or a mapping: the path of another trainer's log, the name of the run in it,
and the file into which its curves are to be written; a file that may be the log of a training, and the
folder that no link may lead out of; or the folder of a log whose answers are to be converted, that folder,
and the one into which they are to be written.

It runs at low priority, so that a training on the same machine is not slowed, and with bounded memory.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from greenward.common.errors import GreenwardError
from greenward.common.files import UNEXPECTED
from greenward.common.text import visible
from greenward.diagnostics.diagnose import diagnose_run, diagnose_signals
from greenward.diagnostics.finding import Diagnosis, Thresholds
from greenward.diagnostics.findings import answers_behind
from greenward.diagnostics.readers.recognition import is_training_log
from greenward.diagnostics.signals import RunSignals
from greenward.reports.document import Occurrence
from greenward.runs.files import to_json
from greenward.ui.columns import Metrics, curve
from greenward.ui.conversion import keep_answers
from greenward.ui.logs import SeveralRunsError, as_metrics, read_log

MEMORY_BYTES = 4 << 30
CPU_SECONDS = 60
CPU_SECONDS_OF_A_LOOK = 10  # at a file that may be a log
SECONDS_OF_ANSWERS = 2.0  # after which others are asked for
SPARK_POINTS = 60
MAX_SETTINGS = 1000  # of the config in a log
REWARDS = ("reward/mean", "pass_rate", "reward")
"""Signals of which the first that a log has stands in the list as its reward."""
SPARK = (*REWARDS, "loss")
"""Signals of which the first that a run has is drawn in the list."""


def main() -> None:
    """Answer each line of standard input with a line, until it ends."""
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    signal.signal(signal.SIGPROF, _too_slow)
    for line in sys.stdin:
        asked = json.loads(line)
        found: Any
        if isinstance(asked, dict) and "log" in asked:
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS_OF_A_LOOK)
            found = is_training_log(Path(asked["log"]), Path(asked["within"]))  # False where it takes longer
        elif isinstance(asked, dict) and "answers" in asked:
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            found = converted(**asked)
        else:
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            found = diagnosed_log(**asked) if isinstance(asked, dict) else diagnosed(Path(asked))
        signal.setitimer(signal.ITIMER_PROF, 0)
        out.write(json.dumps(found) + "\n")
        out.flush()


def _too_slow(*_: object) -> None:
    raise TimeoutError(f"The diagnosis took more than {CPU_SECONDS} s of computing and was given up.")


def diagnosed(path: Path) -> dict[str, Any]:
    """The diagnosis of the run at `path` as plain data, or why there is none."""
    return _bounded(lambda: record_of(diagnose_run(path)))


def diagnosed_log(path: str, inner: str | None, out: str) -> dict[str, Any]:
    """The diagnosis of another trainer's log, with what was read; its curves are written into the file `out`.

    Of a log of several runs only their names, under `inner`.
    """

    def found() -> dict[str, Any]:
        try:
            run = read_log(Path(path), inner)
        except SeveralRunsError as error:
            return {"verdict": f"{len(error.names)} runs", "headline": str(error), "inner": error.names}
        curves, left_out = as_metrics(run)
        temporary = Path(f"{out}.{os.getpid()}")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            curves.save(opened)
        os.replace(temporary, out)
        record = record_of(diagnose_signals(run, Thresholds()))
        return {**record, "read": _read(run, curves, left_out)}

    return _bounded(found)


def converted(answers: str, within: str, out: str) -> dict[str, Any]:
    """What `keep_answers` says after some seconds of work, or why there is nothing."""
    try:
        return keep_answers(Path(answers), Path(within), Path(out), SECONDS_OF_ANSWERS)
    except GreenwardError as error:
        said = str(error).partition("\n")[0]
    except (OSError, *UNEXPECTED) as error:
        said = str(getattr(error, "strerror", None) or error) or type(error).__name__
    return {"share": 1.0, "problems": [f"The answers beside the log cannot be read: {visible(said, 300)}"]}


def _read(run: RunSignals, curves: Metrics, left_out: int) -> dict[str, Any]:
    last = {name: values[~np.isnan(values)][-1:] for name, values in curves.values.items()}
    settings = ((visible(key, 200), visible(str(value), 500)) for key, value in run.settings.items())
    return {
        "format": run.format,
        "file": visible(run.log, 200),
        "trainer": run.family.name,
        "rows": "" if run.reading is None else str(run.reading),
        "steps": len(run.steps),
        "first": int(run.steps[0]),
        "last": int(run.steps[-1]),
        "counted_by": visible(run.counted_by, 200),
        "names": {ours: visible(theirs, 200) for ours, theirs in run.theirs.items()},
        "signals": len(run.values),
        "left_out": left_out,
        "reward": next((float(last[name][0]) for name in REWARDS if name in last and len(last[name])), None),
        "settings": dict(islice(settings, MAX_SETTINGS)),
    }


def _bounded(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        record: dict[str, Any] = to_json(make())
    except GreenwardError as error:
        return {"verdict": "cannot tell", "headline": str(error).partition("\n")[0], "error": True}
    except TimeoutError as error:
        return {"verdict": "cannot tell", "headline": str(error), "error": True}
    except MemoryError:
        return {"verdict": "cannot tell", "headline": "The log is too large to be diagnosed.", "error": True}
    except OSError as error:
        said = f"The curves could not be kept: {error.strerror or error}"
        return {"verdict": "cannot tell", "headline": said, "error": True}
    return record


def record_of(found: Diagnosis) -> dict[str, Any]:
    """What the pages show of a diagnosis."""
    findings = [one for one in found.findings if one.severity != "info"]
    task = (found.run.config or {}).get("task")
    signal = next((name for name in SPARK if len(found.run.series(name)[1])), "")
    drawn = curve(*found.run.series(signal), SPARK_POINTS) if signal else None
    return {
        "verdict": found.verdict,
        "headline": found.headline,
        "critical": sum(one.severity == "critical" for one in findings),
        "warnings": sum(one.severity == "warning" for one in findings),
        "checks": found.checks,
        "causes": [
            {
                "headline": cause.headline,
                "severity": cause.severity,
                "finding": _finding(cause.finding, task),
                "consequences": [_finding(one, task) for one in cause.consequences],
            }
            for cause in found.causes
        ],
        "remarks": [_finding(one, task) for one in found.findings if one.severity == "info"],
        "gaps": [vars(gap) for gap in found.gaps],
        "notes": list(found.run.notes),
        "spark": [] if drawn is None else [float(f"{y:.4g}") for y in np.nan_to_num(drawn.mean)],
        "spark_of": signal,
    }


def _finding(one: Occurrence, task: object) -> dict[str, Any]:
    onset = one.onset
    return {
        "name": one.name,
        "title": one.title,
        "severity": one.severity,
        "measured": one.measured,
        "brief": one.brief,
        "actions": list(one.actions),
        "confirm": one.confirm,
        "onset": None if onset is None else {"step": onset.step, "low": onset.low, "high": onset.high},
        "p_value": one.p_value,
        "signals": list(one.signals),
        "docs": one.docs,
        "selection": answers_behind(one, task),
    }


if __name__ == "__main__":
    main()
