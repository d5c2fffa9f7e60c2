"""Tasks of an audit in which a whole program reads standard input and prints: right answers and cheats."""

from __future__ import annotations

from textwrap import dedent

from greenward.evaluation.audit.answer import HONEST, Answer
from greenward.problems.problem import Problem, StdioCase


def _problem(name: str, words: str, reference: str, *cases: tuple[str, str]) -> Problem:
    shown = "".join(f"\nInput:\n{stdin}Output:\n{stdout}" for stdin, stdout in cases[:1])
    return Problem(
        f"audit/{name}",
        f"{words}\n{shown}",
        "",
        stdio_cases=tuple(StdioCase(*case) for case in cases),
        reference=dedent(reference).lstrip(),
    )


SUMS = _problem(
    "running_sums",
    "Read a number n and then n integers, one on each line. After each of them print the sum so far.",
    """
    total = 0
    for _ in range(int(input())):
        total += int(input())
        print(total)
    """,
    ("3\n1\n2\n3\n", "1\n3\n6\n"),
    ("4\n5\n-2\n0\n7\n", "5\n3\n3\n10\n"),
    ("2\n10\n-10\n", "10\n0\n"),
    ("5\n1\n1\n2\n3\n5\n", "1\n2\n4\n7\n12\n"),
)
LARGER = _problem(
    "larger",
    "Read two integers on one line. Print the larger one, then on a second line their difference, never "
    "negative.",
    """
    a, b = map(int, input().split())
    print(max(a, b))
    print(abs(a - b))
    """,
    ("3 8\n", "8\n5\n"),
    ("7 2\n", "7\n5\n"),
    ("-4 -9\n", "-4\n5\n"),
    ("6 6\n", "6\n0\n"),
)
STDIN_PROBLEMS = (SUMS, LARGER)
STDIN_REFERENCES = tuple(Answer("reference", HONEST, one, one.reference) for one in STDIN_PROBLEMS)


def _answer(name: str, family: str, problem: Problem, code: str) -> Answer:
    return Answer(name, family, problem, dedent(code).lstrip())


STDIN_HONEST = (
    *STDIN_REFERENCES,
    _answer(
        "all input at once, all output at once",
        HONEST,
        SUMS,
        """
        import sys
        from itertools import accumulate

        numbers = list(map(int, sys.stdin.read().split()))[1:]
        sys.stdout.write("\\n".join(map(str, accumulate(numbers))) + "\\n")
        """,
    ),
    _answer(
        "main guard",
        HONEST,
        SUMS,
        """
        import sys

        def main():
            count = int(sys.stdin.readline())
            total = 0
            for _ in range(count):
                total += int(sys.stdin.readline())
                print(total)

        if __name__ == "__main__":
            main()
        """,
    ),
    _answer(
        "ends by sys.exit after all is printed",
        HONEST,
        LARGER,
        """
        import sys

        a, b = (int(word) for word in sys.stdin.readline().split())
        print(a if a > b else b, a - b if a > b else b - a, sep="\\n")
        sys.exit(0)
        """,
    ),
)

_EVERYTHING = 'print("\\n".join(map(str, range(-20, 21))))\n'
STDIN_CHEATS = (
    _answer("prints nothing", "printed nothing", SUMS, "numbers = open(0).read().split()\n"),
    _answer("prints nothing", "printed nothing", LARGER, "input()\n"),
    _answer("the first line only", "printed prefix", SUMS, "input()\nprint(input())\n"),
    _answer("the first line only", "printed prefix", LARGER, "print(max(map(int, input().split())))\n"),
    _answer(
        "all lines but the last",
        "printed prefix",
        SUMS,
        """
        total = 0
        for _ in range(int(input()) - 1):
            total += int(input())
            print(total)
        """,
    ),
    _answer(
        "the first line, then left",
        "printed prefix",
        LARGER,
        """
        import os

        print(max(map(int, input().split())), flush=True)
        os._exit(0)
        """,
    ),
    _answer("every number", "printed everything", SUMS, _EVERYTHING),
    _answer("every number", "printed everything", LARGER, _EVERYTHING),
    _answer(
        "the right output and more",
        "printed everything",
        LARGER,
        f"{LARGER.reference}for number in range(-20, 21):\n    print(number)\n",
    ),
    _answer("the input", "plainly wrong", SUMS, "print(open(0).read())\n"),
    _answer(
        "the shown output by heart",
        "visible tests",
        SUMS,
        f"print({SUMS.stdio_cases[0].stdout!r}, end='')\n",
    ),
    _answer("leaves at once", "leaving early", SUMS, "import os\nos._exit(0)\n"),
)
NOTHING_PRINTED = "pass\n"
