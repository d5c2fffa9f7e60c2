"""TicTacToe games per minute with the tiny decoder of `spiral_self_play`, beside `transformers.generate`.

    .venv/bin/python benchmarks/self_play.py [KEY=VALUE ...] [--games 1024] [--repeats 5] [--threads 2]

All play with the same weights, those of the recipe's supervised start, which knows the rules. The
contestants:

- sampling alone: the environment collects games, as in a training step;
- the same, but every position is a prompt of its own: equal positions of a round are not shared;
- training steps: sampling, advantages, updates, averaged weights, rollouts on disk; all but evaluations
  and checkpoints. The weights are set back before each turn, since a policy that learns plays other
  games;
- `generate` for one game after the other, and for all running games of a batch in one call per move, with
  the weights that `Policy.save` has written. It gives no log-probabilities, which a trainer needs. The
  opponents are drawn by the same shares, but make no noise among their moves.

They take turns in one process, so that a change of the machine's load meets all; the order is reversed from
round to round, and a ratio is taken within a round. CPU seconds, of all threads, mean more on a machine
that is busy otherwise. The last lines say for each target whether it was reached.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from greenward.config.loading import load_recipe
from greenward.models.catalog import build_policy
from greenward.models.policy import Policy
from greenward.recipes.run import build_reinforcement
from greenward.rollouts.protocols import Completion, Episode, OnGroup, RolloutEngine, SamplingParams
from greenward.runs.directory import RunDirectory
from greenward.runs.progress import Progress
from greenward.tasks.self_play.environment import MovePrompts
from greenward.tasks.self_play.games import SCRIPTED, Game, find_game
from greenward.tasks.self_play.task import SelfPlay, SelfPlayRecipe
from greenward.training.sft import SFTTrainer

RECIPE = "spiral_self_play"
SAMPLING, UNSHARED, TRAINING = "sampling alone", "sampling, equal positions apart", "training steps"
BATCHED, ONE_BY_ONE = "generate, games of a batch together", "generate, one game after the other"
TARGETS = {TRAINING: 50_000, SAMPLING: 120_000}  # games per minute on two cores
ONE_BY_ONE_SHARE = 16  # it plays this part of the games, so that its turn is not the longest by far


@dataclass(frozen=True)
class Played:
    """What a contestant did in a turn: games, moves of models, games that an illegal move ended."""

    games: int
    moves: int
    illegal: int


Contestant = Callable[[int], Played]
"""Takes a turn; the number of the round is its seed."""


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    load_before = os.getloadavg()[0]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contestants = make_contestants(arguments, folder, stack)
        take_turns(contestants, 0)  # not counted: caches fill, and threads start
        gc.freeze()  # as the training loop does
        rounds = [take_turns(contestants, number) for number in range(1, arguments.repeats + 1)]
    record = {
        "settings": {name: value for name, value in vars(arguments).items() if name != "json"},
        "machine": {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "load_before": load_before,
            "load_after": os.getloadavg()[0],
        },
        "rounds": rounds,
    }
    print_record(record)
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE for the recipe")
    parser.add_argument("--games", type=int, default=1024, help="of a turn, rounded up to whole steps (1024)")
    parser.add_argument("--repeats", type=int, default=5, help="measured rounds (5)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write all numbers here")
    return parser.parse_args()


def make_contestants(arguments: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Contestant]:
    """All contestants with the weights of one supervised start."""
    recipe = load_recipe(RECIPE, arguments.overrides)
    assert isinstance(recipe, SelfPlayRecipe) and recipe.warm_start is not None
    task = SelfPlay(recipe)
    policy, trained = (build_policy(recipe, task.texts) for _ in range(2))
    start = SFTTrainer(policy, task.examples(policy, recipe.warm_start), recipe.warm_start, seed=recipe.seed)
    for step in range(recipe.warm_start.max_steps):
        start.train_step(step)
    training = recipe.training
    steps = -(-arguments.games // (training.prompts_per_step * training.num_generations))
    groups = steps * training.prompts_per_step
    games = groups * training.num_generations

    players = task.players(policy)
    environment = task.environment(policy)

    def sample(engines: Mapping[str, RolloutEngine], number: int) -> Played:
        turn = range(number * groups, (number + 1) * groups)
        return played(games, environment.collect(engines, turn, seed=number).episodes)

    run = stack.enter_context(RunDirectory.create(folder / "run", recipe.model_dump(mode="json")))
    trained.load_state_dict(policy.state_dict())
    built = build_reinforcement(recipe, trained, SelfPlay(recipe), run, stack, Progress())

    def train(number: int) -> Played:
        trained.load_state_dict(policy.state_dict())
        episodes: list[Episode] = []
        for step in range(number * steps, (number + 1) * steps):
            for callback in built.callbacks:
                callback.on_step_begin(step + 1)
            record = built.trainer.train_step(step)
            for callback in built.callbacks:
                callback.on_step_end(step + 1, record.episodes, record.metrics)
            episodes += record.episodes
        return played(games, episodes)

    policy.save(folder / "model")
    game = find_game(recipe.self_play.games[0].name)
    loop = GenerateLoop(game, MovePrompts(game, policy.tokenizer, "bare"), policy, recipe, folder / "model")
    apart = {name: PositionsApart(engine) for name, engine in players.items()}
    return {
        SAMPLING: lambda number: sample(players, number),
        UNSHARED: lambda number: sample(apart, number),
        TRAINING: train,
        BATCHED: lambda number: loop.play(games, number, together=training.num_generations),
        ONE_BY_ONE: lambda number: loop.play(-(-games // ONE_BY_ONE_SHARE), number, together=1),
    }


def played(games: int, episodes: Sequence[Episode]) -> Played:
    moves = sum(len(episode.turns) for episode in episodes)
    return Played(games, moves, sum(episode.outcome == "illegal" for episode in episodes))


class PositionsApart(RolloutEngine):
    """An engine whose every completion has a prompt of its own, as if no two games were in one position."""

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine = engine

    deterministic = True

    @property
    def max_positions(self) -> int:
        return self._engine.max_positions

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group_sizes: int | Sequence[int],
        params: SamplingParams,
        *,
        seed: int | Sequence[int],
        on_group: OnGroup | None = None,
    ) -> list[list[Completion]]:
        assert not isinstance(group_sizes, int) and not isinstance(seed, int)
        rows = [prompt for prompt, size in zip(prompts, group_sizes, strict=True) for _ in range(size)]
        seeds = [one for one, size in zip(seed, group_sizes, strict=True) for _ in range(size)]
        drawn = iter(self._engine.sample(rows, 1, params, seed=seeds))
        return [[next(drawn)[0] for _ in range(size)] for size in group_sizes]

    def sync(self, policy: Policy) -> None:
        self._engine.sync(policy)


class GenerateLoop:
    """Games by `generate` of a model of `transformers`: one call asks for a move in each of some games."""

    def __init__(
        self, game: Game, prompts: MovePrompts, policy: Policy, recipe: SelfPlayRecipe, folder: Path
    ) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=policy.dtype).eval()
        self._game = game
        self._prompts = prompts
        self._tokenizer = policy.tokenizer
        self._opponents = recipe.self_play.opponents
        sampling = SamplingParams.of(recipe)
        self._settings = {
            "max_new_tokens": sampling.max_tokens,
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_k": 0,
            "top_p": 1.0,
            "pad_token_id": policy.tokenizer.pad_id,
        }

    def play(self, games: int, number: int, *, together: int) -> Played:
        """Play `games` games, `together` of them at a time."""
        torch.manual_seed(number)
        rng = random.Random(number)
        opponents = rng.choices(list(self._opponents), list(self._opponents.values()), k=games)
        moves = illegal = 0
        for first in range(0, games, together):
            scripted = [SCRIPTED.get(name) for name in opponents[first : first + together]]
            states = [self._game.start(rng) for _ in scripted]
            running = list(range(len(scripted)))
            while running:
                asked = []
                for index in running:
                    opponent, moving = scripted[index], self._game.player(states[index])
                    # The policy has the first role in every other game against a scripted player.
                    if opponent is not None and moving is not None and moving != index % 2:
                        action = opponent.act(self._game, states[index], rng)
                        states[index] = self._game.step(states[index], action)
                    if self._game.player(states[index]) is not None:
                        asked.append(index)
                running = []
                for index, action in zip(asked, self._moves([states[index] for index in asked]), strict=True):
                    moves += 1
                    if action in self._game.legal_actions(states[index]):
                        states[index] = self._game.step(states[index], action)
                        running.append(index)
                    else:
                        illegal += 1
        return Played(games, moves, illegal)

    @torch.inference_mode()
    def _moves(self, states: Sequence[Any]) -> list[str]:
        if not states:
            return []
        prompts = [self._prompts.prompt_ids(state, self._game.player(state) or 0) for state in states]
        width = max(map(len, prompts))
        pad = self._settings["pad_token_id"]
        ids_BT = torch.tensor([[pad] * (width - len(ids)) + list(ids) for ids in prompts])
        there_BT = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts])
        made_BT = self._model.generate(ids_BT, attention_mask=there_BT, **self._settings)
        return [self._tokenizer.decode(row).strip() for row in made_BT[:, width:].tolist()]


def take_turns(contestants: Mapping[str, Contestant], number: int) -> dict[str, dict[str, float]]:
    """One turn of each; the order is reversed from round to round."""
    names = sorted(contestants, reverse=True) if number % 2 else sorted(contestants)
    measured = {}
    for name in names:
        started, started_cpu = time.perf_counter(), time.process_time()
        turn = contestants[name](number)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - started_cpu
        measured[name] = {
            "games": turn.games,
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "games_per_minute": 60 * turn.games / seconds,
            "games_per_cpu_minute": 60 * turn.games / cpu_seconds,
            "moves_per_game": turn.moves / turn.games,
            "illegal": turn.illegal / turn.games,
        }
    return {name: measured[name] for name in contestants}


def print_record(record: Mapping[str, Any]) -> None:
    settings, about, rounds = record["settings"], record["machine"], record["rounds"]
    print(
        f"{settings['threads']} threads, {about['cpus']} CPUs, load {about['load_before']:.1f} before and "
        f"{about['load_after']:.1f} after, torch {about['torch']}; {len(rounds)} rounds of "
        f"{rounds[0][SAMPLING]['games']} games, median [min, max]\n"
    )
    heads = ("games per minute", "per CPU minute", "sampling alone ÷ this", "by CPU time")
    print(f"{'':38}" + "".join(f"{head:>26}" for head in heads) + "  moves/game  illegal")
    for name in rounds[0]:
        cells = [show([one[name][key] for one in rounds], "{:,.0f}") for key in RATES]
        cells += [show([one[SAMPLING][key] / one[name][key] for one in rounds], "{:.2f}") for key in RATES]
        moves = statistics.mean(one[name]["moves_per_game"] for one in rounds)
        illegal = statistics.mean(one[name]["illegal"] for one in rounds)
        print(f"{name:38}" + "".join(f"{cell:>26}" for cell in cells) + f"{moves:12.2f}{illegal:9.1%}")
    print("\nmoves/game: moves that a model made; illegal: games that an illegal move ended\n")
    for name, target in TARGETS.items():
        found = statistics.median(one[name]["games_per_minute"] for one in rounds)
        said = "reached" if found >= target else "MISSED "
        print(f"{said}  {name}: at least {target:,} games a minute: {found:,.0f}")


RATES = ("games_per_minute", "games_per_cpu_minute")


def show(values: Sequence[float], form: str) -> str:
    middle, least, most = map(form.format, (statistics.median(values), min(values), max(values)))
    return f"{middle} [{least}, {most}]"


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
