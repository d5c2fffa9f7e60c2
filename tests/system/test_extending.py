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


# Each program is the main module; the file of an example is also a module, which its recipe names.
RUN = """
import os, runpy, sys
for folder in sys.argv[1:]:
    print(folder, flush=True)
    os.chdir(folder)
    sys.path[0] = folder
    sys.modules.pop("program", None)
    runpy.run_path("program.py", run_name="__main__")
"""


@pytest.fixture
def places(tmp_path):
    """A copy of the source with the edits of all sections, and a folder with the program of each."""
    for folder in ("src", "configs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)  # with what is compiled: the files keep their times
    places = []
    for name, section in SECTIONS.items():
        edits = parse_edits(section, "search_replace")
        files = {edit.path: (tmp_path / edit.path).read_text() for edit in edits}
        for path, text in apply_edits(files, edits, edits[0].path).items() if edits else ():
            compile(text, path, "exec")
            (tmp_path / path).write_text(text)
        programs = re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)
        named = re.findall(r"\(\.\./(examples/\w+\.py)\)", section)
        programs += [(ROOT / name).read_text() for name in named]
        assert bool(edits) == (name != "A task") and len(programs) == 1 and "assert" in programs[0]
        places.append(tmp_path / name)
        places[-1].mkdir()
        for file in ["program.py", *(Path(name).name for name in named)]:
            (places[-1] / file).write_text(programs[0])
    return places


def test_the_edits_of_the_page_fit_the_source(places):
    assert len(places) == len(SECTIONS)


@pytest.mark.slow
def test_all_additions_together_work_as_the_page_says(tmp_path, places):
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, places)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_has_a_section_for_each_kind_of_addition():
    assert list(SECTIONS) == ["A reward", "A loss", "A finding", "A reader of logs", "A suite", "A task"]
