"""Defines the errors that users see. Commands print them without a traceback and exit with code 2."""

from __future__ import annotations

from typing import TypeVar


class GreenwardError(Exception):
    """Base of every error that a user can cause and mend.

    `message` says what was expected and what was found; `remedy`, when there is one, says what
    to do about it.
    """

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message if remedy is None else f"{message}\n  {remedy}")
        self.message = message
        self.remedy = remedy


class ConfigError(GreenwardError):
    """A recipe or an override that cannot be right (unknown key, impossible combination)."""


class ProblemError(GreenwardError):
    """A problem or a problem file that cannot be used."""


class SandboxError(GreenwardError):
    """The sandbox cannot offer what was asked of it."""


class EngineError(GreenwardError):
    """A rollout engine cannot answer: its server has died, or gives no completions."""


class TrainingStopped(EngineError):
    """A training ended at a checkpoint because its rollout engine failed. Resuming it may go on."""


class RewardError(GreenwardError):
    """A reward function broke its contract (raised, hung, wrong length, not finite)."""


class CheckpointError(GreenwardError):
    """A checkpoint or model folder that is missing, cut short or of another shape."""


class RunError(GreenwardError):
    """A run directory that cannot be written, resumed or read."""


class RepositoryError(GreenwardError):
    """A git repository that cannot be read, or that leads to files outside of itself."""


class PeerError(GreenwardError):
    """Another process of the same training has failed."""


class DiagnosticsError(GreenwardError):
    """A log that cannot answer what was asked: no such signal, no common steps, too little data."""


Opened = TypeVar("Opened")


class Closeable:
    """A context manager that closes itself at the end."""

    def __enter__(self: Opened) -> Opened:
        return self

    def close(self) -> None:
        """Release what is held. Safe to call twice."""
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        self.close()
