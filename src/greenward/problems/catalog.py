"""Problem sets by name: generated families, the sets that come with greenward, public suites, files."""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Literal

from greenward.config.sections import BugsConfig, FamiliesConfig
from greenward.errors import ProblemError
from greenward.problems.bugs import repair_candidates
from greenward.problems.families import generate, split
from greenward.problems.json_format import load_json
from greenward.problems.problem import ProblemSet
from greenward.problems.suites.named import SUITES, load_file, load_named

FAMILIES = "families"
BUGS = "bugs:"
SHIPPED = ("classic_training", "classic_evaluation")
_ONE_BUG_EACH = BugsConfig()
_SPARE_BUGS = 3  # tried where no test finds one of the first


def load_shipped(name: str) -> ProblemSet:
    """A problem set that comes with greenward. Raises `ProblemError` naming the nearest name."""
    if name not in SHIPPED:
        raise _unknown(name, SHIPPED)
    with resources.as_file(resources.files("greenward.problems") / "data" / f"{name}.json") as path:
        return load_json(path)


def load_suite(source: str, *, path: str | Path | None = None, skip_bad_rows: bool = False) -> ProblemSet:
    """The problems of a suite, in its order.

    `source` is the name of a public suite (one part of it as in `mbpp:test`), of a set that comes
    with greenward, or a file of a known format. `path` says where the file of a public suite lies. With
    `skip_bad_rows`, rows that cannot be used are left out and told by `ProblemSet.skipped`. Raises
    `ProblemError` naming the nearest name.
    """
    if source in SHIPPED:
        return load_shipped(source)
    if source.partition(":")[0] in SUITES:
        return load_named(source, path, skip_bad_rows=skip_bad_rows)
    if Path(source).suffix not in (".json", ".jsonl", ".gz") and not Path(source).exists():
        raise _unknown(source, (*SHIPPED, *SUITES))
    return load_file(source, skip_bad_rows=skip_bad_rows)


def load_problems(
    source: str,
    families: FamiliesConfig,
    part: Literal["train", "held_out"],
    *,
    bugs: BugsConfig = _ONE_BUG_EACH,
    skip_bad_rows: bool = False,
) -> ProblemSet:
    """The problems that a recipe's `problems.train` or `problems.held_out` names.

    `source` is `families` (of which `part` is taken) or what `load_suite` takes; that is taken
    whole. With `bugs:` before it, these are candidates for the repair of its programs, more of each than
    `bugs.per_problem`, of which `grading.bugs` finds those that have a bug indeed. Raises `ProblemError`.
    """
    if source.startswith(BUGS):
        originals = load_problems(source[len(BUGS) :], families, part, skip_bad_rows=skip_bad_rows)
        candidates = repair_candidates(originals, per_problem=bugs.per_problem + _SPARE_BUGS, seed=bugs.seed)
        if not candidates:
            raise ProblemError(
                f"{source}: none of the problems has a reference that a bug could be put into.",
                remedy="Name problems that come with their reference solutions.",
            )
        return candidates
    if source == FAMILIES:
        return _families(families)[0 if part == "train" else 1]
    try:
        return load_suite(source, skip_bad_rows=skip_bad_rows)
    except _UnknownName:
        raise _unknown(source, (FAMILIES, *SHIPPED, *SUITES)) from None


@lru_cache(maxsize=1)
def _families(config: FamiliesConfig) -> tuple[ProblemSet, ProblemSet]:
    return split(generate(config), config.held_out, config.seed)


class _UnknownName(ProblemError):
    """There is neither a set nor a file of this name."""


def _unknown(name: str, known: tuple[str, ...]) -> ProblemError:
    near = get_close_matches(name, known, n=1)
    return _UnknownName(
        f"no problem set is called {name!r}.",
        remedy=f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}, or the path of a file.",
    )
