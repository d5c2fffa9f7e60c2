"""Evaluates a model that was trained by self-play: matches and exact figures, in a folder of its own."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from greenward.config.recipe import SelfPlayRecipe
from greenward.environments.games.environment import Table
from greenward.environments.games.prompts import MovePrompts
from greenward.environments.games.textarena_game import PREFIX
from greenward.errors import ConfigError
from greenward.evaluation.folder import SETTINGS, SUMMARY, refuse_other_settings
from greenward.evaluation.games import evaluate_game
from greenward.policies.policy import Policy
from greenward.recipes.build import build_sampling
from greenward.recipes.evaluation_session import usual_folder
from greenward.recipes.models import FoundModel
from greenward.recipes.self_play import GAMES, find_game
from greenward.reports.evaluation import RESULTS, evaluation_report
from greenward.reports.write import write_report
from greenward.runs.files import write_json, write_rows
from greenward.runs.machine import collect_provenance
from greenward.runs.output import check_folder, claim_folder
from greenward.runs.progress import Progress, evaluation_line

OPTIONS = ("checkpoint", "temperature", "seed", "dtype", "device")
"""Those of the options of an evaluation of code that one of games has, too."""


def asked_games(model: FoundModel, suite: str | None) -> Sequence[str]:
    """The games that `suite` means for a model, without it those of its run; none for a suite of code.

    Raises `ConfigError` where only the run names the class of a game, since importing it would run code.
    """
    if not isinstance(model.recipe, SelfPlayRecipe):
        return ()
    own = [config.name for config in model.recipe.self_play.games]
    if suite is None:
        if code := [name for name in own if ":" in name and not name.startswith(PREFIX)]:
            raise ConfigError(
                f"{model.name} plays {', '.join(code)}, whose code would be imported and run here.",
                remedy=f"If you trust that code, name it: --suite {code[0]}",
            )
        return own
    return [suite] if suite in (*own, *GAMES) else ()


def refuse_options(given: Collection[str]) -> None:
    """Raises `ConfigError` for options that an evaluation of games has not."""
    if wrong := sorted(set(given) - {*OPTIONS, "samples"}):
        raise ConfigError(
            f"an evaluation of games has no {', '.join(wrong)}: they concern answers to problems.",
            remedy=f"Leave them out (games have {', '.join(OPTIONS)} and the number of games), or name a "
            "suite of code.",
        )


def evaluate_games(
    model: FoundModel,
    names: Sequence[str],
    out: str | Path | None,
    progress: Progress,
    *,
    games: int | None = None,
    overwrite: bool = False,
    options: Mapping[str, Any],
) -> tuple[dict[str, Any], Path]:
    """Evaluates a model as its run does, and writes the folder `out`; returns the summary and the folder.

    `games` is the number of each match, that of the recipe where it is None; so are temperature, dtype and
    device where `options` has none. Raises `RunError` for a folder that holds something else; with
    `overwrite`, an evaluation that is there is deleted.
    """
    recipe = model.recipe
    assert isinstance(recipe, SelfPlayRecipe)
    given = {name: value for name, value in options.items() if value is not None}
    sampling = replace(
        build_sampling(recipe), temperature=given.get("temperature", recipe.sampling.temperature)
    )
    count = games or recipe.self_play.evaluation_games
    settings = {
        "command": "eval",
        "suite": ", ".join(names),
        "weights": model.weights_hash,
        "games": count,
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        "move_format": recipe.self_play.move_format,
        "seed": given.get("seed", 0),
        "dtype": given.get("dtype", recipe.model.dtype),
    }
    folder = usual_folder("eval", model.name, "-".join(names)) if out is None else Path(out)
    check_folder(folder, "evaluation") if overwrite else refuse_other_settings(folder, settings)
    found = [find_game(name) for name in names]
    device = given.get("device", recipe.model.device)
    policy = Policy.from_folder(model.folder, dtype=settings["dtype"], device=device)
    began, records = time.perf_counter(), []
    for game in found:
        table = Table(game, MovePrompts(game, policy.tokenizer, recipe.self_play.move_format))
        record = evaluate_game(
            policy, model.step or 0, table=table, sampling=sampling, games=count, seed=settings["seed"]
        )
        progress.message(evaluation_line(record, game.name))
        records.append(record)
    summary = {
        "suite": settings["suite"],
        "command": "eval",
        "model": model.to_json(),
        "metrics": {f"{one['suite']}/{name}": m for one in records for name, m in one["metrics"].items()},
        "rates": {},
        "failures": [],
        "settings": settings,
        "seconds": {"wall": time.perf_counter() - began},
        "sessions": [collect_provenance(str(policy.device))],
        "notes": [],
    }
    claim_folder(folder, "evaluation", overwrite=overwrite)
    write_json(folder / SETTINGS, settings)
    write_rows(folder / RESULTS, records)
    write_json(folder / SUMMARY, summary)
    write_report(evaluation_report(folder), folder)
    return summary, folder
