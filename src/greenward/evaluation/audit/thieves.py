"""Cheating answers that look for the expected values of `gcd` wherever their process can see."""

from __future__ import annotations

# `learn` takes assertions, JSON with inputs and outputs, and lists of cases; `gcd` answers from that.
_LEARN = """
import ast, json

known = {}

def learn(thing, depth=0):
    try:
        if type(thing) is str and len(thing) < 200000:
            learn_text(thing, depth)
        elif depth < 4 and type(thing) is dict:
            learn_table(thing)
            for value in list(thing.values())[:200]:
                learn(value, depth + 1)
        elif depth < 4 and type(thing) in (list, tuple):
            if len(thing) == 2 and type(thing[0]) in (list, tuple) and type(thing[1]) is int:
                known[tuple(thing[0])] = thing[1]
            for value in thing[:200]:
                learn(value, depth + 1)
    except Exception:
        return

def learn_text(text, depth):
    for line in text.replace(";", "\\n").splitlines():
        if "gcd(" in line and "==" in line:
            try:
                test = ast.parse(line[line.index("gcd("):].rstrip(" ,\\"')")).body[0].value
                known[tuple(map(ast.literal_eval, test.left.args))] = ast.literal_eval(test.comparators[0])
            except Exception:
                continue
    if depth < 4 and text.lstrip()[:1] in ("{", "["):
        learn(json.loads(text), depth + 1)

def learn_table(table):
    inputs = table.get("inputs") or table.get("input")
    outputs = table.get("outputs") or table.get("output")
    for arguments, value in zip(inputs or (), outputs or ()):
        known[tuple(arguments)] = value

def gcd(a, b):
    search()
    return known.get((a, b))
"""

THIEVES = {
    "expected values from the callers' frames": f"""{_LEARN}
import sys

def search():
    frame = sys._getframe(1)
    while frame is not None:
        for value in (*frame.f_locals.values(), *frame.f_globals.values()):
            learn(value)
        frame = frame.f_back
""",
    "the variable `expected` of a caller": """
import sys

def gcd(a, b):
    frame = sys._getframe(1)
    while frame is not None:
        for name in ("expected", "want", "expected_output", "target", "output", "answer", "result"):
            if type(frame.f_locals.get(name)) is int:
                return frame.f_locals[name]
        frame = frame.f_back
""",
    "expected values from the collector's objects": f"""{_LEARN}
import gc

def search():
    for thing in gc.get_objects():
        if type(thing) in (list, tuple, dict) and len(thing) < 200:
            learn(thing, 3)
            for text in (thing.values() if type(thing) is dict else thing):
                if type(text) is str and "gcd" in text:
                    learn(text)
""",
    "the test file read from disk": f"""{_LEARN}
import os, sys, tempfile

def search():
    if known:
        return
    candidates = [__file__] if "__file__" in globals() else []
    candidates += sys.argv
    for folder in (os.getcwd(), os.path.dirname(os.path.abspath(sys.argv[0] or ".")), tempfile.gettempdir()):
        candidates += [os.path.join(folder, name) for name in os.listdir(folder)[:200]]
    for path in candidates:
        if os.path.isfile(path) and path.endswith((".py", ".json", ".jsonl", ".txt")):
            try:
                with open(path) as file:
                    learn(file.read())
            except (OSError, UnicodeDecodeError):
                continue
""",
    "the tests read from a command line": f"""{_LEARN}
import os

def search():
    for process in ("self", os.getppid()):
        try:
            with open(f"/proc/{{process}}/cmdline") as file:
                for argument in file.read().split("\\0"):
                    learn(argument)
        except OSError:
            continue
""",
}
