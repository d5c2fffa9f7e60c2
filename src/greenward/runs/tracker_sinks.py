"""The trackers themselves: TensorBoard, Weights & Biases, Trackio and MLflow behind one protocol.

Each imports its package when it is made and may raise anything; `trackers.FailSafeSink` stands in front.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from contextvars import copy_context
from pathlib import Path
from typing import Any, Protocol

Rows = Sequence[Mapping[str, Any]]


class MetricSink(Protocol):
    """Takes the metrics of one step after another, and what else a tracker has a place for."""

    def log(self, step: int, values: Mapping[str, Any]) -> None: ...

    def log_table(self, step: int, name: str, rows: Rows) -> None:
        """Take rows with the same columns; nothing where the tracker has no tables."""
        return

    def alert(self, step: int, title: str, text: str) -> None:
        """Take a warning of the run; nothing where the tracker sends no alerts."""
        return

    def close(self) -> None: ...


class TensorBoardSink(MetricSink):
    """Event files in `folder`; numbers only, other values are left to metrics.jsonl."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        for key, value in numbers(values).items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def log_table(self, step: int, name: str, rows: Rows) -> None:
        entries = ("\n".join(f"{key}: {value}" for key, value in row.items()) for row in rows)
        # Indented text is shown as it stands: what a model wrote is not rendered.
        indented = ("".join(f"    {line}\n" for line in entry.splitlines()) for entry in entries)
        self._writer.add_text(name, "\n---\n\n".join(indented), step)

    def close(self) -> None:
        self._writer.close()


class WandbSink(MetricSink):
    """A W&B run in `path`, offline unless `mode` is online. It asks for no login.

    W&B gets numbers, the config, tables and alerts, and nothing about the machine, the code and the output.
    """

    def __init__(self, path: Path, run_id: str, config: Mapping[str, Any], **options: Any) -> None:
        import wandb

        self._wandb = wandb
        options = {"mode": "offline", "name": path.name, "dir": str(path), "config": dict(config)} | options
        if options["mode"] == "online":
            options |= {"id": run_id, "resume": "allow"}  # a resumed run goes on where it was
        self._run = wandb.init(
            **options,
            settings={
                "x_disable_meta": True,
                "x_disable_machine_info": True,
                "x_disable_stats": True,
                "disable_git": True,
                "disable_code": True,
                "console": "off",
                "init_timeout": 30,
                "login_timeout": 10,
                "finish_timeout": 60,
            },
        )

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        self._run.log(numbers(values), step=step)

    def log_table(self, step: int, name: str, rows: Rows) -> None:
        table = self._wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        self._run.log({name: table}, step=step)

    def alert(self, step: int, title: str, text: str) -> None:
        self._run.alert(title=title, text=text)

    def close(self) -> None:
        self._run.finish()


class TrackioSink(MetricSink):
    """A Trackio run: in Trackio's folder on this machine, or in the Space `space_id`."""

    def __init__(self, path: Path, run_id: str, config: Mapping[str, Any], **options: Any) -> None:
        import trackio

        self._trackio = trackio
        with _quiet():
            # In a context of its own: else Trackio finishes the run once more at the end of the process.
            self._run = copy_context().run(
                trackio.init,
                **options,
                name=f"{path.name}-{run_id[:6]}",  # names are unique within a project
                config=dict(config),
                resume="allow",
                embed=False,
                private=True,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        self._run.log(numbers(values), step=step)

    def log_table(self, step: int, name: str, rows: Rows) -> None:
        self._run.log({name: self._trackio.Table(data=list(rows))}, step=step)

    def alert(self, step: int, title: str, text: str) -> None:
        with _quiet():
            self._run.alert(title=title, text=text, step=step)

    def close(self) -> None:
        with _quiet():
            self._run.finish()


class MlflowSink(MetricSink):
    """An MLflow run on the server or in the data base `uri`; `mlflow.db` in the run directory without one."""

    def __init__(
        self, path: Path, run_id: str, config: Mapping[str, Any], *, experiment: str, uri: str | None
    ) -> None:
        from mlflow import MlflowClient

        local = path.resolve()
        self._client = MlflowClient(tracking_uri=uri or f"sqlite:///{local / 'mlflow.db'}")
        found = self._client.get_experiment_by_name(experiment)
        artifacts = None if uri else (local / "mlartifacts").as_uri()
        place = (
            found.experiment_id
            if found
            else self._client.create_experiment(experiment, artifact_location=artifacts)
        )
        # A resumed run goes on where it was.
        runs = self._client.search_runs([place], f"tags.greenward_run = '{run_id}'", max_results=1)
        tags = {"mlflow.runName": path.name, "greenward_run": run_id}
        run = runs[0] if runs else self._client.create_run(place, tags=tags)
        self._id = run.info.run_id
        self._client.log_dict(self._id, dict(config), "config.yaml")

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        # MLflow's names hold no @.
        names = {re.sub(r"[^\w./ -]", "_", name): value for name, value in numbers(values).items()}
        now = int(time.time() * 1000)
        self._client.log_batch(self._id, [Metric(name, value, now, step) for name, value in names.items()])

    def log_table(self, step: int, name: str, rows: Rows) -> None:
        columns = {key: [row[key] for row in rows] for key in rows[0]}
        self._client.log_table(self._id, {"step": [step] * len(rows), **columns}, f"{name}.json")

    def close(self) -> None:
        self._client.set_terminated(self._id)


def _quiet() -> AbstractContextManager[Any]:
    """Drops what is printed: standard output is for results."""
    return redirect_stdout(io.StringIO())


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the values."""
    return {key: float(value) for key, value in values.items() if isinstance(value, (bool, int, float))}
