"""The report as JSON, for scripts and agents: the numbers behind every other view."""

from __future__ import annotations

import json
from dataclasses import asdict

from greenward.reports.content import Content


def render_json(content: Content) -> str:
    """The whole report as one JSON object; rates are shares between 0 and 1."""
    return json.dumps(asdict(content), ensure_ascii=False, allow_nan=False, indent=1) + "\n"
