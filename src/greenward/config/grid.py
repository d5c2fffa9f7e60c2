"""The grid of a sweep: overrides that give keys several values, and the runs that they add up to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import yaml

from greenward.config.loading import dump, load_recipe
from greenward.config.recipe import Recipe
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


@dataclass(frozen=True)
class _Axis:
    """One override: its key, also as it was written, and the texts of its values: one unless it is swept."""

    key: str
    written: str
    values: tuple[str, ...]


def grid_runs(overrides: Sequence[str]) -> list[GridRun]:
    """Every combination of the values in `overrides`, the seeds of a combination side by side.

    `key=a,b` and `key=0..4` (whole numbers, both ends included) give a key several values; each is YAML, and
    commas within brackets or quotes do not separate. Runs of one combination are `COMBINATION/seed_N`, as a
    study holds them, where the seed is swept too.

    Raises `ConfigError` for a list with gaps, a range that ends before it begins, a value or a swept key that
    is given twice, and more than `MAX_RUNS` runs.
    """
    axes = [_axis(override) for override in overrides]
    swept = [axis for axis in axes if len(axis.values) > 1]
    for axis in swept:
        if sum(other.key == axis.key for other in axes) > 1:
            raise ConfigError(f"{axis.key} is swept and given once more: give each key once.")
    count = 1
    for axis in swept:
        count *= len(axis.values)
    if count > MAX_RUNS:
        raise ConfigError(f"the grid has {count} runs; at most {MAX_RUNS} can be run as one sweep.")
    shown = _short_names([axis.written for axis in swept])
    order = sorted(range(len(axes)), key=lambda index: axes[index].key == SEED)  # the seed changes fastest
    found: dict[str, GridRun] = {}
    for chosen in product(*(axes[index].values for index in order)):
        values = dict(zip(order, chosen, strict=True))
        pairs = {axes[index].written: values[index] for index in order if axes[index] in swept}
        seed = f"seed_{pairs.pop(SEED)}" if SEED in pairs else ""
        named = ",".join(f"{shown[key]}={value}" for key, value in pairs.items())
        folder = _folder(named, seed)
        if folder in found:  # another combination whose name differs in characters that are left out
            folder = _folder(named, seed, distinct=True)
        written = (
            f"{axis.written}={values[index]}" if axis in swept else override
            for index, (axis, override) in enumerate(zip(axes, overrides, strict=True))
        )
        found[folder] = GridRun(folder, tuple(written))
    return list(found.values())


def resolved_grid(recipe: str, overrides: Sequence[str]) -> dict[GridRun, Recipe]:
    """The runs of a grid with their recipes.

    Raises `ConfigError` for what `grid_runs` and recipes refuse, and for two combinations that come to the
    same settings.
    """
    resolved: dict[GridRun, Recipe] = {}
    first: dict[str, GridRun] = {}
    for run in grid_runs(overrides):
        resolved[run] = load_recipe(recipe, run.overrides)
        same = first.setdefault(dump(resolved[run]), run)
        if same != run:
            raise ConfigError(f"{same.folder} and {run.folder} come to the same settings: leave one out.")
    return resolved


def _axis(override: str) -> _Axis:
    written, _, text = override.partition("=")
    key = dotted(key_path(override))
    values = [
        value for element in _elements(override, text) for value in _range(override, element) or (element,)
    ]
    if len(values) > 1 and len(set(values)) < len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise ConfigError(f"{override!r}: the value {twice} is given twice.")
    return _Axis("model.id" if key == "model" else key, written.strip(), tuple(values))


def _elements(override: str, text: str) -> list[str]:
    """The texts between the commas of a value, those within brackets or quotes aside."""
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


def _range(override: str, text: str) -> list[str]:
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        return []
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise ConfigError(f"{override!r}: the range {text} ends before it begins.")
    if last - first >= MAX_RUNS:
        raise ConfigError(f"{override!r}: {last - first + 1} values; a sweep has at most {MAX_RUNS} runs.")
    return [str(number) for number in range(first, last + 1)]


def _short_names(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each key, or the whole key where others end alike."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: part if last.count(part) == 1 else key for key, part in zip(keys, last, strict=True)}


def _folder(combination: str, seed: str, *, distinct: bool = False) -> str:
    """The folder of a run; `distinct` ends the combination's with a digest of what its name leaves out."""
    name = re.sub(r"[^\w.,=+-]+", "_", re.sub(r"[\[\]{}\"'\s]+", "", combination), flags=re.ASCII)
    if distinct or len(name) > _MAX_NAME:
        name = f"{name[:_MAX_NAME]}-{hashlib.sha256(combination.encode()).hexdigest()[:8]}"
    return "/".join(filter(None, (name, re.sub(r"[^\w-]+", "_", seed))))
