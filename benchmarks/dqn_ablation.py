"""The recipe `dqn_code_generation` with one part left out at a time: same seeds, same number of episodes.

    .venv/bin/python benchmarks/dqn_ablation.py --seeds 3 --episodes 1500 --json dqn_ablation.json

A run that is finished is not repeated. Counted are classic problems, and problems that are never trained on,
whose greedy program passes the hidden tests after the last episode.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from greenward import api
from greenward.runs.reading import read_evaluations, read_summary
from greenward.tasks.token_mdp.report import UNSEEN

LEFT_OUT = {
    "everything as in the recipe": (),
    "without the grammar mask": ("environment.grammar_mask=false",),
    "without Double": ("algorithm.double=false",),
    "without dueling": ("algorithm.dueling=false",),
    "without prioritised replay": ("algorithm.prioritized=false",),
    "1 step instead of 5": ("algorithm.n_step=1",),
    "without the curriculum": ("training.curriculum=false",),
    "without demonstrations": ("problems.generated=0",),
    "demonstrations without updates before the first episode": ("algorithm.pretraining_updates=0",),
    "tests at the end alone": ("environment.test_when=end",),
    "without the bonus of exploration": ("exploration.bonus=0",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("runs/dqn_ablation"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--parts", nargs="*", default=list(LEFT_OUT), choices=LEFT_OUT, help="rows of the table"
    )
    options = parser.parse_args()
    solved: dict[str, list[int]] = {}
    unseen: dict[str, list[int]] = {}
    for name in options.parts:
        overrides = LEFT_OUT[name]
        for seed in range(options.seeds):
            run = options.output / f"{name.replace(' ', '_')}_{seed}"
            summary = read_summary(run)
            if summary is None or summary["status"] != "finished":
                train(run, seed, options.episodes, overrides)
            for suite, counts in ((None, solved), (UNSEEN, unseen)):
                rows = read_evaluations(run, suite)[-1]["greedy_rows"]
                counts.setdefault(name, []).append(sum(row["status"] == "passed" for row in rows))
            print(name, seed, solved[name][-1], unseen[name][-1], flush=True)
            if options.json:
                record = {"seeds": list(range(options.seeds)), "episodes": options.episodes}
                text = json.dumps(record | {"solved": solved, "unseen": unseen}, indent=1)
                options.json.write_text(text + "\n")


def train(run: Path, seed: int, episodes: int, overrides: tuple[str, ...]) -> None:
    usual = (
        f"seed={seed}",
        f"training.num_episodes={episodes}",
        "training.max_seconds=null",
        "training.checkpoint_interval_steps=100000",
        "evaluation.samples=1",
        "evaluation.random_search=false",
        "evaluation.at_start=false",
        "evaluation.eval_interval_steps=100000",
    )
    api.train("dqn_code_generation", [*usual, *overrides], output=run, quiet=True, resume=True)


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
