"""Diagnoses runs in a process of its own, one after another: a path comes in, a record goes out, a line each.

It runs at low priority, so that a training on the same machine is not slowed, and with bounded memory.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from greenward.common.errors import GreenwardError
from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.finding import Diagnosis
from greenward.diagnostics.findings import answers_behind
from greenward.reports.document import Occurrence
from greenward.runs.files import to_json
from greenward.ui.series import curve

MEMORY_BYTES = 4 << 30
CPU_SECONDS = 60
SPARK_POINTS = 60
SPARK = ("reward/mean", "pass_rate", "reward", "loss")
"""Signals of which the first that a run has is drawn in the list."""


def main() -> None:
    """Answer each line of standard input with a line, until it ends."""
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    signal.signal(signal.SIGPROF, _too_slow)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        found = diagnosed(Path(json.loads(line)))
        signal.setitimer(signal.ITIMER_PROF, 0)
        out.write(json.dumps(found) + "\n")
        out.flush()


def _too_slow(*_: object) -> None:
    raise TimeoutError(f"The diagnosis took more than {CPU_SECONDS} s of computing and was given up.")


def diagnosed(path: Path) -> dict[str, Any]:
    """The diagnosis of the run at `path` as plain data, or why there is none."""
    try:
        found = diagnose_run(path)
    except GreenwardError as error:
        return {"verdict": "cannot tell", "headline": str(error).partition("\n")[0], "error": True}
    except TimeoutError as error:
        return {"verdict": "cannot tell", "headline": str(error), "error": True}
    except MemoryError:
        return {"verdict": "cannot tell", "headline": "The log is too large to be diagnosed.", "error": True}
    record: dict[str, Any] = to_json(record_of(found))
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
