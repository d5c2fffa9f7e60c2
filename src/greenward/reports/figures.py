"""Figures as people read them: rates, differences, times, memory, and the names of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from greenward.intervals import Estimate
from greenward.reports.document import NOTHING, ShownAnswer, Table, Tone, Unit

PRIMARY = "pass@1"
GREEDY = "greedy_pass@1"
MAX_SHOWN_CHARACTERS, MAX_SETTING_CHARACTERS = 3000, 200


def percent(estimate: Estimate | None) -> str:
    """A rate with its interval, in percent."""
    if estimate is None:
        return NOTHING
    return f"{100 * estimate.value:.1f} % {interval(estimate)}"


def percent_of(record: Mapping[str, Any] | None) -> str:
    """The same of a rate as files hold it."""
    return percent(Estimate.from_json(record) if record else None)


def interval(estimate: Estimate) -> str:
    """The interval of a rate, in percent."""
    return f"[{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def points(estimate: Estimate) -> str:
    """A difference with its interval, in percentage points."""
    text = f"{100 * estimate.value:+.1f} [{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]"
    return text.replace("-", "−")


def seed_range(values: Sequence[float]) -> str:
    """The spread over seeds, in percent."""
    return f"{100 * min(values):.1f} to {100 * max(values):.1f} %" if values else NOTHING


def share(part: float, whole: float) -> str:
    """A part of a whole, in percent."""
    return f"{100 * part / whole:.1f} %" if whole else NOTHING


def duration(seconds: float) -> str:
    """Seconds in the largest unit that fits, and the next smaller one."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def memory(mebibytes: float) -> str:
    """Mebibytes, from 1024 on as gibibytes."""
    return f"{mebibytes / 1024:.2f} GiB" if mebibytes >= 1024 else f"{mebibytes:.0f} MiB"


def value_text(value: float, unit: Unit) -> str:
    """A value on an axis: shares in percent, numbers short."""
    if unit == "share":
        return f"{100 * value:.3g} %"
    magnitude = abs(value)
    if magnitude >= 1e6 or 0 < magnitude < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:,.0f}" if magnitude >= 1000 else f"{value:.4g}"


def setting_text(value: Any) -> str:
    """A value of a config or of provenance in a cell of a table."""
    if isinstance(value, list):
        value = ", ".join(map(repr, value)) or "none"
    text = NOTHING if value is None else str(value)
    return text if len(text) <= MAX_SETTING_CHARACTERS else f"{text[:MAX_SETTING_CHARACTERS]} …"


def words(name: str) -> str:
    """An identifier such as `syntax_error` as words."""
    return name.replace("_", " ")


def bounded(text: Any) -> str:
    """A text that somebody wrote, cut to `MAX_SHOWN_CHARACTERS`."""
    text = str(text)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}\n… (cut)"


def shown_answer(status: Any, code: Any, failure: Any, title: str = "", remark: str = "") -> ShownAnswer:
    """An answer as its record has it, which may lack the program or the failure; long texts are cut."""
    tone: Tone = "good" if status == "passed" else "bad"
    return ShownAnswer(bounded(code or ""), words(str(status)), tone, bounded(failure or ""), title, remark)


def metric_label(name: str) -> str:
    """The reader's name of a metric."""
    return {PRIMARY: "sampled pass@1", GREEDY: "greedy pass@1"}.get(name, name.replace("_", " "))


def metric_order(name: str) -> tuple[int, int, str]:
    """Sampled pass@1, greedy pass@1, then pass@k by k, then the rest."""
    if name == PRIMARY:
        return (0, 0, name)
    if name == GREEDY:
        return (1, 0, name)
    k = name.removeprefix("pass@")
    return (2, int(k), name) if k.isdecimal() else (3, 0, name)


def session_table(session: Mapping[str, Any]) -> Table:
    """The versions and the machine of a session."""
    rows = [
        (key, setting_text(value)) for key, value in session.items() if value and not isinstance(value, dict)
    ]
    packages, sandbox, git = (
        found if isinstance(found := session.get(key), dict) else {} for key in ("packages", "sandbox", "git")
    )
    rows += [(name, str(version)) for name, version in packages.items()]
    if sandbox:
        rows.append(("isolation", f"level {sandbox.get('level')}: {', '.join(sandbox.get('layers', []))}"))
    if git:
        rows.append(("git commit", f"{git.get('commit')}{' (modified)' if git.get('modified') else ''}"))
    return Table("", ("", ""), tuple((words(key), value) for key, value in rows))
