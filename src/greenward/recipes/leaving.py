"""Says what of a run leaves the machine, where it goes, and what keeps it here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from greenward.common.http import is_on_this_machine
from greenward.common.text import load_keys
from greenward.config.recipe import ModelRecipe, Recipe, ReinforcementRecipe, is_from_random_weights
from greenward.diagnostics.monitor import Action, load_rules
from greenward.runs.reading import flattened

_ADDRESS = re.compile(r"https?://[^\s'\"<>]+")
_MIRRORED = "metrics, settings and sampled answers"
_KEPT = {
    "sandbox.http.urls": ("programs and tests", "sandbox.backend=local and sandbox.http=null"),
    "rollouts.server.base_url": ("prompts", "rollouts.engine=native and rollouts.server.base_url=null"),
    "tracking.mlflow.uri": (_MIRRORED, "tracking.mlflow=null"),
}
"""What goes to the address in a key, and what to write in place of it."""


def leaving_line(recipe: Recipe) -> str | None:
    """One line on what of a run leaves this machine, with the overrides that keep it here, or None.

    What functions of the user's send is not known here, but for addresses in the recipe.
    """
    sent = list(_sent(recipe))
    if not sent:
        return None
    parts = (f"{what} to {where} ({switch} keeps them here)" for what, where, switch in sent)
    return f"Leaves this machine: {'; '.join(parts)}."


def _sent(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """(what, where to, switch) of everything that leaves the machine."""
    tracking = recipe.tracking
    if tracking.wandb is not None and tracking.wandb.mode == "online":
        yield _MIRRORED, "Weights & Biases", "tracking.wandb.mode=offline"
    if tracking.trackio is not None and tracking.trackio.space_id is not None:
        yield _MIRRORED, f"the Space {tracking.trackio.space_id}", "tracking.trackio.space_id=null"
    if tracking.mlflow is not None and tracking.mlflow.uri is None:
        load_keys()
        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        if _ADDRESS.fullmatch(uri) and not is_on_this_machine(uri):
            yield _MIRRORED, _host(uri), "tracking.mlflow=null"
    if recipe.sandbox.backend == "ray":
        yield "programs and tests", "the nodes of the Ray cluster", "sandbox.backend=local"
    if isinstance(recipe, ModelRecipe) and _is_asked_for(recipe):
        yield (f"the name {recipe.model.id}", "the Hugging Face hub", "model.offline=true")
    if isinstance(recipe, ReinforcementRecipe) and recipe.monitor.enabled:
        rules = load_rules(recipe.monitor.rules)
        actions = [*rules.actions, *(action for rule in rules.rules for action in rule.actions)]
        if ways := list(dict.fromkeys(filter(None, map(_way, actions)))):
            where = f"whom {recipe.monitor.rules} names, by {' and '.join(ways)}"
            yield "alarms", where, "monitor.rules=default"
    yield from _to_addresses(recipe)


def _to_addresses(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """What goes to the addresses that the recipe names."""
    for key, value in flattened(recipe.model_dump(mode="json")):
        found = _ADDRESS.findall(f"{key} {value}")
        hosts = dict.fromkeys(_host(address) for address in found if not is_on_this_machine(address))
        if hosts:
            named = _ADDRESS.split(key)[0].rpartition(".")[0] if _ADDRESS.search(key) else key
            what, switch = _KEPT.get(key, ("requests", f"another value of {named}"))
            yield what, ", ".join(hosts), switch


def _is_asked_for(recipe: ModelRecipe) -> bool:
    """Whether the hub is asked for the model, be it in the cache or not."""
    name = recipe.model.id
    if name is None or is_from_random_weights(name) or recipe.model.offline:
        return False
    return not Path(name).exists() and "HF_HUB_OFFLINE" not in os.environ


def _way(action: Action) -> str | None:
    """By what an action tells somebody; None for those that print or stop."""
    return None if isinstance(action, str) else type(action).__name__.lower()


def _host(address: str) -> str:
    """The host and the port, without what may be secret."""
    return address.partition("://")[2].partition("/")[0].rpartition("@")[2]
