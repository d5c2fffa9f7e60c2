"""Trackers that mirror a run: which are on, whether they can work here, and the names they get.

The local files are the truth. A tracker is optional, asks nothing on the terminal, and never stops
a run: the first failure is a warning, after which that tracker is left alone.
"""

from __future__ import annotations

import netrc
import os
import re
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from greenward.errors import ConfigError
from greenward.runs.keys import load_keys, without_keys
from greenward.runs.machine import http_status
from greenward.runs.reading import read_sessions
from greenward.runs.tracker_sinks import MetricSink, MlflowSink, Rows, TensorBoardSink, TrackioSink, WandbSink

WANDB_HOST, HUB_HOST = "https://api.wandb.ai", "https://huggingface.co"
TITLES = {
    "tensorboard": "TensorBoard",
    "wandb": "Weights & Biases",
    "trackio": "Trackio",
    "mlflow": "MLflow",
}
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
        if why := _trouble(url, _has_wandb_key(url), "WANDB_API_KEY"):
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


def _has_wandb_key(url: str) -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators(urlparse(url).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
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
