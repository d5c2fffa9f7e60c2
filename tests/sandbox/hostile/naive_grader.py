"""A grader as they are often written: tests beside the answer, the exit status as the verdict.

It shows that the attacks are real. Arguments: a file with [code, entry point, [[args, expected]]].
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Ends with status 0 if every test of the answer passes."""
    with open(sys.argv[1], encoding="utf-8") as file:
        code, entry_point, cases = json.load(file)
    space: dict = {}
    exec(code, space)
    for arguments, expected in cases:
        assert space[entry_point](*arguments) == expected


if __name__ == "__main__":
    main()
