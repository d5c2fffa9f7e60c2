"""What grading elsewhere costs beside the local pool, and what becomes of it when a host dies.

    python benchmarks/remote_sandbox.py ray    # needs `pip install 'greenward[ray]'`
    python benchmarks/remote_sandbox.py http

Two hosts on this machine, Ray nodes or servers of `greenward sandbox serve`, have a worker each; the local
pool has two. First they take turns, in batches of `--batch`, and a difference is taken within a round: of the
time, and of the CPU time of all processes of this benchmark, which means more on a machine that is busy
otherwise; what Ray's own processes use while nothing is graded is taken off. Then `--gradings` answers are
graded, two thirds of them wrong in known ways, and one host is killed in the middle. The last line says PASS
or FAIL; the exit status tells, too. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from greenward.grading.judge import Grader
from greenward.problems.problem import Case, Problem
from greenward.sandbox.http import HttpHost
from greenward.sandbox.inside.linux import descendants
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Executor, Limits
from greenward.sandbox.remote import RemoteExecutor

LIMITS = Limits(cpu_seconds=2.0, wall_seconds=30.0)
PROBLEM = Problem("add", "", "add", tests=tuple(Case((n, n + 1), 2 * n + 1) for n in range(5)))
ANSWERS = {
    "passed": "def add(a, b):\n    return a + b  # {}",
    "failed": "def add(a, b):\n    return a + b + (a > 3)  # {}",
    "error": "def add(a, b):\n    return undefined  # {}",
}
MOST_OVERHEAD_MS = 3.0
IDLE_SECONDS = 10.0

Kill = Callable[[], None]


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("backend", choices=("ray", "http"))
    parser.add_argument("--gradings", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--per-round", type=int, default=512, help="gradings of each in a round")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        hosts = two_ray_nodes if options.backend == "ray" else two_servers
        remote, kill = stack.enter_context(hosts(options.batch))
        local = stack.enter_context(LocalExecutor(2))
        record: dict[str, Any] = {"backend": options.backend, "batch": options.batch, "load_before": load}
        record["overhead"] = compare(local, remote, options.rounds, options.per_round)
        record["loss"] = lose_one(remote, kill, options.gradings)
    record["machine"] = {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load_after": os.getloadavg()[0],
    }
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    overhead, loss = record["overhead"]["cpu_ms"]["median"], record["loss"]
    is_bad = overhead > MOST_OVERHEAD_MS or loss["lost"] or loss["misjudged"]
    print(
        f"{'FAIL' if is_bad else 'PASS'}: {overhead:.2f} ms of CPU time more per grading than locally "
        f"(at most {MOST_OVERHEAD_MS}); {loss['lost']} of {loss['gradings']} gradings lost and "
        f"{loss['misjudged']} misjudged with one of two hosts killed"
    )
    sys.exit(bool(is_bad))


def answers(count: int) -> tuple[list[tuple[Problem, str]], list[str]]:
    """So many different answers, and the status of each."""
    kinds = [list(ANSWERS)[number % len(ANSWERS)] for number in range(count)]
    return [(PROBLEM, ANSWERS[kind].format(number)) for number, kind in enumerate(kinds)], kinds


def compare(local: Executor, remote: Executor, rounds: int, count: int) -> dict[str, Any]:
    """Milliseconds per grading, here and elsewhere, in turns, and how many more they are elsewhere."""
    batch, _ = answers(count)
    idle = cpu_seconds()
    time.sleep(IDLE_SECONDS)
    idle = (cpu_seconds() - idle) / IDLE_SECONDS
    used: dict[str, list[tuple[float, float]]] = {"local": [], "remote": []}
    for number in range(rounds + 1):  # the first one warms up
        for name, executor in (("local", local), ("remote", remote)):
            with Grader(LIMITS, executor=executor) as grader:
                cpu, wall = cpu_seconds(), time.perf_counter()
                grader.grade(batch)
                wall = time.perf_counter() - wall
                cpu = cpu_seconds() - cpu - idle * wall
            if number:
                used[name].append((wall / count * 1000, cpu / count * 1000))
                print(
                    f"{name:6} {used[name][-1][0]:7.2f} ms, CPU {used[name][-1][1]:6.2f} ms per grading",
                    flush=True,
                )
    found: dict[str, Any] = {"idle_cpus": idle, "rounds": used}
    for place, what in enumerate(("wall_ms", "cpu_ms")):
        pairs = [
            (here[place], there[place]) for here, there in zip(used["local"], used["remote"], strict=True)
        ]
        more = [there - here for here, there in pairs]
        ratio = statistics.median(there / here for here, there in pairs)
        found[what] = {
            "median": statistics.median(more),
            "least": min(more),
            "most": max(more),
            "ratio": ratio,
        }
        print(
            f"{what}: {found[what]['median']:+.2f} ({min(more):+.2f} to {max(more):+.2f}) per grading "
            f"elsewhere, {ratio:.2f} times as many"
        )
    return found


def lose_one(remote: Executor, kill: Kill, count: int) -> dict[str, Any]:
    """Grades answers of known status; a host is killed when a quarter is done."""
    batch, kinds = answers(count)
    statuses: dict[int, str] = {}
    begun = time.perf_counter()
    with Grader(LIMITS, executor=remote) as grader:
        for done, (index, verdict) in enumerate(grader.grade_stream(batch)):
            assert index not in statuses
            statuses[index] = verdict.status.value
            if done == count // 4:
                kill()
    judged = {index: status for index, status in statuses.items() if status != "infrastructure"}
    return {
        "gradings": count,
        "seconds": time.perf_counter() - begun,
        "lost": count - len(judged),
        "misjudged": sum(status != kinds[index] for index, status in judged.items()),
        "statuses": dict(Counter(statuses.values())),
    }


@contextmanager
def two_ray_nodes(batch: int) -> Iterator[tuple[Executor, Kill]]:
    from ray.cluster_utils import Cluster

    from greenward.sandbox.ray import RayExecutor

    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (Ray's name; as the local pool, not 15)
    cluster = Cluster()
    nodes = [
        cluster.add_node(num_cpus=1, object_store_memory=100 << 20, include_dashboard=False) for _ in range(2)
    ]
    try:
        with RayExecutor(cluster.address, workers_per_node=1, jobs_per_call=batch) as executor:
            yield executor, lambda: cluster.remove_node(nodes[1], allow_graceful=False)
    finally:
        cluster.shutdown()


@contextmanager
def two_servers(batch: int) -> Iterator[tuple[Executor, Kill]]:
    command = [sys.executable, "-m", "greenward", "sandbox", "serve", "--port", "0", "--workers", "1"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        urls = [process.stdout.readline().split()[2] for process in processes if process.stdout]
        with RemoteExecutor([HttpHost(url) for url in urls], jobs_per_call=batch) as executor:
            yield executor, processes[1].kill
    finally:
        for process in processes:
            process.kill()
            process.wait()


def cpu_seconds() -> float:
    """The CPU time of this process and of all that descend from it, those that have ended included."""
    ticks = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
