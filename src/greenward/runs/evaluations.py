"""What trackers and file names say of an evaluation."""

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
