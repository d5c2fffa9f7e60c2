"""What every executor must make of right, wrong, broken, endless, loud and hostile answers."""

from __future__ import annotations

from greenward.grading.judge import Grader
from greenward.grading.verdict import Status
from greenward.problems.problem import Case, Check, Problem, StdioCase
from greenward.sandbox.protocol import Call, Executor, Job, Limits, Outcome

LIMITS = Limits(cpu_seconds=0.5, wall_seconds=2.0, memory_bytes=256 << 20, output_bytes=4 << 10)
SECRET = 731_294_553_017

ADD = Problem("add", "", "add", tests=(Case((1, 2), 3), Case((10, -4), 6)))
SECRETS = Problem("secret", "", "f", tests=(Case((1,), SECRET),))
SETS = Problem("sets", "", "f", tests=(Case((3,), {"a": {1, 2}, "b": (float("inf"), 1 << 80, b"\x00")}),))
CHECKED = Problem("checked", "", "f", tests=(Check("for n in range(20):\n    assert f(n) == n * n"),))
DOUBLE = Problem("double", "", "", tests=(StdioCase("4\n", "8\n"), StdioCase("é\n", "éé\n")))
PACKAGE = Problem(
    "package",
    "",
    "total",
    tests=(Case(((1, 2),), 13),),
    path="shop/prices.py",
    files={"shop/__init__.py": "", "shop/fees.py": "FEE = 10\n"},
)

ANSWERS = {
    "right": (ADD, "def add(a, b):\n    return a + b", Status.PASSED),
    "wrong": (ADD, "def add(a, b):\n    return a - b", Status.FAILED),
    "raising": (ADD, "def add(a, b):\n    raise KeyError(a)", Status.ERROR),
    "not Python": (ADD, "def add(a, b) return", Status.SYNTAX_ERROR),
    "no function": (ADD, "x = 1", Status.NO_CODE),
    "looping": (ADD, "def add(a, b):\n    while True: pass", Status.TIMEOUT),
    "sleeping": (ADD, "import time\ndef add(a, b):\n    time.sleep(60)", Status.TIMEOUT),
    "greedy": (ADD, "x = bytearray(1 << 30)", Status.MEMORY),
    "loud": (ADD, "def add(a, b):\n    while True: print('x' * (1 << 20))", Status.OUTPUT_LIMIT),
    "loud and right": (ADD, "def add(a, b):\n    print('x' * (1 << 18))\n    return a + b", Status.PASSED),
    "crashing": (ADD, "import os\ndef add(a, b):\n    os.abort()", Status.ERROR),
    "leaving": (ADD, "import sys\ndef add(a, b):\n    sys.exit(0)", Status.ERROR),
    "plain values": (SETS, "def f(n):\n    return {'b': (1e400, 2**80, b'\\0'), 'a': {2, 1}}", Status.PASSED),
    "equal to everything": (
        SECRETS,
        "class All:\n    def __eq__(self, other): return True\ndef f(n):\n    return All()",
        Status.WRONG_TYPE,
    ),
    "forged frames": (
        SECRETS,
        f"""import os, sys
def f(n):
    for d in range(3, 256):
        try: os.write(d, b'0' * 36 + b'["value",0,{SECRET}]["done"]')
        except OSError: pass
    os._exit(0)""",
        Status.CHEATING,
    ),
    "checked": (CHECKED, "def f(n):\n    return n * n", Status.PASSED),
    "checked and wrong": (CHECKED, "def f(n):\n    return n + n", Status.FAILED),
    "program": (DOUBLE, "x = input()\nprint(int(x) * 2 if x.isdigit() else x * 2)", Status.PASSED),
    "in a package": (
        PACKAGE,
        "from shop.fees import FEE\ndef total(prices):\n    return sum(prices) + FEE",
        Status.PASSED,
    ),
    "wrong program": (DOUBLE, "print(input())", Status.FAILED),
}


def statuses(executor: Executor) -> dict[str, Status]:
    """The status of each answer, judged by `executor`."""
    with Grader(LIMITS, executor=executor) as grader:
        verdicts = grader.grade([(problem, code) for problem, code, _ in ANSWERS.values()])
    return {name: verdict.status for name, verdict in zip(ANSWERS, verdicts, strict=True)}


EXPECTED = {name: status for name, (_, _, status) in ANSWERS.items()}


def successors(count: int) -> list[Job]:
    """Jobs whose i-th result is i + 3."""
    return [Job(f"def f(x):\n    return x + {i}", "f", (Call((3,)),), limits=LIMITS) for i in range(count)]


def are_right(results, count: int) -> bool:
    """Whether there is each result of `successors` once, and each is right."""
    found = dict(results)
    return len(found) == count and all(
        result.outcome is Outcome.COMPLETED and result.results[0].value == index + 3
        for index, result in found.items()
    )
