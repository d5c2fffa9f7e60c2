"""Runs a benchmark so that Ctrl-C ends it as it ends a command: by one line, and exit code 130.

Some benchmarks also run in environments without greenward, which is why nothing of it is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn


def run_main(main: Callable[[], int | None]) -> NoReturn:
    """Exit with what `main` returns, or with 130 where it was interrupted."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # and greenward's `Stopped`, which is one
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
