"""Defines the options by which `greenward eval` and `greenward grade` judge answers.

They are no section of a recipe: loading what reads recipes takes longer than starting the sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from greenward.common.errors import ConfigError
from greenward.sandbox.isolation import Level

if TYPE_CHECKING:
    from greenward.grading.judge import Grader
    from greenward.sandbox.pool import StartingExecutor
    from greenward.sandbox.protocol import Executor

MEMORY_MB = 1024  # of an answer: more than in training


@dataclass(frozen=True)
class GradingOptions:
    """How answers are judged, for which pass@k (none: the usual ones), and which files are written.

    An answer may take `timeout` CPU seconds, without which the suite's own times hold, and three times that
    in wall time. `workers` answers run at a time (usually one more than the cores), isolated at least at
    level `require`; they may import `packages`. With `recheck`, every answer is judged so often again to find
    verdicts that vary. With `overwrite`, an evaluation that is there is deleted. The first `show` answers are
    shown as soon as they are judged. Raises `ConfigError` for an option of another kind.
    """

    timeout: float | None = None
    workers: int | None = None
    require: str = "B"
    packages: Sequence[str] = ()
    k: Sequence[int] = ()
    recheck: int | None = None
    eval_results: bool = False
    overwrite: bool = False
    show: int = 0

    def __post_init__(self) -> None:
        for name, expected, fits in _EXPECTED:
            value = getattr(self, name)
            if not fits(value):
                raise ConfigError(f"{name}: expected {expected}, found {value!r:.200}.")

    @property
    def settings(self) -> dict[str, Any]:
        """The options that decide verdicts."""
        return {
            "timeout_seconds": self.timeout,
            "memory_mb": MEMORY_MB,
            "packages": list(self.packages),
        }

    def starting_executor(self) -> AbstractContextManager[StartingExecutor]:
        """Where answers run, which starts while the caller loads something else."""
        from greenward.sandbox.pool import starting_executor

        return starting_executor(self.workers, require=Level(self.require), packages=self.packages)

    def grader(self, executor: Executor | None = None) -> Grader:
        """Judges answers in `executor`, or in one of its own; to be closed. Raises `SandboxError`."""
        from greenward.grading.judge import DEFAULT_TIMEOUT, WALL_PER_CPU, Grader
        from greenward.sandbox.protocol import Limits

        seconds = DEFAULT_TIMEOUT if self.timeout is None else self.timeout
        return Grader(
            Limits(seconds, WALL_PER_CPU * seconds, MEMORY_MB << 20),
            self.workers,
            by_suite=self.timeout is None,
            require=Level(self.require),
            packages=self.packages,
            executor=executor,
        )


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and value >= least


def _is_list(values: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(values, list | tuple) and all(map(fits, values))


_COUNT = "a whole number greater than 0"
_EXPECTED: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    (
        "timeout",
        "seconds greater than 0, or none",
        lambda value: value is None or (isinstance(value, int | float) and value > 0 and isfinite(value)),
    ),
    ("workers", f"{_COUNT}, or none", lambda value: value is None or _is_whole(value, 1)),
    ("require", "A, B, C or D", lambda value: value in [level.value for level in Level]),
    ("packages", "a list of names", lambda value: _is_list(value, lambda one: isinstance(one, str))),
    ("k", f"a list, each {_COUNT}", lambda value: _is_list(value, lambda one: _is_whole(one, 1))),
    ("recheck", f"{_COUNT}, or none", lambda value: value is None or _is_whole(value, 1)),
    ("eval_results", "True or False", lambda value: isinstance(value, bool)),
    ("overwrite", "True or False", lambda value: isinstance(value, bool)),
    ("show", "a whole number of at least 0", lambda value: _is_whole(value, 0)),
)
