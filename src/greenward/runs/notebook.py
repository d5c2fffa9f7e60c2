"""Shows progress in a notebook: one output that is replaced, with the bars below the lines that were said."""

from __future__ import annotations

import io
import time
from collections import deque
from collections.abc import Callable
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID

_SECONDS_BETWEEN_UPDATES = 0.5
_MOST_LINES = 200
_COLUMNS = 140


class NotebookBars(Progress):
    """Bars and lines as one display of IPython, which is updated at most every half second."""

    def __init__(self, *columns: ProgressColumn, clock: Callable[[], float] = time.monotonic) -> None:
        out = Console(file=io.StringIO(), width=_COLUMNS, force_jupyter=False, color_system=None)
        super().__init__(*columns, console=out, auto_refresh=False)
        self._clock = clock
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._display: Any = None
        self._updated = float("-inf")

    def say(self, line: str) -> None:
        """Adds a line above the bars."""
        self._lines.append(line)
        self.refresh()

    def start(self) -> None:
        from IPython.display import display

        self._display = display(self._shown(), raw=True, display_id=True)

    def stop(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        if self._display is not None:
            self._updated = self._clock()
            self._display.update(self._shown(), raw=True)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        if self._clock() - self._updated >= _SECONDS_BETWEEN_UPDATES:
            self.refresh()

    def _shown(self) -> dict[str, str]:
        with self.console.capture() as captured:
            self.console.print(self.get_renderable())
        text = "\n".join([*self._lines, captured.get().rstrip()]).rstrip()
        return {"text/plain": text, "text/html": f"<pre>{escape(text)}</pre>"}
