"""Mirrors a run at trackers: TensorBoard, Weights & Biases, Trackio and MLflow.

The local files are the truth. A tracker is optional, asks nothing on the terminal, and never stops a run.
Each imports its package when it is made and may raise anything; `FailSafeSink` stands in front.

- Every number of `metrics.jsonl` is mirrored at its step (MLflow: `pass@1` is `pass_1`), and every
  evaluation as `SUITE_eval/NAME`, with its interval as `NAME_low` and `NAME_high`.
- With each evaluation go two tables: `SUITE_eval/samples`, its first answers with their outcome, and
  `rollouts`, episodes of the step before it. `tracking.samples` says how many rows they have; 0 switches
  them off.
- The warning of steps without signal is an alert (W&B, Trackio), and the resolved recipe the run's config.
- For dashboards that exist there are also `reward/avg_batch_reward` (`reward/mean`),
  `reward/successful_predictions_count` (episodes of the step that passed; in games, those that earned the
  policy more than they lost), and with `evaluation.suites=[mbpp]` `mbpp_eval/pass_rate` and
  `mbpp_eval/problems_passed`.
- W&B gets no host name, no command line, no code, no Git state and no console output. MLflow's and W&B's own
  usage statistics are off unless the user sets their variables (`MLFLOW_DISABLE_TELEMETRY`,
  `WANDB_ERROR_REPORTING`).
"""

from __future__ import annotations

import io
import netrc
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from contextvars import copy_context
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlparse

from greenward.common.errors import ConfigError
from greenward.common.text import load_keys, without_keys
from greenward.runs.machine import http_status
from greenward.runs.reading import read_sessions

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
        self._id = (runs[0] if runs else self._client.create_run(place, tags=tags)).info.run_id
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


WANDB_HOST, HUB_HOST = "https://api.wandb.ai", "https://huggingface.co"
TITLES = {"tensorboard": "TensorBoard", "wandb": "Weights & Biases", "trackio": "Trackio", "mlflow": "MLflow"}
# What the clients read from the environment; what the user has set counts.
DEFAULTS = {
    "wandb": {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"},
    "mlflow": {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
    },
}
_ANSWER_SECONDS = 5.0
_CLOSE_SECONDS = 120.0
_MAX_CELL = 4000


def check_trackers(tracking: Mapping[str, Any]) -> None:
    """Warns of trackers that will not reach their service, within seconds and without a question.

    W&B without a key or a network is offline, a Trackio Space becomes a local project, and an MLflow server
    that does not answer is left out. Raises `ConfigError` if a package is missing.
    """
    for text in _usable(tracking)[1]:
        warnings.warn(text, stacklevel=3)


def _usable(tracking: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The section `tracking` as it can be followed here, and what is not as it asks."""
    load_keys()
    usable, notes = dict(tracking), []
    for package in TITLES:
        if not tracking.get(package):
            continue
        for name, value in DEFAULTS.get(package, {}).items():
            os.environ.setdefault(name, value)
        try:
            import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"tracking.{package} is on, but the package {package} cannot be imported: {error}",
                remedy=f"Run `pip install 'greenward[{package}]'`, or turn tracking.{package} off.",
            ) from error
    wandb, trackio, mlflow = (tracking.get(package) for package in ("wandb", "trackio", "mlflow"))
    if wandb and wandb.get("mode") == "online":
        url = os.environ.get("WANDB_BASE_URL", WANDB_HOST)
        if why := _trouble(url, has_wandb_key(os.environ), "WANDB_API_KEY"):
            notes.append(f"W&B {why}: the run is kept offline; send it by `wandb sync` later.")
            usable["wandb"] = wandb | {"mode": "offline"}
    if trackio and trackio.get("space_id"):
        from huggingface_hub import get_token

        url = os.environ.get("HF_ENDPOINT", HUB_HOST)
        if why := _trouble(url, get_token() is not None, "HF_TOKEN"):
            notes.append(f"The Hub {why}: Trackio keeps the run on this machine; send it by `trackio sync`.")
            usable["trackio"] = trackio | {"space_id": None}
    if mlflow:
        uri = mlflow.get("uri") or os.environ.get("MLFLOW_TRACKING_URI", "")
        if uri.startswith("http") and (why := _trouble(uri)):
            notes.append(f"The MLflow server {why} and is left out.")
            usable["mlflow"] = None
    return usable, notes


def make_sinks(tracking: Mapping[str, Any], path: Path, config: Mapping[str, Any]) -> list[MetricSink]:
    """The trackers of a recipe's section `tracking`, each of them fail-safe; errors as `check_trackers`.

    `path` is the run directory and `config` the resolved recipe.
    """
    usable, _ = _usable(tracking)
    sessions = read_sessions(path)
    # The same for all sessions of a run, so that a resumed one goes on in the tracker.
    made = f"{path.resolve()} {sessions[0].get('started_at') if sessions else ''}"
    run_id = sha256(made.encode()).hexdigest()[:16]
    options = {
        package: dict(usable[package]) for package in ("wandb", "trackio", "mlflow") if usable.get(package)
    }
    if "mlflow" in options:
        options["mlflow"]["uri"] = options["mlflow"].get("uri") or os.environ.get("MLFLOW_TRACKING_URI")
    sinks: list[MetricSink] = []
    if usable.get("tensorboard"):
        sinks.append(FailSafeSink(TITLES["tensorboard"], partial(TensorBoardSink, path / "tensorboard")))
    for package, sink in (("wandb", WandbSink), ("trackio", TrackioSink), ("mlflow", MlflowSink)):
        if package in options:
            make = partial(sink, path, run_id, config, **options[package])
            sinks.append(FailSafeSink(TITLES[package], make))
    return sinks


class FailSafeSink(MetricSink):
    """A sink that warns once when it fails, and is silent from then on; closing it takes a bounded time."""

    def __init__(self, name: str, make: Callable[[], MetricSink]) -> None:
        self._name = name
        self._sink: MetricSink | None = None
        self._sink = self._guard(make)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        if self._sink is not None:
            self._guard(self._sink.log, step, values)

    def log_table(self, step: int, name: str, rows: Rows) -> None:
        if self._sink is not None and rows:
            self._guard(self._sink.log_table, step, name, [dict(row) for row in rows])

    def alert(self, step: int, title: str, text: str) -> None:
        if self._sink is not None:
            self._guard(self._sink.alert, step, title, text)

    def close(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            closing = threading.Thread(target=self._guard, args=(sink.close,), daemon=True)
            closing.start()
            closing.join(_CLOSE_SECONDS)
            if closing.is_alive():
                warnings.warn(
                    f"{self._name} has not taken everything after {_CLOSE_SECONDS:.0f} seconds.", stacklevel=2
                )

    def _guard(self, action: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return action(*arguments)
        except Exception as error:  # whatever a tracker raises, the run goes on
            self._sink = None
            reason = without_keys(str(error))
            warnings.warn(f"{self._name} failed and is off from now on: {reason}", stacklevel=3)
            return None


@cache
def _trouble(url: str, has_key: bool = True, key: str = "") -> str:
    """Why the service at `url` cannot be used, empty if it can. A refusal is an answer, 5xx is none."""
    if not has_key:
        return f"has no key (set {key}, in the environment or in .env)"
    if (http_status(url, _ANSWER_SECONDS) or 500) < 500:
        return ""
    return f"does not answer at {urlparse(url).hostname}"


def has_wandb_key(environ: Mapping[str, str]) -> bool:
    """Whether W&B's host has a key: WANDB_API_KEY, or an entry of the home folder's `.netrc`."""
    if environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(environ.get("WANDB_BASE_URL", WANDB_HOST)).hostname or ""
    try:
        return netrc.netrc(Path(environ["HOME"]) / ".netrc").authenticators(host) is not None
    except (KeyError, OSError, netrc.NetrcParseError):
        return False


def sample_rows(answers: Sequence[Mapping[str, Any]], most: int) -> list[dict[str, Any]]:
    """The first `most` answers of an evaluation or a step as rows of a table: plain values, long ones cut."""
    columns = dict.fromkeys(name for answer in answers[:most] for name in answer)
    return [{name: _cell(answer.get(name)) for name in columns} for answer in answers[:most]]


def _cell(value: Any) -> str | float | bool:
    if isinstance(value, (bool, int, float)):
        return value
    text = str("" if value is None else value)[:_MAX_CELL]
    return text.encode("utf-8", "backslashreplace").decode()  # a model may write half of a surrogate pair


def tracker_name(suite: str) -> str:
    """The name of a suite in metrics and files: `humaneval+` is humaneval_plus, `mbpp:test` mbpp_test."""
    return re.sub(r"[^A-Za-z0-9]+", "_", suite.replace("+", "_plus_")).strip("_") or "suite"


def suite_group(record: Mapping[str, Any]) -> str:
    """The first part of the names of an evaluation's numbers, as in mbpp_eval/pass_rate."""
    return f"{tracker_name(record['suite'])}_eval"


def evaluation_values(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an evaluation for trackers, each `SUITE_eval/NAME`.

    Every metric with its interval (`_low`, `_high`); `pass_rate` is pass@1.
    """
    metrics = dict(record["metrics"])
    if "pass@1" in metrics:
        metrics["pass_rate"] = metrics["pass@1"]
    values: dict[str, float] = {}
    for name, metric in metrics.items():
        values |= {name: metric["value"], f"{name}_low": metric["low"], f"{name}_high": metric["high"]}
    if "problems_passed" in record:
        values["problems_passed"] = record["problems_passed"]
    return {f"{suite_group(record)}/{name}": value for name, value in values.items()}
