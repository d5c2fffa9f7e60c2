"""A folder of runs of all kinds, a server of it, and a browser."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from made_runs import Served, make_app, write_hostile, write_run

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    uvicorn = pytest.importorskip("uvicorn", reason="the extra `ui` is not installed")
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
    app, pages = make_app([folder], cache=base / "cache")
    opened = socket.socket()
    opened.bind(("127.0.0.1", 0))
    opened.listen(64)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", server_header=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
    thread.start()
    yield Served(folder, opened.getsockname()[1], answers)
    server.should_exit = True
    thread.join(10)
    pages.verdicts.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `dev`)")
    if not CHROMIUM:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with api.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()
