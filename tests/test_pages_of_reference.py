"""docs/reference is what docs/make_reference.py makes of the source, and has a row for each kind and term."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from greenward.evaluation.audit_report import Kind
from greenward.grading.reward_terms import SHIPPED_REWARDS

DOCS = Path(__file__).resolve().parents[1] / "docs"


SPEC = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
assert SPEC is not None and SPEC.loader is not None
made = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(made)


@pytest.mark.parametrize("name", made.PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    page = made.PAGES[name]()
    assert page == (DOCS / "reference" / name).read_text("utf-8")
    assert len(page.splitlines()) > 10


def test_every_page_is_made() -> None:
    assert {file.name for file in (DOCS / "reference").iterdir()} == made.PAGES.keys()


def test_every_kind_and_every_reward_term_has_its_place() -> None:
    kinds = (DOCS / "reference" / "audit.md").read_text("utf-8")
    terms = (DOCS / "reference" / "rewards.md").read_text("utf-8")
    assert [kind.value for kind in Kind if f"| {kind.value} | " not in kinds] == []
    assert [name for name in SHIPPED_REWARDS if f"## `{name}`\n" not in terms] == []
