"""Trackers that mirror the metrics: TensorBoard and Weights & Biases.

The local files are the truth. A tracker is optional, asks nothing on the terminal, and never stops
a run: the first failure is a warning, after which that tracker is left alone.
"""

from __future__ import annotations

import netrc
import os
import re
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlparse

from greenward.errors import ConfigError

WANDB_HOST = "https://api.wandb.ai"


class MetricSink(Protocol):
    """Takes the metrics of one step after another."""

    def log(self, step: int, values: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


def check_trackers(tracking: Mapping[str, Any]) -> None:
    """Raises `ConfigError` if a tracker of the section `tracking` lacks its package, or online W&B a key."""
    wandb = tracking.get("wandb")
    for package, wanted in (("tensorboard", tracking.get("tensorboard")), ("wandb", wandb is not None)):
        if not wanted:
            continue
        try:
            import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"tracking.{package} is on, but the package {package} cannot be imported: {error}",
                remedy=f"Run `pip install 'greenward[{package}]'`, or turn tracking.{package} off.",
            ) from error
    if wandb is not None and wandb.get("mode") == "online" and not _has_wandb_key():
        raise ConfigError(
            "tracking.wandb.mode is online, but there is no W&B key",
            remedy="Set WANDB_API_KEY, or use tracking.wandb.mode=offline and `wandb sync` later.",
        )


def make_sinks(tracking: Mapping[str, Any], path: Path, config: Mapping[str, Any]) -> list[MetricSink]:
    """The trackers of a recipe's section `tracking`, each of them fail-safe; errors as `check_trackers`.

    `path` is the run directory and `config` the resolved recipe.
    """
    check_trackers(tracking)
    sinks: list[MetricSink] = []
    if tracking.get("tensorboard"):
        sinks.append(FailSafeSink("TensorBoard", lambda: TensorBoardSink(path / "tensorboard")))
    wandb = tracking.get("wandb")
    if wandb is not None:
        sinks.append(FailSafeSink("Weights & Biases", lambda: WandbSink(path, config, **wandb)))
    return sinks


class FailSafeSink:
    """A sink that warns once when it fails and is silent from then on."""

    def __init__(self, name: str, make: Callable[[], MetricSink]) -> None:
        self._name = name
        self._sink: MetricSink | None = None
        self._sink = self._guard(make)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        if self._sink is not None:
            self._guard(self._sink.log, step, values)

    def close(self) -> None:
        if self._sink is not None:
            self._guard(self._sink.close)
            self._sink = None

    def _guard(self, action: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return action(*arguments)
        except Exception as error:  # whatever a tracker raises, the run goes on
            self._sink = None
            warnings.warn(f"{self._name} failed and is off from now on: {error}", stacklevel=3)
            return None


class TensorBoardSink:
    """Event files in `folder`; numbers only, other values are left to metrics.jsonl."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        for key, value in _numbers(values).items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """A W&B run with the options of `wandb.init`, offline unless `mode` is online. It asks for no login."""

    def __init__(self, path: Path, config: Mapping[str, Any], **options: Any) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        options = {"mode": "offline", "name": path.name, "dir": str(path), "config": dict(config)} | options
        self._run = wandb.init(**options)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        self._run.log(_numbers(values), step=step)

    def close(self) -> None:
        self._run.finish()


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in values.items() if isinstance(value, (bool, int, float))}


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", WANDB_HOST)).hostname or ""
    try:
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def tracker_name(suite: str) -> str:
    """The name of a suite in metrics and files: `humaneval+` is humaneval_plus, `mbpp:test` mbpp_test."""
    return re.sub(r"[^A-Za-z0-9]+", "_", suite.replace("+", "_plus_")).strip("_") or "suite"


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
    group = f"{tracker_name(record['suite'])}_eval"
    return {f"{group}/{name}": value for name, value in values.items()}
