"""What `greenward audit` says of reward functions whose weaknesses are known.

    .venv/bin/python benchmarks/reward_audit.py [FUNCTION …] [--json FILE]

Each function of `audited_rewards.py` is audited by the command. A weakness counts as found if the first line
of the report names it, and as a false name if that line names one that the function does not have. Seconds
are of wall time; the target is 30 for each function on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from audited_rewards import DESCRIBES, EXPECTED

HERE = Path(__file__).resolve().parent
ALL_KINDS = set[str]().union(*(must | may for must, may in EXPECTED.values()))
TARGET_SECONDS = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("functions", nargs="*", default=list(EXPECTED), metavar="FUNCTION")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = []
    for name in options.functions:
        rows.append(row := audited(name))
        missed, false = ", ".join(row["missed"]) or "-", ", ".join(row["false"]) or "-"
        print(f"{name:24} {row['seconds']:5.1f} s  exit {row['exit']}  missed: {missed}  false: {false}")
        print(f"{'':24} {row['first_line']}", flush=True)
    weaknesses = sum(len(row["must"]) for row in rows)
    found = weaknesses - sum(len(row["missed"]) for row in rows)
    right = [row for row in rows if not row["must"]]
    alarmed = [row for row in right if row["exit"] == 1 or row["false"]]
    summary = {
        "weaknesses": weaknesses,
        "found": found,
        "alarmed_of_wrong": sum(row["exit"] == 1 for row in rows if set(row["must"]) - DESCRIBES),
        "right_functions": len(right),
        "false_alarms": len(alarmed),
        "not_judged": [row["function"] for row in rows if row["exit"] == 2],
        "false_names": sum(len(row["false"]) for row in rows),
        "most_seconds": max(row["seconds"] for row in rows),
        "over_target": [row["function"] for row in rows if row["seconds"] > TARGET_SECONDS],
    }
    print(*(f"{key}: {value}" for key, value in summary.items()), sep="\n")
    if options.json:
        options.json.write_text(json.dumps({"summary": summary, "functions": rows}, indent=1) + "\n")


def audited(name: str) -> dict[str, Any]:
    """What the first line of the report names of one function, beside what it should."""
    command = [sys.executable, "-m", "greenward", "audit", f"audited_rewards:{name}"]
    environment = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent / 'src'}"}
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    seconds = time.monotonic() - began
    first_line = next(iter((done.stdout or done.stderr).splitlines()), "")
    named = {kind for kind in ALL_KINDS if kind in first_line}
    must, may = EXPECTED[name]
    return {
        "function": name,
        "must": sorted(must),
        "named": sorted(named),
        "missed": sorted(must - named),
        "false": sorted(named - must - may),
        "exit": done.returncode,
        "seconds": round(seconds, 1),
        "first_line": first_line,
    }


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
