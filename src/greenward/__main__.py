"""The program `greenward`, also as `python -m greenward`. Outside of its command, Ctrl-C ends it silently."""

import atexit
import os
import signal
from typing import NoReturn


def main() -> NoReturn:
    """As `greenward.cli.main.main`."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    from greenward.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
