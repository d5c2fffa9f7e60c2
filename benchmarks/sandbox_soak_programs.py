"""The answers of `sandbox_soak.py`: right ones, and hostile ones that must not pass, by problem.

Hostile programs are templates: `TOKEN` stands for a name, and `SEGMENT_BYTES` for a size of shared
memory, that no one else uses: by them, what is left behind can be found. Every program is bounded by
itself.
"""

from __future__ import annotations

from textwrap import dedent

from greenward.problems.problem import Case, Check, Problem, StdioCase

_PAIRS = [(n, n + 1) for n in range(5)]
_CHECK = "def check(candidate):\n" + "\n".join(f"    assert candidate{a} == {sum(a)}" for a in _PAIRS)

VALUES = Problem("values", "", "add", tests=tuple(Case(pair, sum(pair)) for pair in _PAIRS))
CHECKS = Problem("checks", "", "add", tests=(Check(f"{_CHECK}\ncheck(add)"),))
STDIO = Problem("stdio", "", "", tests=tuple(StdioCase(f"{a} {b}\n", f"{a + b}\n") for a, b in _PAIRS[:2]))

_FUNCTIONS = (
    "def add(a, b): return a + b",
    """
    import collections, functools, re
    @functools.lru_cache
    def add(a, b):
        counted = collections.Counter(re.findall("x", "x" * a + "x" * b))
        return counted["x"]
    """,
    """
    def add(a, b):
        print("thinking", "." * 2000)
        return sum(one for pair in [(a, b)] for one in pair)
    """,
    """
    import threading
    def add(a, b):
        found = []
        thread = threading.Thread(target=lambda: found.append(a + b))
        thread.start()
        thread.join()
        return found[0]
    """,
    """
    import os, tempfile
    def add(a, b):
        with tempfile.TemporaryFile() as file:
            file.write(b"x" * a + b"x" * b)
            left = open("kept", "ab")
            left.write(b"x")
            return file.tell()
    """,
    """
    class Sum:
        def __init__(self, *parts): self.parts = parts
        def __int__(self): return sum(self.parts)
    def add(a, b):
        try:
            raise ValueError(a)
        except ValueError as error:
            return int(Sum(*error.args, b))
    """,
    """
    def add(a, b):
        held = [bytearray(1 << 16) for _ in range(8)]
        def count(n): return 0 if n == 0 else 1 + count(n - 1)
        return count(200) - 200 + a + b
    """,
)
_PROGRAMS = (
    "print(sum(map(int, input().split())))",
    """
    import sys
    def main():
        a, b = (int(word) for word in sys.stdin.read().split())
        print("so be it", file=sys.stderr)
        sys.stdout.write(f"{a + b}\\n")
    if __name__ == "__main__":
        main()
        sys.exit()
    """,
)

_HOSTILE_FUNCTIONS = (
    # Leaving early.
    "import os\nos._exit(0)",
    "import sys\ndef add(a, b): sys.exit(0)",
    "import os, signal\ndef add(a, b): os.kill(os.getpid(), signal.SIGKILL)",
    "import ctypes\ndef add(a, b): ctypes.string_at(0)",
    # Lying and forging.
    """
    class Liar(int):
        def __eq__(self, other): return True
        def __ne__(self, other): return False
        __hash__ = None
    def add(a, b): return Liar(-1)
    """,
    "from unittest import mock\ndef add(a, b): return mock.ANY",
    """
    import os
    for descriptor in range(3, 16):
        try: os.write(descriptor, b'["done"]')
        except OSError: pass
    def add(a, b): return None
    """,
    """
    import sys
    def add(a, b):
        frame, expected = sys._getframe(), -1
        while frame:
            expected = frame.f_locals.get("expected", expected)
            frame = frame.f_back
        return expected
    """,
    """
    import os
    def add(a, b):
        try:
            with open(f"/proc/{os.getppid()}/mem", "rb") as memory: return memory.read(1)[0]
        except OSError: return -1
    """,
    # Tampering.
    """
    import builtins, json, os
    os.write = os._exit = json.dumps = builtins.len = builtins.isinstance = lambda *_: True
    def add(a, b): return -1
    """,
    "import os\nos.closerange(0, 256)\ndef add(a, b): return -1",
    # Signals to others.
    """
    import os, signal
    for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
        try: os.kill(os.getppid(), number)
        except OSError: pass
    def add(a, b): return -1
    """,
    # Processes and threads that survive.
    """
    import os, time
    def add(a, b):
        try:
            for _ in range(8):
                if os.fork() == 0:
                    os.setsid()
                    if os.fork() == 0: time.sleep(60)
                    os._exit(0)
        except OSError: pass
        return -1
    """,
    """
    import subprocess
    def add(a, b):
        try: subprocess.Popen(["sleep", "61"], start_new_session=True)
        except OSError: pass
        return -1
    """,
    """
    import threading, time
    def add(a, b):
        try:
            for _ in range(20): threading.Thread(target=time.sleep, args=(60,)).start()
        except RuntimeError: pass
        return -1
    """,
    # Memory, descriptors, recursion.
    "def add(a, b): return bytearray(1 << 40)",
    """
    import os
    held = []
    def add(a, b):
        try:
            for _ in range(1000): held.extend(os.pipe())
        except OSError: return -1
    """,
    "def add(a, b): return add(a, b)",
    "def add(a, b):\n    value = []\n    for _ in range(10_000): value = [value]\n    return value",
    # Files, shared memory, sockets.
    """
    import os
    def add(a, b):
        for folder in ("/tmp", "/var/tmp", "/dev/shm", "."):
            try:
                with open(f"{folder}/TOKEN", "w") as file: file.write("x" * 1000)
                os.makedirs(f"{folder}/TOKEN-folders" + "/x" * 100, exist_ok=True)
                os.symlink("/", f"{folder}/TOKEN-link")
            except OSError: pass
        return -1
    """,
    """
    import os
    def add(a, b):
        try:
            for number in range(40):
                with open(f"TOKEN-{number}", "wb") as file: file.write(b"x" * 500_000)
        except OSError: pass
        return -1
    """,
    """
    import ctypes
    from multiprocessing import shared_memory
    def add(a, b):
        ctypes.CDLL(None).shmget(0, SEGMENT_BYTES, 0o1666)
        try: shared_memory.SharedMemory("TOKEN", create=True, size=4096)
        except OSError: pass
        return -1
    """,
    """
    import socket
    def add(a, b):
        for family, address in ((socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_UNIX, "/tmp/TOKEN-socket")):
            try: socket.socket(family).bind(address)
            except OSError: pass
        return -1
    """,
)
_HOSTILE_CHECKED = (
    "import os\nos.close(4)\ndef add(a, b): return a + b",
    """
    import os, struct
    reply = b'["value",null]'
    try: os.write(4, struct.pack("!I", len(reply)) + reply)
    except OSError: pass
    def add(a, b): return None
    """,
)
_HOSTILE_PROGRAMS = (
    "import os\nos._exit(0)",
    "print(1)\nprint(3)\nprint('PASSED')",
    "import sys\nsys.stdout.close()\nsys.stdin.close()",
    "import os\nos.write(3, b'forged')\nprint(sum(map(int, input().split())))",
)
_SLOW_FUNCTIONS = (
    "def add(a, b):\n    while True: pass",
    "import time\ntime.sleep(60)",
    """
    import signal
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    while True:
        try:
            while True: pass
        except BaseException: pass
    """,
    "def add(a, b): return 10 ** 10 ** 9",
    """
    def add(a, b):
        held = []
        while True: held.append(bytearray(1 << 20))
    """,
    "import os, signal\ndef add(a, b): os.kill(os.getpid(), signal.SIGSTOP)",
)
_SLOW_PROGRAMS = (
    "while True: print('x' * 60_000)",
    "import os\nreader, writer = os.pipe()\nos.read(reader, 1)",
)


def _for(problem: Problem, *programs: str) -> list[tuple[Problem, str]]:
    return [(problem, dedent(program).strip()) for program in programs]


# Most answers are judged by values; programs with input and test programs take two processes each.
RIGHT = [
    *_for(VALUES, *_FUNCTIONS, *_FUNCTIONS),
    *_for(STDIO, *_PROGRAMS),
    *_for(CHECKS, *_FUNCTIONS[:3]),
]
HOSTILE = [
    *_for(VALUES, *_HOSTILE_FUNCTIONS),
    *_for(STDIO, *_HOSTILE_PROGRAMS),
    *_for(CHECKS, *_HOSTILE_FUNCTIONS[1::3], *_HOSTILE_CHECKED),
]
SLOW = [*_for(VALUES, *_SLOW_FUNCTIONS), *_for(STDIO, *_SLOW_PROGRAMS), *_for(CHECKS, *_SLOW_FUNCTIONS)]
