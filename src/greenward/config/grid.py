"""The grid of a sweep: overrides that give keys several values, and the runs that they add up to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import yaml

from greenward.config.loading import dump, load_recipe
from greenward.config.recipe import AnyRecipe
from greenward.config.source import dotted, key_path
from greenward.errors import ConfigError
from greenward.user_text import compose_yaml

MAX_RUNS = 1000  # below the largest array that Slurm takes by default
SEED = "seed"
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_MAX_NAME = 100


@dataclass(frozen=True)
class GridRun:
    """One run of a grid: its folder below that of the sweep ("" for a grid of one run), and its overrides."""

    folder: str
    overrides: tuple[str, ...]


def grid_runs(overrides: Sequence[str]) -> list[GridRun]:
    """Every combination of the values in `overrides`, the seeds of a combination side by side.

    `key=a,b` and `key=0..4` (whole numbers, both ends included) give a key several values; each is YAML, and
    commas within brackets or quotes do not separate. Runs of one combination are `COMBINATION/seed_N`, as a
    study holds them, where the seed is swept too.

    Raises `ConfigError` for a list with gaps, a range that ends before it begins, a value or a swept key that
    is given twice, and more than `MAX_RUNS` runs.
    """
    given = [_key(override) for override in overrides]
    texts = [_values(override) for override in overrides]
    overrides = [
        override
        if len(values) > 1 or not _RANGE.search(override)
        else f"{override.partition('=')[0]}={values[0]}"
        for override, values in zip(overrides, texts, strict=True)
    ]
    axes: dict[str, list[str]] = {}
    for key, values in zip(given, texts, strict=True):
        if len(values) > 1:
            if given.count(key) > 1:
                raise ConfigError(f"{key} is swept and given once more: give each key once.")
            axes[key] = values
    seeds = axes.pop(SEED, [])
    if (count := prod(map(len, (*axes.values(), seeds or [SEED])))) > MAX_RUNS:
        raise ConfigError(f"the grid has {count} runs; at most {MAX_RUNS} can be run as one sweep.")
    last = [key.removesuffix(".id").rpartition(".")[2] for key in axes]
    short = [part if last.count(part) == 1 else key for key, part in zip(axes, last, strict=True)]
    found: dict[str, GridRun] = {}
    for *chosen, seed in product(*axes.values(), seeds or [SEED]):
        named = ",".join(f"{name}={value}" for name, value in zip(short, chosen, strict=True))
        inner = re.sub(r"[^\w-]+", "_", f"seed_{seed}") if seeds else ""
        folder = "/".join(filter(None, (_folder(named), inner)))
        if folder in found:  # another combination whose name differs in characters that are left out
            folder = "/".join(filter(None, (_folder(named, distinct=True), inner)))
        pairs = dict(zip((*axes, *([SEED] if seeds else [])), (*chosen, seed), strict=False))
        written = (
            f"{override.partition('=')[0].strip()}={pairs[key]}" if key in pairs else override
            for key, override in zip(given, overrides, strict=True)
        )
        found[folder] = GridRun(folder, tuple(written))
    return list(found.values())


def resolved_grid(
    recipe: str, overrides: Sequence[str], *, machine: Callable[[], str] | None = None
) -> dict[GridRun, AnyRecipe]:
    """The runs of a grid with their recipes; `machine` names the preset as in `load_recipe`.

    Raises `ConfigError` for what `grid_runs` and recipes refuse, and for two combinations that come to the
    same settings.
    """
    resolved: dict[GridRun, AnyRecipe] = {}
    first: dict[str, GridRun] = {}
    for run in grid_runs(overrides):
        resolved[run] = load_recipe(recipe, run.overrides, machine=machine)
        same = first.setdefault(dump(resolved[run]), run)
        if same != run:
            raise ConfigError(f"{same.folder} and {run.folder} come to the same settings: leave one out.")
    return resolved


def _key(override: str) -> str:
    key = dotted(key_path(override))
    return "model.id" if key == "model" else key


def _values(override: str) -> list[str]:
    """The texts of the values that an override gives, ranges written out."""
    values: list[str] = []
    for text in _elements(override):
        match = _RANGE.fullmatch(text.strip())
        first, last = map(int, match.groups()) if match else (0, 0)
        if last < first or last - first >= MAX_RUNS:
            fault = "ends before it begins" if last < first else f"has more than {MAX_RUNS} values"
            raise ConfigError(f"{override!r}: the range {text} {fault}.")
        values += map(str, range(first, last + 1)) if match else [text]
    if len(values) > 1 and len(set(values)) < len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise ConfigError(f"{override!r}: the value {twice} is given twice.")
    return values


def _elements(override: str) -> list[str]:
    """The texts between the commas of a value, those within brackets or quotes aside."""
    text = override.partition("=")[2]
    if "," not in text:
        return [text]
    try:
        node = compose_yaml(f"[{text}]")
    except yaml.YAMLError:
        node = None
    if not isinstance(node, yaml.SequenceNode) or text.rstrip().endswith(","):
        raise ConfigError(
            f"{override!r}: expected values with commas between.",
            remedy="Quote a text that holds commas or brackets: 'key=\"a, b\",c'.",
        )
    # Positions count from the bracket that was put before the text.
    return [text[one.start_mark.index - 1 : one.end_mark.index - 1].strip() for one in node.value]


def _folder(combination: str, *, distinct: bool = False) -> str:
    """The folder of a combination; `distinct` ends it with a digest of what the name leaves out."""
    name = re.sub(r"[^\w.,=+-]+", "_", re.sub(r"[\[\]{}\"'\s]+", "", combination), flags=re.ASCII)
    if not distinct and len(name) <= _MAX_NAME:
        return name
    return f"{name[:_MAX_NAME]}-{hashlib.sha256(combination.encode()).hexdigest()[:8]}"
