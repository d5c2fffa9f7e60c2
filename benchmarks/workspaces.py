"""Workspaces: time from opening to the end of the first command, calls a second, what a soak leaves behind.

    python benchmarks/workspaces.py [--open 256] [--calls 2000] [--episodes 5000]

Prints JSON. On a busy machine, read the CPU times, which processes that wait for a processor do not add to.
An episode of the soak opens a workspace, writes, reads, runs two commands, one of which leaves a process
behind, every 50th a hostile one, and is closed or, every seventh, abandoned.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from typing import Any

from greenward.sandbox.inside.files import folder_bytes
from greenward.sandbox.inside.linux import descendants, resident_bytes
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.workspaces import Workspace, WorkspaceLimits

FILES = {"shop/prices.py": "def total(prices):\n    return sum(prices)\n", "README.md": "A shop.\n" * 20}
LIMITS = WorkspaceLimits(call_seconds=2.0)
HOSTILE = (
    "b() { b | b & }; b; sleep 1",
    "yes",
    "(setsid sleep 60 &)",
    "ln -s / out; cat out/etc/hostname",
    "exit 9",
)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--open", type=int, default=256)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--episodes", type=int, default=5000)
    options = parser.parse_args()
    with LocalExecutor(2) as executor:
        executor.open({}).close()
        figures: dict[str, Any] = {"layers": list(executor.workspaces.layers), "cores": os.cpu_count()}
        figures |= measure(executor, options.open, options.calls)
        figures["soak"] = soak(executor, options.episodes)
    figures["load_average"] = os.getloadavg()[0]
    print(json.dumps(figures, indent=2))


def measure(executor: LocalExecutor, open_at_once: int, calls: int) -> dict[str, Any]:
    """Latency, one after the other; throughput with many workspaces open."""
    seconds, opened = [], list[Workspace]()
    used = [cpu_seconds()]
    for _ in range(open_at_once):
        began = time.perf_counter()
        opened.append(executor.open(FILES, LIMITS))
        opened[-1].exec("true")
        seconds.append(time.perf_counter() - began)
    used.append(cpu_seconds())
    began = time.perf_counter()
    futures = [opened[i % open_at_once].submit(lambda own: own.exec("cat README.md")) for i in range(calls)]
    assert all(one.result().exit_code == 0 for one in futures)
    rate = calls / (time.perf_counter() - began)
    used.append(cpu_seconds())
    count = executor.workspaces.open_count
    for one in opened:
        one.close()
    quantiles = statistics.quantiles(seconds, n=20)
    return {
        "open_to_first_command_ms": {"median": quantiles[9] * 1000, "95 %": quantiles[18] * 1000},
        "open_at_once": count,
        "calls_per_second": rate,
        "cpu_ms_of_opening_and_first_command": (used[1] - used[0]) / open_at_once * 1000,
        "cpu_ms_of_a_call": (used[2] - used[1]) / calls * 1000,
    }


def cpu_seconds() -> float:
    """CPU time of this process and of all below it, those that have ended included."""
    total, tick = time.process_time(), os.sysconf("SC_CLK_TCK")
    for pid in descendants(os.getpid()):
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            total += sum(map(int, file.read().rpartition(")")[2].split()[11:15])) / tick
    return total


def soak(executor: LocalExecutor, episodes: int) -> dict[str, Any]:
    """What is left of so many episodes: processes, open files, bytes of folders and memory."""
    episode(executor, 1)
    before, began = state(executor), time.perf_counter()
    for number in range(episodes):
        episode(executor, number)
    return {
        "episodes": episodes,
        "seconds": time.perf_counter() - began,
        "before": before,
        "after": state(executor),
    }


def episode(executor: LocalExecutor, number: int) -> None:
    """One episode of the soak."""
    own = executor.open(FILES, LIMITS)
    own.write({"shop/prices.py": f"x = {number}\n"})
    assert own.exec("cat shop/prices.py").output == f"x = {number}\n"
    own.exec("sleep 60 &")
    if number % 50 == 0:
        own.exec(HOSTILE[number // 50 % len(HOSTILE)])
    assert len(own.read_all()) == len(FILES)
    if number % 7:
        own.close()


def state(executor: LocalExecutor) -> dict[str, int]:
    """Processes, descriptors and memory of this process and of its workers, and bytes of their folder."""
    pool = executor.workspaces
    end = time.monotonic() + 10
    while pool.open_count and time.monotonic() < end:
        time.sleep(0.01)
    below = descendants(os.getpid())
    return {
        "workspaces": pool.open_count,
        "processes": len(below),
        "descriptors": len(os.listdir("/proc/self/fd"))
        + sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in below if os.access(f"/proc/{pid}/fd", os.R_OK)),
        "folder_bytes": folder_bytes(executor._folder),
        "resident_mb": (resident_bytes(os.getpid()) + sum(map(resident_bytes, below))) >> 20,
        "peak_own_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
