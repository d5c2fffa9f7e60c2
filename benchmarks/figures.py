"""Puts measured figures into README.md, between `<!-- NAME -->` and `<!-- /NAME -->`.

    .venv/bin/python benchmarks/figures.py --demo runs/demo/report.json

keeps what the README quotes of a demo in `results/demo.json`; without `--demo` the kept one is used.
The other figures come from `results/grpo_vs_trl_*.json` and `results/sandbox.json`, which `grpo_vs_trl.py`
and `sandbox.py` write with `--json`.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
RESULTS = HERE / "results"
KEPT = ("headline", "facts", "before_after", "seeds", "time_parts", "made_with")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--demo", type=Path, help="report.json of a finished demo")
    arguments = parser.parse_args()
    kept = RESULTS / "demo.json"
    if arguments.demo:
        report = json.loads(arguments.demo.read_text(encoding="utf-8"))
        record = {name: report[name] for name in KEPT}
        kept.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    text = replaced(text, "demo", demo_block(json.loads(kept.read_text(encoding="utf-8"))))
    text = replaced(text, "speed", speed_block())
    text = replaced(text, "sandbox", sandbox_block())
    README.write_text(text, encoding="utf-8")


def replaced(text: str, name: str, block: str) -> str:
    """The text with what stands between the marks of `name` replaced."""
    marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not marks.search(text):
        raise SystemExit(f"README.md has no block <!-- {name} --> … <!-- /{name} -->")
    return marks.sub(lambda found: found[1] + block + found[2], text)


def demo_block(record: dict[str, Any]) -> str:
    table = record["before_after"]
    rows = [table["columns"], ["---"] * len(table["columns"]), *table["rows"]]
    lines = ["| " + " | ".join(cell.strip() for cell in row) + " |" for row in rows]
    facts = {fact["label"]: fact["value"] for fact in record["facts"]}
    seconds = sum(part[1] for part in record["time_parts"])
    made = {row[0]: row[1] for row in record["made_with"]["rows"]}
    lines.append(
        f"\n{table['caption']} {facts['seeds']} seeds side by side on {made['cpu count']} cores "
        f"({made['device']}): {seconds / 60:.1f} minutes, {facts['peak memory']} at the most per seed.\n"
    )
    return "\n".join(lines)


def speed_block() -> str:
    lines = [
        "| one GRPO step, 256 answers in groups of 8 | greenward s | TRL 1.16 s | TRL / greenward |",
        "|---|---|---|---|",
    ]
    for file in sorted(RESULTS.glob("grpo_vs_trl_*.json")):
        record = json.loads(file.read_text())
        settings = record["settings"]
        for result in record["results"]:
            ratio = result["ratios"]["step"]
            ours, theirs = (middle([step["step"] for step in result[x]]) for x in ("greenward", "trl"))
            theirs_type = settings.get("trl_dtype") or settings["dtype"]
            types = (
                settings["dtype"] if theirs_type == settings["dtype"] else f"bfloat16, TRL in {theirs_type}"
            )
            lines.append(
                f"| prompts of about {result['prompt_tokens']} tokens, {types}, {settings['threads']} threads"
                f" | {ours:.2f} | {theirs:.2f} | **{ratio['median']:.1f}×** "
                f"({ratio['min']:.1f} to {ratio['max']:.1f}) |"
            )
    return "\n".join(lines) + "\n"


def sandbox_block() -> str:
    record = json.loads((RESULTS / "sandbox.json").read_text())
    lines = ["| one answer, five tests | ms | answers/s, 2 workers | times greenward |", "|---|---|---|---|"]
    for name, row in record["rows"].items():
        if "rate_2" not in row or name.startswith("greenward,"):
            continue
        ratio = record["ratios"].get(name, {}).get("ms")
        times = f"**{ratio['median']:.1f}×** ({ratio['min']:.1f} to {ratio['max']:.1f})" if ratio else ""
        title = "greenward, all five layers" if name == "greenward" else name
        lines.append(f"| {title} | {middle(row['ms']):.1f} | {middle(row['rate_2']):.0f} | {times} |")
    return "\n".join(lines) + "\n"


def middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    main()
