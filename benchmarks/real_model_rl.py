"""Gains of a pretrained model by RL: seeds, methods, rates and data sets, each a run of its own that resumes.

    .venv/bin/python benchmarks/real_model_rl.py MODEL functions --seeds 0,1 --arms GRPO,rejection
    .venv/bin/python benchmarks/real_model_rl.py MODEL mbpp --steps 15 --suite humaneval+

Every arm trains an adapter by the settings of `greenward demo model=MODEL`, from the same weights, with the
same seed on the same problems, and differs in the method and, after @, in the learning rate. All train for
`--seconds`, or for `--steps`, which have the same number of answers: busy cores then change no result, and
the seconds are shown beside it. One arm trains at a time, with all processors. The first arm of each seed is
measured before training, too.

A difference is paired by problem after averaging over seeds, with a 95 % interval over problems. With
`--suite` the model and the last checkpoint of each arm, of the first seed, answer that suite greedily under
its published prompt. What has finished is not repeated, and what was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import greenward
from greenward.common.statistics import Estimate, rate
from greenward.common.statistics import paired_difference as mean_difference
from greenward.config.loading import has_key, load_recipe
from greenward.evaluation.store import read_rows
from greenward.recipes.sweep import OF_A_MODEL, Phase, Run, run_all, training_seconds
from greenward.reports.document import metric_label, metric_order, percent, points
from greenward.reports.pooled import paired_difference, pooled
from greenward.runs.output import claim_folder
from greenward.runs.progress import Progress
from greenward.runs.reading import METRICS, read_evaluations, read_metrics, read_summary
from policy_gradient import seeds_of

METHODS = {"GRPO": "quickstart", "rejection": "rejection_sampling"}
DATA = {"functions": (), "mbpp": ("problems.train=mbpp:train", "problems.held_out=mbpp:test")}
ONLY_AT_THE_ENDS = "evaluation.eval_interval_steps=1000000"

Folders = dict[str, list[Path]]  # of each arm, a run for each seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", help="folder, GGUF file or id")
    parser.add_argument("data", choices=DATA)
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE for every arm")
    parser.add_argument("--seeds", type=seeds_of, default=(0, 1), help="with commas between (0,1)")
    parser.add_argument(
        "--arms", default="GRPO,rejection", help="METHOD or METHOD@RATE, with commas between (GRPO,rejection)"
    )
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--seconds", type=float, default=900, help="of each training (900)")
    budget.add_argument("--steps", type=int, help="of each training, in place of seconds")
    parser.add_argument("--suite", help="which the first seed answers greedily, too (humaneval+)")
    parser.add_argument("--output", type=Path, help="folder of the runs (runs/real_model_rl/DATA)")
    parser.add_argument("--json", type=Path, help="keep all numbers here")
    options = parser.parse_intermixed_args()
    output = options.output or Path("runs/real_model_rl", options.data)
    claim_folder(output, "runs")
    with Progress() as progress:
        folders = trained(options, output, progress)
        record = {
            "model": Path(options.model).name,
            "data": options.data,
            "seeds": options.seeds,
            "overrides": options.overrides,
            "budget": {"steps": options.steps} if options.steps else {"seconds": options.seconds},
            **measured(folders),
        }
        if options.suite:
            record["suite"] = options.suite
            record["on_suite"] = on_suite(options.model, options.suite, folders, output, progress)
    print(table(record))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def trained(options: argparse.Namespace, output: Path, progress: Progress) -> Folders:
    """Train what has not finished; the folders of all arms."""
    arms = options.arms.split(",")
    folders: Folders = {name: [] for name in arms}
    runs = []
    budget = (
        [f"training.max_steps={options.steps}", "training.max_seconds=null"]
        if options.steps
        else [f"training.max_seconds={options.seconds}"]
    )
    for seed in options.seeds:
        for name in arms:
            method, _, learning_rate = name.partition("@")
            if method not in METHODS:
                raise SystemExit(f"{name}: the methods are {', '.join(METHODS)}")
            own = load_recipe(METHODS[method], [f"model={options.model}"])
            given = [f"model={options.model}", f"seed={seed}", *OF_A_MODEL, *budget, ONLY_AT_THE_ENDS]
            given += [f"training.learning_rate={learning_rate}"] if learning_rate else []
            given += DATA[options.data]
            given += [] if name == arms[0] else ["evaluation.at_start=false"]
            given = [one for one in given if has_key(type(own), one)]
            folder = output / f"seed_{seed}" / name
            folders[name].append(folder)
            run = Run(folder, METHODS[method], [*given, *options.overrides])
            summary = read_summary(folder)
            run.finished = (
                summary is not None
                and summary["status"] == "finished"
                and summary["steps"] >= (options.steps or 0)  # more steps than before continue the run
            )
            run.phases = [] if run.finished else [Phase(f"seed {seed} {name}", folder)]
            runs.append(run)
    run_all(runs, progress, parallel=1, resume=True)
    return folders


def measured(folders: Folders) -> dict[str, Any]:
    """What each arm reached on the held-out problems, its gain, and the first arm's lead over it."""
    first, *_ = folders.values()
    before = [read_evaluations(folder)[0] for folder in first]
    main = [read_evaluations(folder)[-1] for folder in first]
    metrics = sorted(before[0]["metrics"], key=metric_order)
    arms = []
    for name, of_seeds in folders.items():
        after = [read_evaluations(folder)[-1] for folder in of_seeds]
        arms.append({
            "name": name,
            "steps": [read_metrics(folder / METRICS).rows[-1]["step"] for folder in of_seeds],
            "seconds": [training_seconds(folder) for folder in of_seeds],
            "peak_rss_mb": max(read_summary(folder)["peak_rss_mb"] for folder in of_seeds),
            "after": {key: vars(pooled(after, key)) for key in metrics},
            "seeds": {key: [one["metrics"][key]["value"] for one in after] for key in metrics},
            "gain": {key: vars(paired_difference(before, after, key)) for key in metrics},
            "lead": {key: vars(paired_difference(after, main, key)) for key in metrics},
        })  # fmt: skip
    return {
        "problems": before[0]["problems"],
        "samples": before[0]["samples"],
        "before": {key: vars(pooled(before, key)) for key in metrics},
        "arms": arms,
    }


def on_suite(
    model: str, suite: str, folders: Folders, output: Path, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Greedy pass@1 on a suite under its published prompt, before and after each arm of the first seed."""
    found: dict[str, dict[str, Any]] = {}
    passed: dict[str, dict[str, bool]] = {}
    first_runs = {name: of_seeds[0] for name, of_seeds in folders.items()}
    for name, source in {"before": model, **first_runs}.items():
        progress.message(f"{suite}: {name}")
        folder = output / suite / name
        greenward.evaluate(source, suite, output=folder, quiet=False)
        passed[name] = {row.task_id: row.success for row in read_rows(folder / "results.jsonl")}
        gain = [passed[name][task] - was for task, was in passed["before"].items()]
        found[name] = {
            "value": vars(rate(np.array(list(passed[name].values()), dtype=float))),
            "gain": vars(mean_difference(np.array(gain, dtype=float))),
        }
    return found


def table(record: dict[str, Any]) -> str:
    """Markdown: what each arm reaches, its gain, and the lead of the first arm over it."""
    metrics = list(record["before"])
    first, *others = record["arms"]

    def row(name: str, cells: Sequence[str]) -> str:
        return f"| {name} | {' | '.join(cells)} |"

    def figures(of: dict[str, Any], shown: Any) -> list[str]:
        return [shown(Estimate(**of[key])) for key in metrics]

    suite = [
        f"- {record['suite']}, greedy, {name}: {percent(Estimate(**one['value']))}"
        + (f", gain {points(Estimate(**one['gain']))}" if name != "before" else "")
        for name, one in record.get("on_suite", {}).items()
    ]
    return "\n".join([
        row("", [metric_label(key) for key in metrics]),
        row("---", ["---"] * len(metrics)),
        row("before", figures(record["before"], percent)),
        *(row(arm["name"], figures(arm["after"], percent)) for arm in record["arms"]),
        *(row(f"gain of {arm['name']}", figures(arm["gain"], points)) for arm in record["arms"]),
        *(row(f"{first['name']} minus {arm['name']}", figures(arm["lead"], points)) for arm in others),
        "",
        f"{record['problems']} held-out problems, {record['samples']} answers each; seeds "
        f"{', '.join(map(str, record['seeds']))}. "
        + "; ".join(
            f"{arm['name']}: steps {arm['steps']}, {', '.join(f'{one:.0f}' for one in arm['seconds'])} s, "
            f"at most {arm['peak_rss_mb'] / 1024:.1f} GiB"
            for arm in record["arms"]
        ),
        *suite,
    ])  # fmt: skip


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
