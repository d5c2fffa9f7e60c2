"""Every benign program: right answers that a careless sandbox or grader turns down."""

from __future__ import annotations

from hostile.benign import language, libraries, standard_types, world
from hostile.program import BenignProgram

BENIGN_PROGRAMS: tuple[BenignProgram, ...] = language.PROGRAMS + libraries.PROGRAMS + world.PROGRAMS
# These give values of standard types beyond the plain ones.
STANDARD_TYPE_PROGRAMS: tuple[BenignProgram, ...] = standard_types.PROGRAMS
