"""Reading the signals of a run: names, gaps, restarts and torn files."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from greenward.common.errors import DiagnosticsError
from greenward.diagnostics.readers import read_run_signals


@pytest.fixture
def written(tmp_path):
    def write(*rows, tail=""):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "metrics.jsonl").write_text(text + tail)
        return read_run_signals(tmp_path)

    return write


def test_series_are_aligned_and_gaps_are_not_broken_numbers(written):
    signals = written(
        {"step": 1, "loss": 0.5}, {"step": 2, "kl": 1}, {"step": 3, "loss": "NaN", "note": "text"}
    )
    assert signals.steps.tolist() == [1, 2, 3]
    assert np.isnan(signals.values["loss"]).tolist() == [False, True, True]
    assert signals.not_finite("loss").tolist() == [False, False, True]
    assert signals.series("kl")[0].tolist() == [2]
    assert "note" not in signals.values
    assert signals.notes == ()


def test_restarts_disorder_and_a_torn_tail_are_mended_and_said(written):
    signals = written(
        {"step": 1, "loss": 1},
        {"step": 3, "loss": 3},
        {"step": 2, "loss": 2},
        {"step": 3, "loss": 4},
        {"loss": 9},
        tail='{"step": 4, "lo',
    )
    assert signals.steps.tolist() == [1, 2, 3]
    assert signals.values["loss"].tolist() == [1, 2, 4]
    assert [part in " ".join(signals.notes) for part in ("torn", "without a step", "again", "order")] == [
        True
    ] * 4


def test_names_are_found_by_alias_and_by_last_part(written):
    signals = written({"step": 1, "grad_norm": 1, "reward/tests": 1, "reward/mean": 1, "value/loss": 1})
    assert signals.resolve("gradient_norm") == "grad_norm"
    assert signals.resolve("code_score") == "reward/tests"
    assert signals.resolve("tests") == "reward/tests"
    assert signals.resolve("loss") == "value/loss"


def test_a_misspelled_name_lists_the_nearest(written):
    with pytest.raises(DiagnosticsError, match="did you mean grad_norm"):
        written({"step": 1, "grad_norm": 1}).resolve("gradnrom")


def test_no_metrics_is_an_error_that_names_the_runs_inside(tmp_path):
    for seed in ("seed_0", "seed_1"):
        (tmp_path / seed).mkdir()
        (tmp_path / seed / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(DiagnosticsError, match="seed_0"):
        read_run_signals(tmp_path)


def test_broken_lines_are_left_out_and_rows_without_steps_are_counted(written):
    assert written({"loss": 1}, {"loss": 2}).steps.tolist() == [1, 2]
    assert "1 line(s) cannot be read" in written(tail='nonsense\n{"step": 1}\n').notes[0]
    with pytest.raises(DiagnosticsError, match="no row with a step"):
        written(tail="nonsense\n")


def test_diagnostics_load_without_torch():
    code = "import sys, greenward.diagnostics.diff, greenward.cli.rldk; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
