"""Finds regular expressions of an adapter's config that take too long to match with the names of layers.

PEFT matches them by `re`, which tries all ways in turn: of a few characters there can be more than anybody
waits for. So this file, as a program, matches them first, in a process whose CPU time is limited.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

CPU_SECONDS = 10
"""For all expressions of a config together, of which usual ones take milliseconds."""
_BRANCHES = frozenset("*+?{|")  # one of them is in whatever can match a text in more than one way
_FORMS = (  # in which PEFT matches what a config holds, and under which keys it holds that
    (re.fullmatch, "", ""),  # target_modules, exclude_modules
    (re.match, r"(.*\.)?(", ")$"),  # rank_pattern, alpha_pattern
    (re.match, r"(^|.*\.)", r"($|\..*)"),  # modules_to_save
    (re.match, r"(?:^|.*?\.)", r"\.(?P<idx>\d+)\."),  # layers_pattern
)


def slow_expression(config: Any, names: Sequence[str]) -> str | None:
    """The text in `config`, an adapter's, with which `names` cannot be matched in `CPU_SECONDS`, if any.

    Raises `subprocess.CalledProcessError` where the names could not be matched for another reason.
    """
    found = [text for text in _texts(config) if _BRANCHES.intersection(text)]
    if not found:
        return None
    command = (sys.executable, "-I", "-S", __file__, str(CPU_SECONDS))
    done = subprocess.run(command, input=json.dumps([found, names]), capture_output=True, text=True)
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return found[int(done.stdout.split()[-1])]
    done.check_returncode()
    return None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from _texts(one)


def _match(seconds: int) -> None:
    """Match what standard input holds, and print the number of each expression before it is matched."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    expressions, names = json.load(sys.stdin)
    for number, expression in enumerate(expressions):
        print(number, flush=True)
        for match, before, after in _FORMS:
            with suppress(re.error, OverflowError, RecursionError):  # PEFT refuses what is no expression
                for name in names:
                    match(before + expression + after, name)


if __name__ == "__main__":
    _match(int(sys.argv[1]))
