"""Acknowledges Ctrl-C, SIGTERM and SIGUSR1 at once in a thread, and stops work where nothing is lost.

Python runs handlers of signals in the main thread, between two of its instructions: during a matrix product
nothing happens. The interpreter's own handler, in C, writes the signal to a pipe at once, and a thread that
reads the pipe says what follows. Work that may be cut anywhere is cut by a `KeyboardInterrupt`; other work
calls `check` wherever it can stop.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

EXIT_CODE = 130  # as a shell reports death by SIGINT
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
AGAIN = "Ctrl-C again stops now."
POLL_SECONDS = 0.1
"""The longest that a loop which waits for other threads or processes goes without a `check`."""
_SAME_SECONDS = 0.05  # launchers pass on the Ctrl-C that the terminal has sent already
_LONGEST_TO_HEAR = 1.0
_SHOW_CURSOR = b"\x1b[?25h\n"


class Stopped(KeyboardInterrupt):
    """The work was asked to stop, and stops here."""


@dataclass(eq=False)
class _Work:
    """What is done now: `says` what a stop brings about; `may_stop` where it calls `check`, else anywhere."""

    says: Callable[[], str]
    may_stop: Callable[[], bool] | None


_works: list[_Work] = []  # the innermost last
_heeded: set[int] = set()  # the signals that were handled here since the outermost block began
_requested = False
_last_interrupt = float("-inf")  # when Ctrl-C was handled in the main thread
_threads = threading.local()  # `is_left` of each, if it is inside `stopped_when`
_show: Callable[[str], None] | None = None


def requested() -> bool:
    """Whether the work is to stop."""
    return _requested


def check() -> None:
    """Raise `Stopped` if the work is to stop and may do so here. Costs next to nothing otherwise."""
    if _requested and (not _works or (may_stop := _works[-1].may_stop) is None or may_stop()):
        raise Stopped
    if (is_left := getattr(_threads, "is_left", None)) is not None and is_left():
        raise Stopped


@contextmanager
def stopped_when(is_left: Callable[[], bool]) -> Iterator[None]:
    """Inside, `check` stops this thread also once nobody waits any more for what it does."""
    before, _threads.is_left = getattr(_threads, "is_left", None), is_left
    try:
        yield
    finally:
        _threads.is_left = before


@contextmanager
def stoppable(
    says: Callable[[], str],
    *,
    may_stop: Callable[[], bool] | None = None,
    signals: Sequence[signal.Signals] = SIGNALS,
    ends_process: bool = False,
) -> Iterator[None]:
    """Answers `signals` inside: what `says` gives is printed, then the work stops. Innermost blocks decide.

    Without `may_stop`, `Stopped` is raised wherever the main thread is; with it, by `check` where `may_stop`
    is true. A second Ctrl-C raises `KeyboardInterrupt`; if the outermost block `ends_process`, it ends the
    process at once, as does the first one during an import before any other block. Outside of the main
    thread signals are left alone.
    """
    global _requested
    work = _Work(says, may_stop)
    previous, watch = {}, None
    if threading.current_thread() is threading.main_thread():
        watch = None if _works else _Watch(ends_process)
        _heeded.update(signals)
        previous = {number: signal.signal(number, _handle) for number in signals}
    _works.append(work)
    try:
        yield
    finally:
        work.may_stop = lambda: False
        if watch is not None:
            watch.close()
        for number, handler in previous.items():
            signal.signal(number, handler)
        _works.remove(work)
        if not _works:
            _requested = False


@contextmanager
def shown_by(show: Callable[[str], None]) -> Iterator[None]:
    """Inside, `show` prints messages: it knows what else is on the terminal, whose cursor it may hide."""
    global _show
    before, _show = _show, show
    try:
        yield
    finally:
        _show = before


def _handle(number: int, frame: FrameType | None) -> None:
    """In the main thread, which may be long after the signal."""
    global _last_interrupt
    now = time.monotonic()
    if number == signal.SIGINT:
        before, _last_interrupt = _last_interrupt, now
        if before > float("-inf") and now - before > _SAME_SECONDS:
            raise KeyboardInterrupt
    while not _requested and time.monotonic() < now + _LONGEST_TO_HEAR:  # what is said is about this moment
        time.sleep(0.001)
    if _works and _works[-1].may_stop is None:
        raise Stopped


class _Watch:
    """The thread that hears of signals while the main thread computes."""

    def __init__(self, ends_process: bool) -> None:
        global _last_interrupt
        _last_interrupt = float("-inf")
        _heeded.clear()
        self._ends_process = ends_process
        self._heard, self._written = os.pipe()
        os.set_blocking(self._written, False)
        self._fd_before = signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._run, name="interruption", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, once it has said what there is to say."""
        signal.set_wakeup_fd(self._fd_before)
        os.close(self._written)
        self._thread.join(1.0)
        os.close(self._heard)

    def _run(self) -> None:
        heard: float | None = None  # the first signal
        while numbers := os.read(self._heard, 64):
            for number in numbers:
                if number not in _heeded:
                    continue
                now = time.monotonic()
                if heard is None:
                    heard = now
                    self._acknowledge()
                elif number == signal.SIGINT and self._ends_process and now - heard > _SAME_SECONDS:
                    if _show is not None:
                        with suppress(OSError):
                            os.write(2, _SHOW_CURSOR)
                    os._exit(EXIT_CODE)

    def _acknowledge(self) -> None:
        global _requested
        if self._ends_process and len(_works) == 1 and _is_importing():
            os._exit(EXIT_CODE)
        try:
            text = _works[-1].says()
        except Exception:  # it reads what another thread is changing
            text = f"Stopping. {AGAIN}"
        _requested = True
        if text:
            (_show or _print)(text)


def _print(text: str) -> None:
    with suppress(OSError, ValueError):
        start = "\n" if sys.stderr.isatty() else ""  # behind the terminal's ^C
        print(f"{start}{text}", file=sys.stderr, flush=True)


def _is_importing() -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _forget() -> None:
    """A forked process shares the pipe, and its signals are its own."""
    global _requested
    if _works:
        _works.clear()
        _requested = False
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            if signal.getsignal(number) is _handle:
                signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget)
