"""Resource limits of an answer's process: the backstop of what its worker watches from outside.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Callable, Mapping
from typing import Any

STACK_BYTES = 64 << 20
OPEN_FILES = 256


def limit_worker(user_tasks: int) -> Callable[[Mapping[str, Any]], None]:
    """Limits this process, and its children with it, in what is the same for every answer.

    Gives the function that limits an answer's process in the rest (`memory_bytes`, `cpu_seconds`,
    `file_bytes`). `user_tasks` is how many threads the user may have in all. Limits hold for good.
    """
    for what, value in (
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, user_tasks),
        (resource.RLIMIT_STACK, STACK_BYTES),
    ):
        value = _at_most(value, _hard_limit(what))
        resource.setrlimit(what, (value, value))
    most_cpu, most_file, most_memory = map(
        _hard_limit, (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)
    )

    def limit_answer(limits: Mapping[str, Any]) -> None:
        # A process at its hard limit of CPU time is killed; one second earlier it is told so by SIGXCPU.
        cpu = _at_most(math.ceil(limits["cpu_seconds"]) + 2, most_cpu)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu - 1, cpu))
        size = _at_most(limits["file_bytes"], most_file)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        if sys.platform == "linux":  # elsewhere it is refused or ignored
            memory = _at_most(limits["memory_bytes"], most_memory)
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    return limit_answer


def _hard_limit(what: int) -> int:
    return resource.getrlimit(what)[1]


def _at_most(value: int, hard: int) -> int:
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
