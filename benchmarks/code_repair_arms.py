"""Ways to train the repair of code, with equal training time, for several seeds.

    .venv/bin/python benchmarks/code_repair_arms.py [--seeds 0,1,2] [--steps 100] [--output runs/code_repair]
    .venv/bin/python benchmarks/code_repair_arms.py --recipe grpo_code_repair --output runs/repair_by_edits

For each seed the recipe trains `--steps` steps after its warm start; the other arms then start from the same
warm start and train on the same problems for the seconds that it trained, evaluation aside:

- `ppo_code_fix` (answers are functions): GRPO and rejection sampling;
- `grpo_code_repair` (answers are edits): GRPO with similarity to the known repair as the only reward
  (SWE-RL's, without its tags), and rejection sampling.

Every process has one thread, and two run at a time. Without the reward model, which only measures. The
policy is evaluated at the start and at the end. Finished arms in the folder are not repeated, and interrupted
ones go on. Three seeds take about 20 minutes on two cores.

`--json` gets all numbers and `--markdown` the table, whose last rows are paired by problem (95 % intervals).
`report.html` in the output folder shows the same with curves and sample answers.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from greenward.common.statistics import Estimate
from greenward.recipes.sweep import Phase, Run, run_all, training_seconds
from greenward.reports.document import metric_label, points, seed_range
from greenward.reports.runs import Runs, read_runs
from greenward.reports.training import training_report
from greenward.reports.write import write_report
from greenward.runs.output import claim_folder
from greenward.runs.progress import Progress
from greenward.runs.reading import read_summary

EVERY_ARM = (
    "training.threads=1",
    "sandbox.workers=1",
    "reward_model=null",
    "evaluation.eval_interval_steps=1000000",
    "training.checkpoint_interval_steps=100",
    "training.keep_checkpoints=1",
)
# What differs from the recipe in the arms beside it. Model, problems, rewards and sampling stay the recipe's.
GRPO = (
    "algorithm=grpo",
    "algorithm.advantage=grpo",
    "algorithm.loss=dapo",
    "algorithm.clip_high=0.28",
    "algorithm.updates_per_batch=1",
    "algorithm.minibatches=2",
    "algorithm.max_step_kl=null",
    "algorithm.kl={}",
    "training.learning_rate=3e-4",
)
REJECTION = (
    "algorithm=rejection",
    "algorithm.overlong.mask_truncated=true",
    "algorithm.max_per_prompt=4",
    "algorithm.replay_rounds=4",
    "algorithm.epochs=1",
    "algorithm.batch_size=64",
    "training.prompts_per_step=32",
    "training.num_generations=8",
    "training.learning_rate=1e-3",
)
SIMILARITY = ("rewards=[{name: swe_rl, options: {tags: false}}]",)
# The arms beside each recipe, by folder.
BESIDE = {
    "ppo_code_fix": {"grpo": GRPO, "rejection": REJECTION},
    "grpo_code_repair": {"similarity": SIMILARITY, "rejection": REJECTION},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE for every arm")
    parser.add_argument("--recipe", choices=BESIDE, default="ppo_code_fix")
    parser.add_argument("--seeds", type=seeds_of, default=(0, 1, 2), help="with commas between (0,1,2)")
    parser.add_argument("--steps", type=int, default=100, help="of the recipe (100)")
    parser.add_argument("--output", type=Path, default=Path("runs/code_repair"))
    parser.add_argument("--parallel", type=int, default=2, help="processes at a time (2)")
    parser.add_argument("--json", type=Path, help="keep all numbers here")
    parser.add_argument("--markdown", type=Path, help="keep the table here")
    options = parser.parse_args()
    claim_folder(options.output, "runs")
    runs = runs_of(options.recipe, options.output, options.seeds, options.steps, options.overrides)
    with Progress() as progress:
        run_all(runs, progress, parallel=options.parallel, resume=True)
    write_report(training_report(options.output), options.output)
    record = result(read_runs(options.output), options.steps, [run.folder for run in runs])
    text = table(record)
    print(text)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")


def seeds_of(text: str) -> tuple[int, ...]:
    """Different whole numbers with commas between."""
    seeds = tuple(int(part) for part in text.split(","))
    if len(set(seeds)) != len(seeds):
        raise ValueError(text)
    return seeds


def runs_of(
    recipe: str, output: Path, seeds: Sequence[int], steps: int, overrides: Sequence[str]
) -> list[Run]:
    """The recipe for every seed, then the arms beside it; those that have finished are marked so."""
    main, beside = [], []
    for seed in seeds:
        folder = output / f"seed_{seed}"
        common = [f"seed={seed}", *EVERY_ARM]
        first = Run(folder, recipe, [*common, f"training.max_steps={steps}", *overrides])
        main.append(first)
        beside += [
            Run(folder / name, recipe, [*common, *own, *overrides], same_time_as=first)
            for name, own in BESIDE[recipe].items()
        ]
    for run in (*main, *beside):
        summary = read_summary(run.folder)
        run.finished = summary is not None and summary["status"] == "finished"
        run.phases = [] if run.finished else [Phase(str(run.folder.relative_to(output)), run.folder)]
    return [*main, *beside]


def result(runs: Runs, steps: int, folders: Sequence[Path]) -> dict[str, Any]:
    """All numbers: pooled estimates, the value of each seed, paired differences, training seconds."""
    main = runs.main.runs
    return {
        "steps": steps,
        "seeds": [run.config["seed"] for run in main],
        "problems": main[0].evaluations[0]["problems"],
        "samples": main[0].evaluations[0]["samples"],
        **asdict(runs.results),
        "training_seconds": {str(f.relative_to(folders[0].parent)): training_seconds(f) for f in folders},
        "arm_steps": {group.label: [run.steps for run in group.runs] for group in runs.groups},
        "device": str(main[0].sessions[-1].get("device") or platform.processor()),
    }


def table(record: dict[str, Any]) -> str:
    """The numbers as a Markdown table, for the terminal and for README.md."""
    arms = record["arms"]
    labels = [arm["label"] for arm in arms]
    lines = ["| Held-out | Before | " + " | ".join(labels) + " |", "|" + " --- |" * (2 + len(labels))]
    for name in record["metrics"]:
        cells = [record["seeds_before"][name], *(arm["seeds_after"][name] for arm in arms)]
        lines.append(f"| {metric_label(name)} | " + " | ".join(map(over_seeds, cells)) + " |")
    differences = []
    for arm in arms:
        differences.append((f"{arm['label']} − before", arm["change"].get("pass@1")))
        differences.append((f"{labels[0]} − {arm['label']}", arm["lead"]))
    shown = "; ".join(f"{name} {points(Estimate(**found))}" for name, found in differences if found)
    main_seconds = [s for name, s in record["training_seconds"].items() if "/" not in name]
    steps = ", ".join(f"{label} {fmean(count):.0f}" for label, count in record["arm_steps"].items())
    lines.append(
        f"\nMeans over {len(record['seeds'])} seeds, with the lowest and the highest. {record['problems']} "
        f"held-out problems, {record['samples']} answers each at temperature 1. Differences of sampled "
        f"pass@1 in points, paired by problem, with 95 % intervals: {shown}. All arms of a seed start from "
        f"one warm start and train for the same time, {fmean(main_seconds):.0f} s on one thread "
        f"({record['device']}); steps: {steps}.\n"
    )
    return "\n".join(lines)


def over_seeds(values: Sequence[float]) -> str:
    """The mean over seeds, and the lowest and highest, in percent."""
    return f"{100 * fmean(values):.1f} % ({seed_range(values)})" if values else "–"


if __name__ == "__main__":
    main()
