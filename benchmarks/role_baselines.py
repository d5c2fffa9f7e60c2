"""What a role-conditioned baseline is worth in self-play: variance of the gradient, and outcome of trainings.

    .venv/bin/python benchmarks/role_baselines.py [KEY=VALUE ...] [--batches 60] [--steps 40] [--seeds 0,1,2]

Three choices of `algorithm.advantage` are compared: SPIRAL's running mean for each game, opponent and role;
nothing; and the mean of the role over the group of games. A baseline that both roles share is the mean of
all returns, which is exactly 0 where the policy plays a zero-sum game against itself: "shared" is "none".

Variance, on fixed policies. Each plays `--batches` independent batches of games against itself, and the
gradient of every batch is computed with each baseline on the same games (`role_gradients`). The figure is
the sample variance over batches, mean over parameters; it comes from the gradients alone. Its ratio to that
with the role baseline has a 95 % bootstrap interval: batches are drawn anew, the same ones for both. A
running mean begins with games that are not counted. The policies:

- Kuhn Poker after the supervised start, which plays legal actions at random;
- TicTacToe after the supervised start;
- TicTacToe after further training in the first role against random play, while supervised steps hold the
  second role at random legal moves; without them the second role learns from the first, whose weights it
  shares.

How often each role wins is measured and stands beside. `signal` is the squared length of the mean gradient,
without bias by the noise. A baseline that does not depend on the move leaves it as it is; the mean of n
games, which contains the game itself, shrinks it by the factor (1 - 1/n)².

Outcome. Trainings of `--steps` steps by the recipes, with equal seeds, from one supervised start for each
seed. They are processes of one thread, `--parallel` at a time; finished ones in `--output` are not
repeated. All of it takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from greenward.common.statistics import Estimate
from greenward.config.loading import load_recipe
from greenward.models.catalog import build_policy
from greenward.models.policy import Policy
from greenward.recipes.sweep import Run, run_all
from greenward.rollouts.driver import run_dialogues
from greenward.rollouts.protocols import POLICY, Collection, Episode, RolloutEngine, SamplingParams
from greenward.runs.progress import Progress
from greenward.runs.reading import WARM_START, read_evaluations, read_summary
from greenward.tasks.self_play.environment import GameDialogue, MovePrompts, Table
from greenward.tasks.self_play.games import MARKS, RandomPlayer, find_game
from greenward.tasks.self_play.role_gradients import role_gradients
from greenward.tasks.self_play.task import SelfPlay, SelfPlayRecipe
from greenward.training.advantages import RoleBaselineEstimator
from greenward.training.collector import Collector
from greenward.training.sft import SFTTrainer
from greenward.training.trainer import RLTrainer

ROLE, NONE, GROUP = "role_baseline", "none", "group_mean"
BASELINES = {ROLE: "role baseline", NONE: "none (= shared)", GROUP: "group mean"}
RECIPE = "spiral_self_play"
FIXED_POLICIES = {  # name: game, whether the first role alone is trained, overrides of the recipe
    "Kuhn Poker, supervised start": ("kuhn_poker", False, ("algorithm.discount=1.0",)),
    "TicTacToe, supervised start": ("tictactoe", False, ()),
    "TicTacToe, first role trained": ("tictactoe", True, ()),
}
UNCOUNTED_BATCHES = 2
ONE_ROLE_GAMES = 256  # of each step of training in the first role
RESAMPLES = 2000
EVERY_ARM = (
    "training.threads=1",
    "self_play.evaluation_games=500",
    "evaluation.eval_interval_steps=1000000",
    "training.checkpoint_interval_steps=1000000",
    "training.keep_checkpoints=1",
)
FIGURES = {  # of an evaluation: what is shown of it, and what it is called
    "exploitability": "exploitability, chips per hand",
    "lines/first/lost": "lines lost as first player",
    "lines/second/lost": "lines lost as second player",
    "random/first/not_lost": "not lost against random play as first player",
    "random/second/not_lost": "not lost against random play as second player",
}


@dataclass(frozen=True)
class Gradient:
    """The noise of a gradient estimate: its variance, over that with the role baseline, and its signal."""

    variance: float
    ratio: Estimate
    signal: float


def main() -> None:
    arguments = parse_arguments()
    record: dict[str, Any] = {
        "settings": {
            name: value for name, value in vars(arguments).items() if name not in ("json", "output")
        },
        "machine": {"cpus": os.cpu_count(), "torch": torch.__version__, "load": os.getloadavg()[0]},
    }
    print(
        "A baseline that both roles share is exactly 0 where a policy plays a zero-sum game against itself: "
        '"shared" is "none".'
    )
    if arguments.batches:
        torch.set_num_threads(arguments.parallel)
        starts: dict[str, Policy] = {}
        record["policies"] = {name: measure(name, arguments, starts) for name in FIXED_POLICIES}
    if arguments.steps:
        record["outcomes"] = {name: outcomes(name, arguments) for name in arguments.recipes}
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE for every recipe")
    parser.add_argument("--batches", type=int, default=60, help="of each fixed policy; 0: no variance (60)")
    parser.add_argument("--games", type=int, default=32, help="of a batch (32)")
    parser.add_argument("--one-role-steps", type=int, default=30, help="training of the lopsided policy (30)")
    parser.add_argument("--recipes", nargs="+", default=[RECIPE], help="with task: self_play, to be trained")
    parser.add_argument("--steps", type=int, default=40, help="of each training; 0: no outcome (40)")
    parser.add_argument(
        "--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1, 2]
    )
    parser.add_argument(
        "--parallel", type=int, default=2, help="trainings at a time, threads of variance (2)"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/role_baselines"))
    parser.add_argument("--json", type=Path, help="write all numbers here")
    return parser.parse_args()


# Variance on fixed policies.


def measure(name: str, arguments: argparse.Namespace, starts: dict[str, Policy]) -> dict[str, Any]:
    """The gradients of one fixed policy with each baseline; prints its rows.

    `starts` keeps the policy of each game, which the next one of the same game goes on from.
    """
    game, first_role_only, overrides = FIXED_POLICIES[name]
    recipe = load_recipe(
        RECIPE,
        [
            *overrides,
            f"self_play.games=[{game}]",
            "self_play.opponents={self: 1}",
            "algorithm.kl={}",
            "training.prompts_per_step=1",
            f"training.num_generations={arguments.games}",
            f"training.max_steps={arguments.one_role_steps}",
            *arguments.overrides,
        ],
    )
    assert isinstance(recipe, SelfPlayRecipe)
    task = SelfPlay(recipe)
    policy = starts.setdefault(game, starts.get(game) or after_start(recipe, task))
    if first_role_only:
        train_first_role(policy, recipe, task)
    environment = task.environment(policy)
    batches = [
        environment.collect({POLICY: policy}, range(number, number + 1), seed=number).episodes
        for number in range(UNCOUNTED_BATCHES + arguments.batches)
    ]
    results = [episode.rewards["first"] for batch in batches for episode in batch]
    shares = {
        "won": fmean(result > 0 for result in results),
        "lost": fmean(result < 0 for result in results),
        "ended_by_illegal_move": fmean(one.outcome == "illegal" for batch in batches for one in batch),
    }
    grams = {baseline: gram_of(policy, recipe, baseline, batches) for baseline in BASELINES}
    parameters = sum(parameter.numel() for parameter in policy.parameters())
    found = compare(grams, parameters)
    print(
        f"\n{name}: the first player wins {shares['won']:.1%} and loses {shares['lost']:.1%} of the games, "
        f"an illegal move ends {shares['ended_by_illegal_move']:.1%}; {arguments.batches} batches of "
        f"{arguments.games} games, discount {recipe.algorithm.discount:g}"
    )
    print(f"{'baseline':18}{'variance':>12}{'over role baseline':>28}{'signal':>12}")
    for baseline, one in found.items():
        ratio = f"{one.ratio.value:.3f} [{one.ratio.low:.3f}, {one.ratio.high:.3f}]"
        print(f"{BASELINES[baseline]:18}{one.variance:12.3e}{ratio:>28}{one.signal:12.3e}", flush=True)
    gradients = {baseline: asdict(one) for baseline, one in found.items()}
    return {"first_player": shares, "gradients": gradients}


def after_start(recipe: SelfPlayRecipe, task: SelfPlay) -> Policy:
    """The policy after the recipe's supervised start."""
    assert recipe.warm_start is not None
    policy = build_policy(recipe, task.texts)
    start = SFTTrainer(policy, task.examples(policy, recipe.warm_start), recipe.warm_start, seed=recipe.seed)
    for step in range(recipe.warm_start.max_steps):
        start.train_step(step)
    return policy


class FirstRoleOnly:
    """Games in which the policy has the first role, against random play."""

    def __init__(self, policy: Policy, recipe: SelfPlayRecipe) -> None:
        game = find_game(recipe.self_play.games[0].name)
        self._table = Table(game, MovePrompts(game, policy.tokenizer, "bare"))
        self._asked = self._table.asked(SamplingParams.of(recipe))

    def collect(
        self, players: Mapping[str, RolloutEngine], groups: range, *, seed: int, step: int = 0
    ) -> Collection:
        dialogues = [
            GameDialogue(
                group_id,
                self._table,
                "random",
                (POLICY, RandomPlayer()),
                asked=self._asked,
                rng=random.Random(f"{seed}/{group_id}/{number}"),
            )
            for group_id in groups
            for number in range(ONE_ROLE_GAMES)
        ]
        seconds = run_dialogues(dialogues, players, seed=seed)
        return Collection([dialogue.finish() for dialogue in dialogues], seconds, 0.0, {})


def train_first_role(policy: Policy, recipe: SelfPlayRecipe, task: SelfPlay) -> None:
    """Train the first role, and hold the second at random legal moves: both roles share the weights."""
    environment = FirstRoleOnly(policy, recipe)
    trainer = RLTrainer(
        policy,
        Collector(environment, {POLICY: policy}, groups_per_step=1, seed=recipe.seed),
        estimator_of(recipe, ROLE),
        recipe.algorithm,
        recipe.training,
        max_completion_tokens=recipe.sampling.max_tokens,
        seed=recipe.seed,
    )
    assert recipe.warm_start is not None
    steps, rate = recipe.training.max_steps, recipe.training.learning_rate
    config = recipe.warm_start.model_copy(update={"max_steps": steps, "learning_rate": rate})
    of_second = [
        example
        for example in task.examples(policy, config)
        if policy.tokenizer.decode(example.prompt_ids).startswith(MARKS[1])
    ]
    held = SFTTrainer(policy, of_second, config, seed=recipe.seed)
    for step in range(steps):
        trainer.train_step(step)
        held.train_step(step)


def estimator_of(recipe: SelfPlayRecipe, baseline: Any) -> RoleBaselineEstimator:
    algorithm = recipe.algorithm
    return RoleBaselineEstimator(
        baseline,
        decay=algorithm.baseline_decay,
        updated_first=algorithm.baseline_updated_first,
        discount=algorithm.discount,
    )


def gram_of(
    policy: Policy, recipe: SelfPlayRecipe, baseline: str, batches: Sequence[Sequence[Episode]]
) -> np.ndarray:
    """The inner products (M, M) of the gradients of M batches; those of the first are left out."""
    estimator = estimator_of(recipe, baseline)
    gradients = []
    for number, episodes in enumerate(batches):
        advantages = estimator(episodes)
        if number >= UNCOUNTED_BATCHES:
            size = recipe.training.micro_batch_sequences
            by_role = role_gradients(policy, episodes, advantages, micro_batch_sequences=size)
            gradients.append(torch.stack(list(by_role.values())).sum(0))
    gradients_MP = torch.stack(gradients).double()
    return (gradients_MP @ gradients_MP.T).numpy()


def compare(grams: Mapping[str, np.ndarray], parameters: int) -> dict[str, Gradient]:
    """The noise of each gradient estimate beside that with the role baseline."""
    batches = len(grams[ROLE])
    draws_RM = np.random.default_rng(0).multinomial(batches, [1 / batches] * batches, size=RESAMPLES)
    whole_M = np.ones(batches)
    found = {}
    for name, gram_MM in grams.items():
        ratios_R = variance(gram_MM, draws_RM) / variance(grams[ROLE], draws_RM)
        low, high = np.quantile(ratios_R, [0.025, 0.975])
        ratio = float(variance(gram_MM, whole_M) / variance(grams[ROLE], whole_M))
        found[name] = Gradient(
            float(variance(gram_MM, whole_M)) / parameters,
            Estimate(ratio, float(low), float(high)),
            float((gram_MM.sum() - gram_MM.trace()) / (batches * (batches - 1))),
        )
    return found


def variance(gram_MM: np.ndarray, counts_M: np.ndarray) -> np.ndarray:
    """The sample variance, summed over parameters, of vectors with these inner products.

    `counts_M` says how often each occurs in the sample; several rows of counts give as many variances.
    """
    sizes = counts_M.sum(-1)
    squares = counts_M @ gram_MM.diagonal()
    return (squares - np.einsum("...i,ij,...j", counts_M, gram_MM, counts_M) / sizes) / (sizes - 1)


# Outcome of trainings.


def outcomes(recipe: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train with each baseline and seed, and print what the evaluations after it say."""
    arms: dict[str, list[Run]] = {baseline: [] for baseline in BASELINES}
    for seed in arguments.seeds:
        start = arm_of(recipe, seed, ROLE, arguments, None)
        for baseline, row in arms.items():
            row.append(start if baseline == ROLE else arm_of(recipe, seed, baseline, arguments, start))
    others = [run for baseline, row in arms.items() if baseline != ROLE for run in row]
    with Progress() as progress:
        progress.message(f"{recipe}: {len(arms[ROLE]) + len(others)} trainings of {arguments.steps} steps")
        for wave in (arms[ROLE], others):  # the others start from what the first ones made
            run_all(wave, progress, parallel=arguments.parallel, resume=True)
    loaded = load_recipe(recipe, arguments.overrides)
    assert isinstance(loaded, SelfPlayRecipe)
    record: dict[str, Any] = {}
    for game in (one.name for one in loaded.self_play.games):
        rows = {"start": [metrics_of(arm, game, 0) for arm in arms[ROLE]]}
        rows |= {BASELINES[name]: [metrics_of(arm, game, -1) for arm in row] for name, row in arms.items()}
        shown = [name for name in FIGURES if name in rows["start"][0]]
        record[game] = {
            label: {name: [one[name] for one in row] for name in shown} for label, row in rows.items()
        }
        print(
            f"\n{game} after {arguments.steps} steps of {recipe}, "
            f"mean over {len(arguments.seeds)} seeds [least, most]"
        )
        print(f"{'':48}" + "".join(f"{label:>24}" for label in rows))
        for name in shown:
            cells = [over_seeds(record[game][label][name]) for label in rows]
            print(f"{FIGURES[name]:48}" + "".join(f"{cell:>24}" for cell in cells), flush=True)
    return record


def arm_of(recipe: str, seed: int, baseline: str, arguments: argparse.Namespace, start: Run | None) -> Run:
    """A training; without `start` one that makes the supervised start, which the others of its seed share."""
    overrides = [
        f"seed={seed}",
        *EVERY_ARM,
        f"algorithm.advantage={baseline}",
        f"training.max_steps={arguments.steps}",
        *arguments.overrides,
    ]
    if start is not None:
        model = start.folder / WARM_START / "checkpoints" / "last"
        overrides += [f"model.id={model}", "pretrained=null", "warm_start=null", "evaluation.at_start=false"]
    folder = arguments.output / Path(recipe).stem / f"steps_{arguments.steps}" / f"seed_{seed}" / baseline
    run = Run(folder, recipe, overrides)
    summary = read_summary(folder)
    run.finished = summary is not None and summary["status"] == "finished"
    return run


def metrics_of(run: Run, game: str, number: int) -> dict[str, float]:
    metrics = read_evaluations(run.folder, game)[number]["metrics"]
    return {name: float(estimate["value"]) for name, estimate in metrics.items()}


def over_seeds(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f} [{min(values):.3f}, {max(values):.3f}]"


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
