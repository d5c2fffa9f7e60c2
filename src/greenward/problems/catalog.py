"""Problem sets by name: generated families, the sets that come with greenward, the user's files."""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Literal

from greenward.config.schema import FamiliesConfig
from greenward.errors import ProblemError
from greenward.problems.families import generate, split
from greenward.problems.json_format import load_json
from greenward.problems.problem import ProblemSet

FAMILIES = "families"
SHIPPED = ("classic_training", "classic_evaluation")


def load_shipped(name: str) -> ProblemSet:
    """A problem set that comes with greenward. Raises `ProblemError` naming the nearest name."""
    if name not in SHIPPED:
        raise _unknown(name)
    with resources.as_file(resources.files("greenward.problems") / "data" / f"{name}.json") as path:
        return load_json(path)


def load_problems(source: str, families: FamiliesConfig, part: Literal["train", "held_out"]) -> ProblemSet:
    """The problems that a recipe's `problems.train` or `problems.held_out` names.

    `source` is `families` (of which `part` is taken), the name of a shipped set, or a JSON file;
    sets and files are taken whole. Raises `ProblemError`.
    """
    if source == FAMILIES:
        return _families(families)[0 if part == "train" else 1]
    if source in SHIPPED:
        return load_shipped(source)
    if Path(source).suffix not in (".json", ".jsonl") and not Path(source).exists():
        raise _unknown(source)
    return load_json(source)


@lru_cache(maxsize=1)
def _families(config: FamiliesConfig) -> tuple[ProblemSet, ProblemSet]:
    return split(generate(config), config.held_out, config.seed)


def _unknown(name: str) -> ProblemError:
    known = (FAMILIES, *SHIPPED)
    near = get_close_matches(name, known, n=1)
    return ProblemError(
        f"no problem set is called {name!r}.",
        remedy=f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}, or the path of a file.",
    )
