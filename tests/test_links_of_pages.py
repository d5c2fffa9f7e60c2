"""Every relative link of the pages leads to a file, and to a heading or a marked place of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
LINK = re.compile(r"\]\((?!\w+:)([^)\s#]*)#?([^)\s]*)\)")


def places(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page, and those that the page sets itself."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain} | set(
        re.findall(r'<a id="([^"]+)"', text)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, place in LINK.findall(page.read_text("utf-8")):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        assert not place or file.suffix != ".md" or place in places(file), f"{target}#{place}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_installs_the_package_from_an_index(page: Path) -> None:
    """It is on none: a clone or a wheel is named."""
    assert not re.search(r"pip install (-\S+ )*['\"]?greenward\b", page.read_text("utf-8"))
