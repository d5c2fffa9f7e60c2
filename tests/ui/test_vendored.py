"""The libraries of the page are what the registry published, and load nothing."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import greenward.ui

STATIC = Path(greenward.ui.__file__).parent / "static"
VENDOR = STATIC / "vendor"


def test_every_vendored_file_is_listed_with_its_hash():
    record = json.loads((VENDOR / "VENDOR.json").read_text())
    listed = {f"{name}/{file}": sha for name, one in record.items() for file, sha in one["sha256"].items()}
    found = {
        path.relative_to(VENDOR).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.rglob("*")
        if path.is_file() and path.name != "VENDOR.json"
    }
    assert found == listed
    for name, one in record.items():
        assert (VENDOR / name / "LICENSE").is_file()
        assert re.fullmatch(r"sha512-[\w+/]{86}==", one["integrity"]) and one["license"] in (
            "MIT",
            "BSD-3-Clause",
        )


def test_no_script_makes_code_of_text_or_loads_from_elsewhere():
    for path in STATIC.rglob("*.js"):
        text = path.read_text()
        assert not re.search(r"\beval\s*\(|new\s+Function\s*\(", text), path
        assert not re.search(r"""(from|import)\s*\(?\s*["'](https?:)?//""", text), path
    own = [path for path in STATIC.rglob("*.*") if VENDOR not in path.parents and path.suffix != ".svg"]
    for path in own:
        text = path.read_text()
        assert not re.search(r"https?://(?!www\.w3\.org)", text), path
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|unsafeHTML|\sstyle=\"", text), (
            path
        )


def test_the_page_is_small():
    import gzip

    on_demand = re.findall(
        r"""await import\("/static/([^"]+)"\)""", (STATIC / "pages/rollout.js").read_text()
    )
    assert on_demand == ["tokens.js"]
    found = [path for path in STATIC.rglob("*") if path.suffix in (".js", ".css", ".html", ".svg")]
    files = [path for path in found if path.name not in on_demand]
    contents = [path.read_bytes() for path in files]
    assert sum(map(len, contents)) <= 200_000
    assert sum(len(gzip.compress(content, 9)) for content in contents) <= 75_000
