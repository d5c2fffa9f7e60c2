"""Scores a model through EvalPlus's own path and through `greenward eval`, problem by problem.

EvalPlus lives in an environment of its own (evalplus, transformers, torch): its prompt, greedy `generate` of
transformers, 768 new tokens, its stop strings and sanitiser (`evalplus_peers/sample.py`). Both sides get the
same weights, problems and arithmetic, and the same grader judges both. Interrupted, the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import greenward
from greenward.evaluation.compare import compare, read_evaluation
from greenward.problems.catalog import load_suite

PEER = Path(__file__).parent / "evalplus_peers" / "sample.py"


STOPS = ("\nif __name__", "\ndef main(", "\nprint(", "\n```")


def _code(text: str) -> str:
    """An answer up to the first stop string, which EvalPlus cuts and greenward keeps."""
    end = min((text.index(stop) for stop in STOPS if stop in text), default=len(text))
    return text[:end].replace("\t", "    ").strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a model folder")
    parser.add_argument("--evalplus-python", required=True, help="the interpreter that has evalplus")
    parser.add_argument("--suite", default="humaneval+")
    parser.add_argument("--every", type=int, default=4, help="ask every so-many-th problem")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--batch", type=int, default=8, help="prompts at a time, EvalPlus's side")
    parser.add_argument("--check", type=int, default=0, help="ask so many alone, too, EvalPlus's side")
    parser.add_argument(
        "--most-fewer", type=int, help="exit with 1 if greenward passes so many fewer, plus one"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/published_scores"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    problems = load_suite(args.suite)[:: args.every]
    args.out.mkdir(parents=True, exist_ok=True)
    rows = [
        {"task_id": one.task_id, "prompt": one.starter_code, "entry_point": one.entry_point}
        for one in problems
    ]
    (args.out / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    how = ("--dtype", args.dtype, "--batch", str(args.batch), "--check", str(args.check))
    subprocess.run([args.evalplus_python, PEER, args.model, args.out, *how], check=True)
    peer = greenward.grade(
        args.out / "peer.jsonl", args.suite, extract="never", output=args.out / "evalplus", quiet=False
    )
    ours = greenward.evaluate(
        args.model,
        args.suite,
        ids=tuple(one.task_id for one in problems),
        dtype=args.dtype,
        output=args.out / "greenward",
        quiet=False,
    )
    sides = [read_evaluation(args.out / name) for name in ("evalplus", "greenward")]
    found = compare(*sides)
    peers, own = (
        {row["task_id"]: _code(row["completion"]) for row in map(json.loads, path.read_text().splitlines())}
        for path in (args.out / "peer.jsonl", args.out / "greenward" / "samples.jsonl")
    )
    record = {
        "model": Path(args.model).name,
        "suite": args.suite,
        "dtype": args.dtype,
        "problems": len(problems),
        "passes": {"evalplus": peer.summary["problems_passed"], "greenward": ours.summary["problems_passed"]},
        "base": {
            name: one.summary["metrics"].get("base_pass@1", {}).get("value")
            for name, one in (("evalplus", peer), ("greenward", ours))
        },
        "equal_answers": sum(own[one] == peers[one] for one in own),
        "won": found.won,
        "lost": found.lost,
        "prompt": ours.summary["settings"]["prompt"],
    }
    passes = record["passes"]
    print(f"{record['model']} on {len(problems)} problems of {args.suite}, greedy, {args.dtype}:")
    print(f"  passes: EvalPlus {passes['evalplus']}, greenward {passes['greenward']}")
    print(f"  original tests alone: {record['base']}")
    print(f"  equal answers: {record['equal_answers']}")
    print(f"  passes only through greenward: {found.won}, only through EvalPlus: {found.lost}")
    if args.json:
        args.json.write_text(json.dumps(record, indent=2) + "\n")
    if args.most_fewer is not None and passes["greenward"] < passes["evalplus"] - args.most_fewer:
        sys.exit(1)


if __name__ == "__main__":
    main()
