"""predictions.jsonl: appended a step at a time, cut on resume, read back whole."""

import pytest

from greenward.errors import RunError
from greenward.runs.metrics import PREDICTIONS, Predictions, PredictionsFile, read_predictions


def test_what_was_written_is_read_back_in_order(tmp_path):
    file = PredictionsFile(tmp_path / PREDICTIONS)
    file.append(1, [0.25, 0.75], [False, True])
    file.append(2, [], [])
    file.append(3, [0.1234567891], [True])
    assert read_predictions(tmp_path) == Predictions((1, 1, 3), (0.25, 0.75, 0.123457), (0, 1, 1))


def test_a_resumed_run_drops_newer_rows_and_a_torn_line(tmp_path):
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
    PredictionsFile(tmp_path / PREDICTIONS).truncate_after(0)
    assert not (tmp_path / PREDICTIONS).exists()


def test_a_row_of_another_shape_is_named(tmp_path):
    (tmp_path / PREDICTIONS).write_text('{"step": 1, "predicted": [0.5], "passed": [1, 0]}\n')
    with pytest.raises(RunError, match=r"row 1: expected a step, and predicted and passed of one length"):
        read_predictions(tmp_path)
