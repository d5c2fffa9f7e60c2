"""The program `greenward`, also as `python -m greenward`. Outside of its command, Ctrl-C ends it silently."""

import atexit
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn


def main() -> NoReturn:
    """As `greenward.cli.main.main`.

    The process ends after the last function of `atexit`: taking all modules apart would take a second, in
    which Python answers no signal.
    """
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    codes: list[int] = []
    atexit.register(_end, codes)  # the first to be registered is called last
    from greenward.cli.main import main as command

    try:
        command()
    except SystemExit as ended:
        if isinstance(ended.code, int | None):
            codes.append(ended.code or 0)
        raise


def _end(codes: list[int]) -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it was closed before the program began
            with suppress(OSError, ValueError):
                stream.flush()
    if codes:
        os._exit(codes[0])


if __name__ == "__main__":
    main()
