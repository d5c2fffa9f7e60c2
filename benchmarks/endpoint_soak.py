"""A thousand requests to a failing OpenAI-compatible server: is every answer accounted for?

    .venv/bin/python benchmarks/endpoint_soak.py [--answers 1000] [--seed 0] [--json FILE]

`greenward eval` asks a server on the loopback, of which two attempts in five fail: answers of 429 and 5xx,
connections that hang or are cut, broken JSON, other JSON, HTML. One prompt in a hundred never gets an answer.
The evaluation is then repeated in the same folder with a server that works. What the server has delivered is
compared with the files. The last line says PASS, or FAIL and why; the exit status tells, too.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from greenward import api

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from openai_server import FAULTS, OpenAIServer

SAMPLES = 4
SHARE_OF_FAULTS, SHARE_THAT_NEVER_ANSWERS = 0.4, 0.01
SECONDS = 5.0  # until the client gives up an attempt


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    never: set[str] = set()
    known: set[str] = set()

    def fault(prompt: str, attempt: int) -> str | None:
        if prompt not in known:
            known.add(prompt)
            # The command stops if its first request fails.
            if len(known) > 1 and rng.random() < SHARE_THAT_NEVER_ANSWERS:
                never.add(prompt)
        if prompt in never:
            return "500"
        return rng.choice(FAULTS) if len(known) > 1 and rng.random() < SHARE_OF_FAULTS else None

    with tempfile.TemporaryDirectory() as place, OpenAIServer(answer, fault, retry_after="0.2") as server:
        folder, suite = Path(place) / "out", Path(place) / "adders.json"
        suite.write_text(json.dumps([problem(n) for n in range(arguments.answers // SAMPLES)]))
        result, wrong = {}, []
        for name in ("failing", "working"):
            began, before = time.perf_counter(), sum(server.attempts.values())
            summary = api.evaluate(
                f"tiny@{server.url}", str(suite), samples=SAMPLES, seed=0, output=folder, require="D",
                concurrency=arguments.concurrency, request_timeout=SECONDS,
            ).summary  # fmt: skip
            wrong += [f"{name}: {one}" for one in misplaced(folder, server, summary, arguments.answers)]
            result[name] = {
                "answers": summary["answers"],
                "attempts": sum(server.attempts.values()) - before,
                "delivered_again": sum(server.delivered.values()) - len(server.delivered),
                "lost": summary["statuses"].get("infrastructure", 0),
                "faults": dict(server.faults),
                "tokens": summary["usage"],
                "seconds": round(time.perf_counter() - began, 1),
            }
            print(name, json.dumps(result[name]), flush=True)
            server.fault = lambda *_: None
        if result["working"]["lost"]:
            wrong.append("a server that works lost answers")
        if result["failing"]["lost"] < len(never):
            wrong.append("an answer was counted that the server never gave")
    if arguments.json:
        arguments.json.write_text(json.dumps(result | {"wrong": wrong}, indent=2) + "\n")
    print(f"FAIL: {'; '.join(wrong)}" if wrong else "PASS")
    return 1 if wrong else 0


def problem(number: int) -> dict[str, Any]:
    return {
        "function_name": f"add_{number}",
        "docstring": f"Add {number} to n.",
        "test_cases": [[1, 1 + number], [5, 5 + number]],
        "starter_code": f'def add_{number}(n):\n    """Add {number} to n."""\n',
    }


def answer(prompt: str) -> str:
    """Right where number and seed have an even sum, and unlike all other answers."""
    number, seed = (int(re.search(form, prompt)[1]) for form in (r"def add_(\d+)", r"#(\d+)$"))
    return f"```python\ndef add_{number}(n):\n    return n + {number + (number + seed) % 2}  # {seed}\n```"


def misplaced(folder: Path, server: OpenAIServer, summary: dict[str, Any], answers: int) -> list[str]:
    """What of the files is not as the server knows it."""
    samples, results = (
        [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("samples.jsonl", "results.jsonl")
    )
    kept = {(row["task_id"], row["sample"]): row["completion"] for row in samples}
    statuses = {(row["task_id"], row["sample"]): row["status"] for row in results}
    texts = {}
    for prompt in server.delivered:
        number, seed = (int(re.search(form, prompt)[1]) for form in (r"def add_(\d+)", r"#(\d+)$"))
        texts[f"add_{number}", seed] = answer(prompt)
    expected = {
        key: "infrastructure"
        if key not in texts
        else "failed"
        if (int(key[0][4:]) + key[1]) % 2
        else "passed"
        for key in ((f"add_{n}", seed) for n in range(answers // SAMPLES) for seed in range(SAMPLES))
    }
    wrong = []
    if len(samples) != len(kept) or kept != texts:
        wrong.append(f"{len(kept.items() ^ texts.items())} answers differ between the files and the server")
    if len(results) != len(statuses) or statuses != expected:
        wrong.append(f"{len(statuses.items() ^ expected.items())} verdicts are wrong or missing")
    if summary["answers"] != answers:
        wrong.append(f"the summary counts {summary['answers']} answers of {answers}")
    return wrong


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
