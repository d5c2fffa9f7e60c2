"""`greenward push` against a server that speaks the Hub's protocol: what is sent, and what never is."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("huggingface_hub")

from greenward.common.errors import CheckpointError, ConfigError, RunError
from greenward.runs.checkpoints import save_checkpoint
from greenward.runs.directory import RunDirectory
from greenward.runs.publish import push
from tiny_model import DATA

TOKEN = "hf_planted_token"


class Hub(ThreadingHTTPServer):
    """The endpoints that a commit of small files needs; keeps every request and the files it got."""

    def __init__(self, *, private: bool = True, status: int = 200) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.private, self.status = private, status
        super().__init__(("127.0.0.1", 0), Answer)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.requests.append((f"{self.command} {self.path}", self.headers.get("authorization")))
        answer: dict[str, Any] = {}
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            self.server.requests.append(("create", asked))
            answer = {
                "url": f"{self.server.address}/me/{asked['name']}",
                "id": "0",
                "name": f"me/{asked['name']}",
            }
        elif "/preupload/" in self.path:
            answer = {
                "files": [
                    {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                    for one in json.loads(body)["files"]
                ]
            }
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                path = line["value"].get("path")
                if line["key"] == "file":
                    self.server.files[path] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    del self.server.files[path]
            url = f"{self.server.address}/me/model/commit/abc"
            answer = {"success": True, "commitOid": "abc", "commitUrl": url}
        elif self.path.startswith("/api/models/"):
            there = [{"rfilename": name} for name in self.server.files]
            answer = {"id": "me/model", "private": self.server.private, "siblings": there, "tags": []}
        content = json.dumps(answer).encode()
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a checkpoint that holds more than a model, and a folder with more than a run."""

    def write(folder: Path) -> None:
        shutil.copytree(DATA / "starter", folder, dirs_exist_ok=True)
        for name in ("trainer.pt", ".env", "notes.txt", "model.pkl"):
            (folder / name).write_text("planted")
        (folder / "adapter").mkdir()
        (folder / "adapter" / "adapter_config.json").write_text("{}")
        (folder / "README.md").write_text("# the card\n")

    with RunDirectory.create(tmp_path / "run", {"algorithm": {"name": "grpo"}, "name": "mine"}) as opened:
        save_checkpoint(opened, 20, write)
    (tmp_path / "run" / ".env").write_text(f"HF_TOKEN={TOKEN}\n")
    return tmp_path / "run"


def pushed(hub: Hub, run: Path, *options: str, token: bool = True) -> subprocess.CompletedProcess[str]:
    """`greenward push` in a process of its own: the Hub's address is read when its client is imported."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "HF_TOKEN")
    }
    environment |= {
        "HF_ENDPOINT": hub.address,
        "HF_HOME": str(run.parent / "home"),
        "HF_HUB_DISABLE_XET": "1",
    }
    command = [
        sys.executable,
        "-m",
        "greenward",
        "push",
        str(run),
        "--repo",
        "me/model",
        "--checkpoint",
        "last",
    ]
    (run.parent / "work").mkdir(exist_ok=True)
    if token:
        (run.parent / "work" / ".env").write_text(f"HF_TOKEN={TOKEN}\n")
    return subprocess.run(
        [*command, *options],
        cwd=run.parent / "work",
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_model_its_tokenizer_and_its_card_are_sent_and_nothing_else(hub: Hub, run: Path) -> None:
    done = pushed(hub, run)
    assert done.returncode == 0, done.stderr
    checkpoint = run / "checkpoints" / "step_000020"
    assert "model.safetensors" in hub.files and "tokenizer.json" in hub.files
    for name, content in hub.files.items():
        assert content == (checkpoint / name).read_bytes()
    left = {
        file.relative_to(checkpoint).as_posix() for file in checkpoint.rglob("*") if file.is_file()
    } - set(hub.files)
    assert {"trainer.pt", ".env", "notes.txt", "model.pkl", "manifest.json"} <= left
    assert "adapter/adapter_config.json" in hub.files and b"planted" not in b"".join(hub.files.values())
    (asked,) = [asked for what, asked in hub.requests if what == "create"]
    assert asked.get("private") is True or asked.get("visibility") == "private"
    sent = {key for what, key in hub.requests if what.startswith("POST")}
    assert sent == {f"Bearer {TOKEN}"}
    assert TOKEN not in done.stdout + done.stderr and "/commit/abc" in done.stdout


def test_weights_of_an_earlier_push_that_would_be_read_instead_are_deleted(hub: Hub, run: Path) -> None:
    before = ("model-00001.safetensors", "model.safetensors.index.json", "LICENSE", "model/x.safetensors")
    hub.files = dict.fromkeys(before, b"earlier")
    assert pushed(hub, run).returncode == 0
    kept = {name for name, content in hub.files.items() if content == b"earlier"}
    assert kept == {"LICENSE", "model/x.safetensors"} and "model.safetensors" in hub.files


def test_a_public_repository_is_refused_without_the_option(hub: Hub, run: Path) -> None:
    hub.private = False
    done = pushed(hub, run)
    assert done.returncode == 2 and "--public" in done.stderr and not hub.files


def test_a_dry_run_lists_files_and_the_card_and_sends_nothing(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from greenward.cli.main import main

    monkeypatch.setattr(
        "huggingface_hub.HfApi.__init__", lambda *_, **__: pytest.fail("a dry run made a client")
    )
    with pytest.raises(SystemExit) as ended:
        main(["push", str(run), "--repo", "me/model", "--checkpoint", "last", "--dry-run"])
    said = capsys.readouterr().out
    assert not ended.value.code
    assert (
        "model.safetensors" in said
        and "# the card" in said
        and "Nothing was sent to me/model (private)" in said
    )
    assert "trainer.pt" not in said and ".env" not in said


def test_what_cannot_be_sent_is_a_typed_error(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(ConfigError, match="HF_TOKEN"):
        push(run, "me/model", checkpoint="last")
    with pytest.raises(ConfigError, match="owner/name"):
        push(run, "a/b/c", checkpoint="last", dry_run=True)
    with pytest.raises(CheckpointError, match="was evaluated"):
        push(run, "me/model", dry_run=True)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: TOKEN)

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", refuse)
    with pytest.raises(RunError, match="no route to the hub"):
        push(run, "me/model", checkpoint="last")
    weights = run / "checkpoints" / "step_000020" / "config.json"
    content = weights.read_bytes()
    (tmp_path / "elsewhere").write_bytes(content)
    weights.unlink()
    weights.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="leads out"):
        push(run, "me/model", checkpoint="last", dry_run=True)
