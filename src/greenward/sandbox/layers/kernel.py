"""Raw system calls that the standard library does not offer.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import ctypes
import os
from typing import NoReturn

_NUMBERS = {
    "pivot_root": {"x86_64": 155, "aarch64": 41},
    "landlock_create_ruleset": {"x86_64": 444, "aarch64": 444},
    "landlock_add_rule": {"x86_64": 445, "aarch64": 445},
    "landlock_restrict_self": {"x86_64": 446, "aarch64": 446},
}
_MACHINE = os.uname().machine
_libc = ctypes.CDLL(None, use_errno=True)


def raise_last_error(what: str) -> NoReturn:
    """Raises `OSError` with the C library's error number."""
    number = ctypes.get_errno()
    raise OSError(number, f"{what}: {os.strerror(number)}")


def system_call(name: str, *arguments: int | bytes) -> int:
    """Makes one system call by name and returns its result. Raises `OSError`."""
    number = _NUMBERS[name].get(_MACHINE)
    if number is None:
        raise OSError(f"{name}: unknown on {_MACHINE}")
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise_last_error(name)
    return result
