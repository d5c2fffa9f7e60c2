"""Models that play games outside training, by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from greenward.config.recipe import SelfPlayRecipe
from greenward.environments.games.game import Game, ScriptedPlayer
from greenward.environments.games.prompts import Move, MoveFormat, MovePrompts
from greenward.errors import ConfigError
from greenward.evaluation.matches import Contestant
from greenward.policies.endpoint import Endpoint, is_endpoint
from greenward.policies.engine import SamplingParams
from greenward.policies.policy import Policy
from greenward.recipes.build import build_sampling
from greenward.recipes.models import find_model
from greenward.recipes.self_play import GAMES, MOST_TOKENS, SCRIPTED, served_contestant


def find_contestant(
    game: Game, model: str, *, temperature: float | None = None, key_variable: str | None = None
) -> Contestant:
    """The run or model of that name, asked for its moves in the way in which its run was trained.

    Without a run of self-play it is asked for a boxed move if its tokenizer has a chat template, else for a
    bare one, at temperature 1. A name MODEL@URL or URL is a model behind a server, which is asked for boxed
    moves through the chat API. Raises `CheckpointError`, `ConfigError` and `EngineError`.
    """
    if is_endpoint(model):
        endpoint = Endpoint(model, key_variable=key_variable)
        return served_contestant(game, endpoint, 1.0 if temperature is None else temperature)
    found = find_model(model)
    recipe = found.recipe
    policy = Policy.from_folder(found.folder, dtype=recipe.model.dtype if recipe else "auto")
    move_format: MoveFormat = "boxed" if policy.tokenizer.chat_template else "bare"
    sampling = SamplingParams(max_tokens=min(MOST_TOKENS, policy.max_positions // 2))
    if isinstance(recipe, SelfPlayRecipe):
        move_format, sampling = recipe.self_play.move_format, build_sampling(recipe)
    if temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    return Contestant(policy, MovePrompts(game, policy.tokenizer, move_format), sampling)


def find_opponent(
    game: Game, name: str, *, temperature: float | None = None, key_variable: str | None = None
) -> Contestant | ScriptedPlayer:
    """A run, a model or MODEL@URL, `random`, `expert`, or the expert by its own name, such as `minimax`.

    Raises `ConfigError` for the expert of another game, and what `find_contestant` raises.
    """
    if name == "random" or (game.expert and name in ("expert", game.expert)):
        return SCRIPTED["random" if name == "random" else "expert"]
    if name in {"expert", *(other.expert for other in GAMES.values())}:
        there = f"random, {game.expert} (or expert)" if game.expert else "random"
        raise ConfigError(
            f"{game.name} has no opponent {name!r}.", remedy=f"It has {there}, and any run or model folder."
        )
    return find_contestant(game, name, temperature=temperature, key_variable=key_variable)


def next_move(game: Game, contestant: Contestant, state: Any, *, seed: int) -> Move:
    """What the contestant answers in this state; the action may be illegal."""
    prompt_ids = contestant.prompts.prompt_ids(state, game.player(state) or 0)
    ((completion,),) = contestant.engine.sample([prompt_ids], 1, contestant.params, seed=seed)
    return contestant.prompts.move(completion)
