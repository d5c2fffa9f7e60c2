"""Policy gradients beside rejection sampling, further supervised training and an oracle.

    .venv/bin/python benchmarks/policy_gradient.py functions [--seeds 0,1,2] [--output FOLDER]
    .venv/bin/python benchmarks/policy_gradient.py repair --steps 60

For each seed the study's first arm trains `--steps` steps after its warm start. The other arms start from the
same warm start and train on the same problems, for the seconds that it trained or, where their name says so,
on as many answers. `supervised` goes on with the corpus of the warm start; the oracle trains on right bodies
only and is no method but a ceiling: what this model can learn of the training problems in this time. Each
process has one thread, and `--processes` run at a time. What has finished is not repeated, and what was
interrupted goes on.

The held-out functions are split in two. On the validation part the temperature is chosen for each arm and
each k, over all seeds; the figures are of the other part, with these temperatures and with 1. Held-out
problems whose specification or program occurs in training under another name are left out
(`evaluation.contamination`). A difference is paired by problem after averaging over seeds, with a 95 %
interval over problems.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import greenward
from greenward.common.statistics import Estimate, paired_difference, pass_at_k, rate
from greenward.config.loading import has_key, load_recipe
from greenward.evaluation.contamination import contamination
from greenward.evaluation.store import read_rows
from greenward.evaluation.suites import stable_subset
from greenward.grading.verification import load_verified
from greenward.recipes.sweep import CONTROL_RATE_SHARE, Phase, Run, run_all, training_seconds
from greenward.reports.document import Chart, Role, Series, percent, points
from greenward.reports.svg import standalone
from greenward.runs.output import claim_folder
from greenward.runs.progress import Progress
from greenward.runs.reading import METRICS, WARM_START, read_metrics, read_summary
from greenward.tasks import recipes_of_task

KS = (1, 2, 4, 8, 16, 32)
TEMPERATURES = (0.3, 0.6, 1.0, 1.3)
VALIDATION = 60  # problems on which temperatures are chosen

EVERY_ARM = (
    "training.threads=1",
    "sandbox.workers=1",
    "evaluation.enabled=false",
    "training.checkpoint_interval_steps=1000000",
    "training.keep_checkpoints=1",
)
IMITATION = (
    "algorithm.self_imitation.learning_rate=5e-4",
    "algorithm.self_imitation.max_per_prompt=2",
    "algorithm.self_imitation.replay_rounds=24",
    "algorithm.self_imitation.batch_size=64",
)
REJECTION = (
    "algorithm=rejection",
    "algorithm.overlong.mask_truncated=true",
    "algorithm.max_per_prompt=2",
    "algorithm.replay_rounds=8",
    "algorithm.epochs=1",
    "algorithm.batch_size=64",
    "training.prompts_per_step=64",
    "training.num_generations=4",
    "training.learning_rate=5e-4",
)
GRPO = (
    "algorithm=grpo",
    "algorithm.advantage=grpo",
    "algorithm.loss=dapo",
    "algorithm.clip_high=0.28",
    "algorithm.updates_per_batch=1",
    "algorithm.minibatches=2",
    "algorithm.max_step_kl=null",
    "algorithm.kl={}",
    "training.prompts_per_step=64",
    "training.num_generations=4",
    "training.learning_rate=3e-4",
)
SUPERVISED = ("algorithm=sft", "warm_start.data=corpus", "warm_start.schedule=constant")
SAME_ANSWERS = " at equal samples"


@dataclass(frozen=True)
class Study:
    """A recipe, what its arm is called, the steps it trains, and the arms beside it: overrides by name.

    `own` overrides the recipe in its own arm.
    """

    recipe: str
    label: str
    steps: int
    arms: Mapping[str, Sequence[str]]
    own: Sequence[str] = ()


CEILINGS = {"supervised": SUPERVISED, "oracle": (*SUPERVISED, "warm_start.error_rate=0.0")}
STUDIES = {
    "functions": Study(
        "quickstart",
        "GRPO + imitation",
        14,
        {
            "rejection sampling": REJECTION,
            f"rejection sampling{SAME_ANSWERS}": REJECTION,
            "GRPO": ("algorithm.self_imitation=null",),
            "without negative rows": ("algorithm.negative_weight=0",),
            "baseline of the batch": ("algorithm.advantage=reinforce",),
            **CEILINGS,
        },
    ),
    "repair": Study(
        "ppo_code_fix",
        "PPO",
        100,
        {
            "GRPO": GRPO,
            "PPO + imitation": IMITATION,
            "GRPO + imitation": (*GRPO, *IMITATION),
            "rejection sampling": REJECTION,
            **CEILINGS,
        },
    ),
    "edits": Study(
        "grpo_code_repair",
        "GRPO",
        450,
        {
            "GRPO + imitation": IMITATION,
            "similarity reward": ("rewards=[{name: swe_rl, options: {tags: false}}]",),
            "rejection sampling": REJECTION,
            **CEILINGS,
        },
    ),
    "spec": Study(
        "grpo_spec",
        "GRPO",
        20,
        {"GRPO + imitation": (), "rejection sampling": REJECTION, **CEILINGS},
        own=("algorithm.self_imitation=null",),
    ),
    "vulnerability": Study(
        "grpo_vulnerability",
        "GRPO",
        40,
        {
            "GRPO + imitation": IMITATION,
            "rejection sampling": REJECTION,
            # The corpus of this recipe has right labels only, so that its oracle is further training.
            "supervised": SUPERVISED,
        },
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE for every arm")
    parser.add_argument("--seeds", type=seeds_of, default=(0, 1, 2), help="with commas between (0,1,2)")
    parser.add_argument("--steps", type=int, help="of the recipe (the study's)")
    parser.add_argument("--arms", help="only these beside the recipe, with commas between")
    parser.add_argument("--lead", help="arm whose lead over the others is shown (the recipe's)")
    parser.add_argument("--problems", type=int, default=150, help="of the test part (150)")
    parser.add_argument("--samples", type=int, default=32, help="answers to each problem (32)")
    parser.add_argument("--processes", type=int, default=2, help="that run at a time (2)")
    parser.add_argument("--output", type=Path, help="folder of the runs (runs/policy_gradient/STUDY)")
    parser.add_argument("--json", type=Path, help="keep all numbers here")
    parser.add_argument("--markdown", type=Path, help="keep the tables here")
    parser.add_argument("--svg", type=Path, help="keep the curve of pass@k here")
    options = parser.parse_args()
    study = STUDIES[options.study]
    arms = dict(study.arms)
    if options.arms is not None:
        wanted = list(filter(None, options.arms.split(",")))
        if unknown := [name for name in wanted if name not in arms]:
            parser.error(f"--arms: expected some of {', '.join(arms)}; found {', '.join(unknown)}")
        arms = {name: arms[name] for name in wanted}
    output = options.output or Path("runs/policy_gradient", options.study)
    claim_folder(output, "runs")
    steps = options.steps or study.steps
    with Progress() as progress:
        folders = trained(study, arms, output, steps, options, progress)
        record = measured(study, folders, options, progress)
    record |= {"study": options.study, "recipe": study.recipe, "steps": steps}
    text = tables(record)
    print(text)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    if options.svg:
        options.svg.write_text(standalone(curves(record), width=640), encoding="utf-8")


def seeds_of(text: str) -> tuple[int, ...]:
    """Different whole numbers with commas between."""
    seeds = tuple(int(part) for part in text.split(","))
    if len(set(seeds)) != len(seeds):
        raise ValueError(text)
    return seeds


Folders = dict[str, list[Path]]  # of each arm, a run for each seed


def trained(
    study: Study,
    arms: Mapping[str, Sequence[str]],
    output: Path,
    steps: int,
    options: argparse.Namespace,
    progress: Progress,
) -> Folders:
    """Train what has not finished; the folders of all arms, with the warm start as `before`."""
    overrides: Sequence[str] = options.overrides
    recipe = load_recipe(study.recipe, overrides)
    folders: Folders = {"before": [], study.label: [], **{name: [] for name in arms}}
    main, beside = [], []
    for seed in options.seeds:
        folder = output / f"seed_{seed}"
        common = [f"seed={seed}", *EVERY_ARM]
        first = Run(folder, study.recipe, [*common, *study.own, f"training.max_steps={steps}", *overrides])
        main.append(first)
        folders["before"].append(folder / WARM_START)
        folders[study.label].append(folder)
        for name, own in arms.items():
            inner = folder / name.replace(" ", "_")
            folders[name].append(inner)
            given = [*common, *own, *overrides]
            if "algorithm=sft" in own:
                given.append(
                    f"warm_start.learning_rate={recipe.warm_start.learning_rate * CONTROL_RATE_SHARE}"
                )
                given = [one for one in given if has_key(recipes_of_task(recipe.task)["sft"], one)]
            if name.endswith(SAME_ANSWERS):
                arm = load_recipe(study.recipe, given).training
                answers = steps * recipe.training.prompts_per_step * recipe.training.num_generations
                given += [
                    "warm_start=null",
                    f"model.id={folder / WARM_START / 'checkpoints' / 'last'}",
                    "pretrained=null",
                    f"training.max_steps={answers // (arm.prompts_per_step * arm.num_generations)}",
                ]
                beside.append(Run(inner, study.recipe, given))
            else:
                beside.append(Run(inner, study.recipe, given, same_time_as=first))
    for stage in (main, beside):  # those that train on as many answers start from a warm start, too
        for run in stage:
            summary = read_summary(run.folder)
            run.finished = summary is not None and summary["status"] == "finished"
            run.phases = [] if run.finished else [Phase(str(run.folder.relative_to(output)), run.folder)]
        run_all(stage, progress, parallel=options.processes, resume=True)
    return folders


def measured(
    study: Study, folders: Folders, options: argparse.Namespace, progress: Progress
) -> dict[str, Any]:
    """All numbers: temperatures chosen on the validation part, figures of the test part."""
    recipe = load_recipe(study.recipe, options.overrides)
    train, held_out = (
        load_verified(getattr(recipe.problems, part), recipe, part=part) for part in ("train", "held_out")
    )
    seen = {one.task_id for one in contamination(train, held_out).overlaps if one.exact or one.same_program}
    clean = held_out.filter(lambda problem: problem.task_id not in seen)
    validation = stable_subset(clean, min(VALIDATION, len(clean) // 3))
    chosen_for = {problem.task_id for problem in validation}
    test = stable_subset(clean.filter(lambda problem: problem.task_id not in chosen_for), options.problems)
    ks = [k for k in KS if k <= options.samples]
    parts = {"validation": [p.task_id for p in validation], "test": [p.task_id for p in test]}
    found = Measurements(options.samples, parts, options.processes)
    found.evaluate(
        progress,
        [(f, "validation", t) for runs in folders.values() for f in runs for t in TEMPERATURES],
    )
    best = {
        name: {
            k: max(TEMPERATURES, key=lambda t: float(found.pass_at(runs, "validation", t, k).mean()))
            for k in ks
        }
        for name, runs in folders.items()
    }
    wanted = {
        (folder, "test", t)
        for name, runs in folders.items()
        for folder in runs
        for t in (0.0, 1.0, *best[name].values())
    }
    found.evaluate(progress, sorted(wanted, key=str))
    label = options.lead or study.label
    arms = [arm_record(name, runs, label, folders, best, found, ks) for name, runs in folders.items()]
    return {
        "label": label,
        "seeds": options.seeds,
        "overrides": options.overrides,
        "problems": len(test),
        "validation_problems": len(validation),
        "left_out": len(seen),
        "samples": options.samples,
        "sampling_temperature": recipe.sampling.temperature,
        "arms": arms,
        "device": platform.processor() or platform.machine(),
    }


@dataclass(frozen=True, eq=False)
class Measurements:
    """Evaluations of runs on either part, kept in `evaluated/` of each run."""

    samples: int
    parts: Mapping[str, Sequence[str]]
    processes: int

    def folder(self, run: Path, part: str, temperature: float) -> Path:
        return run / "evaluated" / f"{part}_{temperature:g}"

    def answers(self, temperature: float) -> int:
        return self.samples if temperature else 1

    def is_there(self, run: Path, part: str, temperature: float) -> bool:
        """Whether these problems have as many answers already."""
        folder = self.folder(run, part, temperature)
        if not (folder / "summary.json").is_file():
            return False
        answered = {name: counts.total() for name, (_, counts) in programs(folder).items()}
        return answered == dict.fromkeys(self.parts[part], self.answers(temperature))

    def evaluate(self, progress: Progress, jobs: Sequence[tuple[Path, str, float]]) -> None:
        """`processes` at a time; those that are there are only read."""
        jobs = [one for one in jobs if not self.is_there(*one)]
        with ProcessPoolExecutor(self.processes, mp_context=get_context("spawn")) as pool:
            waiting = [
                pool.submit(
                    evaluated,
                    run,
                    tuple(self.parts[part]),
                    temperature,
                    self.answers(temperature),
                    self.folder(run, part, temperature),
                )
                for run, part, temperature in jobs
            ]
            for number, (job, one) in enumerate(zip(waiting, jobs, strict=True), start=1):
                job.result()
                progress.message(
                    f"evaluated {number} of {len(jobs)}: {one[0]}, {one[1]}, temperature {one[2]:g}"
                )

    def pass_at(self, runs: Sequence[Path], part: str, temperature: float, k: int) -> np.ndarray:
        """pass@k of each problem (P,), averaged over runs."""
        samples = self.answers(temperature)
        of_runs = [programs(self.folder(run, part, temperature)) for run in runs]
        values = [[pass_at_k(samples, found[name][0], k) for name in self.parts[part]] for found in of_runs]
        return np.mean(np.array(values, dtype=np.float64), axis=0)

    def entropy(self, runs: Sequence[Path]) -> float:
        """Entropy of the distribution over programs at temperature 1, in nats, from the samples (plug-in).

        With n samples it is at most log n; the mean over problems and runs.
        """
        of_problems = []
        for run in runs:
            for _, counts in programs(self.folder(run, "test", 1.0)).values():
                shares = [count / counts.total() for count in counts.values()]
                of_problems.append(-sum(share * math.log(share) for share in shares))
        return fmean(of_problems)


@cache
def programs(evaluation: Path) -> dict[str, tuple[int, Counter[str | None]]]:
    """Of each problem, how many answers passed, and how often each program was written."""
    rows = list(read_rows(evaluation / "results.jsonl"))
    passed = Counter(row.task_id for row in rows if row.success)
    written: dict[str, Counter[str | None]] = {}
    for row in rows:
        written.setdefault(row.task_id, Counter())[row.code_sha256] += 1
    return {name: (passed[name], counts) for name, counts in written.items()}


def evaluated(run: Path, ids: tuple[str, ...], temperature: float, samples: int, output: Path) -> None:
    """One evaluation, in a process of its own."""
    import torch

    torch.set_num_threads(1)
    greenward.evaluate(
        run, ids=ids, samples=samples, k=(1,), temperature=temperature, workers=1, output=output
    )


def arm_record(
    name: str,
    runs: Sequence[Path],
    label: str,
    folders: Folders,
    best: Mapping[str, Mapping[int, float]],
    found: Measurements,
    ks: Sequence[int],
) -> dict[str, Any]:
    """What an arm reached, and the lead of `label` over it, at temperature 1, greedily and as chosen."""
    main, is_main = folders[label], name == label

    def figures(temperature: float, k: int, of_main: float) -> dict[str, Any]:
        values_P = found.pass_at(runs, "test", temperature, k)
        figure = {
            "value": vars(rate(values_P)),
            "seeds": [float(found.pass_at([run], "test", temperature, k).mean()) for run in runs],
        }
        if not is_main:
            lead = paired_difference(found.pass_at(main, "test", of_main, k) - values_P)
            figure["lead"] = vars(lead)
        return figure

    steps = [read_metrics(run / METRICS).rows[-1]["step"] for run in runs]
    return {
        "name": name,
        "steps": steps,
        "seconds": [training_seconds(run) for run in runs],
        "entropy": found.entropy(runs),
        "greedy": figures(0.0, 1, 0.0),
        "at_1": {k: figures(1.0, k, 1.0) for k in ks},
        "chosen": {
            k: {"temperature": best[name][k], **figures(best[name][k], k, best[label][k])} for k in ks
        },
    }


def tables(record: Mapping[str, Any], *, brief: bool = False) -> str:
    """Markdown: what each arm reaches, and the lead of the main arm over it.

    `brief`: what each arm reaches, at chosen temperatures for the largest k alone, without its steps, time
    and entropy.
    """
    shown = (record["samples"],) if brief else (1, 4, 8, 32)
    ks = [k for k in KS if k in shown and k <= record["samples"]]

    def figure(found: Mapping[str, Any]) -> str:
        value = percent(Estimate(**found["value"]))
        return f"{value} (T {found['temperature']:g})" if "temperature" in found else value

    def lead(found: Mapping[str, Any]) -> str:
        return points(Estimate(**found["lead"]))

    def rows(cell: Any) -> Iterator[str]:
        for arm in record["arms"]:
            if cell is lead and arm["name"] == record["label"]:
                continue
            of_k = [("at_1", 1), *(("chosen", k) for k in ks)]
            cells = [cell(arm["greedy"]), *(cell(by_k(arm[how], k)) for how, k in of_k)]
            yield f"| {arm['name']} | " + " | ".join(cells) + " |"

    head = "| " + " | ".join(["", "greedy", "pass@1, T 1", *(f"pass@{k}, T chosen" for k in ks)]) + " |"
    rule = "|" + " --- |" * (3 + len(ks))
    what = [
        f"{arm['name']} {fmean(arm['steps']):.0f} steps in {fmean(arm['seconds']):.0f} s, "
        f"entropy {arm['entropy']:.2f}"
        for arm in record["arms"]
        if arm["name"] != "before"
    ]
    leads = [
        "",
        f"{record['label']} minus the arm, in points, paired by problem, with 95 % intervals:",
        "",
        head,
        rule,
        *rows(lead),
    ]
    return "\n".join(
        [
            head,
            rule,
            *rows(figure),
            *([] if brief else leads),
            "",
            f"Means over the seeds {', '.join(map(str, record['seeds']))}; {record['problems']} held-out "
            f"problems, {record['samples']} answers each; temperatures chosen for each arm and k on "
            f"{record['validation_problems']} other held-out problems; {record['left_out']} whose program or "
            f"specification occurs in training are left out. Trained at temperature "
            f"{record['sampling_temperature']:g} on one thread ({record['device']})"
            + ("." if brief else f": {'; '.join(what)} (entropy over programs at temperature 1, in nats)."),
            "",
        ]
    )


def by_k(of_k: Mapping[Any, Any], k: int) -> Mapping[str, Any]:
    """The figures for k of a record in memory or of one that was read from JSON."""
    found: Mapping[str, Any] = of_k[k] if k in of_k else of_k[str(k)]
    return found


def curves(record: Mapping[str, Any]) -> Chart:
    """pass@k at temperature 1, by the logarithm of k, of the start, the methods and the oracle."""
    roles: Sequence[Role] = ("control", "main", "second", "third", "fourth", "fifth")
    ks = [k for k in KS if k <= record["samples"]]
    shown = ("before", record["label"], "rejection sampling", "GRPO", "supervised", "oracle")
    arms = {arm["name"]: [by_k(arm["at_1"], k)["value"]["value"] for k in ks] for arm in record["arms"]}
    series = [
        Series(name, role, tuple((math.log2(k), value) for k, value in zip(ks, arms[name], strict=True)))
        for name, role in zip(shown, roles, strict=True)
        if name in arms
    ]
    return Chart("pass@k at temperature 1", "log2 of k", tuple(series), "share")


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
