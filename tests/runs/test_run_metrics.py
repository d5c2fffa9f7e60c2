"""metrics.jsonl and predictions.jsonl: valid JSON whatever the numbers, readable after a kill, exact after truncation."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from greenward.common.errors import RunError
from greenward.common.files import lines
from greenward.runs.directory import MetricsFile, PredictionsFile
from greenward.runs.reading import PREDICTIONS, Predictions, read_metrics, read_predictions, without_timing


def reject_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_non_finite_numbers_are_valid_json_and_come_back(tmp_path):
    path = tmp_path / "metrics.jsonl"
    MetricsFile(path).append(1, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": None, "e": "text"})
    json.loads(path.read_text(), parse_constant=reject_constant)
    row = read_metrics(path).rows[0]
    assert math.isnan(row["a"]) and row["b"] == math.inf and row["c"] == -math.inf
    assert row["d"] is None and row["e"] == "text"


def test_floats_come_back_bit_for_bit(tmp_path):
    values = {f"v{i}": float(x) for i, x in enumerate(np.random.default_rng(0).normal(size=50) * 1e-7)}
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.append(3, {**values, "numpy": np.float32(0.1)})
    (row,) = read_metrics(file.path).rows
    assert row == {"step": 3, **values, "numpy": float(np.float32(0.1))}


@pytest.mark.parametrize("tail", [b'{"step": 3, "lo', b'{"step": 3, "loss": 1.0}', b"\xff\xfe", b'{"st\n'])
def test_a_torn_last_line_is_reported_and_then_cut_off(tmp_path, tail):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n' + tail)
    log = read_metrics(path)
    assert [row["step"] for row in log.rows] == [1, 2] and log.torn
    MetricsFile(path).append(3, {"loss": 2.0})
    log = read_metrics(path)
    assert [row["step"] for row in log.rows] == [1, 2, 3] and log.torn is None


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnot json\n{"step": 3}\n')
    with pytest.raises(RunError, match="line 2"):
        read_metrics(path)


def test_truncation_restores_the_bytes_of_the_shorter_run(tmp_path):
    short, long = MetricsFile(tmp_path / "short.jsonl"), MetricsFile(tmp_path / "long.jsonl")
    for step in range(7):
        values = {"loss": math.pi / (step + 1), "kl": math.nan, "text": "é\n"}
        long.append(step, values)
        if step <= 4:
            short.append(step, values)
    long.truncate_after(4)
    assert long.path.read_bytes() == short.path.read_bytes()
    assert long.last_step == 4
    long.append(5, {"loss": 1.0})


def test_steps_never_go_back_and_rows_stay_flat(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.append(5, {})
    with pytest.raises(RunError, match="step 4 comes after step 5"):
        file.append(4, {})
    with pytest.raises(TypeError, match="'nested'"):
        file.append(6, {"nested": {"a": 1}})
    MetricsFile(file.path).append(6, {})


def test_timing_is_everything_under_its_prefixes():
    row = {"step": 1, "loss": 2.0, "time/step": 3.0, "perf/rss_mb": 4.0, "timeouts": 5}
    assert without_timing(row) == {"step": 1, "loss": 2.0, "timeouts": 5}


def test_predictions_are_read_back_in_order(tmp_path):
    file = PredictionsFile(tmp_path / PREDICTIONS)
    file.append(1, [0.25, 0.75], [False, True])
    file.append(2, [], [])
    file.append(3, [0.1234567891], [True])
    assert read_predictions(tmp_path) == Predictions((1, 1, 3), (0.25, 0.75, 0.123457), (0, 1, 1))


def test_a_row_that_is_appended_while_the_file_is_read_is_torn_and_no_error(tmp_path):
    """The reader takes the part of a row that is there; then the writer appends the rest and another row."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"st')
    with path.open("rb") as file:
        reading = lines(file)
        assert [next(reading), next(reading)] == [b'{"step": 1}\n', b'{"st']
        with path.open("a") as writer:
            writer.write('ep": 2}\n{"step": 3}\n')
        assert list(reading) == []
    assert [row["step"] for row in read_metrics(path).rows] == [1, 2, 3]


def test_a_resumed_run_drops_newer_predictions_and_a_torn_line(tmp_path):
    file = PredictionsFile(tmp_path / PREDICTIONS)
    for step in (1, 2, 3):
        file.append(step, [0.5], [True])
    with file.path.open("a") as raw:
        raw.write('{"step": 4, "predic')
    file.truncate_after(2)
    file.append(3, [0.75], [False])
    assert read_predictions(tmp_path).predicted == (0.5, 0.5, 0.75)


def test_a_run_without_predictions_has_none(tmp_path):
    assert read_predictions(tmp_path) == Predictions((), (), ())
    assert read_metrics(tmp_path / "metrics.jsonl").rows == ()
    PredictionsFile(tmp_path / PREDICTIONS).truncate_after(0)
    assert not (tmp_path / PREDICTIONS).exists()


def test_a_row_of_predictions_of_another_shape_is_named(tmp_path):
    (tmp_path / PREDICTIONS).write_text('{"step": 1, "predicted": [0.5], "passed": [1, 0]}\n')
    with pytest.raises(RunError, match=r"row 1: expected a step, and predicted and passed of one length"):
        read_predictions(tmp_path)
