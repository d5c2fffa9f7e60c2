"""A training with trackers and planted keys: what arrives, and that no key is written anywhere.

`make test` tries the trackers that the extra `dev` holds; `make test-trackers` tries all of them.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from recording import call

from greenward.grading.judge import Grader
from greenward.runs.reading import read_metrics
from tiny_model import REINFORCED

OPTIONS = {
    "tensorboard": "tracking.tensorboard=true",
    "wandb": "tracking.wandb.mode=online",  # without a network: W&B goes offline
    "trackio": "tracking.trackio.space_id=me/space",  # without a network: on this machine
    "mlflow": "tracking.mlflow.experiment=tests",
}
HERE = [name for name in OPTIONS if find_spec(name)]
PLANTED = {
    "WANDB_API_KEY": "planted0" * 5,  # the length of a key
    "HF_TOKEN": "hf_planted_token",
    "MLFLOW_TRACKING_PASSWORD": "planted-mlflow-password",
    "OPENAI_API_KEY": "sk-planted-openai",
    "SOME_API_KEY": "planted-in-the-environment",
}
NAMES = ("reward/mean", "reward/avg_batch_reward", "reward/successful_predictions_count")
needs = {
    name: pytest.mark.skipif(name not in HERE, reason=f"{name} is not installed; make test-trackers")
    for name in OPTIONS
}


def train(*arguments: str) -> str:
    """`greenward train` with its progress: all that it said."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code, printed = call("train", "quickstart", *REINFORCED, *arguments, "--output", "run")
    assert code == 0, said.getvalue()
    return said.getvalue() + printed


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder that a run of two steps, resumed for a third one, was started in, and what it said."""
    folder = tmp_path_factory.mktemp("tracked")
    exported = ("SOME_API_KEY", "OPENAI_API_KEY")
    (folder / ".env").write_text(
        "".join(f"{name}={PLANTED[name]}\n" for name in PLANTED if name not in exported)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in PLANTED:  # what `.env` sets is undone, too
            patch.setenv(name, PLANTED[name])
            if name not in exported:
                patch.delenv(name)
        for name in ("WANDB_BASE_URL", "HF_ENDPOINT"):
            patch.setenv(name, "http://127.0.0.1:1")
        patch.setenv("TRACKIO_DIR", str(folder / "trackio"))
        options = [*(OPTIONS[name] for name in HERE), "evaluation.eval_interval_steps=1"]
        said = train(*options) + train(*options, "training.max_steps=3", "--resume")
        assert os.environ["WANDB_API_KEY"] == PLANTED["WANDB_API_KEY"]
        yield folder, said


def test_no_key_is_written_anywhere(tracked: tuple[Path, str]) -> None:
    folder, said = tracked
    assert [row["step"] for row in read_metrics(folder / "run/metrics.jsonl").rows] == [1, 2, 3]
    texts = {"output": said.encode()}
    texts |= {
        str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".env"
    }
    assert len(texts) > 20
    found = [
        (where, name)
        for where, text in texts.items()
        for name, key in PLANTED.items()
        if key.encode() in text
    ]
    assert not found


def test_answers_run_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, key in PLANTED.items():
        monkeypatch.setenv(name, key)
    with Grader() as grader:
        (ran,) = grader.run_programs(["import os; print('ran', dict(os.environ))"])
    assert ran.stdout.startswith("ran") and not any(
        part in ran.stdout for pair in PLANTED.items() for part in pair
    )


@needs["tensorboard"]
def test_tensorboard_has_the_names_and_the_tables(tracked: tuple[Path, str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tracked[0] / "run/tensorboard"), size_guidance={"scalars": 0}).Reload()
    for name in (*NAMES, "held_out_eval/pass_rate"):
        assert {event.step for event in events.Scalars(name)} == {1, 2, 3}
    assert {"rollouts/text_summary", "held_out_eval/samples/text_summary"} <= set(events.Tags()["tensors"])


@needs["wandb"]
def test_wandb_without_a_network_has_offline_runs(tracked: tuple[Path, str]) -> None:
    folder = tracked[0]
    offline = sorted(folder.glob("run/wandb/offline-run-*/run-*.wandb"))
    assert len(offline) == 2
    for name in (*NAMES, "held_out_eval/samples"):
        assert name.encode() in offline[0].read_bytes()
    (table, *_) = offline[0].parent.glob("files/media/table/held_out_eval/samples*.json")
    assert {"task_id", "code", "success"} <= set(json.loads(table.read_text())["columns"])


@needs["trackio"]
def test_trackio_keeps_one_run_on_this_machine(tracked: tuple[Path, str]) -> None:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    assert "* " not in tracked[1]  # Trackio's own messages
    (run,) = trackio.Api().runs("greenward")
    logged = SQLiteStorage.get_logs("greenward", run.name)
    for name in NAMES:
        assert [row["step"] for row in logged if name in row] == [1, 2, 3]
    assert {row["step"] for row in logged if "held_out_eval/samples" in row} == {1, 2, 3}


@needs["mlflow"]
def test_mlflow_has_one_run_in_the_run_directory(tracked: tuple[Path, str]) -> None:
    from mlflow import MlflowClient

    folder = tracked[0] / "run"
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    (experiment,) = [one for one in client.search_experiments() if one.name == "tests"]
    (run,) = client.search_runs([experiment.experiment_id])
    for name in (*NAMES, "held_out_eval/pass_1"):
        assert {metric.step for metric in client.get_metric_history(run.info.run_id, name)} == {1, 2, 3}
    assert {one.path for one in client.list_artifacts(run.info.run_id)} >= {"config.yaml", "rollouts.json"}
    assert run.info.status == "FINISHED"
