"""What tests of the pages share: a page that is watched, waiting, and what axe-core and the layout find wrong."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

RULES_OF_COLOUR = ["color-contrast", "link-in-text-block"]
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


def until(page: Any, script: str, seconds: float = 15.0) -> None:
    """Wait until a script gives true. Playwright's own waiting makes code of text, which the policy refuses."""
    end = time.monotonic() + seconds
    while not page.evaluate(script):
        assert time.monotonic() < end, script
        page.wait_for_timeout(50)


class Watched:
    """A page whose errors, refused policies and requests to elsewhere are kept."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url, self.wrong = page, url, []
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on(
            "console",
            lambda m: self.wrong.append(m.text) if m.type == "error" and "404" not in m.text else None,
        )
        page.on(
            "request",
            lambda r: None if r.url.startswith((url, "blob:", "data:")) else self.wrong.append(r.url),
        )

    def open(self, path: str, wait: str = "main h1, main h2, main .empty") -> Any:
        self.page.goto(self.url + path)
        self.page.wait_for_selector(wait, state="attached")
        return self.page


PHONE = (390, "light", TAGS)
OTHERS = ((1280, "light", TAGS), (1280, "dark", RULES_OF_COLOUR), (390, "dark", RULES_OF_COLOUR))
"""In a dark scheme a page has other colours and nothing else, so that only these are looked at again."""

in_each_view = pytest.mark.parametrize(
    "views", [pytest.param([PHONE], id="phone"), pytest.param(OTHERS, id="others", marks=pytest.mark.slow)]
)


def flaws(
    browser: Any, url: str, pages: Mapping[str, str], axe: str, views: Sequence[tuple[int, str, list[str]]]
) -> list[Any]:
    """What axe-core finds on pages, given with what to wait for, in some views; and what is too wide."""
    context = browser.new_context(bypass_csp=True, reduced_motion="reduce")  # no colour between two
    page = context.new_page()
    wrong: list[Any] = []
    for path, wait in pages.items():
        page.goto(url + path)
        page.wait_for_selector(wait)
        page.evaluate(
            "(text) => eval(trustedTypes.createPolicy('test', {createScript: (t) => t}).createScript(text))",
            axe,
        )
        for width, scheme, rules in views:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(100)
            found = page.evaluate("(rules) => axe.run({runOnly: rules, resultTypes: ['violations']})", rules)
            wrong += [
                (path, width, scheme, one["id"], [node["html"][:200] for node in one["nodes"][:3]])
                for one in found["violations"]
            ]
            if (sideways := page.evaluate("document.documentElement.scrollWidth")) > width:
                wrong.append((path, width, scheme, "scrolls sideways", sideways))
    context.close()
    return wrong
