"""Shows progress: bars on a terminal, a plain line now and then in a log file, nothing when quiet.

It goes to standard error, so that standard output stays free for results. `NO_COLOR` is respected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from greenward.common import interruption
from greenward.common.text import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

SECONDS_BETWEEN_LINES = 10.0


@dataclass
class _Phase:
    total: int | None
    unit: str
    first_step: int | None = None  # where this session began, which is not 0 after a resume
    started: float = 0.0
    last_line: float = float("-inf")
    task: TaskID | None = None


class Progress:
    """Shows how far each phase is. Use as a context manager.

    Several phases may run at once: `advance` names the one it means, or means the newest.
    `console` and `clock` (seconds) are for tests.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._phases: dict[str, _Phase] = {}
        self._newest = ""
        self._console: Console | None = None
        self._bars: RichProgress | None = None
        if quiet:
            return
        from rich.console import Console

        self._console = console or Console(stderr=True)
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._bars = _bars(self._console)

    def __enter__(self) -> Progress:
        if self._bars is not None:
            self._shown = ExitStack()
            self._shown.enter_context(interruption.shown_by(self._print))
            self._shown.enter_context(self._bars)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._shown.close()

    def phase(self, name: str, total: int | None = None, unit: str = "step") -> None:
        """Begin a phase of `total` steps, called `unit`; None when their number is not known."""
        self._newest = name
        phase = self._phases[name] = _Phase(total, unit)
        if self._bars is not None:
            phase.task = self._bars.add_task(visible(name), total=total, numbers="", eta="")
        elif self._console is not None:
            self._print(name if total is None else f"{name}: {total} {unit}s")

    def advance(
        self,
        step: int,
        metrics: Mapping[str, Any] = MappingProxyType({}),
        *,
        phase: str | None = None,
        warning: str | None = None,
    ) -> None:
        """Show that `step` steps of a phase are done, the metrics of the last one, and what is wrong."""
        if self._console is None:
            return
        name = phase or self._newest
        state = self._phases[name]
        now = self._clock()
        if state.first_step is None:
            state.first_step, state.started = step, now
        shown = {name: metrics[name] for name in _SHOWN_AS if metrics.get(name) is not None}
        if "reward/mean" in shown:
            shown.pop("loss", None)  # that of a policy gradient, which has no level
        numbers = "  ".join(_SHOWN_AS[name].format(value) for name, value in shown.items())
        if warning is not None:
            numbers = f"{numbers}  ! {warning}".lstrip()
        eta = _eta(state, step, now)
        if self._bars is not None and state.task is not None:
            self._bars.update(state.task, completed=step, numbers=numbers, eta=eta)
        elif step == state.total or now - state.last_line >= SECONDS_BETWEEN_LINES:
            state.last_line = now
            of = "" if state.total is None else f"/{state.total}"
            self._print(
                "  ".join(part for part in (f"{name}  {state.unit} {step}{of}", numbers, eta) if part)
            )

    def end(self, name: str) -> None:
        """Stop showing a phase, if it was shown."""
        phase = self._phases.get(name)
        if self._bars is not None and phase is not None and phase.task is not None:
            self._bars.remove_task(phase.task)

    def message(self, text: str) -> None:
        """Print a line above the bars. Control characters in it are stripped."""
        if self._console is not None:
            self._print(text)

    def _print(self, text: str) -> None:
        assert self._console is not None
        self._console.print(visible(text), markup=False, highlight=False, soft_wrap=True)


_SHOWN_AS = {
    "reward/mean": "reward {:+.2f}",
    "pass_rate": "pass {:.0%}",
    "loss": "loss {:.3f}",
    "perf/tokens_per_second": "{:,.0f} tok/s",
}


def _eta(state: _Phase, step: int, now: float) -> str:
    if state.total is None or state.first_step is None or step <= state.first_step:
        return ""
    per_step = (now - state.started) / (step - state.first_step)
    minutes, seconds = divmod(max(0, round(per_step * (state.total - step))), 60)
    hours, minutes = divmod(minutes, 60)
    return f"ETA {hours}:{minutes:02d}:{seconds:02d}" if hours else f"ETA {minutes}:{seconds:02d}"


def _bars(console: Console) -> RichProgress:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24, complete_style="green", finished_style="green"),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[eta]}", style="dim", markup=False),
        console=console,
    )


def evaluation_line(record: Mapping[str, Any], of: str = "held-out") -> str:
    """One line for an evaluation on `of`: its headline, or every metric in percent with its interval."""
    rates = ", ".join(
        f"{name} {100 * m['value']:.1f} % [{100 * m['low']:.1f}, {100 * m['high']:.1f}]"
        for name, m in record["metrics"].items()
    )
    return f"step {record['step']}: {of} {record.get('headline', rates)}"
