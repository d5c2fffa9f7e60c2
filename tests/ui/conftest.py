"""A folder of runs of all kinds, a server of it, and its pages in a browser."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Watched
from made_runs import Served, serving, write_hostile, write_run

AXE = "axe-core@4.14.1"


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    base = tmp_path_factory.mktemp("ui")
    folder = base / "runs"
    answers = {
        "good": write_run(folder / "good", 120, seed=0),
        "study~sick": write_run(folder / "study" / "sick", 120, seed=1, sick=True),
    }
    write_hostile(folder / "hostile & <odd>")
    (base / "outside").mkdir()
    (base / "outside" / "config.yaml").write_text("name: secret\n")
    (base / "outside" / "metrics.jsonl").write_text('{"step": 1, "secret": 1.0}\n')
    (folder / "linked").symlink_to(base / "outside")
    with serving([folder], base / "cache") as port:
        yield Served(folder, port, answers)


@pytest.fixture
def often_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders are looked through again after a fraction of a second, logs and files of answers with them."""
    monkeypatch.setattr("greenward.ui.catalog.SECONDS_BETWEEN_SCANS", 0.2)
    monkeypatch.setattr("greenward.ui.catalog.SECONDS_UNTIL_SHOWN", 0.1)
    monkeypatch.setattr("greenward.ui.logs.SECONDS_BETWEEN", 0.2)


@pytest.fixture
def context(browser, request) -> Iterator[Any]:
    made = browser.new_context(viewport={"width": 1280, "height": 900}, **getattr(request, "param", {}))
    yield made
    made.close()


@pytest.fixture
def watched(context, served) -> Iterator[Watched]:
    found = Watched(context.new_page(), served.url)
    yield found
    assert found.wrong == []


@pytest.fixture(scope="session")
def axe(tmp_path_factory) -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "greenward-tests" / AXE
    file = cache / "package" / "axe.min.js"
    if not file.is_file():
        if shutil.which("npm") is None:
            pytest.skip("axe-core is not here, and neither is npm to fetch it")
        cache.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["npm", "pack", AXE], cwd=cache, capture_output=True, text=True, timeout=60)
        if done.returncode:
            pytest.skip("axe-core cannot be fetched from the npm registry")
        subprocess.run(["tar", "xzf", done.stdout.strip()], cwd=cache, check=True)
    return file.read_text()
