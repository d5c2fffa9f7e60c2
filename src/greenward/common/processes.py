"""The command of another process of greenward's own."""

from __future__ import annotations

import sys

# `python -m` and `python -c` look into the working folder first, which may be somebody else's.
_RUN = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def python_module(name: str, *arguments: str) -> list[str]:
    """The command that runs the module `name` with these arguments."""
    return [sys.executable, "-c", _RUN, name, *arguments]
