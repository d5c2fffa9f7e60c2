"""The verdicts on real logs, as a careful reader gave them. `benchmarks/real_logs.py` prints their rates."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from benchmarks.real_logs import MAPPING, diagnosed, judge, read_truth

LOGS = Path(__file__).parents[3] / "shared" / "data" / "real_logs"
FOLDERS = sorted(path.parent for path in LOGS.glob("*/truth.txt"))


@pytest.mark.skipif(not FOLDERS, reason="the folder of real logs is not there")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_real_log_is_judged_as_its_reader_did(folder):
    outcome = diagnosed(folder)
    judge(outcome, read_truth(folder, yaml.safe_load(MAPPING.read_text())))
    assert outcome.judged == "right" and not outcome.extra and not outcome.untrue, outcome


def test_the_truth_of_a_log_without_a_row_is_read_by_its_words(tmp_path):
    said = "COLLAPSE: entropy 0.9 -> 0.001. Not truncated. 8 rows: 'too little' acceptable."
    (tmp_path / "truth.txt").write_text(f"source: a thread\nkind: F\n\n{said}")
    truth = read_truth(tmp_path, yaml.safe_load(MAPPING.read_text()))
    assert truth.kind == "F" and truth.accept == {"entropy-collapse"} and truth.too_little
