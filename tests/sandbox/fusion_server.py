"""A server that runs programs as SandboxFusion does with `isolation: none`, for tests.

Like that, it waits for the end of a program before it reads its pipes, so a program that prints more than a pipe
holds never ends.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class FusionServer:
    """Serves on a free port of the loopback. `forge`, if it is set, replaces what a program has left."""

    def __init__(self, forge=None) -> None:
        owner = self
        self.forge, self.calls = forge, 0

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, reply = 404, {"detail": "Not Found"}
                if self.path == "/run_code":
                    owner.calls += 1
                    status, reply = 200, owner.run(request)
                data = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def run(self, request: dict) -> dict:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in request["files"].items():
                Path(folder, name).write_bytes(base64.b64decode(content))
            main = Path(folder, "tmpabc.py")
            main.write_text(request["code"])
            process = subprocess.Popen(
                [sys.executable, str(main)],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                code = process.wait(request["run_timeout"])
            except subprocess.TimeoutExpired:
                process.kill()
                code = None
            out, err = process.communicate()
            files = {
                name: base64.b64encode(Path(folder, name).read_bytes()).decode()
                for name in request["fetch_files"]
                if Path(folder, name).is_file()
            }
        if self.forge is not None:
            files = {
                name: base64.b64encode(self.forge(base64.b64decode(one))).decode()
                for name, one in files.items()
            }
        state = "Finished" if code is not None else "TimeLimitExceeded"
        result = {"status": state, "execution_time": 0.1, "return_code": code, "stdout": out, "stderr": err}
        status = "Success" if code == 0 else "Failed"
        return {"status": status, "message": "", "compile_result": None, "run_result": result, "files": files}

    def __enter__(self) -> FusionServer:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._http.shutdown()
        self._http.server_close()
