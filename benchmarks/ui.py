"""How fast `greenward ui` is on large folders: many long runs, a long log, many answers.

    .venv/bin/python benchmarks/ui.py [--runs 200] [--steps 100000] [--answers 1000000] [--turns 21]
        [--json FILE]

The runs of the list have logs of full length whose middle is a hole in the file, since the list never reads
it; one log and one folder of answers are whole. The server is a process of its own that starts without a
cache, and diagnoses in the background meanwhile. The targets stand in the table; nothing here fails.

A training of a tiny model is watched in every second turn of some steps, as the page of a run does, and what
a step costs its process is compared with the turns before and after.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

KEYS = 51
CONFIG = "task: functions\nname: made\nseed: {}\nalgorithm: {{name: grpo}}\ntraining: {{max_steps: {}}}\n"
PROGRAM = "def solve(xs):\n    total = {}\n    return [x + total for x in xs if x > {}]\n"
QUERIES = (
    "step=40-&status=failed&sort=-advantage",
    "reward>=p90&passed=0&sort=-tokens",
    "stop=length&term.tests=0",
    "groups=constant",
    "task=task_1&sort=reward&fold=1",
)


def rows_of_metrics(steps: range, rng: np.random.Generator) -> bytes:
    """Rows with 51 keys, about 1.5 kB each."""
    names = ["reward/mean", "pass_rate", "entropy", *(f"group/some_signal_{i}" for i in range(KEYS - 3))]
    block = rng.normal(1.0, 0.1, (len(steps), KEYS))
    return b"".join(
        json.dumps({"step": step, **dict(zip(names, map(float, row), strict=True))}).encode() + b"\n"
        for step, row in zip(steps, block, strict=True)
    )


def make_run(path: Path, steps: int, seed: int, *, whole: bool) -> int:
    """A run with a log of so many steps; with a hole in it unless `whole`. Returns its size in bytes."""
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(CONFIG.format(seed, steps))
    rng = np.random.default_rng(seed)
    (path / "summary.json").write_text(
        json.dumps(
            {
                "status": "finished",
                "steps": steps,
                "after": {"pass@1": {"value": 0.5, "low": 0.4, "high": 0.6}},
            }
        )
    )
    with (path / "metrics.jsonl").open("wb") as file:
        if whole:
            for begin in range(1, steps + 1, 2000):
                file.write(rows_of_metrics(range(begin, min(begin + 2000, steps + 1)), rng))
        else:
            head = rows_of_metrics(range(1, 21), rng)
            file.write(head)
            file.seek(len(head) // 20 * steps)
            file.write(b"\n" + rows_of_metrics(range(steps - 3, steps + 1), rng))
        return file.tell()


def make_answers(path: Path, count: int, per_step: int = 500) -> int:
    """Rollouts of a run, about 0.4 kB each; the texts of a step repeat. Returns their size in bytes."""
    folder = path / "rollouts"
    folder.mkdir()
    rng = np.random.default_rng(0)
    total = 0
    for step in range(1, count // per_step + 1):
        rewards, tokens = rng.normal(size=per_step), rng.integers(5, 200, per_step)
        lines = []
        for i in range(per_step):
            status = ("passed", "failed", "syntax_error", "timeout")[int(rng.integers(4))]
            lines.append(
                json.dumps(
                    {
                        "problem": f"families/task_{(step * 7 + i // 8) % 500}",
                        "group": step * per_step + i // 8,
                        "answer": PROGRAM.format(i % 97, step % 13),
                        "status": status,
                        "first_failure": "" if status == "passed" else "solve([1, 2]): expected 3, got 4",
                        "rewards": {"programmer": float(rewards[i])},
                        "terms": {"tests": float(i % 3), "format": 1.0},
                        "advantage": float(rewards[i] - 0.1),
                        "tokens": int(tokens[i]),
                        "stop": "length" if tokens[i] > 190 else "end",
                    }
                )
            )
        content = ("\n".join(lines) + "\n").encode()
        (folder / f"step_{step:06d}.jsonl").write_bytes(content)
        total += len(content)
    return total


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far, with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server:
    """A server of a folder, started without a cache."""

    def __init__(self, folder: Path, cache: Path) -> None:
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "greenward", "ui", str(folder), "--json", "--no-open"],
            stdout=subprocess.PIPE,
            env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        )
        assert self.process.stdout is not None
        self.port = int(json.loads(self.process.stdout.readline())["url"].rstrip("/").rpartition(":")[2])
        self.started = time.perf_counter() - began

    def get(self, path: str) -> tuple[float, bytes]:
        """Seconds, and the body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        began = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {body[:300]!r}")
        return time.perf_counter() - began, body

    def memory_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process.pid)

    def stop(self) -> float:
        began = time.perf_counter()
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        return time.perf_counter() - began


def measured(
    folder: Path, log_bytes: int, answer_bytes: int, cache: Path
) -> list[tuple[str, float, str, str]]:
    """(what, value, unit, target) of each measurement."""
    found: list[tuple[str, float, str, str]] = []
    server = Server(folder, cache)
    found.append(("start to listening", server.started, "s", "0.7"))
    found.append(("list, cold", server.get("/api/v1/runs")[0], "s", "1.5"))
    while not all(run["algorithm"] for run in json.loads(server.get("/api/v1/runs")[1])["runs"]):
        pass
    found.append(
        ("list, warm", statistics.median(server.get("/api/v1/runs")[0] for _ in range(5)), "s", "0.5")
    )
    keys = "&".join(f"key=group/some_signal_{i}" for i in range(11))
    curves = f"/api/v1/runs/whole/series?key=reward/mean&{keys}&px=900"
    began = time.perf_counter()
    found.append(("first part of a long log", server.get(curves)[0], "s", "1"))
    while (
        json.loads((body := server.get(curves)[1])[4 : 4 + int.from_bytes(body[:4], "little")])["share"] < 1
    ):
        pass
    seconds = time.perf_counter() - began
    found += [("all of the long log", seconds, "s", "5"), ("", log_bytes / seconds / 1e6, "MB/s", "")]
    times = [server.get(curves) for _ in range(5)]
    found.append(("12 curves of it, read", statistics.median(t for t, _ in times), "s", "0.4"))
    found.append(("", len(times[0][1]) / 1e6, "MB", "1"))
    answers = "/api/v1/runs/whole/rollouts?"
    began, before = time.perf_counter(), server.cpu_seconds()
    found.append(("first part of the answers", server.get(answers)[0], "s", "1"))
    while json.loads(server.get(answers)[1])["share"] < 1:
        pass
    found.append(("index of the answers", answer_bytes / (time.perf_counter() - began) / 1e6, "MB/s", "50"))
    found.append(("", answer_bytes / (server.cpu_seconds() - before) / 1e6, "MB/s of CPU", ""))
    for query in QUERIES:
        before = server.cpu_seconds()
        times_q = sorted(server.get(f"{answers}{query}&count=60")[0] for _ in range(10))
        found.append((query, 1000 * times_q[-1], "ms, slowest of 10", "150"))
        found.append(("", 100 * (server.cpu_seconds() - before), "ms CPU, mean", ""))
    before = server.cpu_seconds()
    seconds, body = server.get(f"{answers}text=absent_everywhere")
    searched = json.loads(body)["searched"] * answer_bytes / 1e6
    found.append(("text search", searched / seconds, "MB/s", "300"))
    found.append(("", searched / max(server.cpu_seconds() - before, 0.01), "MB/s of CPU", ""))
    before = server.cpu_seconds()
    polls = [server.get("/api/v1/changes?run=whole") for _ in range(100)]
    found.append(("a poll of a run", 10 * (server.cpu_seconds() - before), "ms CPU", "5"))
    found.append(("", len(polls[0][1]), "bytes", "5000"))
    before = server.cpu_seconds()
    for _ in range(20):
        server.get("/api/v1/changes")
    found.append(("a poll of the list", 50 * (server.cpu_seconds() - before), "ms CPU", "5"))
    found.append(("memory at the peak", server.memory_mb(), "MiB", "400"))
    found.append(("Ctrl-C to the end", server.stop(), "s", "0.5"))
    again = Server(folder, cache)
    found.append(("12 curves after a restart, from the cache", again.get(curves)[0], "s", "0.4"))
    found.append(("answers after a restart, from the cache", again.get(answers)[0], "s", ""))
    again.stop()
    return found


class Watcher(threading.Thread):
    """Asks a server each second whether a run has changed, and then for what its page shows."""

    def __init__(self, server: Server, run: str) -> None:
        super().__init__(daemon=True)
        self._server, self._run = server, run
        self.ended = threading.Event()

    def run(self) -> None:
        seen = ""
        while not self.ended.wait(1):
            cursor = json.loads(self._server.get(f"/api/v1/changes?run={self._run}")[1])["cursor"]
            if cursor != seen:
                shown = json.loads(self._server.get(f"/api/v1/runs/{self._run}")[1])
                keys = "&".join(f"key={key}" for key in shown["curated"])
                self._server.get(f"/api/v1/runs/{self._run}/series?{keys}&px=900")
                seen = cursor


def watched_training(folder: Path, cache: Path, turns: int, steps: int) -> list[tuple[str, float, str, str]]:
    """What a step of a training costs more in the turns in which it is watched, and the spread of that."""
    run = folder / "watched"
    folder.mkdir()
    options = [
        "warm_start.max_steps=20",
        "evaluation.enabled=false",
        "training.prompts_per_step=16",
        "training.max_steps=1000000",
        "training.checkpoint_interval_steps=1000000",
    ]
    said = folder / "said.txt"
    with said.open("wb") as file:
        training = subprocess.Popen(
            [sys.executable, "-m", "greenward", "train", "quickstart", "--output", str(run), *options],
            stdout=file,
            stderr=file,
        )
    server = Server(folder, cache)

    def wait_for(count: int) -> int:
        """How many steps are done, once there are so many."""
        log = run / "metrics.jsonl"
        while (done := log.read_bytes().count(b"\n") if log.exists() else 0) < count:
            if training.poll() is not None:
                raise SystemExit(said.read_text())
            time.sleep(0.02)
        return done

    costs = []
    try:
        begin = wait_for(2 * steps)
        for turn in range(turns):
            before = cpu_seconds(training.pid), server.cpu_seconds(), time.perf_counter()
            watcher = Watcher(server, "watched")
            if turn % 2:
                watcher.start()
            end = wait_for(begin + steps)
            after = cpu_seconds(training.pid), server.cpu_seconds(), time.perf_counter()
            if turn % 2:
                watcher.ended.set()
                watcher.join()
            costs.append((np.array(after) - before) / (end - begin))
            begin = wait_for(end + 1)  # a whole step between the turns
    finally:
        training.kill()
        training.wait()
        server.stop()
    found = []
    cost = np.array(costs)
    watched = cost[1:-1:2]
    for column, what in ((0, "CPU"), (2, "wall")):
        around = (cost[0:-2:2, column] + cost[2::2, column]) / 2
        more = 100 * (watched[:, column] / around - 1)
        low, middle, high = np.percentile(more, (25, 50, 75))
        found.append((f"a watched training: {what} of a step", float(middle), "% more, median", "1"))
        found.append(("", float(low), "%, lower quartile", ""))
        found.append(("", float(high), "%, upper quartile", ""))
    share = 100 * float((watched[:, 1] / watched[:, 2]).mean())
    found.append(("the server meanwhile", share, "% of a core", ""))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("runs", 200), ("steps", 100_000), ("answers", 1_000_000)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--turns", type=int, default=21, help="of the training; 0 leaves it out")
    parser.add_argument("--steps-of-turn", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "runs"
        for index in range(arguments.runs - 1):
            make_run(folder / f"sweep_{index // 20}" / f"seed_{index}", arguments.steps, index, whole=False)
        log_bytes = make_run(folder / "whole", arguments.steps, 999, whole=True)
        answer_bytes = make_answers(folder / "whole", arguments.answers)
        load = os.getloadavg()[0]
        found = measured(folder, log_bytes, answer_bytes, Path(temporary) / "cache")
        if arguments.turns:
            found += watched_training(
                Path(temporary) / "training",
                Path(temporary) / "cache",
                arguments.turns,
                arguments.steps_of_turn,
            )
    sizes: dict[str, Any] = {name: getattr(arguments, name) for name in ("runs", "steps", "answers")}
    sizes |= {
        "log_bytes": log_bytes,
        "answer_bytes": answer_bytes,
        "load_before": load,
        "cores": os.cpu_count(),
    }
    print(sizes)
    for what, value, unit, target in found:
        print(f"{what:<48} {value:>10.4g} {unit:<18} {target and f'target {target}'}")
    if arguments.json:
        record = [dict(zip(("what", "value", "unit", "target"), row, strict=True)) for row in found]
        arguments.json.write_text(json.dumps({**sizes, "measured": record}, indent=1) + "\n")


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
