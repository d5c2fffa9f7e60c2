"""Registers the tasks that a recipe can name.

Outside of its own folder a task is known here only, but for `config/upgrade.py` (old names), `cli/tasks.py`
(its commands) and the adapters `integrations/openenv.py` and `integrations/verifiers.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from greenward.common.errors import ConfigError

if TYPE_CHECKING:
    from greenward.config.recipe import Recipe
    from greenward.tasks.task import Task

TASKS: Mapping[str, str] = MappingProxyType(
    {
        "functions": "greenward.tasks.functions.task:Functions",
        "repair": "greenward.tasks.repair.task:Repair",
        "spec": "greenward.tasks.spec.task:Spec",
        "vulnerability": "greenward.tasks.vulnerability.task:Vulnerability",
        "agent": "greenward.tasks.agent.task:Agent",
        "self_play": "greenward.tasks.self_play.task:SelfPlay",
        "code_game": "greenward.tasks.code_game.task:CodeGame",
        "token_mdp": "greenward.tasks.token_mdp.task:TokenMDPTask",
    }
)
"""The class of each task, imported when it is asked for."""
DEFAULT_TASK = "functions"
SOURCES: Mapping[str, str] = MappingProxyType(
    {"vulnerabilities": "greenward.tasks.vulnerability.data:vulnerability_pairs"}
)
"""What makes the generated problems of a task, by the name of the source; called with the part."""
FORMATS = ("greenward.tasks.vulnerability.data:FORMATS",)
"""The formats of files with problems of a task."""
_SUMMARY_TABLES = {
    "classification": ("Classification", "greenward.tasks.vulnerability.labels:tables"),
    "by_problem": ("By problem", "greenward.tasks.token_mdp.report:tables"),
}


def load(place: str) -> Any:
    """Import the object that `place`, a `module:name` of this registry, names."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def summary_tables(summary: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (section title, function that gives its blocks) for each table of a task in `summary`."""
    for key, (title, place) in _SUMMARY_TABLES.items():
        if summary.get(key):
            yield title, load(place)


def find_task(name: Any) -> type[Task]:
    """The class of a task by its name, or by `module:Class` for one of the user's own.

    Modules of the current folder are found. Raises `ConfigError` for an unknown task.
    """
    known = isinstance(name, str) and name in TASKS
    module, colon, attribute = (TASKS[name] if known else str(name)).partition(":")
    if not colon or not module or not isinstance(name, str):
        near = get_close_matches(str(name), TASKS, n=1)
        raise ConfigError(
            f"task: expected one of {', '.join(TASKS)} or your own as module:Class, found {name!r}.",
            remedy=f"Nearest: {near[0]}." if near else None,
        )
    if known:
        shipped: type[Task] = load(TASKS[name])
        return shipped
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        task: Any = getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise ConfigError(
            f"task {name} cannot be imported. {type(error).__name__}: {error}",
            remedy="Name a class of the current folder or of an installed module as module:Class.",
        ) from error
    recipes = getattr(task, "recipes", None)
    if not isinstance(task, type) or not isinstance(recipes, Mapping) or not recipes:
        raise ConfigError(
            f"task {name}: {attribute} is no subclass of greenward.tasks.task.Task that has recipes.",
            remedy=f"Give it recipes = recipes_with({name!r}).",
        )
    fields = [getattr(made, "model_fields", {}).get("task") for made in recipes.values()]
    if any(getattr(field, "default", None) != name for field in fields):
        raise ConfigError(
            f"task {name}: the recipes of {attribute} are not made for it.",
            remedy=f"Give it recipes = recipes_with({name!r}).",
        )
    return task


def recipes_of_task(name: Any) -> Mapping[str, type[Recipe]]:
    """The recipe class of each algorithm that a task is learned by, the usual one first."""
    return find_task(name).recipes


def shipped_task(name: Any) -> type[Task] | None:
    """The class of a task that comes with greenward; None for any other name, which is not imported."""
    return find_task(name) if isinstance(name, str) and name in TASKS else None
