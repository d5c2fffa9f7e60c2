"""Writes a page for each finding from the tables of checks: .venv/bin/python docs/make_findings.py"""

from __future__ import annotations

import re
from pathlib import Path

from greenward.diagnostics.diagnose import topics_of
from greenward.diagnostics.finding import EXPLAINS, finding_texts
from greenward.diagnostics.monitor import WATCHED
from greenward.diagnostics.signal_tests import Check

DOCS = Path(__file__).parent
FOLDER = DOCS / "findings"


def checks() -> dict[str, list[Check]]:
    """Name of a finding -> the checks that make it."""
    found: dict[str, list[Check]] = {}
    for topic in topics_of([]):
        for check in topic.checks:
            found.setdefault(check.finding, []).append(check)
    return found


def limits() -> dict[str, tuple[str, str]]:
    """Name of a finding -> (severity, limit) as the table in diagnostics.md has them."""
    rows = re.findall(
        r'<a id="([a-z-]+)"></a>`[a-z-]+` \| (.*?) \| (.*?) \|', (DOCS / "diagnostics.md").read_text()
    )
    return {name: (severity, limit.replace("\\|", "|")) for name, severity, limit in rows}


def page(name: str, found: list[Check]) -> str:
    """The page of a finding."""
    text = finding_texts()[name]
    severity, limit = limits()[name]
    signals = sorted({one for check in found if not callable(check.signals) for one in check.signals if one})
    lines = [f"# {text['title']}", "", f"`{name}` · {severity}", ""]
    if signals:
        lines += [f"Read from {', '.join(f'`{one}`' for one in signals)}.", ""]
    lines += ["## When it is found", "", f"{limit[:1].upper()}{limit[1:]}.", ""]
    if any(one.name == name for one in WATCHED):
        lines += ["A [monitor](../monitor.md) raises an alarm of this name while the training runs.", ""]
    if text["measured"] != "{text}":
        shown = re.sub(r"\{[^}]*\}", "…", text["measured"])
        lines += ["The report says:", "", f"> {shown}", ""]
    lines += ["## What to do", "", *(f"{i}. {one}" for i, one in enumerate(text["actions"], start=1)), ""]
    lines += ["## What confirms it", "", text["confirm"], ""]
    effects = sorted(EXPLAINS.get(name, ()))
    causes = sorted(cause for cause, all_effects in EXPLAINS.items() if name in all_effects)
    for heading, names in (("Often follows from it", effects), ("Often a consequence of", causes)):
        if names:
            lines += [f"## {heading}", "", ", ".join(f"[{one}]({one}.md)" for one in names), ""]
    lines.append("[All findings](../diagnostics.md#findings)")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write all pages anew."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.md"):
        old.unlink()
    for name, found in checks().items():
        (FOLDER / f"{name}.md").write_text(page(name, found), encoding="utf-8")


if __name__ == "__main__":
    main()
