"""Prints which families need which layer, from trying every program under several sets of layers.

    PYTHONPATH=tests/sandbox python -m hostile.table

A Markdown table (programs of each family let through under each set), the names behind its
numbers, and where `HostileProgram.stopped_by` says otherwise. Takes about two minutes.
"""

from __future__ import annotations

from collections.abc import Collection
from unittest import mock

from greenward.sandbox.isolation import ALL_LAYERS, CORE_LAYERS, Layer
from hostile.attacks import FAMILIES, HOSTILE_PROGRAMS
from hostile.program import ALWAYS
from hostile.trial import Arena, let_through
from hostile.world import World

COLUMNS: dict[str, Collection[Layer]] = {
    "none": (),
    "resources": {Layer.RESOURCES},
    **{f"+ {one.value}": {Layer.RESOURCES, one} for one in Layer if one is not Layer.RESOURCES},
    "core": CORE_LAYERS,
    "all": ALL_LAYERS,
}


def main() -> None:
    """Tries everything and prints the table."""
    found: dict[str, dict[str, str]] = {}
    contradictions = []
    with World() as world:
        for title, layers in COLUMNS.items():
            with Arena(layers) as arena:
                if arena.missing:
                    print(f"Without {title}: this machine lacks {', '.join(sorted(arena.missing))}.\n")
                    continue
                found[title] = let_through(world, arena, HOSTILE_PROGRAMS)
                contradictions += [
                    f"{one.name} got through {title}: {found[title][one.name]}"
                    for one in HOSTILE_PROGRAMS
                    if one.stopped_by & (ALWAYS | arena.layers) and one.name in found[title]
                ]
    print(_table(found))
    for title, programs in found.items():
        print(f"\nLet through with {title} ({len(programs)}): {', '.join(programs) or 'none'}.")
    print("\nAgainst what is declared:", *(contradictions or ["nothing"]), sep="\n- ")


def _table(found: dict[str, dict[str, str]]) -> str:
    """One row for each family: how many programs there are, and how many each set let through."""
    rows = [f"| family | programs | {' | '.join(found)} |", "|---|---:|" + "---:|" * len(found)]
    for family in FAMILIES:
        names = {program.name for program in HOSTILE_PROGRAMS if program.family == family}
        counts = (len(names & through.keys()) for through in found.values())
        rows.append(f"| {family} | {len(names)} | {' | '.join(str(count or '·') for count in counts)} |")
    totals = (str(len(through)) for through in found.values())
    rows.append(f"| together | {len(HOSTILE_PROGRAMS)} | {' | '.join(totals)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    with mock.patch("greenward.sandbox.workers.CONTROL_SECONDS", 0.2):
        main()
