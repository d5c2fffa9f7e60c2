"""What trackers, file names and readers of a run say of an evaluation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def tracker_name(suite: str) -> str:
    """The name of a suite in metrics and files: `humaneval+` is humaneval_plus, `mbpp:test` mbpp_test."""
    return re.sub(r"[^A-Za-z0-9]+", "_", suite.replace("+", "_plus_")).strip("_") or "suite"


def evaluation_values(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an evaluation for trackers, each `SUITE_eval/NAME`.

    Every metric with its interval (`_low`, `_high`); `pass_rate` is pass@1.
    """
    values: dict[str, float] = {}
    metrics = dict(record["metrics"])
    if "pass@1" in metrics:
        metrics["pass_rate"] = metrics["pass@1"]
    for name, metric in metrics.items():
        values |= {name: metric["value"], f"{name}_low": metric["low"], f"{name}_high": metric["high"]}
    if "problems_passed" in record:
        values["problems_passed"] = record["problems_passed"]
    group = f"{tracker_name(record['suite'])}_eval"
    return {f"{group}/{name}": value for name, value in values.items()}


def by_problem(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of an evaluation with its rows grouped by problem, as readers of runs want them.

    Each has task_id, prompt, samples, passed, greedy_passed (None if not measured), and answers with code,
    status and first_failure. Records of earlier versions hold their rows like that and are not changed.
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
            "answers": [{key: row[key] for key in ("code", "status", "first_failure")} for row in answers],
        }
        for task_id, answers in grouped.items()
    ]
    return {**record, "rows": problems}
