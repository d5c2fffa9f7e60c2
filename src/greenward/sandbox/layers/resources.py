"""Resource limits of an answer's process: the backstop of what its worker watches from outside.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Mapping
from typing import Any

STACK_BYTES = 64 << 20
OPEN_FILES = 256


def limit_resources(limits: Mapping[str, Any]) -> None:
    """Applies the limits (seconds and bytes, and `user_tasks`) to this process, for good."""
    wanted = [
        (resource.RLIMIT_CPU, math.ceil(limits["cpu_seconds"]) + 2),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, limits["user_tasks"]),
        (resource.RLIMIT_STACK, STACK_BYTES),
    ]
    if sys.platform == "linux":  # elsewhere it is refused or ignored
        wanted.insert(0, (resource.RLIMIT_AS, limits["memory_bytes"]))
    for what, value in wanted:
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # A process at its hard limit of CPU time is killed, one second earlier it is told so by SIGXCPU.
        resource.setrlimit(what, (value - 1 if what == resource.RLIMIT_CPU else value, value))
