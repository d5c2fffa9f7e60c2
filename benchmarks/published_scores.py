"""Scores a model through EvalPlus's own path and through `greenward eval`, problem by problem.

EvalPlus lives in an environment of its own (evalplus, transformers, torch): its prompt, greedy `generate` of
transformers, 768 new tokens, its stop strings and sanitiser (`evalplus_peers/sample.py`). Both sides get the
same weights, problems and arithmetic, and the same grader judges both. Of answers that differ it says how far
apart the two largest logits are where they part: less than the rounding of sums in another order is a tie.
Interrupted, the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import greenward
from greenward.evaluation.compare import compare, read_evaluation
from greenward.problems.catalog import load_suite

PEER = Path(__file__).parent / "evalplus_peers" / "sample.py"


# Of the weights before they were quantised (Qwen2.5-Coder's technical report, with EvalPlus).
PUBLISHED = {("qwen", "humaneval+"): {"base_pass@1": 0.616, "pass@1": 0.573}}
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
    parser.add_argument("--most-points", type=float, help="exit with 1 where scores are further apart")
    parser.add_argument("--least-equal", type=float, default=0.97, help="or fewer answers are equal")
    parser.add_argument("--out", type=Path, default=Path("runs/published_scores"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    problems = load_suite(args.suite)[:: args.every]
    args.out.mkdir(parents=True, exist_ok=True)
    ours = greenward.evaluate(
        args.model,
        args.suite,
        ids=tuple(one.task_id for one in problems),
        dtype=args.dtype,
        output=args.out / "greenward",
        quiet=False,
    )
    samples = {row["task_id"]: row for row in _rows(args.out / "greenward" / "samples.jsonl")}
    rows = [
        {
            "task_id": one.task_id,
            "prompt": one.starter_code,
            "entry_point": one.entry_point,
            "tokens": samples[one.task_id]["tokens"],
            "answer": samples[one.task_id]["completion"],
        }
        for one in problems
    ]
    (args.out / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    how = ("--dtype", args.dtype, "--batch", str(args.batch), "--check", str(args.check))
    subprocess.run([args.evalplus_python, PEER, args.model, args.out, *how], check=True)
    peer = greenward.grade(
        args.out / "peer.jsonl", args.suite, extract="never", output=args.out / "evalplus", quiet=False
    )
    found = compare(*(read_evaluation(args.out / name) for name in ("evalplus", "greenward")))
    peers = {row["task_id"]: row["completion"] for row in _rows(args.out / "peer.jsonl")}
    unequal = [one for one in samples if _code(samples[one]["completion"]) != _code(peers[one])]
    gaps = {row["task_id"]: row["gap"] for row in _rows(args.out / "ties.jsonl")}
    scores = {
        name: {
            metric: value["value"]
            for metric, value in one.summary["metrics"].items()
            if metric in ("pass@1", "base_pass@1")
        }
        for name, one in (("evalplus", peer), ("greenward", ours))
    }
    record = {
        "model": Path(args.model).name,
        "suite": args.suite,
        "dtype": args.dtype,
        "problems": len(problems),
        "scores": scores,
        "published": PUBLISHED.get((Path(args.model).name, args.suite)),
        "equal_answers": len(samples) - len(unequal),
        "logits_apart_where_answers_leave": {one: gaps.get(one) for one in unequal},
        "won": found.won,
        "lost": found.lost,
        "prompt": ours.summary["settings"]["prompt"],
    }
    print(f"{record['model']} on {len(problems)} problems of {args.suite}, greedy, {args.dtype}:")
    for name, values in {**scores, "published": record["published"] or {}}.items():
        shown = ", ".join(f"{metric} {value:.1%}" for metric, value in values.items()) or "nothing"
        print(f"  {name}: {shown}")
    share = record["equal_answers"] / len(samples)
    print(f"  equal answers: {record['equal_answers']} of {len(samples)} ({share:.1%})")
    for one, gap in record["logits_apart_where_answers_leave"].items():
        apart = "unknown" if gap is None else f"{gap:.1e}"
        print(f"    {one}: the two best logits where the answers part are {apart} apart")
    print(f"  passes only through greenward: {found.won}, only through EvalPlus: {found.lost}")
    if args.json:
        known = json.loads(args.json.read_text()) if args.json.is_file() else []
        same = ("model", "suite", "dtype", "problems")
        kept = [one for one in known if any(one[key] != record[key] for key in same)]
        args.json.write_text(json.dumps([*kept, record], indent=2) + "\n")
    if args.most_points is not None:
        apart = max(abs(scores["evalplus"][name] - value) for name, value in scores["greenward"].items())
        if 100 * apart > args.most_points or share < args.least_equal:
            sys.exit(1)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
