"""Every hostile program, by family."""

from __future__ import annotations

from hostile.attacks import (
    blame,
    channel,
    checks,
    equality,
    files,
    kernel,
    leaving,
    network,
    processes,
    programs,
    resources,
    results,
    tampering,
    theft,
)
from hostile.program import HostileProgram

HOSTILE_PROGRAMS: tuple[HostileProgram, ...] = sum(
    (
        module.PROGRAMS
        for module in (
            leaving,
            equality,
            channel,
            blame,
            theft,
            tampering,
            processes,
            resources,
            results,
            files,
            network,
            kernel,
            checks,
            programs,
        )
    ),
    (),
)
FAMILIES = tuple(dict.fromkeys(program.family for program in HOSTILE_PROGRAMS))
