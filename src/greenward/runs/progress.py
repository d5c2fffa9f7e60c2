"""Shows progress: bars on a terminal and in a notebook, a plain line now and then in a log file, or nothing.

It goes to standard error, so that standard output stays free for results. `NO_COLOR` is respected. What is
shown is kept in `progress.json` of a run as well, for those that watch it from another process.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from greenward.common import interruption
from greenward.common.errors import RunError
from greenward.common.text import visible
from greenward.runs.files import dump_json, read_json, write_atomically

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn, TaskID

    from greenward.runs.notebook import NotebookBars

PROGRESS = "progress.json"
SECONDS_BETWEEN_LINES = 4.0
_SECONDS_BETWEEN_RECORDS = 1.0
_SECONDS_BEFORE_BAR = 1.0  # of a phase that is shown only if it takes long
_SECONDS_OF_SPEED = 10.0


@dataclass
class _Phase:
    total: int | None
    unit: str
    began: float
    first_step: int | None = None  # where this session began, which is not 0 after a resume
    started: float = 0.0
    last_line: float = float("-inf")
    done: int = 0
    told: float = field(default_factory=time.monotonic)  # when something was heard of it
    last_said: str = ""
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
        self._phases: dict[str, _Phase] = {}  # the newest last
        self._console: Console | None = None
        self._bars: RichProgress | None = None
        self._notebook: NotebookBars | None = None
        self._file: Path | None = None
        self._recorded = float("-inf")
        if quiet:
            return
        from rich.console import Console

        self._console = console or Console(stderr=True)
        if self._console.is_jupyter:
            from greenward.runs.notebook import NotebookBars

            self._bars = self._notebook = NotebookBars(*_columns(), clock=clock)
        elif self._console.is_terminal and not self._console.is_dumb_terminal:
            from rich.progress import Progress as RichProgress

            self._bars = RichProgress(*_columns(), console=self._console)

    def __enter__(self) -> Progress:
        if self._bars is not None:
            self._shown = ExitStack()
            self._shown.enter_context(interruption.shown_by(self._print))
            self._shown.enter_context(self._bars)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._shown.close()

    def record_in(self, folder: Path) -> None:
        """From now on keep what goes on in `progress.json` of `folder`, also where nothing is shown.

        It is written at most once a second, atomically: `phase`, `done` and `total` (null where not known) of
        a `unit`, `eta` and `numbers` in words, as they are shown, and `at`, in seconds since 1970.
        """
        self._file = folder / PROGRESS

    def _record(self, name: str, done: int, numbers: str, eta: str) -> None:
        now = self._clock()
        if self._file is None or now - self._recorded < _SECONDS_BETWEEN_RECORDS:
            return
        self._recorded = now
        phase = self._phases[name]
        record = {"phase": name, "done": done, "total": phase.total, "unit": phase.unit}
        record |= {"eta": eta, "numbers": numbers, "at": time.time()}
        write_atomically(self._file, dump_json(record).encode(), forced=False)

    def phase(self, name: str, total: int | None = None, unit: str = "step", *, at_once: bool = True) -> None:
        """Begin a phase of `total` steps, called `unit`; None when their number is not known.

        Of one that is not to be shown `at_once` nothing is seen unless it takes long.
        """
        self._phases.pop(name, None)
        phase = self._phases[name] = _Phase(total, unit, self._clock())
        self._record(name, 0, "", "")
        if not at_once:
            phase.last_line = phase.began
        elif self._bars is not None:
            phase.task = self._bar(name, total)
        elif self._console is not None:
            self._print(name if total is None else f"{name}: {total} {unit}s")

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Inside, show that this goes on; its end is not known before. A log gets a line now and then."""
        self.phase(name)
        with self._beating(name):
            yield

    @contextmanager
    def _beating(self, name: str) -> Iterator[None]:
        """Inside, tell of the phase where nothing is heard of it for long; then end it."""
        ended = threading.Event()
        beating = threading.Thread(target=self._beat, args=(name, ended), daemon=True)
        beating.start()
        try:
            yield
        finally:
            ended.set()
            beating.join()
            self.end(name)

    def _beat(self, name: str, ended: threading.Event) -> None:
        phase = self._phases[name]
        while not ended.wait(SECONDS_BETWEEN_LINES / 10):
            if time.monotonic() - phase.told < SECONDS_BETWEEN_LINES:
                continue
            phase.told = time.monotonic()
            self._record(name, phase.done, "", "")
            if self._bars is None and self._console is not None:
                self._print(f"{name}  {_duration(self._clock() - phase.began)}")

    @contextmanager
    def drawing(
        self,
        name: str,
        total: int | None = None,
        done: int = 0,
        *,
        most_tokens: int | None = None,
        at_once: bool = True,
    ) -> Iterator[Drawn]:
        """Inside, show how answers are drawn: those that have ended, tokens, speed and the time that is left.

        `done` of `total` answers were there before; each takes at most `most_tokens`, None without a bound.
        """
        self.phase(name, total, "answer", at_once=at_once)
        drawn = Drawn(self, name, total, done, most_tokens, self._clock)
        with self._beating(name):
            try:
                yield drawn
            finally:
                drawn.show()

    def advance(
        self,
        step: int,
        metrics: Mapping[str, Any] = MappingProxyType({}),
        *,
        phase: str | None = None,
        warning: str | None = None,
        doing: str | None = None,
        eta: str | None = None,
    ) -> None:
        """Show that `step` steps of a phase are done, the metrics of the last one, and what is wrong.

        `doing` is what goes on within the step. `eta` takes the place of the time that follows from the
        number of steps.
        """
        if self._console is None and self._file is None:
            return
        name = phase or next(reversed(self._phases))
        state = self._phases[name]
        now, state.told, state.done = self._clock(), time.monotonic(), step
        if state.first_step is None:
            state.first_step, state.started = step, now
        shown = {name: metrics[name] for name in _SHOWN_AS if metrics.get(name) is not None}
        if "reward/mean" in shown:
            shown.pop("loss", None)  # that of a policy gradient, which has no level
        numbers = "  ".join(_SHOWN_AS[name].format(value) for name, value in shown.items())
        if doing is not None:
            numbers = f"{numbers}  {doing}".lstrip()
        if warning is not None:
            numbers = f"{numbers}  ! {warning}".lstrip()
        eta = _eta(state, step, now) if eta is None else eta
        self._record(name, step, numbers, eta)
        if self._console is None:
            return
        if self._bars is not None:
            if state.task is None and now - state.began >= _SECONDS_BEFORE_BAR:
                state.task = self._bar(name, state.total)
            if state.task is not None:
                count = _count(step, state.total)
                self._bars.update(state.task, completed=step, count=count, numbers=numbers, eta=eta)
            return
        is_shown = state.last_line != state.began  # at once, or by now
        if now - state.last_line >= SECONDS_BETWEEN_LINES or (step == state.total and is_shown):
            state.last_line = now
            count = f"{state.unit} {_count(step, state.total)}" if state.total is not None or step else ""
            said = "  ".join(part for part in (f"{name}  {count}".rstrip(), numbers, eta) if part)
            if said != state.last_said:
                self._print(said)
            state.last_said = said

    def end(self, name: str) -> None:
        """Stop showing a phase, if it was shown."""
        phase = self._phases.pop(name, None)
        if self._bars is not None and phase is not None and phase.task is not None:
            self._bars.remove_task(phase.task)

    def _bar(self, name: str, total: int | None) -> TaskID:
        assert self._bars is not None
        return self._bars.add_task(visible(name), total=total, count=_count(0, total), numbers="", eta="")

    def message(self, text: str) -> None:
        """Print a line above the bars. Control characters in it are stripped."""
        if self._console is not None:
            self._print(text)

    def _print(self, text: str) -> None:
        assert self._console is not None
        if self._notebook is not None:
            self._notebook.say(visible(text))
            return
        self._console.print(visible(text), markup=False, highlight=False, soft_wrap=True)


def doing(folder: Path) -> str | None:
    """What the run in `folder` was doing within a step when it last said so, None where it said nothing."""
    try:
        record = read_json(folder / PROGRESS) or {}
    except RunError:  # of another form
        return None
    done, total = record.get("done"), record.get("total")
    counts_steps = record.get("unit") == "step" and total is not None  # which the metrics tell
    if not isinstance(record.get("phase"), str) or counts_steps:
        return None
    count = _count(done, total) if type(done) is int and type(total) in (int, type(None)) else ""
    return visible(f"{record['phase']} {count}".rstrip(), _SHOWN_CHARS)


class Drawn:
    """Counts the answers and tokens that are drawn, for `Progress.drawing`."""

    def __init__(
        self,
        progress: Progress,
        name: str,
        total: int | None,
        done: int,
        most_tokens: int | None,
        clock: Callable[[], float],
    ) -> None:
        self._progress, self._name, self._clock = progress, name, clock
        self._total, self._done, self._most_tokens = total, done, most_tokens
        self._began = clock()
        self._ended = self._tokens = 0
        self._recent = deque([(self._began, 0)])  # moments, and the tokens at each

    def tokens(self, count: int) -> None:
        """So many more tokens are drawn; as `RolloutEngine.on_tokens`."""
        self._tokens += count
        self.show()

    def answers(self, count: int) -> None:
        """So many more answers have ended."""
        self._ended += count

    def show(self) -> None:
        now = self._clock()
        self._recent.append((now, self._tokens))
        while now - self._recent[0][0] > _SECONDS_OF_SPEED and len(self._recent) > 2:
            self._recent.popleft()
        since, before = self._recent[0]
        speed = (self._tokens - before) / (now - since) if now > since else None
        numbers = {"tokens": self._tokens, "perf/tokens_per_second": speed} if self._tokens else {}
        self._progress.advance(
            self._done + self._ended, numbers, phase=self._name, eta=self._eta(now - self._began)
        )

    def _eta(self, seconds: float) -> str:
        """The time that is left, if answers go on to end as often as they have.

        The first answers that end beside others are short ones. Until many have ended, the time in which all
        tokens that may follow are drawn is less. Before any has ended, it is all that is known, and says
        nothing while prompts are read, until there are as many tokens as one answer may have.
        """
        if self._total is None:
            return ""
        left = self._total - self._done - self._ended
        bound = float("inf")
        if self._most_tokens and self._tokens:
            bound = seconds * left * self._most_tokens / self._tokens
        if self._ended:
            return eta_in(min(seconds * left / self._ended, bound))
        is_known = self._most_tokens and self._tokens >= self._most_tokens
        return f"ETA at most {_duration(bound)}" if is_known else ""


_SHOWN_AS = {
    "passed": "{:,} passed",
    "tokens": "{:,} tokens",
    "reward/mean": "reward {:+.2f}",
    "pass_rate": "pass {:.0%}",
    "loss": "loss {:.3f}",
    "perf/tokens_per_second": "{:,.0f} tok/s",
}


def _eta(state: _Phase, step: int, now: float) -> str:
    if state.total is None or state.first_step is None or step <= state.first_step:
        return ""
    per_step = (now - state.started) / (step - state.first_step)
    return eta_in(per_step * (state.total - step))


def eta_in(seconds: float) -> str:
    """The words for an end in so many seconds."""
    return f"ETA {_duration(seconds)}"


def _duration(seconds: float) -> str:
    minutes, whole_seconds = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole_seconds:02d}" if hours else f"{minutes}:{whole_seconds:02d}"


def _count(step: int, total: int | None) -> str:
    return f"{step}/{total}" if total is not None else str(step or "")


def _columns() -> tuple[ProgressColumn, ...]:
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    return (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24, complete_style="green", finished_style="green"),
        TextColumn("{task.fields[count]}", style="progress.download", markup=False),
        TextColumn("{task.fields[numbers]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[eta]}", style="dim", markup=False),
    )


def evaluation_line(record: Mapping[str, Any], of: str = "held-out") -> str:
    """One line for an evaluation on `of`: its headline, or every metric in percent with its interval."""
    rates = ", ".join(
        f"{name} {100 * m['value']:.1f} % [{100 * m['low']:.1f}, {100 * m['high']:.1f}]"
        for name, m in record["metrics"].items()
    )
    return f"step {record['step']}: {of} {record.get('headline', rates)}"


_SHOWN_CHARS = 2000


def shown_answer(said: str, answer: str) -> str:
    """What a person sees of an answer as it comes: what is said of it, and the beginning of its text."""
    return f"--- {said}\n{visible(answer, _SHOWN_CHARS) or '(empty)'}\n---"


def peak_line(peak_mb: float, estimated_mb: float | None) -> str:
    """One line for the memory that was taken at the peak, beside the estimate."""
    estimated = "" if estimated_mb is None else f", estimated {estimated_mb:,.0f} MiB"
    return f"memory: {peak_mb:,.0f} MiB at the peak{estimated}"
