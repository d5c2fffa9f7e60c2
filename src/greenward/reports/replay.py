"""The animated replay of episodes in which programs were written token by token: one HTML file, no script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from greenward.runs.files import write_atomically
from greenward.text import visible

SECONDS_PER_STEP = 0.9
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Replay of greedy episodes</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'sha256-{{ digest }}'">
<style>{{ style }}</style></head><body>
<h1>Replay of greedy episodes</h1>
<p>Each step shows the code so far, the token that was chosen, and the values Q of the best legal tokens.
Tokens without an alternative are written with the one before them.</p>
{% for episode in episodes %}
<h2>{{ episode.task_id }}: {{ episode.prompt }}</h2>
<ol class="n{{ episode.steps | length }}">
{% for step in episode.steps %}
<li><pre>{{ step.code }}</pre>
<table>{% for token, value in step.tokens %}<tr><td>{{ token }}</td><td>{{ "%.2f" | format(value) }}</td></tr>
{% endfor %}</table></li>
{% endfor %}
</ol>
{% endfor %}
</body></html>
"""
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
    style = Markup(_STYLE + "".join(_rules({len(one["steps"]) for one in episodes})))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=_shown)
    page = environment.from_string(_PAGE).render(episodes=episodes, style=style, digest=Markup(digest))
    write_atomically(path, page.encode("utf-8"))


def _shown(value: Any) -> Any:
    return visible(value) if type(value) is str else value


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
