"""What people see: one self-contained HTML page, a markdown card, a terminal summary, JSON.

A leaf: it imports no other room and reads nothing but the files of a run directory. One record
(`record`), worked out once (`content`), shown by four views.
"""

from __future__ import annotations

from greenward.reports.content import load_report
from greenward.reports.write import write_all_reports

__all__ = ["load_report", "write_all_reports"]
