"""Runs of all kinds for the tests of the pages, with the answers that they keep."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from greenward.runs.directory import RunDirectory

HOSTILE = (
    "<script>window.owned=1</script><img src=x onerror=window.owned=1>\"'></script>${window.owned=1}{{7*7}}"
    "javascript:alert(1)\u202eevil\u200b\x00\x1b[2J\ud800 =cmd()"
)
STATUSES = ("passed", "failed", "timeout", "error")


def answer(step: int, index: int, rng: np.random.Generator) -> dict[str, Any]:
    """A row as a training writes it; what it holds follows from its step and place."""
    value = int(rng.integers(6))
    status = STATUSES[(value + index % 7) % 4]  # what the text and the problem decide
    late = step > 60
    return {
        "problem": f"families/task_{index % 7}",
        "group": step * 4 + index // 4,
        "answer": f"def solve(x):\n    return x + {value}\n",
        "status": status,
        "first_failure": "" if status == "passed" else f"solve({index}): expected {index + 1}, got {index}",
        "error_class": "NameError" if status == "error" else None,
        "rewards": {"policy": float(np.round(rng.normal(), 3)) if status != "timeout" else -1.0},
        "terms": {"tests": float(status == "passed"), "style: long & odd": 0.25},
        "advantage": float(np.round(rng.normal(), 3)),
        "tokens": int(rng.integers(5, 60)) * (4 if late else 1),
        "stop": "length" if late and index % 2 else "end",
    }


def write_run(
    path: Path, steps: int, *, seed: int, sick: bool = False, every: int = 10, per_step: int = 8
) -> list[tuple[int, dict[str, Any]]]:
    """A run of so many steps; a sick one loses its reward from step 60 on. Returns the answers kept."""
    rng = np.random.default_rng(seed)
    kept = []
    config = {
        "task": "functions",
        "name": "made",
        "seed": seed,
        "algorithm": {"name": "grpo"},
        "training": {"max_steps": steps, "learning_rate": 1e-4 * (1 + seed)},
        "rewards": [{"name": "tests", "weight": 1.0}],
    }
    with RunDirectory.create(path, config) as run:
        for step in range(1, steps + 1):
            level = 0.2 if sick and step >= 60 else 0.3 + 0.5 * min(1.0, step / 50)
            noise = rng.normal(0, 0.03, 4)
            run.metrics.append(
                step,
                {
                    "reward/mean": level + noise[0],
                    "reward/tests": level + noise[0] / 2,
                    "pass_rate": float(np.clip(level - 0.1 + noise[1], 0, 1)),
                    "entropy": 0.5 + noise[2],
                    "completion/truncated": 0.6 if sick and step >= 60 else 0.01,
                    "grad_norm": 1.0 + noise[3] * 3,
                },
            )
            if step % every == 0:
                rows = [answer(step, index, rng) for index in range(per_step)]
                run.write_rollouts(step, rows)
                kept += [(step, row) for row in rows]
        low, high = (0.3, 0.5) if sick else (0.6, 0.8)
        for at, value in ((0, 0.35), (steps, (low + high) / 2)):
            rows = [
                {"task_id": f"held/{i}", "sample": 0, "success": (i + 7 * seed) % 10 < 10 * value,
                 "status": "passed" if (i + 7 * seed) % 10 < 10 * value else "failed", "code": f"# {at} {i}"}
                for i in range(40)
            ]  # fmt: skip
            estimate = {"value": value, "low": value - 0.1, "high": value + 0.1, "problems": 40}
            run.write_evaluation(at, {"step": at, "metrics": {"pass@1": estimate}, "rows": rows})
        summary = {
            "status": "finished",
            "steps": steps,
            "before": {"pass@1": {"value": 0.35, "low": 0.25, "high": 0.45, "problems": 40}},
        }
        summary["after"] = {"pass@1": {"value": (low + high) / 2, "low": low, "high": high, "problems": 40}}
        (path / "summary.json").write_text(json.dumps(summary))
    return kept


def write_hostile(path: Path) -> None:
    """A run whose every text is hostile, with torn and damaged files."""
    with RunDirectory.create(path, {"name": HOSTILE, "task": HOSTILE, "algorithm": {"name": HOSTILE}}) as run:
        for step in (1, 2, 3):
            run.metrics.append(step, {"reward/mean": float("nan") if step == 2 else 1.0, HOSTILE[:80]: 2.0})
        row = {
            "problem": HOSTILE, "group": HOSTILE, "answer": HOSTILE + "\n" + "x" * 200_000, "status": HOSTILE,
            "first_failure": f"f(): expected {HOSTILE}, got {HOSTILE}", "error_class": HOSTILE, "stdout": HOSTILE,
            "error_message": HOSTILE, "rewards": {HOSTILE: 1.0}, "terms": {HOSTILE: 1.0}, "stop": HOSTILE,
            "prompt": HOSTILE, "transcript": [{"role": HOSTILE, "text": HOSTILE}], "tokens": 10**30,
        }  # fmt: skip
        run.write_rollouts(1, [row, row])
    with (path / "rollouts" / "step_000001.jsonl").open("ab") as file:
        file.write(b'[1, 2]\n{"half": ')
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "reward/me')
    (path / "failure.txt").write_text(HOSTILE.replace("\ud800", ""))
    (path / "summary.json").write_text("{")
    (path / "progress.json").write_text('{"phase": 7, "done": "<b>", "total": {}, "eta": ["x"]}')


class Served:
    """A running server: where it listens, what it serves, and the answers that it should know of."""

    def __init__(self, folder: Path, port: int, answers: dict[str, list[tuple[int, dict[str, Any]]]]) -> None:
        self.folder, self.port, self.answers = folder, port, answers
        self.url = f"http://127.0.0.1:{port}"


def make_app(folders: list[Path], *, cache: Path | None, frame: str | None = None) -> tuple[Any, Any]:
    """As that of the server; where the extra is missing the test is skipped."""
    server = pytest.importorskip("greenward.ui.server", reason="the extra `ui` is not installed")
    app, pages = server.make_app(folders, cache=cache, frame=frame)
    return app, pages


@contextmanager
def serving(folders: list[Path], cache: Path | None, frame: str | None = None) -> Iterator[int]:
    """A server of some folders, at a port."""
    uvicorn = pytest.importorskip("uvicorn", reason="the extra `ui` is not installed")
    app, pages = make_app(folders, cache=cache, frame=frame)
    opened = socket.socket()
    opened.bind(("127.0.0.1", 0))
    opened.listen(64)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", server_header=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
    thread.start()
    yield opened.getsockname()[1]
    server.should_exit = True
    thread.join(10)
    pages.close()


def request(
    served, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": f"127.0.0.1:{served.port}", **(headers or {})}.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    connection.close()
    return found


def get(served, path: str) -> Any:
    """The JSON of an address."""
    for _ in range(40):
        status, _, body = request(served, path)
        if status != 422 or b"are being read" not in body:
            break
    assert status == 200, (status, body[:300])
    return json.loads(body)


def get_whole(served, path: str) -> dict[str, Any]:
    """The same, asked for until all files have been read, as a page does."""
    end = time.monotonic() + 120
    while (found := get(served, path))["share"] < 1:
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def answers_of(served, run: str, query: str = "count=512") -> dict[str, Any]:
    """A list of answers."""
    return get_whole(served, f"/api/v1/runs/{run}/rollouts?{query}")
