"""docs/extending.md: its edits are made on a copy of the source, and its programs run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from greenward.grading.edits import apply_edits, parse_edits

ROOT = Path(__file__).parents[2]
SECTIONS = dict(
    re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", (ROOT / "docs/extending.md").read_text(), re.M | re.S)
)


@pytest.mark.parametrize("name", SECTIONS)
def test_an_addition_works_as_the_page_says(tmp_path, name):
    for folder in ("src", "configs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    edits = parse_edits(SECTIONS[name], "search_replace")
    files = {edit.path: (tmp_path / edit.path).read_text() for edit in edits}
    for path, text in apply_edits(files, edits, edits[0].path).items() if edits else ():
        (tmp_path / path).write_text(text)
    programs = re.findall(r"^```python\n(.*?)^```$", SECTIONS[name], re.M | re.S)
    assert bool(edits) == (name != "A task") and len(programs) == 1 and "assert" in programs[0]
    (tmp_path / "program.py").write_text(programs[0])
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_the_page_has_a_section_for_each_kind_of_addition():
    assert list(SECTIONS) == ["A reward", "A loss", "A finding", "A reader of logs", "A suite", "A task"]
