"""The animated replay of episodes in which programs were written token by token: one HTML file, no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from greenward.reports.render_html import render_page
from greenward.runs.files import write_atomically

SECONDS_PER_STEP = 0.9
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
ol { position: relative; height: 15rem; list-style: none; padding: 0; overflow: hidden;
  border: 1px solid #8886; }
li { position: absolute; inset: 0; display: flex; gap: 2rem; padding: 1rem; visibility: hidden;
  animation-timing-function: step-end; animation-iteration-count: infinite; }
pre { flex: 3; margin: 0; overflow: auto; } table { flex: 1; align-self: start; border-collapse: collapse; }
td { padding: 0 .5rem; font-family: monospace; } td + td { text-align: right; }
tr:first-child { font-weight: bold; background: #7c73; }
@media (prefers-reduced-motion: reduce), print {
  ol { height: auto; } li { position: static; visibility: visible; animation: none; } }
"""


def write_replay(path: Path, episodes: Sequence[Mapping[str, Any]]) -> None:
    """Write episodes: each has `task_id`, `prompt` and `steps`.

    A step has the `code` so far and `tokens`, (lexeme, value) with the chosen one first.
    """
    style = _STYLE + "".join(_rules({len(one["steps"]) for one in episodes}))
    page = render_page("replay.html.j2", style, episodes=episodes)
    write_atomically(path, page.encode("utf-8"))


def _rules(lengths: set[int]) -> list[str]:
    """The style rules that show the steps of an episode one after another, for episodes of these lengths."""
    rules = [
        f"li:nth-child({step + 1}) {{ animation-delay: {step * SECONDS_PER_STEP:.1f}s; }}\n"
        for step in range(max(lengths, default=0))
    ]
    for length in sorted(lengths - {0}):
        shown = f"0% {{ visibility: visible; }} {100 / length:.3f}% {{ visibility: hidden; }}"
        seconds = f"{length * SECONDS_PER_STEP:.1f}s"
        rules.append(f"@keyframes n{length} {{ {shown} }}\n")
        rules.append(f".n{length} li {{ animation-name: n{length}; animation-duration: {seconds}; }}\n")
    return rules
