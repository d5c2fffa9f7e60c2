"""Runs EvalPlus in the environment that it lives in, offline, on given data, with a cache of its own."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIDES = Path(__file__).parent / "evalplus_peers"
DATASETS = {"mbpp+": "mbpp", "humaneval+": "humaneval"}  # EvalPlus's names for our suites
MIN_TIME_LIMIT = 1.0  # EvalPlus's own: seconds for a call, if four times the reference's time is less
MEMORY_BYTES = 4 << 30  # EvalPlus's own: for one answer, the expected values in its process included
_SECONDS_AT_MOST = 7200.0


@dataclass(frozen=True)
class Statuses:
    """What EvalPlus says of one answer: "pass", "fail" or "timeout" on the original inputs and on its own.

    `failed_inputs` are the first of each that it failed on.
    """

    base: str
    plus: str
    failed_inputs: tuple[Any, ...]

    @property
    def base_passed(self) -> bool:
        return self.base == "pass"

    @property
    def passed(self) -> bool:
        return self.base == self.plus == "pass"


@dataclass(frozen=True)
class EvalPlus:
    """EvalPlus 0.3.1 under the interpreter `python`, on the files in `data`, with its cache in `folder`."""

    python: str
    data: Path
    folder: Path

    def expected_values(self, suite: str) -> dict[str, Any]:
        """Has EvalPlus compute and keep what its references return; what that took."""
        return self._run("expected", DATASETS[suite])

    def evaluate(
        self,
        suite: str,
        answers: Sequence[tuple[str, str]],
        workers: int,
        min_time_limit: float = MIN_TIME_LIMIT,
        memory_bytes: int = MEMORY_BYTES,
    ) -> tuple[list[Statuses], dict[str, Any]]:
        """The statuses of each (task id, program), and what the evaluation took.

        There must be a program for every task: EvalPlus demands it.
        """
        samples = self.folder / "samples.jsonl"
        results = self.folder / "samples_eval_results.json"
        results.unlink(missing_ok=True)
        lines = [json.dumps({"task_id": task_id, "solution": code}) for task_id, code in answers]
        samples.write_text("\n".join(lines) + "\n", encoding="utf-8")
        task = ("evaluate", DATASETS[suite], str(samples), str(workers), str(min_time_limit))
        took = self._run(*task, memory_bytes=memory_bytes)
        by_task = defaultdict(deque)
        for task_id, rows in json.loads(results.read_text(encoding="utf-8"))["eval"].items():
            by_task[task_id].extend(rows)  # in the order of the samples
        found = []
        for task_id, code in answers:
            row = by_task[task_id].popleft()
            assert row["solution"] == code
            failed = (*row["base_fail_tests"], *row["plus_fail_tests"])
            found.append(Statuses(row["base_status"], row["plus_status"], failed))
        return found, took

    def _run(self, *task: str, memory_bytes: int = MEMORY_BYTES) -> dict[str, Any]:
        settings = {
            "MBPP_OVERRIDE_PATH": str(self.data / "MbppPlus.jsonl.gz"),
            "HUMANEVAL_OVERRIDE_PATH": str(self.data / "HumanEvalPlus.jsonl.gz"),
            "XDG_CACHE_HOME": str(self.folder),
            "HF_HUB_OFFLINE": "1",
            "EVALPLUS_MAX_MEMORY_BYTES": str(memory_bytes),
        }
        return run_side([self.python, str(SIDES / "run_evalplus.py"), *task], settings)


def run_side(command: Sequence[str], settings: dict[str, str]) -> dict[str, Any]:
    """What a side measured of itself, and as `command_seconds` the time until its process had ended."""
    began = time.perf_counter()
    process = subprocess.run(
        command,
        env={**os.environ, **settings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS_AT_MOST,
    )
    seconds = time.perf_counter() - began
    for line in process.stdout.splitlines():
        if line.startswith("RESULT "):
            return {**json.loads(line.removeprefix("RESULT ")), "command_seconds": seconds}
    raise SystemExit(f"{command[1]} failed:\n{process.stderr[-2000:]}")
