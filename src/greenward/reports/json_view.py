"""The report as JSON, for scripts and agents: the numbers behind every other view.

The step-by-step curves are left out: metrics.jsonl has them, whole and unsmoothed.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from greenward.reports.content import Content


def render_json(content: Content) -> str:
    """The report as one JSON object; rates are shares between 0 and 1, times are seconds."""
    record = asdict(content)
    del record["training_charts"], record["warm_start_charts"]
    return json.dumps(record, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
