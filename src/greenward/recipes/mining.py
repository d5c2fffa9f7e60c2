"""From source trees to a folder of problems: two sides, a manifest, and what was left out and why."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from greenward.errors import ProblemError
from greenward.grading.mining import Mined, MiningOptions, mine
from greenward.problems.json_format import save_json
from greenward.problems.mining.tree import SourceTree, find_tree
from greenward.problems.problem import Problem, ProblemSet, stable_hash
from greenward.runs.files import write_json, write_rows, writing
from greenward.runs.machine import collect_provenance
from greenward.runs.output import check_folder, refuse_other_entries, replace_folder
from greenward.sandbox.isolation import Level
from greenward.sandbox.pool import LocalExecutor

TRAIN, HELD_OUT, LEFT_OUT, MANIFEST = "train.json", "held_out.json", "left_out.jsonl", "manifest.json"
_USUAL = MiningOptions()


@dataclass(frozen=True)
class MiningResult:
    """The folder, the problems of each side, the functions found, and how many were left out by reason.

    `packages` are those that the problems need to be judged.
    """

    folder: Path
    train: ProblemSet
    held_out: ProblemSet
    functions: int
    left_out: Mapping[str, int]
    packages: tuple[str, ...]


def mine_problems(
    sources: Sequence[str],
    folder: str | Path,
    *,
    options: MiningOptions = _USUAL,
    held_out: float = 0.2,
    packages: Sequence[str] | None = None,
    workers: int | None = None,
    require: str = "B",
    progress: Callable[[int, int, int], None] = lambda files, of, problems: None,
) -> MiningResult:
    """Mines problems from source trees (`find_tree`) into `folder`, which is written at the end, as a whole.

    `packages` are what the trees may import besides the standard library; without them pytest, where it is
    installed. `workers`: runs at a time; without it as many as there are processors. `progress` gets the
    files done, all files of the tree, the problems. A folder that was mined before is replaced.

    Raises `ProblemError` for a source that is not there and for trees that give no problem; `RunError` for a
    folder that holds something else; `SandboxError`.
    """
    folder = Path(folder)
    if check_folder(folder, "problems"):
        refuse_other_entries(folder, "problems")
    trees = [find_tree(source) for source in dict.fromkeys(sources)]
    if packages is None:
        packages = usual_packages()
    count, level = workers or os.cpu_count() or 1, Level(require)
    with (
        LocalExecutor(count, packages=runners(packages), require=level) as executor,
        LocalExecutor(count, require=level) as bare,
    ):
        mined = mine(trees, executor, options, progress, bare=bare)
        isolation = executor.isolation.to_json()
    reasons = dict(Counter(one.reason for one in mined.left_out).most_common())
    if not mined.problems:
        raise ProblemError(
            f"none of {mined.functions} functions in {', '.join(sources)} gives a problem.",
            remedy=f"Left out: {', '.join(f'{count} {reason}' for reason, count in reasons.items())}."
            if reasons
            else "Expected Python files (.py) with documented functions.",
        )
    named = {name for _, problem in mined.problems for name in (problem.columns or {})["dependencies"]}
    needed = tuple(name for name in packages if name in named)
    sides = split_by_file(mined, held_out, options.seed)
    result = MiningResult(folder, *sides, mined.functions, reasons, needed)
    facts = {"packages": list(packages), "sandbox": isolation, "held_out": held_out, **asdict(options)}
    _write(result, mined, trees, facts)
    return result


def usual_packages() -> list[str]:
    """What tests may import besides the standard library unless it is said: pytest, where it is installed."""
    return [name for name in ("pytest",) if importlib.util.find_spec(name) is not None]


def runners(packages: Sequence[str]) -> list[str]:
    """`packages`, and what their tests import in every run: the sandbox loads it once, before all runs."""
    names = [*packages, "unittest", *(f"test.support{name}" for name in ("", ".os_helper", ".import_helper"))]
    if "pytest" in packages:
        from _pytest.config import default_plugins

        names += (f"_pytest.{name}" for name in default_plugins)
    return [name for name in names if name in packages or _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of its package
        return False


def split_by_file(mined: Mined, held_out: float, seed: int) -> tuple[ProblemSet, ProblemSet]:
    """(train, held-out): whole files, in an order by stable hash, until the share `held_out` is reached.

    A copy of a file has the same text and goes to the same side. Problems from a single file are all trained
    on.
    """
    problems_of: dict[str, list[Problem]] = {}
    for function, problem in mined.problems:
        problems_of.setdefault(function.file.text, []).append(problem)
    order = sorted(problems_of, key=lambda text: stable_hash(f"split/{seed}/{problems_of[text][0].task_id}"))
    wanted, held = held_out * len(mined.problems), set[str]()
    count = 0
    for text in order[:-1]:
        if held and count + len(problems_of[text]) / 2 > wanted:
            break
        held.add(text)
        count += len(problems_of[text])
    sides = [
        ProblemSet(
            (problem for one, problem in mined.problems if (one.file.text in held) is is_held), name=name
        )
        for name, is_held in (("mined/train", False), ("mined/held_out", True))
    ]
    return sides[0], sides[1]


def _write(result: MiningResult, mined: Mined, trees: Sequence[SourceTree], facts: Mapping[str, Any]) -> None:
    def write(draft: Path) -> None:
        save_json(result.train, draft / TRAIN)
        if result.held_out:
            save_json(result.held_out, draft / HELD_OUT)
        write_rows(draft / LEFT_OUT, map(asdict, mined.left_out))
        write_json(
            draft / MANIFEST,
            {
                "sources": [
                    {key: getattr(one, key) for key in ("name", "version", "licence")}
                    | {"files": len(one.files)}
                    for one in trees
                ],
                "functions": result.functions,
                "problems": {
                    name: {"count": len(side), "data_hash": side.data_hash, "files": _files(side)}
                    for name, side in ((TRAIN, result.train), (HELD_OUT, result.held_out))
                },
                "packages": result.packages,
                "left_out": result.left_out,
                "settings": facts,
                "provenance": collect_provenance(),
            },
        )

    with writing(str(result.folder)):
        replace_folder(result.folder, "problems", write)


def _files(problems: ProblemSet) -> list[str]:
    return sorted({f"{one.task_id.partition('/')[0]}: {one.path}" for one in problems})
